"""The memory that popping takes has bounds: each is run to ten times as much.

The bounds are lowered for that. Those of the larger ones are in the tens of thousands, and what
happens at them is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import kvstore
from kvstore import Message, Store, TopicConfig
from kvstore.core.popping import inflight
from kvstore.core.popping.offset_sets import OffsetSet
from kvstore.meta.groups import GroupConfig
from kvstore.meta.topics import Topic
from kvstore.pop import ordered
from kvstore.pop import pop as pop_module
from kvstore.pop.inflight import tables as tables_module
from kvstore.pop.inflight.tables import AHEAD
from kvstore.pop.popper import Popper
from kvstore.read.reader import Reader
from tests.support import inside, inside_pops
from tests.support.clock import VirtualClock
from tests.support.popping import offsets

BOUND: Final = 8
MANY: Final = 10 * BOUND
LONG: Final = 3600.0


@pytest.fixture
def topics(store: Store) -> list[str]:
    """Topics of one message each."""
    names = [f"t{n}" for n in range(MANY)]
    store.create_topics([TopicConfig(name=name, queues=1) for name in names])
    store.put_batch([Message(name, b"") for name in names])
    return names


# --- tables ---


@pytest.fixture
def few_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "_KEPT_MAX", BOUND)


@pytest.mark.usefixtures("few_flights")
def test_flights_with_nothing_under_way_are_let_go(store: Store, topics: list[str]) -> None:
    store.create_group("g")
    for name in topics:
        (one,) = store.pop("g", name)
        store.ack(one.receipt)
    assert len(inside_pops.kept_tables(inside.tables(store))) <= BOUND + 1
    assert all(store.pop("g", name) == [] for name in topics)
    assert len(inside_pops.kept_tables(inside.tables(store))) <= BOUND + 1


@pytest.mark.usefixtures("few_flights")
def test_a_flight_that_another_thread_works_with_is_not_let_go(store: Store) -> None:
    tables = inside.tables(store)
    table = tables.get(1, 1)
    taken, done = threading.Event(), threading.Event()

    def work() -> None:
        with table.lock:
            taken.set()
            assert done.wait(60)

    worker = threading.Thread(target=work)
    worker.start()
    assert taken.wait(60)
    for number in range(MANY):
        tables.get(1, 2 + number)
    assert not table.gone
    done.set()
    worker.join()


@pytest.mark.usefixtures("few_flights")
def test_flights_are_fewer_again_after_very_many_were_needed(
    store: Store, topics: list[str]
) -> None:
    store.create_groups([GroupConfig(name=name) for name in ("g", "h")])
    held = [store.pop("g", name)[0] for name in topics]
    assert len(inside_pops.kept_tables(inside.tables(store))) == MANY
    assert store.ack_batch([p.receipt for p in held]) == [True] * MANY
    for name in topics:
        store.pop("h", name, invisible_for=LONG)
        store.ack_batch([p.receipt for p in store.pop("h", name)])
    assert len(inside_pops.kept_tables(inside.tables(store))) <= MANY + 1
    for name in topics:
        store.reset_offset("h", name, to="end")
    store.create_topic("more", queues=1)
    for n in range(MANY):
        store.create_group(f"m{n}")
        store.pop(f"m{n}", "more")
    assert len(inside_pops.kept_tables(inside.tables(store))) <= BOUND + 1


@pytest.mark.usefixtures("few_flights")
def test_what_is_parked_or_locked_or_waited_for_outlives_many_other_flights(
    store: Store, clock: VirtualClock, topics: list[str]
) -> None:
    store.create_groups(
        [GroupConfig(name="o", ordered=True), GroupConfig(name="l"), GroupConfig(name="g")]
    )
    store.put_batch([Message("t", b"", message_group="m") for _ in range(3)])
    (first,) = store.pop("o", "t", 10, LONG)
    (locked,) = store.pop("l", "t", 1, 5.0)
    store.reset_offset("g", "t", to="end")
    woken: list[int] = []
    found, poll = inside.begin_pop(store)(
        lambda: woken.append(1), "g", "t", 60.0, 1, None, LONG, None, None, None
    )
    assert not found
    assert poll is not None
    store.ack(first.receipt)  # nothing is locked there now, but two messages are parked
    for name in topics:
        store.ack(store.pop("g", name)[0].receipt)
    assert store.committed_offset("o", "t", 0) == 1
    assert offsets(store.pop("o", "t", 10, LONG)) == [1]
    clock.advance(6)
    assert offsets(store.pop("l", "t", 1)) == [0]
    with pytest.raises(kvstore.ReceiptExpired):
        store.ack(locked.receipt)
    assert poll.tables == [inside.table(store, "g", "t")]
    store.put("t", b"")
    assert woken
    assert offsets(poll.look()) == [3]
    poll.end()


@pytest.mark.usefixtures("few_flights")
def test_a_flight_that_a_pop_begins_to_wait_at_is_not_let_go(
    store: Store, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_group("g")
    waiting = inside.popping(store).waiting
    enter = waiting.enter

    def enter_after_many_others(*given: Any) -> None:
        for name in topics:
            store.ack(store.pop("g", name)[0].receipt)
        enter(*given)

    monkeypatch.setattr(waiting, "enter", enter_after_many_others)
    begin_pop = inside.begin_pop(store)
    found, poll = begin_pop(lambda: None, "g", "t", 60.0, 1, None, LONG, None, None, None)
    assert not found
    assert poll is not None
    assert poll.tables == [inside.table(store, "g", "t")]
    poll.end()


@pytest.mark.parametrize("size", [40, 400, 4000])
def test_a_new_flight_beside_many_that_are_held_looks_at_as_few_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(tables_module, "_KEPT_MAX", BOUND)
    tables = inside.tables(store)
    looks = inside_pops.counted_looks(store, monkeypatch)
    for number in range(size):
        tables.get(1000 + number, 1).waiters.add(None)  # type: ignore[arg-type]  # it is held
    before = looks.count
    for number in range(100):
        tables.get(1000 + size + number, 1)
    assert looks.count - before == 100 * tables_module.LOOKED_AT


# --- what is remembered ---


def kept_tables_ahead(pops: Popper) -> int:
    return sum(bool(f.prefetched) for f in inside_pops.kept_tables(pops.tables).values())


KEPT: Final[dict[str, tuple[Any, str, Callable[[Popper], int]]]] = {
    "rows that ended": (
        tables_module, "ENDED_MAX", lambda pops: len(pops.tables.ended)),
    "tables that read ahead": (tables_module, "_PREFETCHED_MAX", kept_tables_ahead),
    "rows that are known": (
        inflight, "KNOWN_MAX", lambda pops: len(pops.tables.known)),
    "what pops asked for, and was checked": (
        pop_module, "_CHECKED_MAX", inside_pops.kinds_checked),
}  # fmt: skip


@pytest.mark.parametrize("what", KEPT)
def test_what_is_remembered_of_pops_and_acks_has_a_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch, topics: list[str], what: str
) -> None:
    module, limit, size = KEPT[what]
    monkeypatch.setattr(module, limit, BOUND)
    store.create_group("g")
    store.put_batch([Message(name, b"", 0, tag="a") for name in topics for _ in range(3)])
    most = 0
    for number, name in enumerate(topics):
        seconds = LONG + number
        (one,) = store.pop("g", name, 1, seconds)
        (two,) = store.pop("g", name, 1, seconds, filter="a")
        most = max(most, size(inside.popping(store)))
        if number % 2:  # locks that are held are remembered, and so are those that ended
            store.ack(one.receipt)
            assert store.ack_batch([one.receipt, two.receipt]) == [True, True]
            most = max(most, size(inside.popping(store)))
    assert 0 < most <= BOUND + 1
    assert all(len(store.pop("g", name, 5)) == 2 for name in topics)


def test_what_is_remembered_of_offsets_that_were_set_back_has_a_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one queue, each time behind the time before."""
    monkeypatch.setattr(tables_module, "ENDED_MAX", BOUND)
    store.create_group("g")
    store.put_batch([Message("t", b"") for _ in range(2 * MANY)])
    tables = inside.tables(store)
    for number in range(MANY):
        store.ack_batch([p.receipt for p in store.pop("g", "t", 3)])
        store.reset_offset("g", "t", offset=number + 1, queue=0)
        assert inside_pops.offsets_set_back(tables) <= BOUND
    store.delete_group("g")
    assert inside_pops.offsets_set_back(tables) == 0


def test_a_receipt_that_was_set_back_is_over_however_many_others_were(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "ENDED_MAX", BOUND)
    store.create_group("g")
    store.put_batch([Message("t", b"") for _ in range(MANY)])
    for number in range(MANY - 1):
        popped = store.pop("g", "t", 2, LONG)
        receipts = [p.receipt for p in popped]
        assert store.ack_batch(receipts) == [True, True]
        store.reset_offset("g", "t", offset=number + 1, queue=0)
        assert [r is True for r in store.ack_batch(receipts)] == [True, False]


# --- parked messages ---


def test_no_more_messages_of_a_queue_are_parked_than_the_bound_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "PARKED_MAX", BOUND)
    store.create_group("o", ordered=True)
    store.put_batch([Message("t", b"", message_group="slow") for _ in range(MANY)])
    store.put_batch([Message("t", b"", message_group="quick") for _ in range(3)])
    came = []
    while popped := store.pop("o", "t", 10, LONG) + store.pop("o", "t", 10, LONG):
        assert inside.table(store, "o", "t").parked_count <= BOUND
        came += offsets(popped)
        store.ack_batch([p.receipt for p in popped])
    assert sorted(came) == list(range(MANY + 3))
    assert [n for n in came if n < MANY] == list(range(MANY))
    assert [n for n in came if n >= MANY] == list(range(MANY, MANY + 3))
    assert inside.table(store, "o", "t").parked_count == 0


# --- what grows with time ---


@pytest.fixture
def worked(store: Store, clock: VirtualClock) -> Iterator[tuple[Store, VirtualClock]]:
    """A store whose group works beside an old lock, one message a second for ten times as long as
    its empty buckets may be many.
    """
    store.create_group("g", max_in_flight=1000)
    store.put_batch([Message("t", b"") for _ in range(1500)])
    (old,) = store.pop("g", "t", invisible_for=1e6)
    yield store, clock
    store.ack(old.receipt)


@pytest.mark.parametrize("how", ["acks", "acks long before the end", "moves", "runs out"])
def test_counters_of_locks_stay_few_however_long_a_group_works(
    worked: tuple[Store, VirtualClock], how: str
) -> None:
    store, clock = worked
    for number in range(1400):
        lasts = 36_000.0 if how == "acks long before the end" else 60.0
        (one,) = store.pop("g", "t", invisible_for=lasts)
        if how == "moves":
            one_more = store.change_invisible(one.receipt, 30.0)
            store.ack(one_more)
        elif how == "runs out" and number % 2:
            clock.advance(60)
            (again,) = store.pop("g", "t", invisible_for=60.0)
            assert again.message.offset == one.message.offset
            store.ack(again.receipt)
        else:
            store.ack(one.receipt)
        clock.advance(1.0)
    table = inside.table(store, "g", "t")
    assert table.rows == 1
    sizes = inside_pops.sizes_of(table)
    assert sizes.counts == 1
    assert max(sizes) <= 140


def test_a_set_of_offsets_says_which_of_a_stretch_it_has() -> None:
    found = OffsetSet()
    for first, bits in ((250, 0b1011_0000_0001), (1000, 1), (512, 1 << 255)):
        found.add(first, bits)
    every = {250, 258, 259, 261, 767, 1000}
    for first in (0, 249, 250, 251, 255, 256, 257, 261, 262, 500, 766, 1000, 1001):
        for size in (0, 1, 2, 11, 12, 256, 257, 800):
            there = {first + i for i in range(size) if found.within(first, size) >> i & 1}
            assert there == {n for n in every if first <= n < first + size}
            assert found.within(first, size) < 1 << size


def test_large_messages_behind_small_ones_are_read_ahead_within_the_bound(store: Store) -> None:
    store.create_topic("one", queues=1)
    store.create_group("g")
    store.put_batch([Message("one", b"", queue=0)] * AHEAD)
    store.put_batch([Message("one", bytes(30_000), queue=0)] * MANY)
    kept = 0
    for _ in range(AHEAD + MANY):
        (one,) = store.pop("g", "one", invisible_for=LONG)
        (table,) = inside_pops.kept_tables(inside.tables(store)).values()
        kept = max(kept, sum(m.size for ahead in table.prefetched.values() for m in ahead))
        store.ack(one.receipt)
    assert kept <= 512 << 10


@pytest.mark.parametrize("small", [0, AHEAD])
def test_a_pop_of_more_than_is_read_ahead_gets_all_that_it_wants(store: Store, small: int) -> None:
    store.create_topic("one", queues=1)
    store.create_group("g")
    store.put_batch(
        [Message("one", b"", queue=0)] * small + [Message("one", bytes(30_000), queue=0)] * MANY
    )
    for _ in range(small):
        store.ack(store.pop("g", "one")[0].receipt)
    wanted = range(small, small + MANY)
    assert offsets(store.pop("g", "one", limit=MANY)) == list(wanted)


def test_a_pop_that_takes_all_that_is_read_reads_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("wide", queues=AHEAD)
    store.create_group("g")
    store.put_batch([Message("wide", bytes(200), queue=0)] * MANY)
    reads: list[int] = []
    read = Reader.read

    def counted(reader: Reader, topic: Topic, queue: int, offset: int, *rest: Any) -> int:
        reads.append(offset)
        return read(reader, topic, queue, offset, *rest)

    monkeypatch.setattr(Reader, "read", counted)
    for first in range(0, MANY, BOUND):
        popped = store.pop("g", "wide", limit=BOUND, queue=0)
        assert offsets(popped) == list(range(first, first + BOUND))
    assert reads == list(range(0, MANY, BOUND))
