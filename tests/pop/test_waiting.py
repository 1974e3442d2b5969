"""Long polls: a pop that found nothing waits, and is woken by whatever brings it something.

Times here are real ones, and generous: a wake-up takes milliseconds, what is held against it is
seconds, so only one that never came is noticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Message, Popped, Store, StoreClosed, StoreConfig
from kvstore.clock import SystemClock
from tests.support import inside
from tests.support.popping import bodies
from tests.support.stores import settings

LONG: Final = 20.0
"""Seconds: what a pop waits that is to be woken."""
SOON: Final = 5.0
"""Seconds in which it has to be."""
ASLEEP: Final = 0.15
"""Seconds after which a pop can be taken to wait."""


pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group]


@pytest.fixture
def config() -> StoreConfig:
    return settings()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as made:
        yield made


def waiting(
    pool: ThreadPoolExecutor, store: Store, group: str = "g", limit: int = 1, **asked: Any
) -> Future[list[Popped]]:
    """A pop that waits, in a thread of its own."""
    return pool.submit(store.pop, group, "t", limit, wait=asked.pop("wait", LONG), **asked)


def test_a_pop_waits_its_time_and_no_longer(store: Store) -> None:
    begun = time.monotonic()
    assert store.pop("g", "t", wait=0.3) == []
    assert 0.3 <= time.monotonic() - begun < SOON
    begun = time.monotonic()
    assert store.pop("g", "t", wait=0) == []
    assert time.monotonic() - begun < 1


def test_a_put_wakes_who_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    one = waiting(pool, store)
    time.sleep(ASLEEP)
    store.put("t", b"1")
    assert bodies(one.result(SOON)) == [b"1"]
    other = waiting(pool, store, queue=1)
    time.sleep(ASLEEP)
    store.put_batch([Message("t", b"2", queue=0), Message("t", b"3", queue=1)])
    assert bodies(other.result(SOON)) == [b"3"]


def test_a_lock_that_runs_out_wakes_who_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    store.put("t", b"1")
    (p,) = store.pop("g", "t", invisible_for=0.5)
    (again,) = waiting(pool, store).result(SOON)
    assert again.attempt == 2
    assert again.message == p.message
    assert 0 <= again.due_at - 30_000 - p.due_at < 2000


def test_a_lock_made_shorter_wakes_who_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(2)])
    first, second = store.pop("g", "t", 2, 3600)
    one = waiting(pool, store)
    time.sleep(ASLEEP)
    store.change_invisible(first.receipt, 0)
    assert bodies(one.result(SOON)) == [b"0"]
    other = waiting(pool, store)
    time.sleep(ASLEEP)
    store.change_invisible(second.receipt, 0.2)
    assert bodies(other.result(SOON)) == [b"1"]


def test_a_lock_that_another_pop_made_while_one_waited_wakes_it(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    selective = waiting(pool, store, queue=0)
    time.sleep(ASLEEP)
    store.put("t", b"1", queue=0)
    (p,) = selective.result(SOON)
    store.change_invisible(p.receipt, 0)
    one = store.pop("g", "t", invisible_for=0.5)
    assert one
    assert bodies(waiting(pool, store).result(SOON)) == [b"1"]


def test_a_reset_wakes_who_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    store.put("t", b"1")
    store.ack(store.pop("g", "t")[0].receipt)
    one = waiting(pool, store)
    time.sleep(ASLEEP)
    store.reset_offset("g", "t", to="begin")
    assert bodies(one.result(SOON)) == [b"1"]


def test_a_commit_that_makes_messages_unread_wakes_who_waits(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    store.put("t", b"1", queue=0)
    store.ack(store.pop("g", "t")[0].receipt)
    one = waiting(pool, store)
    time.sleep(ASLEEP)
    store.commit_offset("g", "t", 0, 0)
    assert bodies(one.result(SOON)) == [b"1"]
    store.create_group("late", start="end")
    other = waiting(pool, store, "late", queue=0)
    time.sleep(ASLEEP)
    store.commit_offsets([("late", "t", 0, 0)])
    assert bodies(other.result(SOON)) == [b"1"]


def test_a_commit_wakes_who_waits_only_if_it_goes_back(store: Store) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(9)])
    store.create_group("late", start="end")
    for group in ("g", "late"):
        woken: list[str] = []
        asked = (1, None, 30.0, 1, None, None)
        found, poll = inside.begin_pop(store)(
            partial(woken.append, group), group, "t", LONG, *asked
        )
        assert found == []
        assert poll is not None
        store.commit_offset(group, "t", 0, 0)
        assert woken == [group], "its first one: it may have begun elsewhere"
        poll.look()
        for offset in (1, 5, 5, 9):
            store.commit_offset(group, "t", 0, offset)
        store.commit_offsets([(group, "t", 0, 9), ("another", "t", 0, 3)], sync=True)
        assert woken == [group]
        store.commit_offset(group, "t", 0, 3)
        assert woken == [group, group]
        poll.end()


def test_no_wake_up_is_lost_however_a_commit_and_a_pop_meet(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    store.put("t", b"1", queue=0)
    store.commit_offset("g", "t", 0, 1)
    for _ in range(300):
        one = waiting(pool, store)
        store.commit_offset("g", "t", 0, 0)
        (p,) = one.result(SOON)
        store.ack(p.receipt)


def test_an_import_of_offsets_waits_for_a_pop_under_way_and_wakes_who_waits(
    store: Store, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    with kvstore.open(tmp_path / "other", settings()) as other:
        other.create_topic("t", queues=2)
        other.create_group("late")
        other.commit_offset("late", "t", 0, 0)
        other.export_rocketmq(tmp_path / "exported")
    store.put("t", b"1", queue=0)
    store.create_group("late", start="end")
    one = waiting(pool, store, "late")
    time.sleep(ASLEEP)
    with inside.table(store, "late").lock:
        imported = pool.submit(store.import_rocketmq_config, tmp_path / "exported")
        time.sleep(ASLEEP)
        assert not imported.done()
    assert imported.result(SOON).offsets == 1
    assert bodies(one.result(SOON)) == [b"1"]


def test_an_ack_wakes_who_waits_for_room_in_flight(store: Store, pool: ThreadPoolExecutor) -> None:
    store.create_group("capped", max_in_flight=1)
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(3)])
    (p,) = store.pop("capped", "t", 3)
    one = waiting(pool, store, "capped")
    time.sleep(ASLEEP)
    assert not one.done()
    store.ack(p.receipt)
    (q,) = one.result(SOON)
    other = waiting(pool, store, "capped")
    time.sleep(ASLEEP)
    assert store.ack_batch([q.receipt]) == [True]
    assert bodies(other.result(SOON)) == [b"2"]


def test_more_room_in_flight_wakes_who_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    store.create_group("capped", max_in_flight=1)
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(2)])
    store.pop("capped", "t")
    store.alter_group("capped", max_in_flight=None)
    assert bodies(store.pop("capped", "t")) == [b"1"]


def test_a_filter_that_refuses_very_many_does_not_let_a_pop_sleep_before_what_matches(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    store.put_batch([Message("t", b"", queue=0, tag="x") for _ in range(5000)])
    store.put("t", b"wanted", queue=0, tag="y")
    assert bodies(waiting(pool, store, filter="y").result(SOON)) == [b"wanted"]


def test_a_filter_that_waits_is_woken_only_to_look_and_gets_what_matches(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    one = waiting(pool, store, filter="y")
    for n in range(20):
        store.put("t", b"%d" % n, tag="x")
    time.sleep(ASLEEP)
    assert not one.done()
    store.put("t", b"wanted", tag="y")
    assert bodies(one.result(SOON)) == [b"wanted"]


class CountingClock(SystemClock):
    """The system's; counts the waits."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits += 1
        return super().wait(event, seconds)


def test_a_due_message_of_another_queue_does_not_have_a_waiting_pop_spin(tmp_path: Path) -> None:
    clock = CountingClock()
    with kvstore.open(tmp_path / "store", settings(clock=clock)) as store:
        store.create_topic("t", queues=2)
        store.create_group("g")
        store.put("t", b"1", queue=0)
        store.pop("g", "t", invisible_for=0.001)
        time.sleep(0.05)
        before = clock.waits
        assert store.pop("g", "t", queue=1, wait=0.5) == []
        assert clock.waits - before < 100
        assert bodies(store.pop("g", "t", queue=0)) == [b"1"]


def test_many_who_wait_get_each_a_message_and_none_twice(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    waiters = [waiting(pool, store) for _ in range(40)]
    time.sleep(ASLEEP)
    for n in range(10):
        store.put("t", b"%d" % n)
    store.put_batch([Message("t", b"%d" % n) for n in range(10, 40)])
    found = [body for w in waiters for body in bodies(w.result(LONG))]
    assert sorted(map(int, found)) == list(range(40))


def test_who_waits_in_several_groups_is_woken_in_each(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    for n in range(8):
        store.create_group(f"g{n}")
    waiters = [waiting(pool, store, f"g{n}") for n in range(8) for _ in range(2)]
    time.sleep(ASLEEP)
    store.put_batch([Message("t", b"1"), Message("t", b"2")])
    assert sorted(b for w in waiters for b in bodies(w.result(SOON))) == [b"1"] * 8 + [b"2"] * 8


def test_what_one_waiter_leaves_another_gets(store: Store, pool: ThreadPoolExecutor) -> None:
    for _ in range(10):
        short = waiting(pool, store, wait=0.05)
        one = waiting(pool, store)
        time.sleep(0.05)
        store.put("t", b"1")
        popped = short.result(SOON) or one.result(SOON)
        if not one.done():
            store.put("t", b"2")
            popped += one.result(SOON)
        store.ack_batch([p.receipt for p in popped])
        store.ack_batch([p.receipt for p in store.pop("g", "t", 10)])


def test_who_ends_to_wait_hands_on_what_he_was_woken_for(store: Store) -> None:
    woken: list[int] = []
    asked = (1, None, 30.0, None, None, None)
    polls = []
    for number in range(3):
        found, poll = inside.begin_pop(store)(partial(woken.append, number), "g", "t", LONG, *asked)
        assert found == []
        assert poll is not None
        polls.append(poll)
    assert polls[2].nap(until_due=True) < LONG  # it keeps watch, so no other is woken for that
    store.put("t", b"1")
    assert woken == [0]
    polls[0].end()
    assert woken == [0, 1]
    assert bodies(polls[1].look()) == [b"1"]
    for poll in polls[1:]:
        poll.end()


def test_a_put_wakes_no_more_than_can_take_its_messages(store: Store) -> None:
    woken: list[int] = []
    asked = (4, None, 30.0, None, None, None)
    polls = []
    for number in range(6):
        found, poll = inside.begin_pop(store)(partial(woken.append, number), "g", "t", LONG, *asked)
        assert found == []
        assert poll is not None
        polls.append(poll)
    assert polls[5].nap(until_due=True) < LONG  # it keeps watch, so no other is woken for that
    store.put_batch([Message("t", b"%d" % n) for n in range(4)])
    assert woken == [0]
    assert sorted(bodies(polls[0].look())) == [b"0", b"1", b"2", b"3"]
    polls[0].end()
    woken.clear()
    for poll in polls[1:]:
        assert poll.look() == []
    store.put_batch([Message("t", b"%d" % n) for n in range(5)])
    assert len(woken) == 2
    for poll in polls[1:]:
        poll.end()


def test_no_wake_up_is_lost_however_a_put_and_a_pop_meet(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    for n in range(300):
        one = waiting(pool, store)
        store.put("t", b"%d" % n)
        (p,) = one.result(SOON)
        assert p.message.body == b"%d" % n
        store.ack(p.receipt)


def test_a_due_message_comes_within_a_tenth_of_a_second_mostly(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    late: list[float] = []
    for _ in range(20):
        store.put("t", b"1")
        (p,) = store.pop("g", "t", invisible_for=0.05)
        (q,) = waiting(pool, store).result(SOON)
        late.append(time.time() * 1000 - p.due_at)
        store.ack(q.receipt)
    assert sorted(late)[len(late) // 2] < 100
    assert min(late) >= 0


def closing(store: Store, pool: ThreadPoolExecutor, waiters: list[Future[Any]]) -> None:
    """Closes the store, which wakes waiting pops."""
    time.sleep(ASLEEP)
    begun = time.monotonic()
    pool.submit(store.close).result(SOON)
    for w in waiters:
        with pytest.raises(StoreClosed):
            w.result(SOON)
    assert time.monotonic() - begun < SOON


def test_closing_ends_the_waiting_of_a_group_that_has_never_looked(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    closing(store, pool, [waiting(pool, store) for _ in range(3)])


def test_closing_ends_the_waiting_of_a_group_that_has_looked_before(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    store.pop("g", "t")
    closing(store, pool, [waiting(pool, store) for _ in range(3)])


def test_closing_ends_the_waiting_where_messages_are_locked(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    store.put("t", b"1")
    store.pop("g", "t")
    kinds: list[dict[str, Any]] = [{}, {"queue": 1}, {"filter": "y"}, {"attempt_id": "a"}]
    closing(store, pool, [waiting(pool, store, **kind) for kind in kinds])


def ended_by(
    store: Store, pool: ThreadPoolExecutor, change: Callable[[], object]
) -> BaseException | None:
    one = waiting(pool, store, wait=1.0)
    time.sleep(ASLEEP)
    change()
    if any(t.name == "t" for t in store.topics()):
        store.put("t", b"1")
    try:
        assert one.result(SOON) == [], "handed to a group that is gone"
    except kvstore.CallerError as e:
        return e
    return None


def test_a_group_deleted_while_one_waits_gets_nothing_more(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    error = ended_by(store, pool, lambda: store.delete_group("g"))
    assert error is None or isinstance(error, kvstore.GroupNotFound)


def test_a_topic_deleted_while_one_waits_gives_nothing_more(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    error = ended_by(store, pool, lambda: store.delete_topic("t"))
    assert error is None or isinstance(error, kvstore.TopicNotFound)


def test_one_who_waits_sees_a_message_of_a_flushed_only_store_once_it_is_on_the_disk(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with kvstore.open(
        tmp_path / "s", settings(visibility="flushed", flush_interval=0.05, flush_dirty_bytes=0)
    ) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        one = waiting(pool, store)
        time.sleep(ASLEEP)
        store.put("t", b"1")
        assert bodies(one.result(SOON)) == [b"1"]
