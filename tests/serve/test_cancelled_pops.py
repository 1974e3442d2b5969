"""Pops that were cancelled, at every moment of their way: no message stays locked for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import Message, Store, StoreClosed
from tests.support.served import ServerThread
from tests.support.sharding import served_shards
from tests.support.waiting import until

POPS = 300


def locked(*stores: Store) -> int:
    return sum(one.in_flight - one.due for store in stores for one in store.group_stats("g"))


async def popped_and_cancelled(
    client: kvstore.aio.ServedStore, topic: str | Sequence[str], **more: Any
) -> list[bytes]:
    """Cancels pops a little later each, and acks what they brought."""
    brought = list[bytes]()
    for n in range(POPS):
        popping = asyncio.create_task(client.pop("g", topic, invisible_for=3600, **more))
        await asyncio.sleep(n % 30 * 0.00002)
        popping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            for popped in await popping:
                await client.ack(popped.receipt)
                brought.append(popped.message.body)
    return brought


async def left(client: kvstore.aio.ServedStore, topic: str | Sequence[str]) -> list[bytes]:
    """The messages that the next pops get, at once and for the first time."""
    found = list[bytes]()
    while popped := await client.pop("g", topic, 32):
        assert {one.attempt for one in popped} == {1}
        found += [one.message.body for one in popped]
        for one in popped:
            await client.ack(one.receipt)
    return found


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("topic", ["a", ("a", "b")])
@pytest.mark.parametrize("wait", [0.0, 60.0])
def test_a_cancelled_pop_leaves_no_message_locked(
    store: Store, server: ServerThread, ordered: bool, topic: str | Sequence[str], wait: float
) -> None:
    async def main() -> list[bytes]:
        async with kvstore.aio.connect(server.url) as client:
            brought = await popped_and_cancelled(client, topic, wait=wait)
            await asyncio.to_thread(until, lambda: locked(store) == 0)
            return brought + await left(client, topic)

    for name in ("a", "b"):
        store.create_topic(name, 2)
    store.create_group("g", ordered=ordered)
    bodies = [b"%d" % n for n in range(2 * POPS)]
    names = [topic] if isinstance(topic, str) else list(topic)
    store.put_batch([Message(names[n % len(names)], body) for n, body in enumerate(bodies)])
    assert sorted(asyncio.run(main())) == sorted(bodies)


def test_a_cancelled_pop_over_shards_leaves_no_message_locked(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with kvstore.aio.connect(shards.urls) as client:
            await client.create_topic("a", 4)
            await client.create_group("g")
            await client.put_batch([Message("a", body) for body in bodies])
            brought = await popped_and_cancelled(client, "a", wait=60.0)
            await asyncio.to_thread(until, lambda: locked(*shards.stores) == 0)
            return brought + await left(client, "a")

    bodies = [b"%d" % n for n in range(2 * POPS)]
    with served_shards(tmp_path, 2) as shards:
        assert sorted(asyncio.run(main())) == sorted(bodies)


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_that_closes_leaves_no_message_locked_that_nobody_has_seen(
    tmp_path: Path, count: int
) -> None:
    async def main() -> int:
        seen = 0
        for n in range(60):
            async with kvstore.aio.connect(shards.urls if count > 1 else shards.urls[0]) as client:
                pops = [
                    asyncio.create_task(client.pop("g", "a", wait=60, invisible_for=3600))
                    for _ in range(4)
                ]
                await asyncio.sleep(n % 30 * 0.00002)
                for popping in pops[n % 3 :]:
                    popping.cancel()
            for found in await asyncio.gather(*pops, return_exceptions=True):
                if isinstance(found, list):
                    seen += len(found)
                else:
                    assert isinstance(found, StoreClosed | asyncio.CancelledError)
        return seen

    with served_shards(tmp_path, count) as shards:
        for store in shards.stores:
            store.create_topic("a", 2)
            store.create_group("g")
            store.put_batch([Message("a", b"%d" % n) for n in range(400)])
        seen = asyncio.run(main())
        until(lambda: locked(*shards.stores) == seen)


def test_a_connection_of_threads_that_closes_leaves_no_message_locked_that_nobody_has_seen(
    store: Store, server: ServerThread
) -> None:
    store.create_topic("a")
    store.create_group("g")
    seen = list[object]()

    def pop(client: kvstore.ServedStore, ready: threading.Barrier) -> None:
        ready.wait()
        with contextlib.suppress(StoreClosed):
            while True:
                seen.extend(client.pop("g", "a", wait=60, invisible_for=3600))

    for n in range(40):
        client, ready = kvstore.connect(server.url), threading.Barrier(4)
        threads = [threading.Thread(target=pop, args=(client, ready)) for _ in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        store.put_batch([Message("a", b"%d" % n) for n in range(4)])
        client.close()
        for thread in threads:
            thread.join(20)
    until(lambda: locked(store) == len(seen))


def test_a_pop_with_an_attempt_id_keeps_what_it_took_for_its_repeat(
    store: Store, server: ServerThread
) -> None:
    async def main() -> list[list[int]]:
        found = list[list[int]]()
        async with kvstore.aio.connect(server.url) as client:
            for n in range(30):
                attempt = f"n{n}"
                popping = asyncio.create_task(client.pop("g", "a", 4, attempt_id=attempt))
                await asyncio.sleep(n * 0.00003)
                popping.cancel()
                await asyncio.gather(popping, return_exceptions=True)
                popped = await client.pop("g", "a", 4, attempt_id=attempt)
                found.append([one.message.offset for one in popped])
        return found

    store.create_topic("a", 1)
    store.create_group("g")
    store.put_batch([Message("a", b"") for _ in range(120)])
    offsets = [offset for popped in asyncio.run(main()) for offset in popped]
    assert sorted(offsets) == list(range(120))
