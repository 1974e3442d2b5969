"""Consumers in an event loop: as those in threads, and handlers that can be cancelled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    CallerError,
    GroupNotFound,
    Message,
    Popped,
    StoreBusy,
    StoreClosed,
    TopicNotFound,
)
from kvstore.aio import Store
from kvstore.consume.async_consumer import AsyncConsumer
from kvstore.consume.consuming import Consuming
from tests.consume.calls_only import CallsOnly
from tests.consume.test_consumer import PLAIN
from tests.support.stores import settings
from tests.support.waiting import PATIENCE

SHORT: Final = 1.5
Work = Callable[[Store], Awaitable[None]]


def run(path: Path, work: Work, **group: Any) -> None:
    """Does some work with a store that has the topic t and the group g."""

    async def main() -> None:
        async with asyncio.timeout(3 * PATIENCE), opened(path, **group) as store:
            await work(store)

    asyncio.run(main())


@asynccontextmanager
async def opened(path: Path, **group: Any) -> AsyncIterator[Store]:
    async with kvstore.aio.open(path / "s", settings()) as store:
        await store.create_topic("t", queues=4, exist_ok=True)
        wanted: dict[str, Any] = {"backoff": [], "max_attempts": 3} | group
        await store.create_group("g", exist_ok=True, **wanted)
        yield store


async def put(store: Store, count: int, topic: str = "t") -> None:
    await store.put_batch([Message(topic, b"%d" % n) for n in range(count)])


async def until(met: Callable[[], object]) -> None:
    while not met():
        await asyncio.sleep(0.002)


async def lag(store: Store, topic: str = "t") -> int:
    return sum(each.lag for each in await store.lag("g", topic))


async def letters(store: Store) -> list[tuple[bytes, str | None]]:
    found = (await store.pull("%DLQ%g", 0, 0, 32)).messages
    return [(m.body, m.properties.get("DLQ_NACK_REASON")) for m in found]


async def nothing(popped: Popped) -> None:
    """Handles a message at once."""


async def for_ever(popped: Popped) -> None:
    await asyncio.sleep(1e6)


def test_every_message_is_handled_and_failures_are_tried_again(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await store.create_topic("u", queues=1)
        await put(store, 100)
        await put(store, 100, "u")
        seen = defaultdict[str, list[bytes]](list)
        running = [0, 0]

        async def handle(popped: Popped) -> None:
            running[0] += 1
            running[1] = max(running)
            try:
                await asyncio.sleep(0.001)
                if popped.message.body == b"7":
                    raise ValueError("seven")
                seen[popped.message.topic].append(popped.message.body)
            finally:
                running[0] -= 1

        async with store.consume(
            "g", ["t", "u*"], handle, concurrency=8, prefetch=8, until_empty=True
        ) as consumer:
            await consumer.wait()
        wanted = sorted(b"%d" % n for n in range(100) if n != 7)
        assert sorted(seen["t"]) == sorted(seen["u"]) == wanted
        assert running[1] == 8
        assert await letters(store) == [(b"7", "ValueError: seven")] * 2
        stats = consumer.stats()
        assert (stats.handled, stats.failed, stats.lost) == (198, 6, 0)
        assert await lag(store) + await lag(store, "u") == 0

    run(tmp_path, work)


def test_locks_are_renewed_in_batches_while_handlers_run(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 8)
        gate, calls = asyncio.Event(), CallsOnly(store)

        async def handle(popped: Popped) -> None:
            await gate.wait()

        plan = Consuming(
            group="g",
            topics="t",
            **PLAIN | {"concurrency": 4, "prefetch": 4, "invisible_for": SHORT},
        )
        async with AsyncConsumer(calls, plan, handle) as consumer:
            await until(lambda: consumer.stats().renewed >= 24)
            assert calls.count["change_invisible_batch"] <= 16
            assert await store.pop("g", "t", 9) == []
            gate.set()
            await until(lambda: consumer.stats().handled == 8)
        assert consumer.stats().lost == 0

    run(tmp_path, work)


def test_a_handler_whose_lock_was_lost_is_cancelled(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 1)
        ends: list[str] = []

        async def handle(popped: Popped) -> None:
            if ends:
                return
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        async with store.consume("g", "t", handle, concurrency=1, invisible_for=SHORT) as consumer:
            await until(lambda: consumer.stats().running)
            await store.reset_offset("g", "t", to="begin")
            await until(lambda: consumer.stats().handled == 1)
        assert ends == ["cancelled"]
        assert consumer.stats().lost == 1

    run(tmp_path, work)


def test_a_stop_lets_handlers_end_within_a_time_and_then_cancels_them(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 6)
        gate = asyncio.Event()

        async def handle(popped: Popped) -> None:
            if popped.message.body == b"0":
                await for_ever(popped)
            await gate.wait()

        consumer = await store.consume("g", "t", handle, concurrency=6, prefetch=9)
        await until(lambda: consumer.stats().running == 6)
        stopping = asyncio.create_task(consumer.stop(within=0.3))
        await asyncio.sleep(0)
        gate.set()
        assert not await stopping
        stats = consumer.stats()
        assert (stats.handled, stats.cancelled, stats.lost) == (5, 1, 0)
        (again,) = await store.pop("g", "t", 9)
        assert (again.message.body, again.attempt) == (b"0", 2)
        assert consumer.is_over
        assert await consumer.stop()

    run(tmp_path, work)


def test_messages_that_wait_go_back_when_it_stops_and_their_attempts_do_not_count(
    tmp_path: Path,
) -> None:
    async def work(store: Store) -> None:
        await put(store, 5)
        consumer = await store.consume("g", "t", for_ever, concurrency=1, prefetch=4)
        await until(lambda: consumer.stats().waiting == 4 and consumer.stats().running == 1)
        assert not await consumer.stop(within=0)
        assert consumer.stats().undone == 4
        assert sorted(p.attempt for p in await store.pop("g", "t", 9)) == [1, 1, 1, 1, 2]

    run(tmp_path, work)


def test_a_handler_that_will_not_be_cancelled_holds_up_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.consume.async_consumer._LAST", 0.2)

    async def work(store: Store) -> None:
        await put(store, 1)
        gate = asyncio.Event()

        async def handle(popped: Popped) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        consumer = await store.consume("g", "t", handle)
        await until(lambda: consumer.stats().running)
        assert not await consumer.stop(within=0)
        assert consumer.is_over
        gate.set()

    run(tmp_path, work)


def test_a_handler_that_runs_too_long_is_cancelled_and_fails(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 3)

        async def handle(popped: Popped) -> None:
            if popped.message.body == b"1":
                await for_ever(popped)

        async with store.consume(
            "g", "t", handle, concurrency=1, time_limit=0.1, until_empty=True
        ) as consumer:
            await consumer.wait()
        assert await letters(store) == [(b"1", "the handler ran for more than 0.1 s")]
        assert (consumer.stats().handled, consumer.stats().timed_out) == (2, 1)

    run(tmp_path, work, max_attempts=1)


def test_a_handler_that_cancels_itself_has_failed(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 1)

        async def handle(popped: Popped) -> None:
            raise asyncio.CancelledError

        async with store.consume("g", "t", handle, until_empty=True) as consumer:
            await consumer.wait()
        assert await letters(store) == [(b"0", "cancelled")]

    run(tmp_path, work)


def test_an_ordered_group_keeps_its_order(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await store.put_batch(
            [Message("t", b"%d" % n, message_group=f"m{n % 3}") for n in range(30)]
        )
        seen = defaultdict[str | None, list[int]](list)

        async def handle(popped: Popped) -> None:
            await asyncio.sleep(0.001 * (int(popped.message.body) % 4))
            if popped.attempt == 1 and int(popped.message.body) % 5 == 0:
                raise ValueError
            seen[popped.message.message_group].append(int(popped.message.body))

        async with store.consume(
            "g", "t", handle, concurrency=8, prefetch=8, until_empty=True
        ) as consumer:
            await consumer.wait()
        assert seen == {f"m{m}": list(range(m, 30, 3)) for m in range(3)}

    run(tmp_path, work, ordered=True)


def test_a_store_that_is_closed_ends_its_consumers(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 1)
        busy = await store.consume("g", "t", for_ever)
        idle = await store.consume("g", "t", for_ever)
        await until(lambda: busy.stats().running + idle.stats().running == 1)
        await store.close()
        with pytest.raises(StoreClosed):
            await idle.wait()
        stopped = await asyncio.gather(busy.stop(within=0), idle.stop(within=0))
        assert stopped[1]
        assert busy.is_over
        with kvstore.open(tmp_path / "s", settings()) as again:
            assert sum(each.lag for each in again.lag("g", "t")) == 1

    run(tmp_path, work)


def test_a_call_that_fails_is_made_again_and_a_fatal_one_ends_it(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 10)
        calls = CallsOnly(
            store, {"pop": [StoreBusy("later")], "ack_batch": [MemoryError(), StoreBusy("later")]}
        )
        plan = Consuming(group="g", topics="t", **PLAIN)
        async with AsyncConsumer(calls, plan, nothing) as consumer:
            await until(lambda: consumer.stats().handled == 10)
        await store.create_topic("u", queues=1)
        gone = await store.consume("g", "u", nothing)
        await store.delete_topic("u")
        with pytest.raises(TopicNotFound):
            await gone.wait()
        with pytest.raises(TopicNotFound):
            async with gone:
                pass

    run(tmp_path, work)


def test_a_namespace_consumes_its_own_topics(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        view = store.namespace("ns")
        await view.create_topic("t")
        await view.create_group("g")
        await put(store, 1)
        await view.put("t", b"own")
        seen: list[tuple[str, bytes]] = []

        async def handle(popped: Popped) -> None:
            seen.append((popped.message.topic, popped.message.body))

        async with view.consume("g", "*", handle, until_empty=True) as consumer:
            await consumer.wait()
        assert seen == [("t", b"own")]
        assert await lag(store) == 1

    run(tmp_path, work)


def test_wrong_settings_are_refused_and_one_that_never_began_can_be_stopped(
    tmp_path: Path,
) -> None:
    async def work(store: Store) -> None:
        with pytest.raises(CallerError):
            store.consume("g", "t", nothing, concurrency=0)
        with pytest.raises(GroupNotFound):
            await store.consume("nobody", "t", nothing)
        with pytest.raises(TopicNotFound):
            await store.consume("g", ["t", "nowhere"], nothing)
        never = store.consume("g", "t", nothing)
        assert await never.stop()
        assert never.is_over
        consumer = await store.consume("g", "t", nothing, count=1)
        assert "'t' for 'g', running" in repr(consumer)
        with pytest.raises(CallerError):
            await consumer.stop(-1)
        await put(store, 3)
        await consumer.wait()
        assert (consumer.stats().handled, await lag(store)) == (1, 2)

    run(tmp_path, work)


def test_a_plain_function_ends_the_consumer_and_no_message_is_acked(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await put(store, 2)
        plain: Any = print
        consumer = await store.consume("g", "t", plain, concurrency=1)
        with pytest.raises(CallerError, match="must be async"):
            await consumer.wait()
        assert (consumer.stats().handled, await lag(store)) == (0, 2)
        made = await store.consume("g", "t", lambda popped: nothing(popped), count=2)
        await made.wait()
        assert (made.stats().handled, await lag(store)) == (2, 0)

    run(tmp_path, work)


@pytest.mark.parametrize("by_task", [False, True])
def test_a_handler_stops_its_own_consumer_and_the_others_end(
    tmp_path: Path, *, by_task: bool
) -> None:
    async def work(store: Store) -> None:
        await put(store, 4)
        gate, answers = asyncio.Event(), list[bool]()

        async def handle(popped: Popped) -> None:
            if popped.message.body == b"0":
                stopping = consumer.stop(within=None)
                answers.append(await (asyncio.wait_for(stopping, 60) if by_task else stopping))
            await gate.wait()

        consumer = store.consume("g", "t", handle, concurrency=4)
        async with consumer:
            await until(lambda: answers)
            assert answers == [False]
            assert not consumer.is_over
            gate.set()
            await consumer.wait()
        stats = consumer.stats()
        assert stats.handled >= 1
        assert stats.handled + await lag(store) == 4
        assert await consumer.stop()

    run(tmp_path, work)
