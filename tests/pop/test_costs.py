"""The cost of a call does not grow with the store: it is counted in reads, not in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import InFlight, Message, Store, StoreConfig
from kvstore.core.popping.offset_sets import Shelf
from kvstore.index.keys import LOCKS
from kvstore.pop.inflight.counters import Tally
from tests.support import inside, inside_pops
from tests.support.clock import VirtualClock
from tests.support.costs import Costs

SIZES: Final = (4, 40, 400)
LONG: Final = 3600.0


@contextmanager
def locks_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many rows of locks were read, and looked up, meanwhile."""
    families, seen = inside.families(store), count()
    rows, get = families.rows, families.get

    def counted_rows(family: str, *keys: Any) -> Any:
        for row in rows(family, *keys):
            if family == LOCKS:
                next(seen)
            yield row

    def counted_get(family: str, *keys: Any) -> Any:
        if family == LOCKS:
            next(seen)
        return get(family, *keys)

    with monkeypatch.context() as patched:
        patched.setattr(families, "rows", counted_rows)
        patched.setattr(families, "get", counted_get)
        yield lambda: next(seen)


@pytest.mark.parametrize("count", [1, 32])
def test_a_pop_costs_one_write_and_so_does_the_ack_of_its_messages(
    store: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store.create_group("g")
    store.put_batch([Message("t", b"", queue=0)] * 3 * count)
    store.ack_batch([p.receipt for p in store.pop("g", "t", limit=count)])
    writes = inside.counted_writes(store, monkeypatch)
    for _ in range(2):
        popped = store.pop("g", "t", limit=count)
        assert (len(popped), len(writes)) == (count, 1)
        assert store.ack_batch([p.receipt for p in popped]) == [True] * count
        assert len(writes) == 2
        writes.clear()


@pytest.mark.parametrize("limit", [1, 5, 32])
def test_messages_that_memory_has_are_popped_and_pulled_without_a_look_into_rocksdb(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    store.create_topic("wide", queues=8)
    store.create_group("g")
    messages = [Message("wide", b"", queue=n % 8) for n in range(64)]
    for _ in range(2):
        store.put_batch(messages)
        while popped := store.pop("g", "wide", limit=32):
            store.ack_batch([p.receipt for p in popped])
        store.checkpoint()
    at = [store.bounds("wide", queue).next_offset for queue in range(8)]
    store.put_batch(messages)
    with Costs(monkeypatch).counting() as costs:
        while popped := store.pop("g", "wide", limit=limit):
            store.ack_batch([p.receipt for p in popped])
        for queue in range(8):
            store.pull("wide", queue=queue, offset=at[queue], limit=limit)
    assert not costs


@contextmanager
def bytes_decoded(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the records that were decoded meanwhile."""
    reader, sizes = inside.reader(store), list[int]()
    read = reader.read

    def counted(topic: Any, queue: Any, offset: Any, limit: Any, out: list[Any], *more: Any) -> Any:
        before = len(out)
        following = read(topic, queue, offset, limit, out, *more)
        sizes.extend(message.size for message in out[before:])
        return following

    with monkeypatch.context() as patched:
        patched.setattr(reader, "read", counted)
        yield sizes


# --- locks ---


def committed(store: Store) -> None:
    assert store.committed_offset("g", "t", 0) == 0


def lag(store: Store) -> None:
    assert store.lag("g", "t")[0].committed == 0


def figures(store: Store) -> None:
    (stats,) = store.group_stats("g", "t")
    assert (stats.due, stats.redelivered) == (0, 0)
    assert stats.oldest_due is not None


def commit(store: Store) -> None:
    with pytest.raises(InFlight):
        store.commit_offset("g", "t", 0, 0)


def pop_and_ack(store: Store) -> None:
    (one,) = store.pop("g", "t")
    store.ack(one.receipt)


def pop_and_extend(store: Store) -> None:
    (one,) = store.pop("g", "t")
    store.ack(store.change_invisible(one.receipt, 60.0))


def note_history(store: Store) -> None:
    store.offset_history("g", "t", 0)


def test_a_page_of_messages_in_flight_reads_no_locks_of_the_pages_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all locks end at one time."""
    store.create_group("g")
    store.put_batch([Message("t", b"x")] * 40)
    for _ in range(40):
        assert len(store.pop("g", "t", invisible_for=LONG)) == 1
    read = list[int]()
    after = None
    while not read or after is not None:
        with locks_read(store, monkeypatch) as seen:
            page = store.in_flight("g", "t", limit=10, after=after)
            read.append(seen())
        after = page.next
    assert len(read) == 4
    assert max(read) <= 12, "those of the page, the last one before it, and one behind it"


@pytest.mark.parametrize("cap", [None, 1000])
@pytest.mark.parametrize(
    "call", [committed, lag, figures, commit, pop_and_ack, pop_and_extend, note_history]
)
def test_what_a_call_reads_of_locks_does_not_grow_with_them(
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Store], None],
    cap: int | None,
) -> None:
    store.create_group("g", max_in_flight=cap)
    store.put_batch([Message("t", b"x") for _ in range(SIZES[-1] + 10)])
    read, held = [], 0
    for size in SIZES:
        while held < size:
            assert len(store.pop("g", "t", invisible_for=LONG)) == 1
            clock.advance(0.001)
            held += 1
        call(store)  # what it knows from then on is not known before the first time
        with locks_read(store, monkeypatch) as seen:
            call(store)
            read.append(seen())
    assert read[0] == read[1] == read[2] <= 4


def test_under_a_cap_locks_that_are_still_running_are_not_counted_again(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the millisecond is in which one of many locks runs out."""
    store.create_group("g", max_in_flight=300)
    store.put_batch([Message("t", b"x") for _ in range(400)])
    for _ in range(299):
        store.pop("g", "t", invisible_for=1.0)
    clock.advance(0.999)
    with locks_read(store, monkeypatch) as seen:
        assert len(store.pop("g", "t", 10, invisible_for=LONG)) == 1
        assert store.pop("g", "t", 10, invisible_for=LONG) == []
        assert seen() == 0
    clock.advance(0.001)
    assert len(store.pop("g", "t", 400, invisible_for=LONG)) == 299


@pytest.mark.parametrize("kind", ["normal", "priority"])
@pytest.mark.parametrize("held", ["due", "locked"])
def test_a_pop_of_one_queue_reads_no_locks_of_others(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, held: str, kind: str
) -> None:
    """Be they due or not, and though something of the queue itself is due."""
    # Of a priority topic the highest queue comes first, so nobody has to ask for it.
    low, high, asked = (1, 0, 0) if kind == "normal" else (0, 1, None)
    store.create_topic("q", queues=2, kind=kind)  # type: ignore[arg-type]  # one of the two
    store.put_batch([Message("q", b"", queue=low) for _ in range(SIZES[-1])])
    store.put_batch([Message("q", b"", queue=high) for _ in range(20)])
    read = []
    for size in SIZES:
        group = f"g{size}"
        store.create_group(group)
        for _ in range(size):
            store.pop(group, "q", queue=low, invisible_for=1.0 if held == "due" else LONG)
            clock.advance(0.0001)
        clock.advance(2)
        for n in range(2):  # what it knows from then on is not known before the first time
            assert len(store.pop(group, "q", queue=high, invisible_for=1.0)) == 1
            clock.advance(2)
            with locks_read(store, monkeypatch) as seen:
                (one,) = store.pop(group, "q", queue=asked, invisible_for=LONG)
                assert (one.message.queue, one.message.offset) == (high, n)
                assert one.attempt == 2
                read.append(seen())
    assert read[1] == read[3] == read[5] <= 5


def test_popping_one_by_one_leaves_nothing_in_memory(store: Store, clock: VirtualClock) -> None:
    """Also while an old lock stands before all others, and with a cap, which counts them."""
    store.create_group("g", max_in_flight=5)
    store.put_batch([Message("t", b"x") for _ in range(1000)])
    (old,) = store.pop("g", "t", invisible_for=LONG)
    table = inside.table(store)
    for _ in range(999):
        (one,) = store.pop("g", "t", invisible_for=60.0)
        store.ack(one.receipt)
        clock.advance(1.0)
    assert table.rows == 1
    sizes = inside_pops.sizes_of(table)
    assert sizes.counts == 1
    assert max(sizes) < 140
    store.ack(old.receipt)


@pytest.mark.parametrize("kept", [0, 3])
def test_a_shelf_keeps_no_more_empty_numbers_than_its_bound(kept: int) -> None:
    shelf = Shelf()
    for number in range(kept):
        shelf.put(number, 1)
    for number in range(10_000, 0, -1):
        shelf.put(number * 10, 5)
        shelf.put(number * 10, 0)
    assert len(shelf) <= 2 * kept + 140
    assert shelf.first() == (0 if kept else None)


def test_a_shelf_knows_the_lowest_number_that_has_a_value() -> None:
    shelf = Shelf()
    for number in (7, 3, 9):
        shelf.put(number, 1)
    assert shelf.first() == 3
    shelf.put(3, 0)
    assert shelf.first() == 7
    shelf.put(3, 2)
    shelf.put(7, 0)
    shelf.put(7, 0)
    shelf.put(7, 4)
    assert shelf.first() == 3
    shelf.put(3, 0)
    assert (shelf.first(), len(shelf)) == (7, 2)


def test_a_tally_follows_a_clock_that_is_set_back_and_forth() -> None:
    tally = Tally()
    for due in (100, 200, 200, 300):
        tally.add(due, 2)
    assert [tally.live_at(now) for now in (99, 100, 199, 200, 99, 250, 300, 0)] == [
        8, 6, 6, 2, 8, 2, 0, 8,
    ]  # fmt: skip
    tally.remove(200, 2)
    assert tally.live_at(150) == 4
    tally.add(120, 1)
    tally.remove(200, 2)
    tally.add(200, 5)
    assert [tally.live_at(now) for now in (150, 119, 120, 199, 200)] == [7, 8, 7, 7, 2]


def test_a_tally_takes_off_a_time_once_that_was_noted_twice() -> None:
    tally = Tally()
    tally.add(300, 4)
    for _ in range(3):
        tally.add(200, 2)
        tally.remove(200, 2)
    tally.add(200, 3)
    assert [tally.live_at(now) for now in (100, 200, 300)] == [7, 4, 0]


# --- bytes ---


def test_a_pop_of_some_bytes_decodes_no_more_than_these(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ten and a hundred messages the same as at one; and what did not fit is decoded once."""
    size = 64 << 10
    with kvstore.open(store.path.parent / "large", StoreConfig(segment_size=32 << 20)) as large:
        large.create_topic("t", queues=1)
        large.put_batch([Message("t", b"x" * size) for _ in range(100)])
        for limit in (1, 10, 100):
            large.create_group(f"g{limit}")
            with bytes_decoded(large, monkeypatch) as sizes:
                assert len(large.pop(f"g{limit}", "t", limit, max_bytes=size)) == 1
                assert sum(sizes) <= 10 * size, "the read-ahead of 512 KiB"
        with bytes_decoded(large, monkeypatch) as sizes:
            for _ in range(99):
                assert len(large.pop("g100", "t", 100, max_bytes=size)) == 1
            assert len(sizes) <= 100


def test_due_parked_and_filtered_messages_are_read_by_their_sizes(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 64 << 10
    with kvstore.open(tmp_path / "l", StoreConfig(segment_size=32 << 20, clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"x" * size, tag="a", message_group="m") for _ in range(100)])
        store.create_group("g")
        assert len(store.pop("g", "t", 100, 1.0)) == 100
        clock.advance(2)
        with bytes_decoded(store, monkeypatch) as sizes:
            assert len(store.pop("g", "t", 100, max_bytes=size)) == 1
            assert len(sizes) <= 2
        store.create_group("o", ordered=True)
        with bytes_decoded(store, monkeypatch) as sizes:
            assert len(store.pop("o", "t", 1, max_bytes=size)) == 1
            assert len(sizes) <= 2
        with bytes_decoded(store, monkeypatch) as sizes:
            assert len(store.pull("t", 0, 0, limit=100, filter="a", max_bytes=size).messages) == 1
            assert len(store.pull("t", 0, 0, limit=100, max_bytes=size).messages) == 1
            assert len(sizes) <= 3
