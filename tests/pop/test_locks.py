"""Locks: how long they hold, over time, restarts and threads; backoff and attempt ids."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Popped, ReceiptExpired, Store, StoreConfig
from kvstore.pop import popper
from kvstore.pop.inflight import tables as tables_module
from tests.support import inside, inside_pops
from tests.support.clock import VirtualClock
from tests.support.popping import offsets, put
from tests.support.stores import killed, settings

HOUR = 3600.0


pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group]


# --- how long they hold ---


def test_a_lock_holds_to_the_millisecond(store: Store, clock: VirtualClock) -> None:
    put(store, 1)
    (p,) = store.pop("g", "t", invisible_for=1.0)
    clock.advance(0.999)
    assert store.pop("g", "t") == []
    clock.advance(0.001)
    assert clock.now_ms() == p.due_at
    assert [q.attempt for q in store.pop("g", "t")] == [2]


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_is_stepped_changes_waiting_times_and_nothing_else(
    store: Store, clock: VirtualClock, step: float
) -> None:
    put(store, 10)
    first = store.pop("g", "t", 5, 60.0)
    clock.step(step)
    second = store.pop("g", "t", 10, 60.0)
    assert offsets(second) == (list(range(10)) if step > 0 else [5, 6, 7, 8, 9])
    clock.step(-step)
    results = store.ack_batch([p.receipt for p in first])
    assert [r is True for r in results] == [step < 0] * 5
    third = store.pop("g", "t", 10, 60.0)
    # A message handed out at the other time has a lock of that time.
    assert third == [] if step > 0 else offsets(third) == [5, 6, 7, 8, 9]
    clock.advance(2 * HOUR)
    left = store.pop("g", "t", 10, 60.0)
    assert sorted(offsets(left)) == (list(range(10)) if step > 0 else [5, 6, 7, 8, 9])
    assert store.ack_batch([p.receipt for p in left]) == [True] * len(left)
    assert [lag.lag for lag in store.lag("g", "t")] == [0, 0]


def test_a_clock_that_goes_to_and_fro_hands_nothing_out_under_two_locks(
    store: Store, clock: VirtualClock, config: StoreConfig
) -> None:
    put(store, 20)
    live: dict[int, int] = {}
    for n in range(60):
        clock.step(HOUR if n % 3 else -2 * HOUR)
        for p in store.pop("g", "t", 1 + n % 7, 1800.0):
            assert live.get(p.message.offset, 0) <= clock.now_ms()
            live[p.message.offset] = p.due_at
    assert len(live) == 20


def test_locks_hold_over_a_reopening_and_a_kill(
    store: Store, clock: VirtualClock, config: StoreConfig, tmp_path: Path
) -> None:
    put(store, 5)
    found = store.pop("g", "t", 3, 60.0)
    store.ack(found[1].receipt)
    copy = killed(store, tmp_path / "killed")
    store.close()
    for path in (store.path, copy):
        with kvstore.open(path, config) as again:
            assert [(p.message.offset, p.attempt) for p in again.pop("g", "t", 9, 200.0)] == [
                (3, 1),
                (4, 1),
            ]
            assert store.path == path or again.pop("g", "t") == []
    clock.advance(61)
    with kvstore.open(copy, config) as again:
        assert [(p.message.offset, p.attempt) for p in again.pop("g", "t", 9)] == [(0, 2), (2, 2)]


# --- changing them ---


def test_a_lock_can_be_made_longer_shorter_or_given_back(store: Store, clock: VirtualClock) -> None:
    put(store, 4)
    found = store.pop("g", "t", 4, 10.0)
    longer = store.change_invisible(found[0].receipt, 100.0)
    store.change_invisible(found[1].receipt, 1.0)
    store.change_invisible(found[2].receipt, 0)
    assert offsets(store.pop("g", "t", 9, 1000.0)) == [2]
    clock.advance(1)
    assert offsets(store.pop("g", "t", 9, 1000.0)) == [1]
    clock.advance(9)
    assert offsets(store.pop("g", "t", 9, 1000.0)) == [3]
    clock.advance(89)
    assert store.pop("g", "t", 9) == []
    store.ack(longer)
    clock.advance(10)
    assert store.pop("g", "t", 9) == []


def test_a_lock_changed_again_and_again_has_one_receipt_that_holds(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    receipts = [store.pop("g", "t", 3)[1].receipt]
    for n in range(20):
        receipts.append(store.change_invisible(receipts[-1], 30.0 if n % 2 else 20.0))
    assert len(set(receipts)) == 21
    for old in receipts[:-1]:
        with pytest.raises(ReceiptExpired):
            store.ack(old)
    store.ack(receipts[-1])
    clock.advance(100)
    assert sorted(offsets(store.pop("g", "t", 9))) == [0, 2]


def test_messages_moved_to_the_same_time_keep_locks_of_their_own(
    store: Store, clock: VirtualClock
) -> None:
    for queue in range(2):
        put(store, 5, queue)
    moved = [store.change_invisible(p.receipt, 5.0) for p in store.pop("g", "t", 10)]
    again = [store.change_invisible(receipt, 5.0) for receipt in moved]
    clock.advance(6)
    assert store.ack_batch(again[::2]) == [True] * 5
    assert len(store.pop("g", "t", 10)) == 5


def test_a_lock_changed_to_the_time_it_had_leaves_others_of_its_pop_alone(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    found = store.pop("g", "t", 3, 10.0)
    receipts = [store.change_invisible(found[0].receipt, 10.0), *(p.receipt for p in found[1:])]
    assert len(set(receipts)) == 3
    assert store.ack_batch(receipts[:2]) == [True, True]
    clock.advance(11)
    (last,) = store.pop("g", "t", 3)
    assert last.message.offset == found[2].message.offset


def test_changing_a_lock_does_not_count_as_an_attempt(store: Store, clock: VirtualClock) -> None:
    store.alter_group("g", max_attempts=2)
    put(store, 1)
    receipt = store.pop("g", "t", 1, 1.0)[0].receipt
    for _ in range(10):
        receipt = store.change_invisible(receipt, 1.0)
    store.change_invisible(receipt, 0)
    assert [p.attempt for p in store.pop("g", "t")] == [2]


# --- backoff ---


def test_the_backoff_comes_behind_the_lock_by_how_many_attempts_there_were(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", backoff=[1, 10, 60], max_attempts=6)
    put(store, 1)
    for attempt, wait in enumerate([1, 10, 60, 60, 60], 1):
        (p,) = store.pop("g", "t", 1, 5.0)
        assert p.attempt == attempt
        assert p.due_at == clock.now_ms() + (5 + wait) * 1000
        clock.advance(5 + wait - 0.001)
        assert store.pop("g", "t") == []
        clock.advance(0.001)
    # Behind the last attempt there is nothing to wait for.
    (p,) = store.pop("g", "t", 1, 5.0)
    assert p.due_at == clock.now_ms() + 5000


def test_a_lock_given_back_without_a_time_has_the_backoff(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", backoff=[2, 20])
    put(store, 1)
    (p,) = store.pop("g", "t", 1, 500.0)
    store.change_invisible(p.receipt)
    clock.advance(1.999)
    assert store.pop("g", "t") == []
    clock.advance(0.001)
    (p,) = store.pop("g", "t", 1, 500.0)
    store.change_invisible(p.receipt, None)
    clock.advance(19)
    assert store.pop("g", "t") == []
    clock.advance(1)
    assert [q.attempt for q in store.pop("g", "t")] == [3]


def test_the_backoff_comes_behind_a_lock_that_was_made_longer(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", backoff=[100])
    put(store, 1)
    (p,) = store.pop("g", "t", 1, 10.0)
    store.change_invisible(p.receipt, 10.0)
    clock.advance(10.1)
    assert store.pop("g", "t") == []
    clock.advance(99.8)
    assert store.pop("g", "t") == []
    clock.advance(0.2)
    assert len(store.pop("g", "t")) == 1


def test_no_backoff_comes_behind_the_last_attempt_or_what_is_given_back_with_a_time(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", backoff=[100], max_attempts=2)
    put(store, 1)
    (p,) = store.pop("g", "t", 1, 10.0)
    store.change_invisible(p.receipt, 5.0, gives_back=True)
    clock.advance(5)
    (p,) = store.pop("g", "t", 1, 10.0)
    store.change_invisible(p.receipt, 20.0)
    clock.advance(19)
    assert store.bounds("t", 0).next_offset == 1
    assert store.pop("g", "t") == []
    clock.advance(1)
    assert store.pop("g", "t") == []
    assert store.group_stats("g", "t")[0].dead_letters == 1


def test_without_a_backoff_a_lock_given_back_is_due_at_once(store: Store) -> None:
    put(store, 1)
    store.change_invisible(store.pop("g", "t")[0].receipt)
    assert [p.attempt for p in store.pop("g", "t")] == [2]


def test_a_backoff_holds_for_what_is_popped_quickly_too(store: Store, clock: VirtualClock) -> None:
    store.alter_group("g", backoff=[7])
    put(store, 50)
    for _ in range(50):
        (p,) = store.pop("g", "t", 1, 3.0)
        assert p.due_at == clock.now_ms() + 10_000


# --- attempt ids ---


def same(first: list[Popped], second: list[Popped]) -> bool:
    def key(p: Popped) -> tuple[object, ...]:
        return p.message.queue, p.message.offset, p.receipt, p.attempt, p.due_at

    return sorted(map(key, first)) == sorted(map(key, second))


def test_a_pop_repeated_with_its_attempt_id_gets_the_same(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 5)
    put(store, 5, 1)
    found = store.pop("g", "t", 8, 60.0, attempt_id="a")
    clock.advance(10)
    assert same(store.pop("g", "t", 8, 60.0, attempt_id="a"), found)
    assert same(store.pop("g", "t", 1, 5.0, attempt_id="a", queue=1), found)
    store.ack(found[3].receipt)
    assert same(store.pop("g", "t", 8, 60.0, attempt_id="a"), found[:3] + found[4:])
    assert len(store.pop("g", "t", 8, 60.0, attempt_id="b")) == 2


def test_an_attempt_id_is_remembered_over_a_reopening_and_a_kill(
    store: Store, clock: VirtualClock, config: StoreConfig, tmp_path: Path
) -> None:
    put(store, 5)
    found = store.pop("g", "t", 3, 60.0, attempt_id="a")
    moved = store.change_invisible(found[1].receipt, 100.0)
    copy = killed(store, tmp_path / "killed")
    store.close()
    for path in (store.path, copy):
        with kvstore.open(path, config) as again:
            repeated = again.pop("g", "t", 3, 60.0, attempt_id="a")
            assert sorted(p.receipt for p in repeated) == sorted(
                [found[0].receipt, moved, found[2].receipt]
            )


def test_an_attempt_id_whose_locks_are_over_gets_what_there_is(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    store.pop("g", "t", 2, 1.0, attempt_id="a")
    clock.advance(2)
    again = store.pop("g", "t", 1, 5.0, attempt_id="a")
    assert [(p.message.offset, p.attempt) for p in again] == [(0, 2)]
    assert same(store.pop("g", "t", 5, attempt_id="a"), again)
    store.ack(again[0].receipt)
    assert offsets(store.pop("g", "t", 5, attempt_id="a")) == [1, 2]


def test_an_attempt_id_is_remembered_whatever_many_others_there_were(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than any limit of the tables."""
    monkeypatch.setattr(tables_module, "ENDED_MAX", 1000)
    monkeypatch.setattr(tables_module, "_KEPT_MAX", 1000)
    monkeypatch.setattr(popper, "ENDED_MAX", 1000)
    put(store, 1)
    first = store.pop("g", "t", 1, 3600.0, attempt_id="first")
    for n in range(0, 4000, 500):
        put(store, 500)
        found = [store.pop("g", "t", attempt_id=f"{n + i}")[0] for i in range(500)]
        store.ack_batch([p.receipt for p in found])
    assert same(store.pop("g", "t", attempt_id="first"), first)


def test_an_attempt_id_with_very_many_rows_gets_all_of_them_again(store: Store) -> None:
    put(store, 5000)
    found = store.pop("g", "t", 5000, 3600.0, attempt_id="i")
    moved = [store.change_invisible(p.receipt, 3600.0) for p in found]
    again = store.pop("g", "t", 1, attempt_id="i")
    assert sorted(p.receipt for p in again) == sorted(moved)


def test_nothing_is_kept_of_attempts_groups_and_topics_that_are_gone(store: Store) -> None:
    tables = inside.tables(store)
    store.create_group("h")
    put(store, 6)
    found = [store.pop("h", "t", attempt_id=f"{n}")[0] for n in range(3)]
    assert len(store.pop("h", "t", 3)) == 3
    number, topic = store.group("h").id, store.topic("t").id
    table = tables.get(number, topic)
    assert len(table.attempts) == 3
    store.ack(found[0].receipt)
    store.change_invisible(found[1].receipt, 0)
    assert len(table.attempts) == 1
    store.delete_group("h")
    assert not inside_pops.is_read(tables, number)
    assert tables.get(number, topic).dead
    assert not inside_pops.is_read(tables, number)
    for kept in (inside_pops.kept_tables(tables), inside_pops.tables_ahead(tables)):
        assert not any(group == number for group, _ in kept)
    for _ in range(3):
        store.create_group("h")
        store.delete_group("h")
    assert inside_pops.bytes_of_dead_groups(tables) == 1


def test_an_attempt_id_is_the_groups_and_the_topics_own(store: Store) -> None:
    store.create_topic("u", queues=1)
    store.create_group("h")
    put(store, 2)
    store.put("u", b"u")
    store.pop("g", "t", 1, attempt_id="a")
    assert offsets(store.pop("h", "t", 2, attempt_id="a")) == [0, 1]
    assert [p.message.body for p in store.pop("g", "u", 2, attempt_id="a")] == [b"u"]


def test_a_reset_elsewhere_does_not_double_what_an_attempt_id_has(store: Store) -> None:
    put(store, 2, 1)
    found = store.pop("g", "t", 2, attempt_id="a")
    store.reset_offset("g", "t", to="begin", queue=0)
    assert same(store.pop("g", "t", 5, attempt_id="a"), found)
    store.reset_offset("g", "t", to="begin", queue=1)
    assert [p.attempt for p in store.pop("g", "t", 5, attempt_id="a")] == [1, 1]


# --- threads ---


def test_several_threads_get_every_message_and_none_under_two_locks(tmp_path: Path) -> None:
    count, lock = 4000, threading.Lock()
    held: set[tuple[int, int]] = set()
    done: set[tuple[int, int]] = set()
    with kvstore.open(tmp_path / "store", settings(busy_timeout=60.0)) as store:
        store.create_topic("t", queues=4)
        store.create_group("g")

        def work(number: int) -> int:
            most, came = (1, 3, 16, 32)[number % 4], 0
            while len(done) < count:
                popped = store.pop("g", "t", most, 3600.0, wait=0.05)
                places = {(p.message.queue, p.message.offset) for p in popped}
                with lock:
                    assert len(places) == len(popped)
                    assert not places & held, "under two live locks"
                    assert not places & done, "handed out after it was acked"
                    held.update(places)
                back = popped[: len(popped) // 5]
                with lock:
                    held.difference_update((p.message.queue, p.message.offset) for p in back)
                for p in back:
                    store.change_invisible(p.receipt, 0)
                rest = popped[len(back) :]
                with lock:
                    places = {(p.message.queue, p.message.offset) for p in rest}
                    held.difference_update(places)
                    done.update(places)
                assert store.ack_batch([p.receipt for p in rest]) == [True] * len(rest)
                came += len(popped)
            return came

        store.alter_group("g", max_attempts=1_000_000)
        with ThreadPoolExecutor(5) as pool:
            workers = [pool.submit(work, n) for n in range(4)]
            putting = pool.submit(
                lambda: [
                    store.put_batch([Message("t", b"") for _ in range(20)])
                    for _ in range(count // 20)
                ]
            )
            putting.result(60)
            assert sum(w.result(60) for w in workers) >= count
        assert len(done) == count
        assert sum(lag.lag for lag in store.lag("g", "t")) == 0


def test_threads_that_ack_the_same_batch_are_all_told_it_is_done(tmp_path: Path) -> None:
    with (
        kvstore.open(tmp_path / "store", settings()) as store,
        ThreadPoolExecutor(4) as pool,
    ):
        store.create_topic("t", queues=1)
        store.create_group("g")
        for _ in range(50):
            store.put_batch([Message("t", b"") for _ in range(8)])
            receipts = [p.receipt for p in store.pop("g", "t", 8)]
            assert len(receipts) == 8
            for answer in [pool.submit(store.ack_batch, receipts) for _ in range(4)]:
                assert answer.result(30) == [True] * 8


@pytest.mark.parametrize("count", [1, 3])
def test_two_acks_at_the_same_moment_count_once(tmp_path: Path, count: int) -> None:
    with (
        kvstore.open(tmp_path / "store", settings()) as store,
        ThreadPoolExecutor(2) as pool,
    ):
        store.create_topic("t", queues=1)
        store.create_group("g")
        store.put_batch([Message("t", b"") for _ in range(2 * count)])
        receipts, kept = ([p.receipt for p in store.pop("g", "t", count, 3600.0)] for _ in range(2))
        table = inside.table(store)
        with table.lock:  # both know the row by now, and wait for their turn
            answers = [pool.submit(store.ack_batch, receipts) for _ in range(2)]
            time.sleep(0.2)
        assert [answer.result(30) for answer in answers] == [[True] * count] * 2
        (stats,) = store.group_stats("g", "t")
        assert (stats.in_flight, table.rows, table.messages) == (count, 1, count)
        assert store.ack_batch(kept) == [True] * count
        assert sum(lag.lag for lag in store.lag("g", "t")) == 0


def test_deleting_a_topic_under_those_who_pop_leaves_no_locks_behind(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", settings(busy_timeout=60.0)) as store:
        store.create_group("g", max_in_flight=50)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    store.pop("g", "t", 4)
                except kvstore.TopicNotFound:
                    continue

        with ThreadPoolExecutor(3) as pool:
            try:
                store.create_topic("t", queues=2)
                workers = [pool.submit(work) for _ in range(3)]
                for _ in range(30):
                    store.put_batch([Message("t", b"") for _ in range(40)])
                    store.delete_topic("t")
                    store.create_topic("t", queues=2)
            finally:
                stop.set()
            for w in workers:
                w.result(60)
        store.delete_topic("t")
        store.create_topic("t", queues=2)
        store.put_batch([Message("t", b"") for _ in range(60)])
        assert len(store.pop("g", "t", 100)) == 50, "locks of deleted topics count"
