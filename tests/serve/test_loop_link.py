"""Connections for asyncio: no call, and no thread that bridges to a loop, waits without an end."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

import kvstore.aio
from kvstore import ConnectionLost, Store, StoreClosed
from kvstore.client import exchange, loop_link
from kvstore.client.loop_link import made_in_loop
from tests.support.served import serving


def test_calls_that_wait_for_room_end_when_no_server_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "OUTSTANDING_MAX", 1)

    async def main() -> object:
        with serving(store) as server:
            client = await kvstore.aio.connect(server.url, reconnect_for=0)
            calls = [client.pop("g", "t", wait=60) for _ in range(4)]
            ended = asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0)
            await asyncio.to_thread(server.stop)
            found = await asyncio.wait_for(ended, 20)
            await client.close()
        return found[-1]

    assert isinstance(asyncio.run(main()), ConnectionLost)


def test_a_thread_that_waits_for_a_loop_is_told_that_the_loop_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_link, "_LOOK", 0.01)
    loop, errors = asyncio.new_event_loop(), list[BaseException]()
    has_begun = asyncio.Event()

    async def work() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            made_in_loop(loop, work(), "kvmq://store:1")
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    loop.run_until_complete(has_begun.wait())
    loop.close()
    thread.join(20)
    assert not thread.is_alive()
    call()
    assert [type(e) for e in errors] == [StoreClosed, StoreClosed]


def test_a_thread_is_told_that_the_work_it_waits_for_was_cancelled() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(StoreClosed, match="kvmq://store:1"):
            await asyncio.to_thread(made_in_loop, loop, work(), "kvmq://store:1")

    asyncio.run(main())


def test_work_that_a_loop_did_not_come_to_begin_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_link, "_LOOK", 0.01)
    loop = asyncio.new_event_loop()

    async def work() -> None:
        raise AssertionError("it was begun")

    made = work()
    ender = threading.Timer(0.05, loop.close)
    ender.start()
    with pytest.raises(StoreClosed):
        made_in_loop(loop, made, "kvmq://store:1")
    ender.join()
    assert inspect.getcoroutinestate(made) == inspect.CORO_CLOSED
