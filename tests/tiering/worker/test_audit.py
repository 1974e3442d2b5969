"""An audit finds what is wrong with archives, with the catalog, and what is in no catalog."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
import tiering
from kvstore import Message, Store, StoreConfig
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles
from kvstore.opening.viewing import read_catalog
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import merge
from tiering.catalog.catalog import ArchiveRow, decode_rows, encode_row
from tiering.executor.pool import Inline
from tiering.operations import inspection
from tiering.places.publish import publish
from tiering.worker.audit import AuditContext, Orphan, audit

POLICY = tiering.Policy(hot_for=60, warm="archive", watermarks=None)


@pytest.fixture
def clock() -> VirtualClock:
    # That of the file system, by which orphans are young or old.
    return VirtualClock(SystemClock().now_ms())


@pytest.fixture
def store(empty: Store, clock: VirtualClock) -> Store:
    """Three archives, and something in the log."""
    empty.create_topic("orders", queues=2)
    for number in range(200):
        empty.put("orders", b"%d" % number + bytes(1000), keys=[f"{number}"])
    clock.advance(120)
    with tiering.Worker(empty, POLICY) as worker:
        assert len(worker.run_once().archives) == 3
    return empty


@pytest.fixture
def worker(store: Store) -> Iterator[tiering.Worker]:
    with tiering.Worker(store, POLICY) as opened:
        yield opened


def archives(store: Store) -> list[Path]:
    return sorted((store.path / "archive").rglob("*.kvarc"))


def rows(store: Store) -> list[ArchiveRow]:
    return decode_rows(store.catalog().rows)


def test_whole_archives_pass(worker: tiering.Worker, store: Store) -> None:
    report = worker.verify()
    assert report.ok
    assert report.archives == 3
    assert report.messages == sum(row.messages for row in rows(store))
    assert report.bytes == sum(path.stat().st_size for path in archives(store))
    assert report.orphans == []


def test_a_flipped_byte_costs_its_archive_alone(worker: tiering.Worker, store: Store) -> None:
    path = archives(store)[1]
    data = bytearray(path.read_bytes())
    data[40] ^= 0x10
    path.chmod(0o644)
    path.write_bytes(data)
    report = worker.verify()
    assert not report.ok
    assert all(path.name in problem.archive for problem in report.problems)
    assert any("crc32c" in problem.reason for problem in report.problems)
    assert any(problem.block >= 0 for problem in report.problems)


def test_an_archive_that_is_cut_off_or_gone_is_a_problem(
    worker: tiering.Worker, store: Store
) -> None:
    gone, cut, _ = archives(store)
    gone.unlink()
    cut.chmod(0o644)
    cut.write_bytes(cut.read_bytes()[:-100])
    found = {Path(problem.archive).name for problem in worker.verify().problems}
    assert found == {gone.name, cut.name}


def test_a_catalog_that_says_something_else_is_a_problem(
    worker: tiering.Worker, store: Store
) -> None:
    row = rows(store)[0]
    wrong = msgspec.structs.replace(row, messages=row.messages + 1)
    store.handover.set_rows([(row.catalog_key, encode_row(wrong))])
    (problem,) = worker.verify().problems
    assert f"messages {row.messages + 1}, its manifest {row.messages}" in problem.reason


def test_an_archive_that_is_whole_and_not_the_one_that_was_put_is_a_problem(
    worker: tiering.Worker, store: Store
) -> None:
    row = rows(store)[0]
    other = msgspec.structs.replace(row, crc=row.crc ^ 1)
    store.handover.set_rows([(row.catalog_key, encode_row(other))])
    (problem,) = worker.verify().problems
    assert "the catalog says" in problem.reason
    assert f"{row.crc:#010x}" in problem.reason


def test_archives_that_a_writer_replaces_during_an_audit_beside_it_are_no_problem(
    store: Store,
) -> None:
    def replace(*_: object) -> None:
        if len(rows(store)) == 3:
            merge(store, [row.number for row in rows(store)[:2]])

    with kvstore.open(store.path, store.config, read_only=True) as reader:
        place_of, others = inspection.places_of(reader, ())
        report = audit(
            AuditContext(
                catalog=partial(read_catalog, reader.path, reader.config), place_of=place_of,
                places=others, clock=store.config.clock, executor=Inline(), options={},
                progress=replace,
            )
        )  # fmt: skip
    assert len(rows(store)) == 2
    assert report.problems == []
    archives(store)[-1].unlink()
    with tiering.Worker(store, POLICY) as worker:
        assert len(worker.verify().problems) == 1


def test_a_place_that_reads_well_and_cannot_be_listed_is_a_problem(
    tmp_path: Path, clock: VirtualClock
) -> None:
    class Unlisted(LocalFiles):
        def list_dir(self, path: Path) -> list[str]:
            if path.is_relative_to(tmp_path / "store" / "archive"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().list_dir(path)

    config = StoreConfig(clock=clock, files=Unlisted())
    with kvstore.open(tmp_path / "store", config) as opened:
        opened.create_topic("orders")
        opened.put("orders", b"one")
        opened.seal()
        clock.advance(120)
        with tiering.Worker(opened, POLICY) as working:
            assert working.run_once().failed == {}
            (problem,) = working.verify().problems
    assert (problem.archive, problem.block) == (str(tmp_path / "store" / "archive"), -1)
    assert "can't be listed" in problem.reason


def test_orphans_are_listed_and_removed_only_when_asked_and_old(
    worker: tiering.Worker, store: Store, clock: VirtualClock
) -> None:
    known = archives(store)
    orphan = known[0].with_name(known[0].name.replace("-0000000", "-0000900"))
    shutil.copy(known[0], orphan)
    foreign = store.path / "archive" / ("f" * 32) / orphan.name
    foreign.parent.mkdir()
    shutil.copy(known[0], foreign)
    shutil.copy(known[0], orphan.parent / "notes.txt")
    (listed,) = worker.verify().orphans
    assert (Path(listed.key).name, listed.young, listed.removed) == (orphan.name, True, False)
    assert worker.verify(remove_orphans=True).orphans == [listed]
    clock.advance(2 * POLICY.grace)
    (old,) = worker.verify().orphans
    assert (old.young, old.removed) == (False, False)
    (removed,) = worker.verify(remove_orphans=True).orphans
    assert removed.removed
    assert archives(store) == sorted([*known, foreign])
    assert (orphan.parent / "notes.txt").exists()
    assert worker.verify().orphans == []


def test_what_waits_for_its_end_is_no_orphan(store: Store, tmp_path: Path) -> None:
    policy = tiering.Policy(
        hot_for=60, warm_for=600, cold_for=1e6, warm="archive", cold=str(tmp_path / "cold"),
        watermarks=None, clock_doubt=0,
    )  # fmt: skip
    with tiering.Worker(store, policy) as worker:
        worker.run_once()
        for row in rows(store):
            relocator, number = inside.relocator(worker), store.handover.take_number()
            relocator.switch(row, relocator.copy(row, number, lambda: inside.check_worker(worker)))
        report = worker.verify(remove_orphans=True)
    assert (report.archives, report.retired) == (3, 3)
    assert (report.problems, report.orphans) == ([], [])
    assert len(archives(store)) == 3


def test_what_a_put_has_left_that_was_cut_off_is_listed_and_removed_like_an_orphan(
    worker: tiering.Worker, store: Store, clock: VirtualClock
) -> None:
    known = archives(store)
    left = known[0].with_name(f".{known[0].name}.0123456789abcdef.part")
    left.write_bytes(b"the beginning of an archive")
    foreign = store.path / "archive" / ("f" * 32) / left.name
    foreign.parent.mkdir()
    foreign.write_bytes(b"another store's")
    (young,) = worker.verify(remove_orphans=True).orphans
    assert (Path(young.key).name, young.unfinished, young.young) == (left.name, True, True)
    clock.advance(2 * POLICY.grace)
    (removed,) = worker.verify(remove_orphans=True).orphans
    assert removed.removed
    assert not left.exists()
    assert foreign.exists()
    assert archives(store) == known
    assert worker.verify().ok


def test_what_an_attach_is_bringing_is_no_orphan_however_long_it_takes(
    worker: tiering.Worker, store: Store, clock: VirtualClock, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = tmp_path / "source"
    with (
        kvstore.open(source, StoreConfig(segment_size=64 << 10, clock=clock)) as other,
        tiering.Worker(other, POLICY) as archiving,
    ):
        other.create_topic("visits", queues=1)
        other.put_batch([Message("visits", b"%d" % n) for n in range(50)])
        other.seal()
        clock.advance(120)
        assert archiving.run_once().failed == {}
    orphans: list[Orphan] = []

    def slowly(*given: Any) -> None:
        publish(*given)
        clock.advance(3 * POLICY.grace)
        orphans.extend(worker.verify(remove_orphans=True).orphans)

    monkeypatch.setattr(import_module("tiering.worker.context"), "publish", slowly)
    tiering.attach(store, source / "archive")
    assert [o.removed for o in orphans] == [False]
    assert len(store.pull("visits", 0, 0, limit=99).messages) == 50
    assert worker.verify(remove_orphans=True).orphans == []
    assert store.verify(archives=True).problems == []
