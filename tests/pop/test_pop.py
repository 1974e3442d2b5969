"""Pop: which messages come, from where, how many, and what is refused."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import CallerError, Message, Popped, Store, StoreConfig
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.naming import named
from tests.support.popping import put
from tests.support.stores import killed, overwrite, settings

pytestmark = [pytest.mark.topic(queues=3), pytest.mark.group]


def places(popped: list[Popped]) -> list[tuple[int, int]]:
    return [(p.message.queue, p.message.offset) for p in popped]


def all_of(store: Store, group: str = "g", topic: str = "t", **asked: Any) -> list[Popped]:
    """Everything there is to pop now."""
    found: list[Popped] = []
    while more := store.pop(group, topic, 7, **asked):
        found += more
    return found


# --- what comes ---


def test_a_pop_has_the_message_a_receipt_the_attempt_and_when_the_lock_ends(
    store: Store, clock: VirtualClock
) -> None:
    r = store.put("t", b"text", tag="x", keys=["k"], properties={"p": "v"})
    (p,) = store.pop("g", "t", invisible_for=12.5)
    assert p.message == store.get("t", r.queue, r.offset)
    assert p.attempt == 1
    assert p.due_at == clock.now_ms() + 12_500
    assert isinstance(p.receipt, str)


def test_each_message_comes_once_and_each_queue_in_order(store: Store) -> None:
    for queue in range(3):
        put(store, 300, queue)
    found = places(all_of(store))
    assert sorted(found) == [(q, n) for q in range(3) for n in range(300)]
    for queue in range(3):
        assert [n for q, n in found if q == queue] == list(range(300))


def test_each_group_gets_every_message(store: Store) -> None:
    store.create_group("h")
    put(store, 10, 0)
    assert places(all_of(store, "g")) == places(all_of(store, "h"))


def test_one_queue_alone_can_be_popped(store: Store) -> None:
    for queue in range(3):
        put(store, 5, queue)
    assert places(all_of(store, queue=1)) == [(1, n) for n in range(5)]
    assert {q for q, _ in places(all_of(store))} == {0, 2}


def test_what_is_due_again_comes_before_what_is_unread(store: Store, clock: VirtualClock) -> None:
    put(store, 10, 0)
    store.pop("g", "t", 3, 1.0)
    clock.advance(2)
    assert places(store.pop("g", "t", 5)) == [(0, n) for n in range(5)]


def test_a_short_lock_beside_a_long_one_comes_before_what_is_unread(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 10, 0)
    assert places(store.pop("g", "t", queue=0, invisible_for=1000.0)) == [(0, 0)]
    assert places(store.pop("g", "t", queue=0, invisible_for=1.0)) == [(0, 1)]
    clock.advance(1)
    assert places(store.pop("g", "t", queue=0)) == [(0, 1)]
    assert places(store.pop("g", "t", queue=0)) == [(0, 2)]


def test_a_pop_goes_on_at_a_committed_offset_whatever_was_read_ahead(store: Store) -> None:
    put(store, 10, 0)
    for n in range(2):
        (p,) = store.pop("g", "t", queue=0)
        assert p.message.offset == n
        store.ack(p.receipt)
    for n in (5, 3):
        store.commit_offset("g", "t", 0, n)
        (p,) = store.pop("g", "t", queue=0)
        assert p.message.offset == n
        store.ack(p.receipt)


def test_what_was_due_first_comes_first(store: Store, clock: VirtualClock) -> None:
    put(store, 3, 0)
    for seconds in (3.0, 1.0, 2.0):
        store.pop("g", "t", 1, seconds)
    clock.advance(5)
    assert [n for _, n in places(store.pop("g", "t", 3))] == [1, 2, 0]


def test_all_that_is_due_of_one_queue_comes_oldest_first_and_nothing_of_others(
    store: Store, clock: VirtualClock
) -> None:
    for n in range(18):
        store.put("t", b"", queue=n % 3)
        assert len(store.pop("g", "t", invisible_for=100.0, queue=n % 3)) == 1
        clock.advance(0.3)
    clock.advance(200)
    for queue in range(3):
        found = store.pop("g", "t", 10, 1.0, queue=queue)
        assert places(found) == [(queue, offset) for offset in range(6)]
        assert store.pop("g", "t", 10, queue=queue) == []
        store.ack_batch([p.receipt for p in found[:3]])
    clock.advance(2)
    for queue in range(3):
        found = store.pop("g", "t", 10, queue=queue)
        assert places(found) == [(queue, offset) for offset in (3, 4, 5)]


def test_a_batch_may_be_larger_than_a_lock_row_takes(store: Store) -> None:
    put(store, 1000, 0)
    found = store.pop("g", "t", 1000)
    assert places(found) == [(0, n) for n in range(1000)]
    assert store.ack_batch([p.receipt for p in found]) == [True] * 1000
    assert store.lag("g", "t")[0].lag == 0


def test_popping_while_putting_misses_nothing(store: Store) -> None:
    found = []
    for n in range(200):
        store.put("t", b"%d" % n)
        found += store.pop("g", "t", 1 + n % 3)
    found += all_of(store)
    assert sorted(int(p.message.body) for p in found) == list(range(200))


# --- limits ---


def test_no_more_come_than_the_limit(store: Store, clock: VirtualClock) -> None:
    put(store, 20, 0)
    put(store, 20, 1)
    for limit in (1, 2, 25):
        assert len(store.pop("g", "t", limit, 1.0)) == limit
    clock.advance(2)
    assert len(store.pop("g", "t", 30)) == 30
    assert len(store.pop("g", "t", 100)) == 10


@pytest.mark.parametrize("popped_before", [0, 1, 2, 3])
@pytest.mark.parametrize("due", [False, True])
def test_no_more_bytes_come_than_asked_but_one_message_at_least(
    store: Store, clock: VirtualClock, popped_before: int, due: bool
) -> None:
    sizes = [store.put("t", b"x" * 100, queue=0).size for _ in range(4)]
    for _ in range(popped_before):
        store.ack(store.pop("g", "t")[0].receipt)
    # The messages that were read ahead end here.
    sizes += [store.put("t", b"x" * n, queue=0).size for n in (1000, 10, 10)]
    if due:
        assert len(store.pop("g", "t", 10, 1.0)) == 7 - popped_before
        clock.advance(2)
    left = sizes[popped_before:]
    for most in (sizes[0] * 2 + 1, sizes[0], 1, sizes[4] + sizes[5], 10_000):
        wanted = [left.pop(0)] if left else []
        while left and sum(wanted) + left[0] <= most:
            wanted.append(left.pop(0))
        assert [p.message.size for p in store.pop("g", "t", 10, max_bytes=most)] == wanted
    assert not left


def test_behind_many_dead_letters_no_more_bytes_come_than_asked(
    store: Store, clock: VirtualClock
) -> None:
    """Though a pop looks again behind what it sent there."""
    store.create_group("one", max_attempts=1)
    put(store, 600, 0)
    assert len(store.pop("one", "t", 600, 1.0)) == 600
    store.put_batch([Message("t", b"x" * 400, queue=0) for _ in range(5)])
    size = store.get("t", 0, 600).size
    clock.advance(2)
    came = 0
    for _ in range(5):
        found = store.pop("one", "t", 10, max_bytes=size + size // 2)
        assert len(found) <= 1
        came += len(found)
    assert came == 5


def test_bytes_are_counted_over_all_queues(store: Store) -> None:
    size = store.put("t", b"x" * 100, queue=0).size
    store.put("t", b"x" * 100, queue=1)
    store.put("t", b"x" * 100, queue=2)
    assert len(store.pop("g", "t", 10, max_bytes=2 * size)) == 2
    assert len(store.pop("g", "t", 10, max_bytes=2 * size)) == 1


def test_a_pop_of_so_many_bytes_has_no_more_however_far_its_filter_looks(store: Store) -> None:
    """The messages that it wants lie farther apart than it looks at once."""
    messages = [
        Message("t", bytes(100), queue=0, tag="a" if n % 2000 == 0 else "b") for n in range(4002)
    ]
    size = store.put_batch(messages)[0].size
    found = store.pop("g", "t", 10, max_bytes=2 * size, filter="a")
    assert sum(p.message.size for p in found) <= 2 * size
    while more := store.pop("g", "t", 10, max_bytes=2 * size, filter="a"):
        assert sum(p.message.size for p in more) <= 2 * size
        found += more
    assert places(found) == [(0, 0), (0, 2000), (0, 4000)]


def test_a_pop_with_an_attempt_id_has_each_message_once_however_far_its_filter_looks(
    store: Store,
) -> None:
    store.put_batch(
        [Message("t", b"", queue=0, tag="a" if n % 2000 == 0 else "b") for n in range(4002)]
    )
    asked: dict[str, Any] = {"filter": "a", "attempt_id": "one"}
    found = store.pop("g", "t", 10, **asked)
    assert places(store.pop("g", "t", 10, **asked)) == places(found)
    assert len(set(places(found))) == len(found) > 0


def test_no_more_are_in_flight_than_the_cap_over_all_topics(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("h", max_in_flight=5)
    store.create_topic("u", queues=2)
    put(store, 10, 0)
    put(store, 10, 1, topic="u")
    found = store.pop("h", "t", 3)
    assert len(found) == 3
    assert len(store.pop("h", "u", 10, 1.0)) == 2
    assert store.pop("h", "t", 10) == []
    store.ack(found[0].receipt)
    assert len(store.pop("h", "t", 10)) == 1
    clock.advance(2)
    # Two of them are due: these are handed out again, but none in their stead.
    assert [p.attempt for p in store.pop("h", "u", 10)] == [2, 2]
    assert store.pop("h", "t", 10) == []


def test_the_cap_is_kept_over_a_reopening_and_given_back_with_topics_and_resets(
    store: Store, config: StoreConfig
) -> None:
    store.create_group("h", max_in_flight=2)
    put(store, 10, 0)
    assert len(store.pop("h", "t", 10)) == 2
    store.close()
    with kvstore.open(store.path, config) as again:
        assert again.pop("h", "t", 10) == []
        again.reset_offset("h", "t", to="begin")
        assert len(again.pop("h", "t", 10)) == 2
        again.delete_topic("t")
        again.create_topic("t", queues=3)
        put(again, 10, 0)
        assert len(again.pop("h", "t", 10)) == 2


# --- fairness and priority ---


@pytest.mark.parametrize("limit", [1, 8])
def test_no_queue_starves_another(store: Store, limit: int) -> None:
    for queue in range(3):
        put(store, 1000, queue)
    came: Counter[int] = Counter()
    for _ in range(60):
        came.update(q for q, _ in places(store.pop("g", "t", limit)))
    assert min(came[q] for q in range(3)) * 2 >= max(came.values())


def test_a_queue_that_is_filled_all_the_time_does_not_starve_another(store: Store) -> None:
    put(store, 500, 0)
    store.pop("g", "t")
    store.pop("g", "t")
    put(store, 1, 1)
    for _ in range(12):
        put(store, 2, 0)
        if (1, 0) in places(store.pop("g", "t")):
            return
    raise AssertionError("12 pops did not come to the other queue")


def test_a_priority_topic_serves_the_highest_queue_first(store: Store) -> None:
    store.create_topic("p", queues=3, kind="priority")
    for queue in range(3):
        put(store, 40, queue, topic="p")
    came = [p.message.queue for _ in range(40) for p in store.pop("g", "p")]
    # Every fourth is for the others, in turn.
    assert came.count(2) == 30
    assert came.count(1) == came.count(0) == 5
    assert came[:3] == [2, 2, 2]


def test_what_comes_with_a_higher_priority_passes_what_was_there(store: Store) -> None:
    store.create_topic("p", queues=3, kind="priority")
    put(store, 100, 0, topic="p")
    for _ in range(5):
        store.pop("g", "p")
    put(store, 8, 2, topic="p")
    came = [p.message.queue for _ in range(12) for p in store.pop("g", "p")]
    assert came.count(2) == 8


def test_lower_priorities_do_not_starve_while_the_highest_is_filled(store: Store) -> None:
    store.create_topic("p", queues=4, kind="priority")
    for queue in range(3):
        put(store, 5, queue, topic="p")
    left = {(q, n) for q in range(3) for n in range(5)}
    for _ in range(4 * 3 * 5 + 4):
        put(store, 4, 3, topic="p")
        left -= set(places(store.pop("g", "p", 1)))
    assert not left


# --- filters ---


def test_what_a_filter_refuses_is_passed_over_and_done(store: Store) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0, tag="xy"[n % 2]) for n in range(10)])
    found = store.pop("g", "t", 10, filter="y")
    assert [n for _, n in places(found)] == [1, 3, 5, 7, 9]
    assert store.pop("g", "t", 10) == []
    store.ack_batch([p.receipt for p in found])
    assert store.lag("g", "t")[0].lag == 0


def test_between_messages_that_a_filter_refuses_each_has_a_lock_of_its_own(
    store: Store, clock: VirtualClock
) -> None:
    store.put_batch([Message("t", b"", queue=0, tag="xyyxx"[n % 5]) for n in range(10)])
    found = store.pop("g", "t", 10, 1.0, filter="x")
    assert places(found) == [(0, n) for n in (0, 3, 4, 5, 8, 9)]
    for p in (found[1], found[3]):
        store.ack(p.receipt)
    assert store.lag("g", "t")[0].in_flight == 4
    clock.advance(2)
    assert places(store.pop("g", "t", 10, 1.0)) == [(0, n) for n in (0, 4, 8, 9)]


def test_a_filter_over_properties_is_taken(store: Store) -> None:
    store.put_batch(
        [Message("t", b"", queue=0, properties={"n": str(n)}, tag="x") for n in range(10)]
    )
    found = store.pop("g", "t", 10, filter=kvstore.sql("n >= 3 AND n < 6"))
    assert [n for _, n in places(found)] == [3, 4, 5]


def test_a_filter_with_a_limit_leaves_what_is_behind(store: Store, clock: VirtualClock) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0, tag="xy"[n % 2]) for n in range(10)])
    assert [n for _, n in places(store.pop("g", "t", 2, filter="y"))] == [1, 3]
    assert [n for _, n in places(store.pop("g", "t", 10))] == [4, 5, 6, 7, 8, 9]


def test_a_due_message_behind_those_a_filter_refuses_is_not_forgotten(
    store: Store, clock: VirtualClock
) -> None:
    store.put_batch([Message("t", b"", queue=0, tag="x") for n in range(10)])
    store.put("t", b"wanted", queue=0, tag="y")
    store.pop("g", "t", 11, 1.0)
    clock.advance(2)
    assert places(store.pop("g", "t", 2, filter="y")) == [(0, 10)]


# --- where a group begins ---


def test_a_new_group_begins_at_the_beginning_the_end_or_a_time(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3, 0)
    clock.advance(10)
    time = clock.now_ms()
    put(store, 3, 0)
    for start, wanted in (("begin", 6), ("end", 0), (time, 3), (time + 1, 0), (0, 6)):
        store.create_group(f"from {start}".replace(" ", "-"), start=start)  # type: ignore[arg-type]  # each is one
        assert len(all_of(store, f"from-{start}")) == wanted


def test_a_group_that_began_at_the_end_loses_nothing_over_a_reopening(
    store: Store, config: StoreConfig, tmp_path: Path
) -> None:
    put(store, 1, 0)
    store.create_group("e", start="end")
    assert store.pop("e", "t") == []
    store.put("t", b"new", queue=0)
    copy = killed(store, tmp_path / "killed")
    store.close()
    for path in (store.path, copy):
        with kvstore.open(path, config) as again:
            assert [p.message.body for p in again.pop("e", "t", 5)] == [b"new"]


def test_a_group_that_began_at_the_end_loses_nothing_by_a_reset_of_another_queue(
    store: Store,
) -> None:
    store.create_group("e", start="end")
    assert store.pop("e", "t") == []
    store.put("t", b"new", queue=1)
    store.reset_offset("e", "t", to="begin", queue=0)
    assert [p.message.body for p in store.pop("e", "t", 5)] == [b"new"]


def test_a_group_that_began_at_the_end_has_begun_in_every_queue(store: Store) -> None:
    store.create_group("e", start="end")
    assert store.pop("e", "t", queue=0) == []
    assert store.pop("e", "t") == []
    store.put("t", b"1", queue=0)
    assert len(store.pop("e", "t", 1)) == 1
    put(store, 3, 0)
    store.pop("e", "t", 1)
    for queue in range(3):
        store.put("t", b"new", queue=queue)
    bodies = [p.message.body for p in all_of(store, "e")]
    assert bodies.count(b"new") == 3


# --- what happens to messages meanwhile ---


def test_retention_may_take_what_is_unread_or_locked(tmp_path: Path, clock: VirtualClock) -> None:
    config = settings(clock=clock, retention=kvstore.Retention(max_bytes=0), delete_interval=0)
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", max_attempts=2)
        store.create_group("h")
        put(store, 10, 0)
        locked = store.pop("g", "t", 5, 1.0)
        store.seal()
        put(store, 3, 0)
        store.checkpoint()
        assert store.apply_retention() == 1
        low = store.bounds("t", 0).min_offset
        assert low == 10
        store.ack(locked[0].receipt)
        clock.advance(2)
        assert [n for _, n in places(store.pop("g", "t", 20))] == [10, 11, 12]
        assert [n for _, n in places(store.pop("h", "t", 20))] == [10, 11, 12]
        assert isinstance(store.ack_batch([locked[1].receipt])[0], kvstore.ReceiptExpired)
        clock.advance(100)
        assert len(store.pop("g", "t", 20, 1.0)) == 3
        clock.advance(2)
        assert store.pop("g", "t", 20) == []
        assert store.lag("g", "t")[0].lag == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("locked", "look"), [(True, 1), (False, 3)])
def test_messages_that_retention_takes_from_under_a_pop_are_not_told_as_damage(
    tmp_path: Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    locked: bool,
    ordered: bool,
    look: int,
) -> None:
    config = settings(clock=clock, retention=kvstore.Retention(max_bytes=0), delete_interval=0)
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=ordered)
        for n in range(10):
            store.put("t", b"", message_group=f"m{n}")
        if locked:
            assert len(store.pop("g", "t", 10, 1.0)) == 10
            clock.advance(2)
        store.seal()
        put(store, 3, 0)
        store.checkpoint()
        reader, looks, taken = inside.reader(store), itertools.count(1), list[int]()
        bounds = reader.bounds

        def strike(key: int) -> kvstore.Bounds:
            found = bounds(key)
            if next(looks) == look:
                taken.append(store.apply_retention())
            return found

        monkeypatch.setattr(reader, "bounds", strike)
        found = [p.message.offset for p in store.pop("g", "t", 20)]
        assert taken == [1]
        assert found == ([10] if ordered else [10, 11, 12])
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("locked", [False, True])
def test_damaged_messages_are_passed_over(
    store: Store, clock: VirtualClock, config: StoreConfig, locked: bool
) -> None:
    results = [store.put("t", b"message %d" % n, queue=0) for n in range(8)]
    store.checkpoint()
    if locked:
        assert len(store.pop("g", "t", 8, 1.0)) == 8
        clock.advance(2)
    store.close()
    for n in (0, 3, 4, 7):
        overwrite(store.path, results[n].position + results[n].size - 40, b"?" * 3)
        overwrite(store.path, results[n].position + 90, b"\xff" * 8)
    with kvstore.open(store.path, config) as again:
        came = [n for _, n in places(again.pop("g", "t", 8))]
        assert came == [1, 2, 5, 6]
        assert again.pop("g", "t", 8) == []


def test_a_topic_made_anew_begins_at_the_beginning(store: Store) -> None:
    put(store, 5, 0)
    store.pop("g", "t", 3)
    store.delete_topic("t")
    with pytest.raises(kvstore.TopicNotFound):
        store.pop("g", "t")
    store.create_topic("t", queues=3)
    assert store.pop("g", "t") == []
    put(store, 2, 0)
    assert [p.attempt for p in store.pop("g", "t", 5)] == [1, 1]


def test_a_group_made_anew_begins_at_the_beginning(store: Store) -> None:
    put(store, 5, 0)
    store.ack_batch([p.receipt for p in store.pop("g", "t", 3)])
    store.delete_group("g")
    with pytest.raises(kvstore.GroupNotFound):
        store.pop("g", "t")
    store.create_group("g")
    assert len(store.pop("g", "t", 10)) == 5


def test_queues_that_come_are_popped_and_those_that_go_are_not(store: Store) -> None:
    assert store.pop("g", "t", queue=2) == []
    store.alter_topic("t", queues=5)
    put(store, 2, 4)
    assert len(store.pop("g", "t", 10)) == 2
    store.create_topic("u", queues=3)
    assert store.pop("g", "u", queue=2) == []
    store.alter_topic("u", queues=1, read_queues=1)
    with pytest.raises(kvstore.QueueNotFound):
        store.pop("g", "u", queue=2)


# --- how the store writes ---


@pytest.mark.parametrize("write_mode", ["mapped", "staged"])
@pytest.mark.parametrize("visibility", ["written", "flushed"])
def test_only_what_is_visible_is_popped(
    tmp_path: Path, clock: VirtualClock, write_mode: str, visibility: str
) -> None:
    config = settings(
        clock=clock,
        write_mode=write_mode,
        visibility=visibility,
        stage_interval=1e6,
        flush_interval=1e6,
        flush_thorough_interval=1e6,
    )
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=2)
        store.create_group("g")
        put(store, 5, 0)
        found = store.pop("g", "t", 3)
        assert len(found) == (3 if visibility == "written" else 0)
        store.flush()
        found += store.pop("g", "t", 10)
        assert sorted(n for _, n in places(found)) == [0, 1, 2, 3, 4]


def test_what_a_kill_took_from_a_staged_store_is_given_up_and_its_places_are_popped_anew(
    tmp_path: Path, clock: VirtualClock
) -> None:
    config = settings(
        clock=clock,
        write_mode="staged",
        stage_interval=1e6,
        flush_interval=1e6,
        flush_thorough_interval=1e6,
    )
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        put(store, 4, 0)
        store.flush()
        put(store, 6, 0)
        lost = store.pop("g", "t", 10)
        assert len(lost) == 10
        copy = killed(store, tmp_path / "killed")
    with kvstore.open(copy, config) as again:
        assert again.bounds("t", 0).next_offset == 4
        again.put_batch([Message("t", b"new", queue=0) for _ in range(6)])
        found = again.pop("g", "t", 20)
        assert [(p.message.offset, p.attempt) for p in found] == [(n, 1) for n in range(4, 10)]
        again.ack_batch([p.receipt for p in lost[:6]])
        clock.advance(60)
        assert [p.message.offset for p in again.pop("g", "t", 20)] == list(range(4, 10))


# --- what is refused ---

BAD: list[dict[str, Any]] = [
    *({"limit": n} for n in (0, -1, True, 1.0, None, "1", (1 << 20) + 1)),
    *(
        {"invisible_for": n}
        for n in (0, -1, -0.1, 0.0001, True, None, "1", 1e12, float("nan"), float("inf"), 1j)
    ),
    *(
        {"wait": n}
        for n in (-1, -0.1, True, False, None, "", "1", 1e12, float("nan"), float("inf"))
    ),
    *({"queue": n} for n in (-1, 3, True, 0.0, "0", 1 << 40)),
    *({"max_bytes": n} for n in (0, -1, True, 1.0, "1")),
    *({"attempt_id": n} for n in ("", 1, b"a", "a" * 1025)),
    *({"filter": n} for n in ("", "a ||", "||", 1, b"a", ["a"], lambda m: True)),
]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("asked", BAD, ids=named)
def test_what_can_not_be_asked_is_refused_and_changes_nothing(
    store: Store, asked: dict[str, Any], warm: bool
) -> None:
    if warm:
        # An earlier value that Python holds to be equal does not make a wrong value right.
        for usual in ({}, {"invisible_for": 1.0}, {"queue": 1}, {"queue": 0}, {"max_bytes": 1}):
            store.pop("g", "t", **usual)
    put(store, 2, 0)
    with pytest.raises(CallerError):
        store.pop("g", "t", **asked)
    assert [p.attempt for p in store.pop("g", "t", 5)] == [1, 1]


def test_a_year_is_no_time_too_long(store: Store, clock: VirtualClock) -> None:
    put(store, 1, 0)
    year = 365 * 24 * 3600
    (p,) = store.pop("g", "t", invisible_for=year)
    assert p.due_at == clock.now_ms() + year * 1000
    store.change_invisible(p.receipt, year)
    clock.advance(year - 1)
    assert store.pop("g", "t") == []
    clock.advance(2)
    assert len(store.pop("g", "t")) == 1


@pytest.mark.parametrize("seconds", [-1, True, "1", float("nan"), float("inf"), 1e12, -1e-9])
def test_a_lock_can_not_be_changed_to_what_is_no_time(store: Store, seconds: Any) -> None:
    put(store, 1, 0)
    (p,) = store.pop("g", "t")
    with pytest.raises(CallerError):
        store.change_invisible(p.receipt, seconds)
    assert store.pop("g", "t") == []
    store.ack(p.receipt)


def test_unknown_groups_and_topics_are_refused(store: Store) -> None:
    for group, topic, error in (
        ("nobody", "t", kvstore.GroupNotFound),
        ("g", "nothing", kvstore.TopicNotFound),
        ("", "t", CallerError),
        ("g", "", CallerError),
        (None, "t", CallerError),
        ("g", None, CallerError),
        (b"g", "t", CallerError),
        ("g", 7, CallerError),
        ("\ud800", "t", CallerError),
        ("g", "\ud800", CallerError),
    ):
        with pytest.raises(error):
            store.pop(group, topic)  # type: ignore[arg-type]  # on purpose
    assert [g.name for g in store.groups()] == ["g"]
    assert [t.name for t in store.topics()] == ["t"]


@pytest.mark.parametrize("name", ["orders", "Aufträge", "注文", "заказы", "طلبات", "🛒", "%x|y-_"])
def test_a_name_in_any_script_is_popped_by_or_refused(store: Store, name: str) -> None:
    try:
        store.create_topic(name, queues=1)
    except CallerError:
        for call in (store.create_group, lambda n: store.pop(n, "t"), lambda n: store.pop("g", n)):
            with pytest.raises(CallerError):
                call(name)
        return
    store.create_group(name, max_attempts=1)
    store.put(name, b"1")
    (p,) = store.pop(name, name)
    store.ack(p.receipt)
    assert store.lag(name, name)[0].lag == 0


# --- ordered groups ---


@pytest.mark.parametrize("how", ["dead", "refused"])
def test_what_is_behind_a_message_that_an_ordered_group_gave_up_has_its_turn(
    store: Store, clock: VirtualClock, how: str
) -> None:
    store.create_group("o", ordered=True, max_attempts=1 if how == "dead" else 5)
    wanted = None if how == "dead" else "y"
    store.put("t", b"0", queue=0, tag="x")
    assert len(store.pop("o", "t", 1, 1.0)) == 1
    store.put("t", b"1", queue=0, tag="y")
    clock.advance(2)
    came = []
    for _ in range(4):
        came += store.pop("o", "t", 5, filter=wanted)
        clock.advance(100)
    assert [p.message.body for p in came][:1] == [b"1"]


def test_a_pop_goes_on_at_a_committed_offset_and_not_behind_the_messages_read_ahead(
    store: Store,
) -> None:
    store.put_batch([Message("t", b"", queue=0)] * 5)
    for _ in range(2):  # the first pop reads no more than it hands out
        (one,) = store.pop("g", "t")
        store.ack(one.receipt)
    store.commit_offset("g", "t", 0, 5)
    assert store.pop("g", "t") == []
    store.put("t", b"", queue=0)
    assert [p.message.offset for p in store.pop("g", "t")] == [5]
