"""A message that a pop read ahead is not handed out once it was erased, or its key destroyed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Retention, Store
from tests.support.clock import VirtualClock
from tests.tiering.stores import config
from tiering import KeyFile, Policy, Worker

COUNT: Final = 60
KEY: Final = "customer-7"
RETAINED: Final = 1000.0
"""Seconds."""
POLICY: Final = Policy(hot_for=0, warm="archive", grace=1e6, clock_doubt=0.0)

WAYS: Final[dict[str, Callable[[Store], list[kvstore.Popped]]]] = {
    "one": lambda store: store.pop("g", "orders"),
    "some": lambda store: store.pop("g", "orders", limit=2),
    "of one queue": lambda store: store.pop("g", "orders", queue=0),
    "by size": lambda store: store.pop("g", "orders", limit=2, max_bytes=400),
    "with a filter": lambda store: store.pop("g", "orders", filter=kvstore.sql("a IS NULL")),
    "in order": lambda store: store.pop("ordered", "orders"),
}


def erase_key(store: Store, keys: KeyFile, clock: VirtualClock) -> set[int]:
    with Worker(store, POLICY, keys=keys) as worker:
        assert worker.erase(key=KEY).is_proven
    return {7, 27}


def erase_all(store: Store, keys: KeyFile, clock: VirtualClock) -> set[int]:
    with Worker(store, POLICY, keys=keys) as worker:
        assert worker.erase(before=clock.now_ms() + 1).is_proven
    return set(range(COUNT))


def destroy(store: Store, keys: KeyFile, clock: VirtualClock) -> set[int]:
    with Worker(store, POLICY, keys=keys) as worker:
        worker.destroy_key("orders")
    return set(range(COUNT))


def retain_nothing(store: Store, keys: KeyFile, clock: VirtualClock) -> set[int]:
    clock.advance(2 * RETAINED)
    store.apply_retention()
    assert store.bounds("orders", 0) == (COUNT, COUNT)
    return set(range(COUNT))


@pytest.mark.parametrize("gone", [erase_key, erase_all, destroy, retain_nothing])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_message_that_was_read_ahead_is_not_popped_once_it_is_gone(
    tmp_path: Path, way: str, gone: Callable[[Store, KeyFile, VirtualClock], set[int]]
) -> None:
    clock = VirtualClock()
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    settings = config(clock, retention=Retention(hot_for=RETAINED))
    with kvstore.open(tmp_path / "s", settings) as store:
        store.create_topic("orders", queues=1)
        store.create_group("g")
        store.create_group("ordered", ordered=True)
        for number in range(COUNT):
            named = (KEY,) if number in (7, 27) else ()
            store.put("orders", b"%d" % number, queue=0, keys=named)
        store.seal()
        clock.advance(1)
        if gone is destroy:
            with Worker(store, POLICY, keys=keys) as worker:
                assert worker.run_once().failed == {}
        assert WAYS[way](store)
        WAYS[way](store)
        lost = gone(store, keys, clock)
        popped = [
            int(one.message.body)
            for group in ("g", "ordered")
            for _ in range(COUNT)
            for one in store.pop(group, "orders", limit=16)
        ]
    assert not lost & set(popped)
    if gone is erase_key:
        assert set(popped) >= set(range(10, COUNT)) - lost
