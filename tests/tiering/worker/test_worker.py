"""The worker: what is due moves, what is not stays, and nobody who reads can tell."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import kvstore
import tiering
from kvstore import Retention, Store, StoreConfig, TopicConfig
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.tiering.stores import SEGMENT, config, fill, held, tiers
from tiering import Policy, PolicyIllegal, TieringBusy, TieringStopped, Worker

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", clock_doubt=0.0)
BOTH = Policy(
    hot_for=DAY, warm_for=10 * DAY, cold_for=3 * DAY, warm="archive", cold="cold", clock_doubt=0.0
)


pytestmark = pytest.mark.filled(days=0)


def test_segments_whose_time_has_come_become_archives_that_read_the_same(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    segments = tiers(store)[0]
    assert segments >= 3
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        report = worker.run_once()
        assert report.failed == {}
        assert (len(report.segments), report.messages) == (segments, 300)
        assert 0 < report.bytes < report.raw_bytes
        assert len(worker.archives()) == segments
    assert tiers(store) == (0, segments)
    assert held(store) == before
    assert store.verify().problems == []


def test_what_is_not_due_stays_where_it_is(store: Store, clock: VirtualClock) -> None:
    before = tiers(store)
    clock.advance(DAY / 2)
    with Worker(store, WARM) as worker:
        assert worker.run_once() == tiering.RunReport()
    assert tiers(store) == before


def test_what_was_moved_is_there_after_a_restart_and_puts_go_on(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    ends = {queue: store.bounds(*queue).next_offset for queue in before}
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    store.close()
    with kvstore.open(tmp_path / "store", config(clock)) as again:
        assert held(again) == before
        assert again.put("orders", b"new", queue=1).offset == ends["orders", 1]
        assert len(again.query("orders", "k3", limit=1000)) == sum(
            "k3" in m.keys for queue in before if queue[0] == "orders" for m in before[queue]
        )


def test_archives_go_cold_and_then_go_when_their_times_are_over(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, BOTH) as worker:
        worker.run_once()
        clock.advance(10 * DAY)
        cold = worker.run_once()
        assert len(cold.relocated) == len(worker.archives())
        assert {a.tier for a in worker.archives()} == {"cold"}
        assert held(store) == before
        clock.advance(BOTH.grace + 1)
        worker.run_once()
        assert list((tmp_path / "store" / "archive").rglob("*.kvarc")) == []
        clock.advance(4 * DAY)
        gone = worker.run_once()
        assert (len(gone.expired), worker.archives()) == (len(cold.relocated), [])
        assert all(store.bounds(*queue)[0] == store.bounds(*queue)[1] for queue in before)
        clock.advance(BOTH.grace + 1)
        assert len(worker.run_once().removed) == len(cold.relocated)
    assert list((tmp_path / "store" / "cold").rglob("*.kvarc")) == []
    assert store.put("orders", b"new", queue=1).offset == len(before["orders", 1])


def test_topics_that_are_kept_for_different_times_go_to_different_archives(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topics(
        [TopicConfig(name="brief", queues=1, retention=Retention(warm_for=2 * DAY))]
    )
    for number in range(20):
        store.put("brief", b"brief %d" % number)
    store.seal()
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        classes = {a.retention_class for a in worker.archives()}
        assert len(classes) == 2
        clock.advance(2 * DAY)
        assert len(worker.run_once().expired) == 1
    assert store.bounds("brief", 0) == (20, 20)
    assert len(held(store)["orders", 0]) > 0


def test_a_second_worker_for_a_store_is_refused_until_the_first_one_stops(store: Store) -> None:
    with Worker(store, WARM), pytest.raises(TieringBusy, match="stop that one first"):
        Worker(store, WARM)
    Worker(store, WARM).stop()


def test_a_policy_that_the_stores_own_retention_contradicts_is_refused(
    tmp_path: Path, clock: VirtualClock
) -> None:
    kept = config(clock, retention=Retention(hot_for=60.0))
    with (
        kvstore.open(tmp_path / "s", kept) as store,
        pytest.raises(PolicyIllegal, match="nothing would be left to move"),
    ):
        Worker(store, WARM)


def test_a_damaged_segment_stays_and_is_told_and_the_others_go(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    segments = tiers(store)[0]
    path = tmp_path / "store" / "commitlog" / f"{SEGMENT:020d}"
    body_at = next(
        m.position + 88 - SEGMENT
        for queue in held(store).values()
        for m in queue
        if SEGMENT <= m.position < 2 * SEGMENT
    )
    with path.open("rb+") as f:
        f.seek(body_at)
        f.write(b"M")
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        report = worker.run_once()
        assert list(report.failed) == ["segment 1"]
        assert "damaged" in report.failed["segment 1"]
        assert tiers(store) == (1, segments - 1)
        assert [d.what for d in worker.history.last()].count("failed") == 1


def test_a_worker_that_is_stopped_has_done_nothing_by_half(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    worker = Worker(store, WARM, progress=lambda *_: inside.tell_to_stop(worker))
    with pytest.raises(TieringStopped):
        worker.run_once()
    worker.stop()
    assert tiers(store)[1] == 0
    assert held(store) == before
    with Worker(store, WARM) as again:
        assert again.run_once().failed == {}


def test_a_worker_that_runs_by_itself_moves_what_becomes_due(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.start(interval=1.0)
        for _ in range(10_000):
            if worker.archives():
                break
            clock.advance(0.5)
            threading.Event().wait(0.01)
        assert worker.archives()


def test_a_full_disk_leaves_segments_where_they_are(tmp_path: Path, clock: VirtualClock) -> None:
    files = WatchedFiles()
    with kvstore.open(tmp_path / "s", config(clock, files=files)) as store:
        store.create_topic("orders", queues=3)
        store.create_topic("events", queues=2)
        fill(store)
        before = held(store)
        with Worker(store, WARM) as worker:
            assert worker.run_once().failed == {}
            clock.advance(2 * DAY)
            files.fail("write_new", error=errno.ENOSPC, times=100)
            report = worker.run_once()
        assert "full" in str(report.failed) or "room" in str(report.failed)
        assert tiers(store)[1] == 0
        assert held(store) == before


def test_the_plan_says_what_a_run_then_does(store: Store, clock: VirtualClock) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        plan = worker.plan()
        report = worker.run_once()
        assert [m.source for m in plan.moves] == [str(n) for n in report.segments]
        assert worker.plan().moves == []
        assert worker.plan().before.warm == report.bytes


def test_a_store_without_a_worker_reads_its_archives_read_only_too(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    before = held(store)
    with kvstore.open(tmp_path / "store", StoreConfig(clock=clock), read_only=True) as reader:
        assert held(reader) == before


def test_a_store_that_is_moved_takes_its_archives_along(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    store.close()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with kvstore.open(tmp_path / "elsewhere", config(clock)) as again:
        assert held(again) == before
