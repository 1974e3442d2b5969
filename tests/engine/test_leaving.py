"""Segments in which messages wait: they leave where that frees the disk, and are not written again
and again for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import Message, Retention, Store, StoreConfig
from kvstore.engine.leaving import stuck_segments
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.costs import Costs
from tests.support.files import WatchedFiles
from tests.support.stores import SEGMENT, killed, opened, settings
from tiering import Policy, Worker

DAY: Final = 86_400
WAITS: Final = 1000
"""Bytes of the body of a message that waits."""
A_SEGMENT: Final = 54
"""Such messages that a segment takes."""


def bent(clock: VirtualClock, **changed: Any) -> StoreConfig:
    """Settings with which nothing is done but what a test asks for."""
    changed.setdefault("retention", Retention(max_bytes=SEGMENT))
    never = {"retention_interval": 1e9, "checkpoint_interval": 1e9, "delete_interval": 0.0}
    return settings(clock=clock, **{**never, **changed})


def wait(store: Store, segments: int) -> int:
    """Puts messages that wait for a day, some segments of them; returns how many."""
    count = segments * A_SEGMENT + 1
    for n in range(count):
        store.put("t", b"%d" % n + bytes(WAITS), queue=0, delay=DAY)
    return count


def others(store: Store, segments: int) -> None:
    """Puts messages that don't wait, more than so many segments of them."""
    for _ in range(segments + 1):
        store.put_batch([Message("t", bytes(SEGMENT // 16), queue=1)] * 16)


def all_arrive(store: Store, clock: VirtualClock, count: int) -> bool:
    """Whether all messages that wait come when they are due, each once."""
    clock.advance(DAY)
    inside.deliver_due(store)
    found = [store.get("t", 0, n).body[:-WAITS] for n in range(*store.bounds("t", 0))]
    return sorted(map(int, found)) == list(range(count))


# --- the rule ---


@given(
    shares=st.lists(st.integers(0, 100), max_size=12),
    unknown=st.sets(st.integers(0, 11)),
)
def test_a_segment_stays_if_no_stretch_that_it_begins_frees_anything(
    shares: list[int], unknown: set[int]
) -> None:
    waiting = {n: share for n, share in enumerate(shares) if n not in unknown}

    def frees(first: int, last: int) -> bool:
        wait = sum(waiting.get(n, 100) for n in range(first, last + 1))
        return 100 * (last + 1 - first) - wait >= wait

    sealed = range(len(shares))
    wanted = {n for n in sealed if not any(frees(n, last) for last in sealed[n:])}
    assert stuck_segments(sealed, waiting, 100) == wanted


@given(st.lists(st.integers(0, 100), max_size=40))
def test_what_leaves_writes_no_more_than_it_frees(shares: list[int]) -> None:
    waiting = dict(enumerate(shares))
    log, moved, left = list(waiting), 0, 0
    while log and log[0] not in stuck_segments(log, waiting, 100):
        moved += waiting[log.pop(0)]
        left += 1
    assert 2 * moved <= 100 * left


# --- retention ---


@pytest.mark.parametrize("reason", ["size", "age", "disk"])
def test_a_log_of_messages_that_wait_is_not_written_again(tmp_path: Path, reason: str) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    retention = Retention(hot_for=60) if reason == "age" else Retention(max_bytes=SEGMENT)
    if reason == "disk":
        retention = Retention(max_bytes=1 << 40)
        files.used = 0.86
    with opened(tmp_path / "s", bent(clock, retention=retention, files=files)) as store:
        count = wait(store, 5)
        end = store.stats().end_position
        for _ in range(5):
            clock.advance(100)
            assert store.apply_retention() == 0
        assert store.stats().end_position == end
        assert store.timers("t").count == count
        assert all_arrive(store, clock, count)


def test_segments_leave_when_enough_of_their_messages_wait_no_more(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "s", bent(clock)) as store:
        for n in range(5 * A_SEGMENT):
            store.put("t", b"%d" % n + bytes(WAITS), queue=0, delay=DAY if n % 4 else 10)
        assert store.apply_retention() == 0
        for one in store.timers("t", limit=5 * A_SEGMENT).messages[5 * A_SEGMENT // 4 :: 2]:
            store.cancel(one.message_id)
        clock.advance(10)
        inside.deliver_due(store)
        assert store.apply_retention() >= 4
        end = store.stats().end_position
        assert store.apply_retention() == 0
        assert store.stats().end_position == end


def test_messages_that_wait_keep_no_others_in_the_log(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "s", bent(clock)) as store:
        count = wait(store, 5)
        others(store, 20)
        store.apply_retention()
        assert inside.log(store).first >= 20
        assert store.stats().log_bytes <= 2 * 5 * SEGMENT + 3 * SEGMENT
        path = killed(store, tmp_path / "k")
        assert all_arrive(store, clock, count)
    with opened(path, bent(clock)) as again:
        assert_whole(again)
        assert all_arrive(again, clock, count)


@pytest.mark.parametrize("segments", [1, 5, 25])
def test_retention_writes_no_more_than_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    """Beside 1, 5 and 25 segments that wait: of bytes, and of operations of a look for nothing."""
    clock = VirtualClock()
    with opened(tmp_path / "s", bent(clock)) as store:
        count = wait(store, segments)
        assert store.apply_retention() == 0
        puts, begun, longest = store.stats().end_position, store.stats().end_position, 0
        for _ in range(40):
            others(store, 1)
            puts += store.stats().end_position - begun
            store.apply_retention()
            begun = store.stats().end_position
            longest = max(longest, store.stats().log_bytes)
        assert begun - puts <= puts, "as much was moved as was put"
        assert longest <= (2 * segments + 5) * SEGMENT
        assert store.timers("t").count == count
        costs = Costs(monkeypatch)
        while store.apply_retention():
            pass
        with costs.counting() as found:
            assert store.apply_retention() == 0
        assert found.total() < 20
        assert all_arrive(store, clock, count)


# --- archives ---


@pytest.mark.parametrize("hot_for", [0.01, 3600.0])
def test_a_run_of_a_worker_ends_beside_messages_that_wait(tmp_path: Path, hot_for: float) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "s", bent(clock, retention=Retention())) as store:
        count = wait(store, 5)
        clock.advance(7200)
        policy = Policy(hot_for=hot_for, warm="archive", clock_doubt=0.0)
        end = store.stats().end_position
        with Worker(store, policy) as worker:
            assert worker.run_once().segments == []
            assert store.stats().end_position == end
            others(store, 8)
            clock.advance(7200)
            put = store.stats().end_position
            first = len(worker.run_once().segments)
            assert first >= 8
            assert store.stats().end_position - put <= 6 * SEGMENT, "each was moved once"
            clock.advance(7200)
            worker.run_once()
            end = store.stats().end_position
            clock.advance(7200)
            assert worker.run_once().segments == []
            assert store.stats().end_position == end
        assert all_arrive(store, clock, count)
