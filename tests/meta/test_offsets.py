"""Committed offsets: batches, history, resets and lag."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from kvstore import (
    CallerError,
    GroupNotFound,
    InFlight,
    Lag,
    MessageIllegal,
    OffsetCommit,
    QueueNotFound,
    Store,
    StoreConfig,
    TopicNotFound,
)
from kvstore.index.families import Batch
from kvstore.index.keys import META, OFFSET_HISTORY, OFFSETS, U32, U64, offset_key
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from tests.support import inside
from tests.support.clock import START_MS, VirtualClock
from tests.support.raising import raising
from tests.support.segment_files import batch
from tests.support.stores import SEGMENT, SMALL, Opens


def timed(clock: VirtualClock, **settings: Any) -> StoreConfig:
    return StoreConfig(segment_size=SEGMENT, clock=clock, **settings)


@pytest.fixture
def nine(opens: Opens, clock: VirtualClock) -> Opens:
    """Opens a store with the virtual clock; queue 0 of "t" has nine messages."""

    def make(**settings: Any) -> Store:
        store = opens(timed(clock, **settings))
        store.create_topic("t")
        store.put_batch(batch("t", 9))
        return store

    return make


def done(store: Store) -> None:
    """Pops a message of queue 0, and acks it."""
    (popped,) = store.pop("g", "t", queue=0)
    store.ack(popped.receipt)


def commits(history: list[OffsetCommit]) -> list[tuple[int, int]]:
    """Seconds since the start, and offsets."""
    return [((c.committed_at - START_MS) // 1000, c.offset) for c in history]


def rows_written(store: Store) -> int:
    """How often anything was written to RocksDB so far."""
    return int(inside.database(store).latest_sequence_number())


# --- committing ---


def test_a_batch_of_commits_is_kept_and_the_later_of_two_for_a_queue_counts(
    store: Store, opens: Opens
) -> None:
    store.put_batch(batch("t", 5) + batch("t", 3, queue=1))
    store.commit_offsets([("g", "t", 0, 5), ("h", "t", 1, 2), ("g", "t", 0, 3)])
    for _ in range(2):
        assert store.committed_offset("g", "t", 0) == 3
        assert store.committed_offset("h", "t", 1) == 2
        store.close()
        store = opens()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("g", "t", 0, 6), CallerError),
        (("g", "t", 9, 0), QueueNotFound),
        (("g", "none", 0, 0), TopicNotFound),
        (("not a group", "t", 0, 0), MessageIllegal),
        ((5, "t", 0, 0), MessageIllegal),
    ],
    ids=str,
)
def test_of_a_batch_with_a_commit_that_is_none_nothing_is_kept(
    store: Store, wrong: Any, error: type[Exception]
) -> None:
    store.put_batch(batch("t", 5))
    for commits in ([("new", "t", 0, 5), wrong], [wrong, ("new", "t", 0, 5)]):
        with pytest.raises(error):
            store.commit_offsets(commits)
        assert store.groups() == []
        assert list(inside.families(store).rows(OFFSETS, b"")) == []


def test_of_commits_that_are_refused_because_of_locks_no_new_group_is_made(store: Store) -> None:
    store.put_batch(batch("t", 5))
    store.create_group("busy")
    store.pop("busy", "t", queue=0)
    for commits in (
        [("new", "t", 0, 1), ("busy", "t", 0, 1)],
        [("busy", "t", 0, 1), ("new", "t", 0, 1)],
    ):
        with pytest.raises(InFlight):
            store.commit_offsets(commits)
        assert [group.name for group in store.groups()] == ["busy"]
    store.commit_offsets([("new", "t", 0, 1), ("new", "t", 1, 0), ("newer", "t", 0, 2)])
    assert [group.name for group in store.groups()] == ["busy", "new", "newer"]
    assert store.committed_offset("newer", "t", 0) == 2


def test_of_two_who_commit_for_a_new_group_at_once_both_are_heard(store: Store) -> None:
    store.put_batch(batch("t", 100) + batch("t", 100, queue=1))
    for number in range(20):
        barrier = threading.Barrier(2)

        def commit(queue: int, name: str, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store.commit_offset(name, "t", queue, 7)

        threads = [threading.Thread(target=commit, args=(q, f"g{number}")) for q in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.committed_offset(f"g{number}", "t", q) for q in (0, 1)] == [7, 7]


def test_a_commit_that_changes_nothing_writes_nothing(store: Store) -> None:
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 3)
    before = rows_written(store)
    store.commit_offset("g", "t", 0, 3)
    assert rows_written(store) == before
    store.commit_offsets([("g", "t", 0, 3), ("g", "t", 0, 4)])
    assert rows_written(store) == before + 2, "an offset and its history"


def test_a_commit_that_is_to_be_synced_is_written_though_it_is_known(store: Store) -> None:
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 3)
    before = rows_written(store)
    store.commit_offset("g", "t", 0, 3, sync=True)
    assert rows_written(store) > before


def test_commits_are_synced_at_the_interval_and_only_if_there_were_any(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine(offset_sync_interval=5.0)
    offsets = inside.offsets(store)
    assert not offsets.sync_due()
    store.commit_offset("g", "t", 0, 1)
    offsets.sync()
    assert not offsets.sync_due()
    store.commit_offset("g", "t", 0, 2)
    assert not offsets.sync_due()
    clock.advance(4.9)
    assert not offsets.sync_due()
    inside.housekeeper(store).stop()  # it would do it
    clock.advance(0.2)
    assert offsets.sync_due()
    offsets.sync()
    assert not offsets.sync_due()
    store.commit_offset("g", "t", 0, 3, sync=True)
    clock.advance(60)
    assert not offsets.sync_due()


def test_without_an_interval_nothing_is_synced_by_itself(nine: Opens, clock: VirtualClock) -> None:
    store = nine(offset_sync_interval=None)
    store.commit_offset("g", "t", 0, 0)
    clock.advance(1e6)
    assert not inside.offsets(store).sync_due()


# --- staging, for who writes offsets with something else ---


def test_an_offset_staged_in_a_batch_is_seen_when_the_batch_is_written(store: Store) -> None:
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 1)
    group, topic = store.group("g").id, store.topic("t").id
    rows = inside.families(store).batch()
    inside.offsets(store).put_offset(rows, group, topic, 0, 4)
    assert store.committed_offset("g", "t", 0) == 1
    inside.families(store).write(rows)
    inside.offsets(store).written()
    assert store.committed_offset("g", "t", 0) == 4
    assert [c.offset for c in store.offset_history("g", "t", 0)][-1] == 4
    assert not inside.offsets(store).is_synced


# --- history ---


def test_history_has_what_was_committed_when_oldest_first(
    nine: Opens, opens: Opens, clock: VirtualClock
) -> None:
    store = nine()
    store.put_batch(batch("t", 9, queue=1))
    store.create_group("other")
    for at, offset in ((0, 3), (10, 5), (20, 2)):
        store.commit_offset("g", "t", 0, offset)
        store.commit_offset("g", "t", 1, offset + 1)
        store.commit_offset("other", "t", 0, 9)
        clock.advance(10)
        assert at + 10 == (clock.now_ms() - START_MS) // 1000
    for _ in range(2):
        assert commits(store.offset_history("g", "t", 0)) == [(0, 3), (10, 5), (20, 2)]
        assert commits(store.offset_history("g", "t", 1)) == [(0, 4), (10, 6), (20, 3)]
        assert store.offset_history("g", "t", 2) == []
        store.close()
        store = opens(timed(clock))


def test_of_the_commits_of_an_interval_the_last_is_kept_with_its_own_time(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine(offset_history_interval=1.0)
    for offset in range(8):
        store.commit_offset("g", "t", 0, offset)
        clock.advance(0.3)
    found = [(c.committed_at - START_MS, c.offset) for c in store.offset_history("g", "t", 0)]
    assert found == [(900, 3), (1800, 6), (2100, 7)]


def test_of_the_commits_of_one_millisecond_the_last_is_kept(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine(offset_history_interval=0)
    for offset in (1, 5, 2):
        store.commit_offset("g", "t", 0, offset)
    clock.advance(0.001)
    store.commit_offset("g", "t", 0, 7)
    assert store.offset_history("g", "t", 0) == [
        OffsetCommit(2, START_MS),
        OffsetCommit(7, START_MS + 1),
    ]


def test_history_is_shown_as_long_as_it_is_kept_and_then_swept_away(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine(offset_history_for=100.0)
    inside.housekeeper(store).stop()  # it sweeps too
    for offset in range(1, 5):
        store.commit_offset("g", "t", 0, offset)
        clock.advance(40)
    assert commits(store.offset_history("g", "t", 0)) == [(80, 3), (120, 4)]
    assert rows_of_history(store) == 4
    sweep(store)
    assert rows_of_history(store) == 2
    assert commits(store.offset_history("g", "t", 0)) == [(80, 3), (120, 4)]
    clock.advance(1000)
    assert store.offset_history("g", "t", 0) == []
    sweep(store)
    assert rows_of_history(store) == 0
    assert store.committed_offset("g", "t", 0) == 4


def test_a_sweep_goes_on_where_it_ended_and_takes_no_more_than_a_slice(
    opens: Opens, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.meta.history._SWEPT_AT_ONCE", 3)
    store = opens(timed(clock, offset_history_for=10.0))
    store.create_topic("t", queues=8)
    inside.housekeeper(store).stop()
    store.commit_offsets([("g", "t", q, 0) for q in range(8)])
    clock.advance(100)
    store.commit_offset("g", "t", 2, 0, sync=True)
    assert [inside.offsets(store).history_rows.sweep() for _ in range(3)] == [3, 3, 2]
    assert not inside.offsets(store).history_rows.sweep_due()
    assert rows_of_history(store) == 1
    clock.advance(3600)
    assert inside.offsets(store).history_rows.sweep_due()


def test_without_history_no_row_of_it_is_written_and_old_ones_go(
    nine: Opens, opens: Opens, clock: VirtualClock
) -> None:
    store = nine()
    store.commit_offset("g", "t", 0, 0)
    store.close()
    store = opens(timed(clock, offset_history_for=0))
    inside.housekeeper(store).stop()
    store.commit_offset("g", "t", 1, 0)
    assert rows_of_history(store) == 1
    assert store.offset_history("g", "t", 1) == []
    sweep(store)
    assert rows_of_history(store) == 0


def test_a_clock_that_is_set_back_does_not_turn_the_order_of_history_round(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine()
    store.commit_offset("g", "t", 0, 1)
    clock.advance(7200)
    store.commit_offset("g", "t", 0, 2)
    clock.step(-3600)
    store.commit_offset("g", "t", 0, 3)
    found = store.offset_history("g", "t", 0)
    assert [c.offset for c in found] == [1, 3]
    clock.step(7200)
    store.commit_offset("g", "t", 0, 4)
    assert [c.offset for c in store.offset_history("g", "t", 0)] == [1, 3, 4]


@pytest.mark.parametrize("looks", [False, True])
def test_a_look_at_the_history_changes_no_time_of_what_is_committed_later(
    nine: Opens, clock: VirtualClock, looks: bool
) -> None:
    store = nine()
    assert not store.recovery.clean, "so the first look at a group's history reads what is done"
    store.commit_offset("g", "t", 0, 1)
    clock.step(60)
    if looks:
        store.offset_history("g", "t", 0)
    clock.step(-50)
    now = clock.now_ms()
    store.commit_offset("g", "t", 0, 5)
    assert store.offset_history("g", "t", 0)[-1] == OffsetCommit(5, now)


def test_a_commit_stands_behind_the_pops_before_it_though_the_clock_was_set_back(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine()
    store.commit_offset("g", "t", 0, 1)
    clock.advance(7200)
    done(store)
    clock.step(-3600)
    store.commit_offset("g", "t", 0, 5)
    assert store.offset_history("g", "t", 0)[-1].offset == 5


def test_pops_stand_behind_those_before_them_though_the_clock_was_set_back(
    nine: Opens, clock: VirtualClock
) -> None:
    store = nine()
    store.commit_offset("g", "t", 0, 0)
    clock.advance(7200)
    for number in (1, 2, 3):
        done(store)
        clock.step(-1800)
        if number == 1:
            continue  # nobody looks: the next pop notes it
        assert store.offset_history("g", "t", 0)[-1].offset == number


def test_history_of_a_group_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(GroupNotFound):
        store.offset_history("nobody", "t", 0)
    with pytest.raises(TopicNotFound):
        store.offset_history("nobody", "none", 0)


def test_history_ahead_of_the_log_is_clamped_as_the_offset_is(store: Store, opens: Opens) -> None:
    """As after a power cut that took messages but not what was committed."""
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 3)
    group, topic = store.group("g").id, store.topic("t").id
    end = store.get("t", 0, 4).position  # as if the fifth had been lost, and the log ended there
    later = store.get("t", 0, 2).position  # and once more, further down
    families = inside.families(store)
    rows = families.batch()
    inside.offsets(store).put_offset(rows, group, topic, 0, 5)
    families.write(rows)
    rows = families.batch()
    for number, found in enumerate((end, later)):
        rows.put(META, b"recovered/" + U32.pack(number), U64.pack(found))
    rows.put(META, b"recoveries", U32.pack(2))
    families.write(rows)
    store.close()
    again = opens()
    assert again.committed_offset("g", "t", 0) == 2, "the lowest end that came after it counts"
    assert [c.offset for c in again.offset_history("g", "t", 0)][-1] == 2
    again.commit_offset("g", "t", 0, 5)
    assert [c.offset for c in again.offset_history("g", "t", 0)][-1] == 5


# --- what goes with a topic, and with a group ---


def rows_of_history(store: Store) -> int:
    return len(list(inside.families(store).rows(OFFSET_HISTORY, b"")))


def rows_of_offsets(store: Store) -> int:
    return len(list(inside.families(store).rows(OFFSETS, b"")))


def sweep(store: Store) -> None:
    inside.offsets(store).history_rows.sweep()
    while inside.offsets(store).history_rows.sweep_due():
        inside.offsets(store).history_rows.sweep()


@pytest.mark.parametrize("topics", [1, 3, 12])
def test_offsets_and_history_go_with_their_topics_in_all_groups(store: Store, topics: int) -> None:
    names = [f"gone-{i}" for i in range(topics)]
    for name in [*names, "kept-before", "kept-behind"]:
        store.create_topic(name, queues=2)
    store.create_topic("last")
    for group in ("a", "b", "c"):
        store.commit_offsets([(group, name, 1, 0) for name in [*names, "kept-before", "last"]])
    store.commit_offset("b", "gone-0", 0, 0)
    store.commit_offset("only", "gone-0", 0, 0)
    store.delete_topics(names)
    assert rows_of_offsets(store) == rows_of_history(store) == 6
    for group in ("a", "b", "c"):
        assert store.committed_offset(group, "last", 1) == 0
        assert {lag.topic for lag in store.lag(group)} == {"kept-before", "last"}
    assert store.lag("only") == []


def test_offsets_and_history_go_with_their_group(store: Store) -> None:
    for group in ("a", "b", "c"):
        store.commit_offset(group, "t", 0, 0)
    store.create_group("never")
    store.delete_groups(["a", "never", "b"])
    assert [g.name for g in store.groups()] == ["c"]
    assert rows_of_offsets(store) == rows_of_history(store) == 1
    store.create_group("a")
    assert store.committed_offset("a", "t", 0) is None
    assert store.offset_history("a", "t", 0) == []


# --- reset ---


@pytest.fixture
def filled(opens: Opens, clock: VirtualClock) -> Store:
    """Queue 0 and 1 of "t" with a message every second, 5 and 3; queue 2 with none."""
    store = opens(timed(clock))
    store.create_topic("t", queues=3)
    for second in range(5):
        store.put("t", b"x", queue=0)
        if second < 3:
            store.put("t", b"y", queue=1)
        clock.advance(1)
    store.create_group("g")
    return store


@pytest.mark.parametrize(
    ("to", "result"),
    [
        ({"to": "begin"}, {0: 0, 1: 0, 2: 0}),
        ({"to": "end"}, {0: 5, 1: 3, 2: 0}),
        ({"time": START_MS + 2000}, {0: 2, 1: 2, 2: 0}),
        ({"time": 0}, {0: 0, 1: 0, 2: 0}),
        ({"time": START_MS + 60000}, {0: 5, 1: 3, 2: 0}),
        ({"to": "end", "queue": 1}, {1: 3}),
        ({"offset": 4, "queue": 0}, {0: 4}),
        ({"time": START_MS + 1500, "queue": 0}, {0: 2}),
    ],
    ids=str,
)
def test_a_reset_sets_the_offsets_it_says_and_no_others(
    filled: Store, to: dict[str, Any], result: dict[int, int]
) -> None:
    filled.commit_offsets([("g", "t", 0, 1), ("g", "t", 1, 1)])
    assert filled.reset_offset("g", "t", **to) == result
    expected = {0: 1, 1: 1, 2: None} | result
    assert {q: filled.committed_offset("g", "t", q) for q in range(3)} == expected
    for queue, offset in result.items():
        assert filled.offset_history("g", "t", queue)[-1].offset == offset


@pytest.mark.parametrize(
    ("to", "error"),
    [
        ({}, CallerError),
        ({"to": "begin", "time": 5}, CallerError),
        ({"to": "middle"}, CallerError),
        ({"to": 5}, CallerError),
        ({"time": "noon"}, CallerError),
        ({"offset": 1}, CallerError),
        ({"offset": 6, "queue": 0}, CallerError),
        ({"offset": -1, "queue": 0}, CallerError),
        ({"to": "end", "queue": 3}, QueueNotFound),
    ],
    ids=str,
)
def test_a_reset_that_is_none_is_refused_and_changes_nothing(
    filled: Store, to: dict[str, Any], error: type[Exception]
) -> None:
    filled.commit_offset("g", "t", 0, 1)
    with pytest.raises(error):
        filled.reset_offset("g", "t", **to)
    assert [filled.committed_offset("g", "t", q) for q in range(3)] == [1, None, None]


def test_a_reset_of_a_group_or_topic_that_is_not_there_is_refused(filled: Store) -> None:
    with pytest.raises(GroupNotFound):
        filled.reset_offset("nobody", "t", to="begin")
    with pytest.raises(TopicNotFound):
        filled.reset_offset("g", "none", to="begin")
    assert [g.name for g in filled.groups()] == ["g"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_hung_on_a_reset_is_in_its_batch_and_told_how_it_ended(
    filled: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    told: list[object] = []

    @contextmanager
    def hook(
        rows: Batch, group: GroupInfo, topic: Topic, offsets: Mapping[int, int]
    ) -> Iterator[None]:
        rows.put(META, b"hook", b"was here")
        told.append((group.name, topic.name, dict(offsets)))
        try:
            yield
        except OSError:
            told.append("failed")
            raise
        told.append("done")

    inside.offsets(filled).resetting.append(hook)
    families = inside.families(filled)
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(families, "write", raising(OSError("no")))
            with pytest.raises(OSError, match="no"):
                filled.reset_offset("g", "t", to="end", queue=0)
    else:
        filled.reset_offset("g", "t", to="end", queue=0)
    assert told == [("g", "t", {0: 5}), "failed" if fails else "done"]
    assert families.get(META, b"hook") == (None if fails else b"was here")
    assert filled.committed_offset("g", "t", 0) == (None if fails else 5)


# --- what is popped and not acked ---


def test_what_is_locked_is_not_done_and_lag_reaches_zero_when_all_is_acked(
    filled: Store, opens: Opens, clock: VirtualClock
) -> None:
    filled.commit_offset("g", "t", 0, 1)
    popped = filled.pop("g", "t", limit=3, queue=0)
    filled.ack(popped[1].receipt)
    assert [p.message.offset for p in popped] == [1, 2, 3]
    assert filled.committed_offset("g", "t", 0) == 1
    (lag, *_) = filled.lag("g", "t")
    assert (lag.unread, lag.in_flight, lag.lag) == (1, 2, 3), "what is acked out of turn is done"
    with pytest.raises(InFlight):
        filled.commit_offset("g", "t", 0, 5)
    filled.commit_offset("g", "t", 1, 3)
    filled.ack(popped[0].receipt)
    assert filled.committed_offset("g", "t", 0) == 3
    filled.close()
    reading = opens(timed(clock), read_only=True)
    assert (reading.committed_offset("g", "t", 0), reading.lag("g", "t")[0].lag) == (3, 2)
    reading.close()
    again = opens(timed(clock))
    again.ack(popped[2].receipt)
    again.ack_batch([p.receipt for p in again.pop("g", "t", limit=9)])
    assert [lag.lag for lag in again.lag("g", "t")] == [0, 0, 0]


def test_a_committed_offset_that_was_looked_at_is_not_what_it_was_before_the_next_pop(
    filled: Store,
) -> None:
    for offset in range(5):
        done(filled)
        assert filled.committed_offset("g", "t", 0) == offset + 1


def test_a_commit_moves_where_the_next_pop_begins(filled: Store) -> None:
    done(filled)
    filled.commit_offset("g", "t", 0, 4)
    assert [p.message.offset for p in filled.pop("g", "t", limit=9, queue=0)] == [4]


# --- lag ---


def test_lag_is_what_is_left_and_reaches_zero(filled: Store) -> None:
    filled.commit_offset("g", "t", 0, 2)
    assert filled.lag("g", "t") == [
        Lag(group="g", topic="t", queue=0, committed=2, begin=0, end=5, lag=3, unread=3),
        Lag(group="g", topic="t", queue=1, committed=None, begin=0, end=3, lag=3, unread=3),
        Lag(group="g", topic="t", queue=2, committed=None, begin=0, end=0, lag=0),
    ]
    filled.reset_offset("g", "t", to="end")
    assert [lag.lag for lag in filled.lag("g", "t")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("start", "lags"), [("begin", [5, 3, 0]), ("end", [0, 0, 0]), (START_MS + 2000, [3, 1, 0])]
)
def test_a_group_that_never_committed_is_behind_from_its_start_on(
    filled: Store, start: Any, lags: list[int]
) -> None:
    filled.alter_group("g", start=start)
    assert [lag.lag for lag in filled.lag("g", "t")] == lags


def test_lag_without_a_topic_is_that_of_all_the_group_ever_committed_in(filled: Store) -> None:
    for name in ("a", "b", "never"):
        filled.create_topic(name, queues=1)
    assert filled.lag("g") == []
    filled.commit_offsets([("g", "b", 0, 0), ("g", "a", 0, 0), ("g", "t", 2, 0)])
    assert [(lag.topic, lag.queue) for lag in filled.lag("g")] == [
        ("a", 0), ("b", 0), ("t", 0), ("t", 1), ("t", 2),
    ]  # fmt: skip
    with pytest.raises(GroupNotFound):
        filled.lag("nobody")
    with pytest.raises(TopicNotFound):
        filled.lag("g", "none")


def test_what_retention_let_go_is_no_lag(opens: Opens) -> None:
    store = opens(msgspec.structs.replace(SMALL, watermarks=(0.0001, 1.0, 1.0)))
    store.create_topic("t", queues=1)
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 1)
    store.seal()
    store.put_batch(batch("t", 2))
    store.checkpoint()
    inside.index(store).retire(0, SEGMENT, inside.log(store).segments.numbers)
    inside.log(store).segments.remove(0, erase=False)
    assert store.bounds("t", 0) == (5, 7)
    (lag,) = store.lag("g", "t")
    assert (lag.committed, lag.begin, lag.end, lag.lag) == (1, 5, 7, 2)


def test_a_read_only_store_tells_offsets_history_and_lag(filled: Store, opens: Opens) -> None:
    filled.commit_offset("g", "t", 0, 2)
    filled.close()
    reading = opens(read_only=True)
    assert reading.committed_offset("g", "t", 0) == 2
    assert sum(lag.lag for lag in reading.lag("g")) == 6


def test_an_offset_adopted_without_its_recoveries_is_read(filled: Store) -> None:
    families = inside.families(filled)
    rows = families.batch()
    rows.put(OFFSETS, offset_key(filled.group("g").id, filled.topic("t").id, 0), U64.pack(4))
    families.write(rows)
    assert filled.committed_offset("g", "t", 0) == 4


def test_an_offset_is_committed_again_when_something_else_changed_it(store: Store) -> None:
    store.create_topic("again", queues=1)
    store.create_group("g")
    store.put_batch(batch("again", 4, queue=0))
    for popped in (0, 1, 2):
        store.commit_offset("g", "again", 0, 1)
        if not popped:
            store.reset_offset("g", "again", to="begin")
        for _ in range(popped):
            store.ack(store.pop("g", "again")[0].receipt)
        assert store.committed_offset("g", "again", 0) != 1
        store.commit_offset("g", "again", 0, 1)
        assert store.committed_offset("g", "again", 0) == 1
