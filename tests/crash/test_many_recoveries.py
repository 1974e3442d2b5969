"""Openings after an unclean end note where the log ended. There may be any number of them: when
there are too many ends, the rows that they clamp are clamped for good, and the ends go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Store
from kvstore.index import families
from kvstore.index.families import Batch, Families
from kvstore.index.keys import LOCKS, META, OFFSET_HISTORY, OFFSETS
from kvstore.meta import offsets
from tests.support import inside
from tests.support.clock import START_MS, VirtualClock
from tests.support.files import WatchedFiles, copy_folder, none
from tests.support.stores import killed, opened, put, settings

BOUND: Final = 6
GROUPS: Final = ("committed", "popped", "ordered")


def ends(store: Store) -> int:
    """How many ends of the log are noted."""
    rows = inside.families(store).rows(META, b"recovered/", b"recovered0")
    return sum(1 for _ in rows)


def test_the_ends_that_unclean_openings_note_are_bounded_and_no_progress_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_ENDS_MAX", BOUND)
    path, found = tmp_path / "0", []
    with opened(path, settings(clock=VirtualClock())) as store:
        store.create_group("g")
        path = killed(store, tmp_path / "1")
    for number in range(1, 10 * BOUND + 1):
        with opened(path, settings(clock=VirtualClock(START_MS + number * 60_000))) as store:
            found.append(ends(store))
            assert store.committed_offset("g", "t", 0) == (number - 1 or None)
            assert len(store.offset_history("g", "t", 0)) == number - 1
            put(store, number, 1)
            store.commit_offset("g", "t", 0, number)
            path = killed(store, tmp_path / str(number + 1))
    assert max(found) == BOUND
    assert found.count(0) >= 8, "they go all at once"


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """A store that lost the last 40 of the 50 messages of queue 0, but no row about them; those of
    queue 1 are all there. It has older rows, which say nothing of lost messages.
    """
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", settings(clock=clock)) as store:
        store.create_group("popped")
        store.create_group("ordered", ordered=True)
        put(store, 0, 10)
        put(store, 0, 10, queue=1)
        store.commit_offsets([("committed", "t", queue, 3) for queue in (0, 1)])
        once = killed(store, tmp_path / "once")
    clock.advance(60)
    with opened(once, settings(files=files, clock=clock)) as store:
        put(store, 10, 40)
        store.commit_offsets([("committed", "t", queue, 10) for queue in (0, 1)])
        clock.advance(2)
        store.commit_offset("committed", "t", 0, 50)
        for group in GROUPS[1:]:
            for queue, _ in itertools.product((0, 1), range(3)):
                store.pop(group, "t", queue=queue, limit=15, invisible_for=30)
        return files.power_cut(store.path, tmp_path / "ahead", none)


def copied(path: Path, target: Path) -> Path:
    copy_folder(path, target)
    return target


def answers(path: Path) -> dict[str, Any]:
    """The answers that groups get when new messages have taken the places of the lost ones."""
    now = START_MS + 3600_000
    with opened(path, settings(clock=VirtualClock(now))) as store:
        assert store.bounds("t", 0).next_offset < 50
        put(store, 1000, 60)
        found: dict[str, Any] = {}
        for group, queue in itertools.product(GROUPS, (0, 1)):
            popped = store.pop(group, "t", queue=queue, limit=100)
            found[f"{group} {queue}"] = (
                store.committed_offset(group, "t", queue),
                [c for c in store.offset_history(group, "t", queue) if c.committed_at < now],
                [(p.message.body, p.attempt) for p in popped],
            )
        return found


def rows(store: Store) -> dict[str, int]:
    return {
        name: sum(1 for _ in inside.families(store).rows(name, b""))
        for name in (OFFSETS, OFFSET_HISTORY, LOCKS)
    }


def test_rows_that_are_clamped_for_good_say_the_same_as_those_that_are_clamped_when_used(
    ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = answers(copied(ahead, tmp_path / "kept"))
    assert kept["committed 0"][0] == 10, "it was 50"
    assert (len(kept["popped 0"][2]), kept["popped 0"][2][0][1]) == (70, 2)
    monkeypatch.setattr(offsets, "_ENDS_MAX", 0)
    with opened(ahead, settings(clock=VirtualClock())) as store:
        assert ends(store) == 0
        left = rows(store)
    assert left[LOCKS] > 0
    assert answers(ahead) == kept


def test_a_clamping_that_is_killed_at_any_step_is_done_again(
    ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = answers(copied(ahead, tmp_path / "kept"))
    monkeypatch.setattr(offsets, "_ENDS_MAX", 0)
    monkeypatch.setattr(families, "_ROWS_AT_ONCE", 1)
    write = Families.write
    for number in itertools.count(1):
        path, done = copied(ahead, tmp_path / str(number)), itertools.count(1)

        def until(
            families: Families,
            batch: Batch,
            *,
            sync: bool = False,
            done: Iterator[int] = done,
            last: int = number,
        ) -> None:
            if next(done) == last:
                raise KeyboardInterrupt
            write(families, batch, sync=sync)

        with monkeypatch.context() as striking:
            striking.setattr(Families, "write", until)
            with suppress(KeyboardInterrupt):
                with kvstore.open(path, config=settings(clock=VirtualClock())) as store:
                    assert ends(store) == 0
                break
        assert answers(path) == kept, f"killed at its write {number}"
    assert number > 6


def test_damage_that_keeps_offsets_from_being_clamped_does_not_keep_the_store_closed(
    ahead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_ENDS_MAX", 0)
    with kvstore.open(ahead, config=settings(clock=VirtualClock())) as store:
        put(store, 60, 3)
        store.commit_offset("committed", "t", 0, 12)
        batch = inside.families(store).batch()
        for name in (OFFSETS, OFFSET_HISTORY, LOCKS):
            key, _ = next(iter(inside.families(store).rows(name, b"")))
            batch.put(name, key, b"?")
        inside.families(store).write(batch)
        again = killed(store, ahead.parent / "again")
    with kvstore.open(again, config=settings(clock=VirtualClock())) as store:
        assert ends(store) == 0
        assert store.committed_offset("committed", "t", 1) == 10
