"""Open calls: their callbacks come at once, and awaiting them is as awaiting a future."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kvstore.errors import StoreBusy
from kvstore.serve.replies.open_calls import OpenCall


def test_callbacks_are_called_at_once_and_later_ones_in_the_next_turn() -> None:
    told: list[int] = []

    async def main() -> None:
        call = OpenCall[int](asyncio.get_running_loop())
        call.add_done_callback(lambda done: told.append(done.result()))
        assert not call.done()
        call.set_result(1)
        assert told == [1]
        call.add_done_callback(lambda done: told.append(done.result() + 1))
        assert told == [1]
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [1, 2]


def test_a_callback_that_fails_is_logged_and_the_next_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[bool] = []

    async def main() -> None:
        call = OpenCall[None](asyncio.get_running_loop())
        call.add_done_callback(lambda _: {}.popitem())
        call.add_done_callback(lambda done: told.append(done.done()))
        with caplog.at_level(logging.ERROR):
            call.set_result(None)

    asyncio.run(main())
    assert told == [True]
    assert "KeyError" in caplog.text


def test_an_awaited_call_gives_its_result_or_raises_its_error() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        late, failing, over = (OpenCall[int](loop) for _ in range(3))
        over.set_result(3)
        loop.call_soon(late.set_result, 1)
        loop.call_soon(failing.set_exception, StoreBusy("no"))
        assert [await late, await over] == [1, 3]
        with pytest.raises(StoreBusy):
            await failing
        assert isinstance(failing.exception(), StoreBusy)

    asyncio.run(main())


def test_who_is_cancelled_while_waiting_cancels_the_call() -> None:
    async def wait(call: OpenCall[int]) -> int:
        return await call

    async def main() -> None:
        call = OpenCall[int](asyncio.get_running_loop())
        waiting = asyncio.ensure_future(wait(call))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.cancelled()
        with pytest.raises(asyncio.CancelledError):
            call.result()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
