"""Ordered groups: one message of a message group at a time, also where the past was otherwise."""

from __future__ import annotations

import pytest

import kvstore
from kvstore import Popped, Store
from tests.consume.conftest import Opens
from tests.support.clock import VirtualClock


def put(store: Store, count: int, message_group: str = "u") -> None:
    for _ in range(count):
        store.put("t", b"", queue=0, message_group=message_group)


def offsets(popped: list[Popped]) -> list[int]:
    return [p.message.offset for p in popped]


def pop(store: Store, limit: int = 10, invisible_for: float = 1000.0) -> list[Popped]:
    return store.pop("g", "t", limit, invisible_for)


def ack(store: Store, popped: list[Popped]) -> None:
    assert store.ack_batch([p.receipt for p in popped]) == [True] * len(popped)


@pytest.mark.parametrize("reopens", [False, True])
def test_what_is_redriven_to_an_ordered_group_comes_in_its_turn(
    store: Store, clock: VirtualClock, opens: Opens, reopens: bool
) -> None:
    store.create_group("g", ordered=True, max_attempts=1)
    put(store, 6)
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
    put(store, 1)
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
    put(store, 3)
    put(store, 2, "v")
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
    put(store, 3)
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
    put(store, 1, "v")
    assert offsets(pop(store)) == [0, 5000]
