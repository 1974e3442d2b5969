"""Leftovers of cut-off puts: the next run removes them, and none outlives an erasure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kvstore import Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.stores import held
from tiering import Policy, Worker
from tiering.places.publish import Intent, Intents

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", clock_doubt=0.0)


def first_archive(store: Store) -> Path:
    return min((store.path / "archive").rglob("*.kvarc"))


def unfinished(archive: Path) -> Path:
    """The file that a put of the archive leaves when it is cut off in the middle."""
    left = archive.with_name(f".{archive.name}.0123456789abcdef.part")
    left.write_bytes(archive.read_bytes()[:1000])
    return left


def test_the_next_run_removes_what_a_worker_left_that_was_cut_off(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    archive = first_archive(store)
    number = 900
    key = f"{archive.parent.name}/{archive.name.replace('-0000000', '-0000900')}"
    part = archive.with_name(f".{Path(key).name}.0123456789abcdef.part")
    part.write_bytes(b"a beginning")
    others = unfinished(archive)
    copies = store.path / "tiering" / "shifting"
    copies.mkdir()
    (copies / "0000000007").write_bytes(archive.read_bytes())
    Intents(store.path / "tiering" / "intents", store.config.files).note(
        Intent(number, "archive", key)
    )
    with Worker(store, WARM) as worker:
        removed = worker.run_once().removed
        assert any(name.endswith(key) for name in removed)
        assert "shifting/0000000007" in removed
    assert not part.exists()
    assert others.exists(), "nobody knows what announced it; an audit finds it"
    assert not copies.exists()


def test_an_erasure_removes_what_puts_have_left_that_were_cut_off(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        archive = first_archive(store)
        left = unfinished(archive)
        # Killed between the two steps of giving it its name: it is the archive by another one.
        linked = archive.with_name(f".{archive.name}.fedcba9876543210.part")
        os.link(archive, linked)
        foreign = store.path / "archive" / ("f" * 32) / left.name
        foreign.parent.mkdir()
        shutil.copy(left, foreign)
        before = held(store)
        report = worker.erase(key="nobody-has-it")
        assert report.is_proven, report.failed
        assert sorted(Path(name).name for name in report.removed) == sorted(
            [left.name, linked.name]
        )
        assert not left.exists()
        assert not linked.exists()
        assert foreign.exists()
        assert held(store) == before
        assert worker.verify().ok


def test_an_orphan_keeps_an_erasure_from_being_proven(store: Store, clock: VirtualClock) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        archive = first_archive(store)
        orphan = archive.with_name(archive.name.replace("-0000000", "-0000900"))
        shutil.copy(archive, orphan)
        whole = archive.read_bytes()
        report = worker.erase(topic="events")
        assert not report.is_proven
        assert [Path(name).name for name in report.failed] == [orphan.name]
        assert orphan.read_bytes() == whole, "it may be what the catalog has lost"
        orphan.unlink()
        assert worker.erase(topic="events").is_proven


def test_what_can_not_be_tidied_keeps_an_erasure_from_being_proven(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    """It may be an object with what is erased."""
    away = tmp_path / "away"
    policy = Policy(hot_for=DAY, warm_for=DAY, warm="archive", cold=str(away), clock_doubt=0.0)
    Intents(store.path / "tiering" / "intents", store.config.files).note(
        Intent(900, str(away), "a/b.kvarc", 5, 1)
    )
    with Worker(store, policy) as worker:
        inside.tried_places(worker).add(str(away))
        report = worker.erase(key="k1")
        assert (report.is_proven, report.found) == (False, 0)
        assert f"tidying {away}" in report.failed
        away.mkdir()
        assert worker.erase(key="k1").is_proven
