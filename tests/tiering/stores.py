"""A store with some sealed segments, and what is in it."""

from __future__ import annotations

from pathlib import Path

import kvstore
from kvstore import Message, Store, StoreConfig, StoredMessage
from tests.support.clock import VirtualClock

SEGMENT = 64 << 10
QUEUES = {"orders": 3, "events": 2}


def config(clock: VirtualClock, **changed: object) -> StoreConfig:
    """Small segments; nothing happens by itself."""
    return StoreConfig(segment_size=SEGMENT, clock=clock, **changed)  # type: ignore[arg-type]


def fill(store: Store, count: int = 300, first: int = 0, *, is_sealed: bool = True) -> None:
    """Messages in all queues; about three segments, the last of which is sealed by default."""
    for number in range(first, first + count):
        topic = "orders" if number % 3 else "events"
        store.put_batch(
            [
                Message(
                    topic,
                    b"message %d " % number * (1 + number % 60),
                    queue=number // 3 % QUEUES[topic],
                    tag=f"t{number % 4}",
                    keys=(f"k{number % 7}", f"n{number}"),
                    properties={"number": str(number)},
                )
            ]
        )
    if is_sealed:
        store.seal()


def filled(
    path: Path, clock: VirtualClock, count: int = 300, *, days: float = 0, **changed: object
) -> Store:
    """Opens a store with all queues and so many messages, some days after they were put."""
    store = kvstore.open(path, config(clock, **changed))
    for topic, queues in QUEUES.items():
        store.create_topic(topic, queues=queues)
    fill(store, count)
    clock.advance(days * 86_400.0)
    return store


def held(store: Store) -> dict[tuple[str, int], list[StoredMessage]]:
    """All messages, read as consumers do."""
    found = {}
    for topic, queues in QUEUES.items():
        for queue in range(queues):
            messages: list[StoredMessage] = []
            low, high = store.bounds(topic, queue)
            while low < high:
                page = store.pull(topic, queue, low, limit=50)
                messages += page.messages
                low = page.next_offset
            found[topic, queue] = messages
    return found


def tiers(store: Store) -> tuple[int, int]:
    """How many sealed segments there are, and how many archives."""
    return len(store.segments()), sum(t.archives for t in store.stats().tiers)
