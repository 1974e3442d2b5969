"""Where a group begins: as its `start` says now, until it has taken something."""

from __future__ import annotations

import pytest

from kvstore import Store
from tests.support.clock import VirtualClock
from tests.support.popping import bodies, put
from tests.support.stores import Opens


@pytest.mark.parametrize("reopens", [False, True])
def test_a_group_set_to_the_beginning_gets_what_it_had_not_asked_for(
    store: Store, opens: Opens, reopens: bool
) -> None:
    put(store, 3)
    store.create_group("g", start="end")
    assert store.pop("g", "t") == []
    store.alter_group("g", start="begin")
    if reopens:
        store = opens()
    assert store.lag("g", "t")[0].lag == 3
    assert bodies(store.pop("g", "t", 5)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("reopens", [False, True])
def test_a_group_set_to_the_end_gets_nothing_of_before(
    store: Store, opens: Opens, reopens: bool
) -> None:
    store.create_group("g")
    assert store.pop("g", "t") == []
    store.put("t", b"before")
    store.alter_group("g", start="end")
    if reopens:
        store = opens()
    assert store.lag("g", "t")[0].lag == 0
    assert store.pop("g", "t") == []
    store.put("t", b"behind")
    assert bodies(store.pop("g", "t", 5)) == [b"behind"]


@pytest.mark.parametrize("looks", [False, True])
def test_a_start_in_the_future_holds_however_often_it_was_asked_for(
    store: Store, clock: VirtualClock, looks: bool
) -> None:
    store.create_group("g", start=clock.now_ms() + 3_600_000)
    store.put("t", b"early")
    if looks:
        assert store.pop("g", "t") == []
    clock.advance(1)
    store.put("t", b"early too")
    assert store.pop("g", "t") == []
    clock.advance(3600)
    store.put("t", b"in time")
    assert bodies(store.pop("g", "t", 5)) == [b"in time"]


def test_what_was_taken_stays_taken_whatever_the_start_says_then(store: Store) -> None:
    store.create_group("g", start="begin")
    put(store, 2)
    store.ack(store.pop("g", "t")[0].receipt)
    store.alter_group("g", start="end")
    assert bodies(store.pop("g", "t", 5)) == [b"1"]


def test_what_was_redriven_below_the_start_comes_once_when_the_start_is_set_back(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("g", max_attempts=1)
    put(store, 2)
    store.pop("g", "t", 1, 1.0)
    clock.advance(2)
    assert bodies(store.pop("g", "t", 5)) == [b"1"]
    store.delete_group("g")
    # It is another group, but the letters say its name.
    store.create_group("g", start="end", max_attempts=3)
    assert store.redrive("g") == 1
    store.alter_group("g", start="begin")
    assert bodies(store.pop("g", "t", 5)) == [b"0"]
    assert store.pop("g", "t", 5) == []
