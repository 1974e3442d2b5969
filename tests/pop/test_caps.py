"""`max_in_flight`: never more live locks than that, and a pop that waits for room gets it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    GroupConfig,
    Message,
    Popped,
    ReceiptExpired,
    Store,
    StoreConfig,
    TopicConfig,
)
from tests.support.clock import VirtualClock
from tests.support.popping import put

CONFIG: Final = StoreConfig(segment_size=1 << 20)
LONG: Final = 20.0
SOON: Final = 5.0


def make(path: Path, clock: VirtualClock) -> Store:
    store = kvstore.open(path, StoreConfig(segment_size=1 << 20, clock=clock))
    for topic in ("a", "b"):
        store.create_topic(topic, queues=1)
    return store


def test_what_is_redriven_keeps_to_the_cap(tmp_path: Path) -> None:
    clock = VirtualClock()
    with make(tmp_path / "s", clock) as store:
        store.create_group("g", max_attempts=1)
        put(store, 60, topic="a")
        assert len(store.pop("g", "a", 60, 1.0)) == 60
        clock.advance(2)
        assert store.pop("g", "a") == []
        store.alter_group("g", max_in_flight=3)
        assert store.redrive("g") == 60
        assert len(store.pop("g", "a", 100)) == 3
        assert store.pop("g", "a", 100) == []


@pytest.mark.parametrize("more", [0, 1, 64, 127])
def test_a_cap_that_was_lowered_lets_nothing_out_until_there_is_room(
    tmp_path: Path, more: int
) -> None:
    clock = VirtualClock(1_700_000_000_000 // 128 * 128 + more)
    with make(tmp_path / "s", clock) as store:
        store.create_group("g")
        put(store, 30, topic="a")
        held = store.pop("g", "a", 10, 100.0)
        short = store.pop("g", "a", 3, 0.001)
        clock.advance(0.001)
        store.alter_group("g", max_in_flight=5)
        assert store.pop("g", "a", 100) == []
        assert store.ack_batch([p.receipt for p in held[:6]]) == [True] * 6
        (again,) = store.pop("g", "a", 100)
        assert again.message.offset == short[0].message.offset


def test_a_cap_below_what_is_locked_lets_nothing_out_however_much_is_due(tmp_path: Path) -> None:
    clock = VirtualClock()
    with make(tmp_path / "s", clock) as store:
        store.create_group("g")
        put(store, 30, topic="a")
        assert len(store.pop("g", "a", 20, 1.0)) == 20
        assert len(store.pop("g", "a", 3, 100.0)) == 3
        clock.advance(2)
        store.alter_group("g", max_in_flight=2)
        assert store.pop("g", "a", 100) == []
        store.alter_group("g", max_in_flight=4)
        assert len(store.pop("g", "a", 100)) == 1


def test_what_runs_out_makes_room_to_the_millisecond(tmp_path: Path) -> None:
    clock = VirtualClock(1_700_000_000_000 // 128 * 128)
    with make(tmp_path / "s", clock) as store:
        store.create_group("g", max_in_flight=1)
        put(store, 1, topic="a")
        put(store, 1, topic="b")
        assert len(store.pop("g", "a", 1, 0.05)) == 1
        clock.advance(0.049)
        assert store.pop("g", "b") == []
        clock.advance(0.001)
        assert len(store.pop("g", "b")) == 1
        assert store.pop("g", "a") == []


def test_a_clock_that_was_set_back_lets_what_had_run_out_count_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=1 << 20, clock=clock)) as store:
        store.create_topic("t", queues=2)
        store.create_group("g", max_in_flight=2)
        store.put_batch([Message("t", b"%d" % n, 0) for n in range(4)])
        held = store.pop("g", "t", 2, 10.0)
        clock.advance(20)
        assert store.pop("g", "t", 2, queue=1) == []  # it counts what is live now: nothing
        clock.step(-20)
        assert store.pop("g", "t", 2) == []
        store.ack(held[0].receipt)
        assert len(store.pop("g", "t", 2)) == 1


def test_a_lock_that_ran_out_is_not_made_longer_beyond_the_cap(tmp_path: Path) -> None:
    clock = VirtualClock()
    with make(tmp_path / "s", clock) as store:
        store.create_group("g", max_in_flight=1)
        put(store, 1, topic="a")
        put(store, 1, topic="b")
        (p,) = store.pop("g", "a", 1, 1.0)
        clock.advance(2)
        receipt = store.change_invisible(p.receipt, 1.0)
        clock.advance(2)
        (q,) = store.pop("g", "b", 1, 10.0)
        with pytest.raises(ReceiptExpired, match="max_in_flight"):
            store.change_invisible(receipt, 60.0)
        receipt = store.change_invisible(receipt, 0)
        store.ack(q.receipt)
        store.change_invisible(receipt, 60.0)
        assert store.pop("g", "b") == []


def test_a_refusal_for_the_cap_in_a_batch_tells_a_namespace_nothing_of_the_stores_names(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with make(tmp_path / "s", clock) as store:
        topics = [TopicConfig(name=name, queues=1) for name in "ab"]
        store.create_namespace("tenant", topics, [GroupConfig(name="g", max_in_flight=1)])
        view = store.namespace("tenant")
        view.put_batch([Message("a", b"x"), Message("b", b"y")])
        (late,) = view.pop("g", "a", 1, 1.0)
        clock.advance(2)
        view.pop("g", "b", 1, 10.0)
        (refusal,) = view.change_invisible_batch([late.receipt], 60.0)
        assert isinstance(refusal, ReceiptExpired)
        assert "max_in_flight" in str(refusal)
        assert "tenant" not in str(refusal)


ROOMS: Final[dict[str, Callable[[Store, list[Popped]], object]]] = {
    "ack batch": lambda store, held: store.ack_batch([p.receipt for p in held]),
    "ack": lambda store, held: store.ack(held[0].receipt),
    "give back": lambda store, held: store.change_invisible(held[0].receipt, 0),
    "make shorter": lambda store, held: store.change_invisible(held[0].receipt, 0.5),
}


@pytest.mark.parametrize("past", ["reopened", "capped later", "as it was"])
@pytest.mark.parametrize("how", ROOMS)
def test_room_made_in_one_topic_wakes_who_waits_in_another(
    tmp_path: Path, how: str, past: str
) -> None:
    store = kvstore.open(tmp_path / "s", CONFIG)
    for topic in ("a", "b"):
        store.create_topic(topic, queues=1)
    store.create_group("g", max_in_flight=None if past == "capped later" else 5)
    put(store, 1, topic="a")
    put(store, 5, topic="b")
    held = [store.pop("g", "b", 1, 300.0)[0] for _ in range(5)]
    if past == "reopened":
        store.close()
        store = kvstore.open(tmp_path / "s", CONFIG)
    elif past == "capped later":
        store.alter_group("g", max_in_flight=5)
    with store:
        found: list[Popped] = []
        waiter = threading.Thread(target=lambda: found.extend(store.pop("g", "a", wait=LONG)))
        waiter.start()
        waiter.join(0.15)
        assert not found
        begun = time.monotonic()
        ROOMS[how](store, held)
        waiter.join(LONG)
        assert time.monotonic() - begun < SOON
        assert [p.message.topic for p in found] == ["a"]


def test_room_made_in_one_topic_wakes_a_coroutine_that_waits_in_another(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", CONFIG) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, queues=1)
            put(store, 1, topic=topic)
        store.create_group("g", max_in_flight=1)
        (held,) = store.pop("g", "b", 1, 300.0)

    async def wait() -> list[Popped]:
        async with kvstore.aio.open(tmp_path / "s", CONFIG) as store:
            pop = asyncio.create_task(store.pop("g", "a", wait=LONG))
            await asyncio.sleep(0.15)
            await store.ack(held.receipt)
            return await asyncio.wait_for(pop, SOON)

    assert [p.message.topic for p in asyncio.run(wait())] == ["a"]
