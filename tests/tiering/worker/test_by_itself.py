"""A worker that runs by itself merges, too: to the policy's size, at its hours, what is not due."""

from __future__ import annotations

import threading
from collections.abc import Callable

import google_crc32c
import msgspec
import pytest

from kvstore import Store
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.tiering.stores import fill, held
from tiering import Policy, RunReport, Worker
from tiering.archive.layout import TRAILER, TRAILER_COVERED, TRAILER_SIZE
from tiering.worker.rewriting import FAILED_FOR, MERGING

DAY = 86_400.0
WARM = Policy(
    hot_for=DAY, warm_for=100 * DAY, warm="archive", clock_doubt=0.0, watermarks=(0.7, 0.8)
)


def changed(**fields: object) -> Policy:
    return msgspec.structs.replace(WARM, **fields)


@pytest.fixture
def files() -> WatchedFiles:
    found = WatchedFiles()
    found.used = 0.5
    return found


def test_what_a_run_has_moved_is_merged_behind_it_and_told(store: Store) -> None:
    before = held(store)
    told: list[tuple[str, int, int]] = []
    with Worker(store, WARM, progress=lambda *what: told.append(what)) as worker:
        report = worker.run_and_merge()
        assert report.failed == {}
        assert (len(report.segments), len(report.merged)) == (3, 3)
        assert [a.generation for a in worker.archives()] == [1]
        again = worker.run_and_merge()
        assert again == RunReport()
    assert [(done, total > 0) for what, done, total in told if what == MERGING] == [(0, True)]
    assert held(store) == before


def test_running_once_does_not_merge_and_neither_does_a_policy_without_a_size(
    store: Store,
) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        assert len(worker.archives()) == 3
    with Worker(store, changed(merge_bytes=None)) as worker:
        assert worker.run_and_merge().merged == []
    with Worker(store, changed(merge_bytes=1)) as worker:
        assert worker.run_and_merge().merged == []
        assert len(worker.archives()) == 3


def test_merging_waits_for_the_hours_and_for_room(
    store: Store, clock: VirtualClock, files: WatchedFiles
) -> None:
    hour = clock.local_hour()
    with Worker(store, WARM) as worker:
        worker.run_once()
    with Worker(store, changed(hours=((hour + 5) % 24, (hour + 6) % 24))) as worker:
        assert worker.run_and_merge().merged == []
        files.used = 0.75
        assert worker.run_and_merge().merged == []
        clock.advance(5 * 3600)
        assert worker.run_and_merge().merged == []
        files.used = 0.5
        assert len(worker.run_and_merge().merged) == 3


def test_what_becomes_due_while_others_merge_goes_first(store: Store, clock: VirtualClock) -> None:
    def tell(what: str, done: int, total: int) -> None:
        if what == MERGING and what not in told:
            fill(store, 60, first=500)
            clock.advance(2 * DAY)
        told.append(what)

    told: list[str] = []
    with Worker(store, WARM, progress=tell) as worker:
        report = worker.run_and_merge()
        assert len(report.segments) > 3
        assert store.segments() == []
        assert [a.generation for a in worker.archives()] == [1, 0]


def damaged(data: bytearray) -> None:
    data[100] ^= 1


def of_a_newer_version(data: bytearray) -> None:
    footer, size, version, zero, _, magic = TRAILER.unpack(data[-TRAILER_SIZE:])
    end = TRAILER.pack(footer, size, version + 1, zero, 0, magic)
    crc = google_crc32c.value(end[:TRAILER_COVERED])
    data[-TRAILER_SIZE:] = TRAILER.pack(footer, size, version + 1, zero, crc, magic)


@pytest.mark.parametrize("harm", [damaged, of_a_newer_version])
def test_an_archive_that_cannot_be_read_is_noted_once_an_hour_and_the_others_merge(
    store: Store, clock: VirtualClock, harm: Callable[[bytearray], None]
) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        first = worker.archives()[0]
        path = store.path / "archive" / first.key
        data = bytearray(path.read_bytes())
        harm(data)
        path.write_bytes(data)
        report = worker.run_and_merge()
        assert set(report.failed) == {first.key}
        assert len(report.merged) == 2
        assert worker.run_and_merge().failed == {}
        clock.advance(FAILED_FOR + 1)
        assert set(worker.run_and_merge().failed) == {first.key}


def test_a_worker_in_a_thread_merges(store: Store, clock: VirtualClock) -> None:
    with Worker(store, WARM) as worker:
        worker.start(interval=1.0)
        for _ in range(10_000):
            if [a.generation for a in worker.archives()] == [1]:
                break
            clock.advance(0.5)
            threading.Event().wait(0.01)
        assert [a.generation for a in worker.archives()] == [1]
