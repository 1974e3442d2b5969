"""Ordered groups: one message of a message group at a time, also where the past was otherwise."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Popped, Store, StoreConfig
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.popping import offsets, put
from tests.support.stores import Opens

LONG: Final = 20.0
SOON: Final = 10.0


def pop(store: Store, limit: int = 10, invisible_for: float = 1000.0) -> list[Popped]:
    return store.pop("g", "t", limit, invisible_for)


def ack(store: Store, popped: list[Popped]) -> None:
    assert store.ack_batch([p.receipt for p in popped]) == [True] * len(popped)


@pytest.mark.parametrize("reopens", [False, True])
def test_what_is_redriven_to_an_ordered_group_comes_in_its_turn(
    store: Store, clock: VirtualClock, opens: Opens, reopens: bool
) -> None:
    store.create_group("g", ordered=True, max_attempts=1)
    put(store, 6, message_group="u")
    for n in range(3):
        assert offsets(pop(store, invisible_for=1.0)) == [n]
        clock.advance(2)
    out = pop(store)
    assert offsets(out) == [3]
    assert store.redrive("g") == 3
    if reopens:
        store = opens()
    assert pop(store) == []
    assert store.committed_offset("g", "t", 0) == 0
    for n in (3, 0, 1, 2, 4, 5):
        assert offsets(out) == [n]
        assert pop(store) == []
        ack(store, out)
        out = pop(store)
    assert out == []
    assert store.lag("g", "t")[0].lag == 0


def test_a_waiting_pop_gets_what_is_redriven_to_an_ordered_group(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("g", ordered=True, max_attempts=1)
    put(store, 1, message_group="u")
    pop(store, invisible_for=1.0)
    clock.advance(2)
    assert pop(store) == []
    store.redrive("g")
    assert offsets(pop(store)) == [0]


@pytest.mark.parametrize("reopens", [False, True])
def test_what_was_locked_without_order_comes_back_one_by_one(
    store: Store, clock: VirtualClock, opens: Opens, reopens: bool
) -> None:
    store.create_group("g")
    put(store, 3, message_group="u")
    put(store, 2, message_group="v")
    assert offsets(pop(store, invisible_for=1.0)) == [0, 1, 2, 3, 4]
    store.alter_group("g", ordered=True)
    clock.advance(2)
    if reopens:
        store = opens()
    first = pop(store)
    assert offsets(first) == [0, 3]
    assert pop(store) == []
    ack(store, first[1:])
    assert offsets(pop(store)) == [4]
    ack(store, first[:1])
    for n in (1, 2):
        (out,) = pop(store)
        assert (out.message.offset, out.attempt) == (n, 2)
        ack(store, [out])


def test_a_lock_that_lives_holds_up_what_was_locked_beside_it(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("g")
    put(store, 3, message_group="u")
    pop(store, 1, 1.0)
    held = pop(store, 1, 100.0)
    pop(store, 1, 1.0)
    store.alter_group("g", ordered=True)
    clock.advance(2)
    assert pop(store) == []
    ack(store, held)
    (out,) = pop(store)
    assert out.message.offset == 0
    ack(store, [out])
    assert offsets(pop(store)) == [2]


def test_what_is_redriven_in_numbers_holds_up_no_other_message_group(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("g", max_attempts=1)
    store.put_batch([kvstore.Message("t", b"", 0, message_group="u") for _ in range(5000)])
    assert len(pop(store, 5000, 1.0)) == 5000
    clock.advance(2)
    for _ in range(20):
        pop(store)
    store.alter_group("g", ordered=True)
    assert store.redrive("g") == 5000
    put(store, 1, message_group="v")
    assert offsets(pop(store)) == [0, 5000]


@pytest.mark.parametrize("to", ["begin", "end"])
def test_a_reset_forgets_what_was_locked_and_parked(store: Store, to: str) -> None:
    store.create_group("g", ordered=True)
    put(store, 4, message_group="u")
    (first,) = pop(store)
    store.reset_offset("g", "t", to=to)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(kvstore.ReceiptExpired):
        store.ack(first.receipt)
    put(store, 2, message_group="u")
    expected = range(6) if to == "begin" else range(4, 6)
    for n in expected:
        out = pop(store)
        assert offsets(out) == [n]
        assert pop(store) == []
        ack(store, out)
    assert pop(store) == []


def test_parked_messages_keep_to_the_cap(store: Store) -> None:
    store.create_group("g", ordered=True)
    for name in "abc" * 2:
        put(store, 1, message_group=name)
    held = pop(store)
    assert offsets(held) == [0, 1, 2]
    ack(store, held)
    store.alter_group("g", max_in_flight=2)
    held = pop(store)
    assert offsets(held) == [3, 4]
    assert pop(store) == []
    ack(store, held[:1])
    assert offsets(pop(store)) == [5]
    assert pop(store) == []


def test_a_parked_message_that_a_filter_refuses_gives_its_turn_to_the_next(store: Store) -> None:
    store.create_group("g", ordered=True)
    for tag in ("y", "x", "x", "y", "y"):
        store.put("t", b"", queue=0, message_group="u", tag=tag)
    ack(store, pop(store))
    for n in (3, 4):
        out = store.pop("g", "t", 10, 1000.0, filter="y")
        assert offsets(out) == [n]
        ack(store, out)
    assert store.lag("g", "t")[0].lag == 0


def test_what_is_popped_while_a_group_has_no_order_counts_when_it_has_one_again(
    store: Store,
) -> None:
    store.create_group("g", ordered=True)
    put(store, 4, message_group="u")
    ack(store, pop(store, 1))
    for n in (1, 2):
        store.alter_group("g", ordered=False)
        assert offsets(pop(store, 1)) == [n]
        store.alter_group("g", ordered=True)
        assert pop(store) == []


def test_parked_messages_come_when_a_group_has_no_order_any_more(store: Store) -> None:
    store.create_group("g", ordered=True)
    put(store, 3, message_group="u")
    assert offsets(pop(store)) == [0]
    put(store, 2, message_group="v")
    assert offsets(pop(store)) == [3]
    assert pop(store) == []
    store.alter_group("g", ordered=False)
    put(store, 1, message_group="u")
    came = [n for _ in range(10) for n in offsets(pop(store, 1))]
    assert came == [1, 2, 4, 5]


def test_acks_of_an_ordered_group_wake_as_many_as_have_something_to_get(tmp_path: Path) -> None:
    """Who waits does so while messages are parked; then some of these have their turn."""
    with (
        kvstore.open(tmp_path / "s", StoreConfig(segment_size=1 << 20)) as store,
        ThreadPoolExecutor(4) as pool,
    ):
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=True)
        for name in "abc" * 2:
            put(store, 1, message_group=name)
        held = pop(store)
        assert offsets(held) == [0, 1, 2]
        table = inside.table(store)
        waiting = {pool.submit(store.pop, "g", "t", wait=LONG) for _ in range(3)}
        while len(table.asleep) < 3:
            time.sleep(0.01)
        ack(store, held[:1])
        done, waiting = wait(waiting, SOON, FIRST_COMPLETED)
        assert [offsets(f.result()) for f in done] == [[3]]
        ack(store, held[1:])
        done, waiting = wait(waiting, SOON)
        assert sorted(offsets(f.result())[0] for f in done) == [4, 5]
