"""Consumers over a connection: handlers run in the client, and the store learns each outcome."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    Message,
    Nack,
    Namespace,
    Popped,
    ReceiptExpired,
    ServedStore,
    Store,
    TopicConfig,
)
from tests.support.cutting import relaying
from tests.support.served import ServerThread, serving
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group(max_attempts=2, backoff=[])]
BAD: Final = b"7"
REASON: Final = "ValueError: the bank is closed"


def put(store: Store | ServedStore | Namespace, count: int = 20) -> list[bytes]:
    store.put_batch([Message("t", b"%d" % n) for n in range(count)])
    return [b"%d" % n for n in range(count)]


def handle(seen: Counter[bytes], popped: Popped) -> None:
    seen[popped.message.body] += 1
    if popped.message.body == BAD:
        raise ValueError("the bank is closed")


def letters(store: Store | ServedStore | Namespace) -> list[tuple[bytes, str | None]]:
    found = store.pull("%DLQ%g", 0, 0, 32).messages
    return [(m.body, m.properties.get("DLQ_NACK_REASON")) for m in found]


def check(store: Store, seen: Counter[bytes], put: list[bytes]) -> None:
    assert seen == {body: 2 if body == BAD else 1 for body in put}
    assert letters(store) == [(BAD, REASON)]
    (stats,) = store.group_stats("g", "t")
    assert (stats.in_flight, stats.lag) == (0, 0)


def test_threads_handle_messages_over_a_connection(client: ServedStore, store: Store) -> None:
    bodies, seen = put(client), Counter[bytes]()
    with client.consume("g", ["t"], lambda p: handle(seen, p), until_empty=True) as consumer:
        assert consumer.wait(PATIENCE)
    stats = consumer.stats()
    assert (stats.handled, stats.failed, stats.lost) == (len(bodies) - 1, 2, 0)
    check(store, seen, bodies)


def test_tasks_handle_messages_over_a_connection(server: ServerThread, store: Store) -> None:
    bodies, seen = put(store), Counter[bytes]()

    async def handled(popped: Popped) -> None:
        handle(seen, popped)

    async def main() -> None:
        async with (
            kvstore.aio.connect(server.url) as client,
            client.consume("g", "t*", handled, until_empty=True) as consumer,
        ):
            await consumer.wait()
            stats = consumer.stats()
            assert (stats.handled, stats.failed, stats.lost) == (len(bodies) - 1, 2, 0)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    check(store, seen, bodies)


def test_a_namespaces_messages_are_handled_over_a_connection(
    client: ServedStore, server: ServerThread
) -> None:
    client.create_namespace("n", topics=[TopicConfig(name="t", queues=2)])
    view = client.namespace("n")
    view.create_group("g", max_attempts=2, backoff=[])
    bodies, seen = put(view), Counter[bytes]()
    with view.consume("g", "t", lambda p: handle(seen, p), until_empty=True) as consumer:
        assert consumer.wait(PATIENCE)
    assert letters(view) == [(BAD, REASON)]

    async def handled(popped: Popped) -> None:
        assert popped.message.topic == "t"
        handle(seen, popped)

    async def main() -> None:
        async with kvstore.aio.connect(server.url) as other:
            own = other.namespace("n")
            async with own.consume("g", ["t"], handled, until_empty=True) as consumer:
                await consumer.wait()

    put(view)
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert seen == {body: 4 if body == BAD else 2 for body in bodies}


def test_locks_are_renewed_over_a_connection_while_handlers_run(
    client: ServedStore, store: Store
) -> None:
    renewed = threading.Event()

    def hold(popped: Popped) -> None:
        assert renewed.wait(PATIENCE)

    with client.consume("g", "t", hold, invisible_for=1.5) as consumer:
        store.put("t", b"x")  # while it waits
        until(lambda: consumer.stats().renewed >= 2)
        assert store.pop("g", "t") == []
        renewed.set()
        until(lambda: consumer.stats().handled == 1)
    assert store.group_stats("g", "t")[0].lag == 0


def test_each_receipt_of_a_batch_has_its_own_answer(client: ServedStore, store: Store) -> None:
    put(client, 4)
    popped = client.pop("g", ["t", "u*"], 4)
    first, second, third, fourth = [p.receipt for p in popped]
    client.nack(first, reason="later")
    nacked = client.nack_batch([Nack(first), Nack(second, 30.0, "\ud800 broken")])
    assert isinstance(nacked[0], ReceiptExpired)
    assert nacked[1] is True
    with pytest.raises(ReceiptExpired):
        client.nack(second)
    moved, wrong = client.change_invisible_batch([third, second], 60.0)
    assert isinstance(moved, str)
    assert isinstance(wrong, ReceiptExpired)
    assert client.undo_pop([moved, fourth]) == [True, True]
    assert sorted(p.attempt for p in store.pop("g", "t", 4)) == [1, 1, 2]


def test_tasks_give_messages_back_over_a_connection(server: ServerThread, store: Store) -> None:
    put(store, 1)

    async def main() -> None:
        async with kvstore.aio.connect(server.url) as client:
            (popped,) = await client.pop("g", ("t",))
            await client.nack(popped.receipt, reason="later")
            with pytest.raises(ReceiptExpired):
                await client.nack(popped.receipt)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert [p.attempt for p in store.pop("g", "t")] == [2]


def test_a_consumer_goes_on_over_connections_that_break(
    server: ServerThread, store: Store, tmp_path: Path
) -> None:
    cuts = random.Random(11)
    lengths = [cuts.randrange(300, 6000) for _ in range(12)]
    bodies, seen = put(store, 200), Counter[bytes]()
    target = Path(server.url.removeprefix("kvmq+unix://"))
    with (
        relaying(tmp_path / "r", target, lengths) as relay,
        kvstore.connect(f"kvmq+unix://{tmp_path}/r") as client,
        client.consume("g", "t", lambda p: handle(seen, p), until_empty=True) as consumer,
    ):
        assert consumer.wait(PATIENCE)
        assert relay.connections > 4
    check(store, seen, bodies)


def test_a_consumer_goes_on_at_a_server_that_was_started_anew(store: Store) -> None:
    seen, seen_by_tasks = set[bytes](), set[bytes]()

    async def handled(popped: Popped) -> None:
        seen_by_tasks.add(popped.message.body)

    async def main(url: str) -> None:
        async with (
            kvstore.aio.connect(url) as client,
            client.consume("h", "t", handled) as consumer,
        ):
            while len(seen_by_tasks) < 80:
                assert not consumer.is_over, consumer.error
                await asyncio.sleep(0.01)

    store.create_group("h")
    with serving(store) as first:
        client = kvstore.connect(first.url)
        tasks = threading.Thread(
            target=lambda: asyncio.run(asyncio.wait_for(main(first.url), PATIENCE))
        )
        tasks.start()
        consumer = client.consume("g", "t", lambda p: seen.add(p.message.body))
    try:
        for n in range(1, 5):
            with serving(store):
                store.put_batch([Message("t", b"%d %d" % (n, i)) for i in range(20)])
                until(lambda n=n: len(seen) == 20 * n and len(seen_by_tasks) == 20 * n)
    finally:
        with serving(store):
            tasks.join(PATIENCE)
            consumer.stop()
            client.close()
    assert consumer.error is None
    assert len(seen_by_tasks) == 80
