"""Pops that leave others their share: of the lock while a filter looks, and of what is urgent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

import pytest

from kvstore import Message, Popped, Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.popping import put

MANY: Final = 40_000


pytestmark = [
    pytest.mark.topic(queues=1),
    pytest.mark.topic("p", queues=3, kind="priority"),
    pytest.mark.group,
    pytest.mark.group("o", ordered=True),
]


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return StoreConfig(segment_size=16 << 20, clock=clock)


def queues(popped: list[Popped]) -> list[int]:
    return [p.message.queue for p in popped]


@pytest.mark.parametrize("group", ["g", "o"])
def test_a_pop_whose_filter_refuses_everything_looks_at_so_much_and_returns(
    store: Store, group: str
) -> None:
    put(store, MANY, tag="a")
    store.put("t", b"wanted", tag="b")
    assert store.pop(group, "t", filter="b") == []
    assert 0 < (store.committed_offset(group, "t", 0) or 0) < MANY
    found: list[Popped] = []
    for _ in range(MANY):
        found = store.pop(group, "t", filter="b")
        if found:
            break
    assert [p.message.body for p in found] == [b"wanted"]


def test_a_pop_that_waits_goes_on_until_its_filter_matches(store: Store) -> None:
    put(store, MANY, tag="a")
    store.put("t", b"wanted", tag="b")
    (p,) = store.pop("g", "t", filter="b", wait=60.0)
    assert p.message.body == b"wanted"


def test_an_ack_does_not_wait_for_a_filter_that_refuses_very_many(store: Store) -> None:
    store.put("t", b"mine", tag="b")
    (mine,) = store.pop("g", "t", invisible_for=3600.0)
    put(store, MANY, tag="a")
    began = threading.Event()
    left: list[int] = []

    def look() -> None:
        began.set()
        store.pop("g", "t", filter="b", wait=1.0)

    looker = threading.Thread(target=look)
    looker.start()
    began.wait()
    time.sleep(0.02)
    store.ack(mine.receipt)
    left.append(MANY - (store.committed_offset("g", "t", 0) or 0))
    store.put("t", b"end", tag="b")
    looker.join(30.0)
    assert left[0] > 0, "it was let in while the filter looked"


def test_what_is_urgent_comes_before_what_is_due_of_a_lower_priority(store: Store) -> None:
    put(store, 1, 0, "p")
    (low,) = store.pop("g", "p")
    store.change_invisible(low.receipt, 0)
    put(store, 1, 2, "p")
    assert queues(store.pop("g", "p", 2)) == [2, 0]


def test_a_worker_that_died_with_much_of_a_low_priority_holds_up_no_higher_one(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 500, 0, "p")
    for _ in range(500):
        store.pop("g", "p", invisible_for=1.0)
    clock.advance(2)
    put(store, 100, 1, "p")
    put(store, 100, 2, "p")
    came = Counter(store.pop("g", "p")[0].message.queue for _ in range(100))
    assert came[2] >= 75
    assert came[1] > 0
    assert came[0] > 0
    rest = Counter(queues(store.pop("g", "p", 1000)))
    assert came + rest == Counter({0: 500, 1: 100, 2: 100})


def test_due_messages_compete_by_their_priority_as_well(store: Store, clock: VirtualClock) -> None:
    for queue in (0, 1, 2):
        put(store, 2, queue, "p")
        assert len(store.pop("g", "p", 2, 1.0, queue=queue)) == 2
    clock.advance(2)
    assert queues(store.pop("g", "p", 6)) == [2, 2, 1, 1, 0, 0]


def test_more_that_is_due_than_one_claim_looks_at_comes_all_the_same(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 1500, 0, "p")
    for _ in range(1500):
        store.pop("g", "p", invisible_for=1.0)
    clock.advance(2)
    assert len(store.pop("g", "p", 2000)) == 1500


def test_an_ordered_group_goes_by_priority_and_in_order(store: Store, clock: VirtualClock) -> None:
    for queue in (0, 2):
        store.put_batch([Message("p", b"", queue, message_group=f"{queue}") for _ in range(3)])
    seen = []
    while found := store.pop("o", "p", invisible_for=1.0):
        seen.append((found[0].message.queue, found[0].message.offset))
        if len(seen) == 1:
            clock.advance(2)
        else:
            store.ack(found[0].receipt)
    assert seen[:2] == [(2, 0), (2, 0)]
    for queue in (0, 2):
        assert [n for q, n in seen[1:] if q == queue] == [0, 1, 2]
