"""Signals reach the loop of asyncio, however busy it is."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kvstore.process.signals import on_signal

_WAKES = 10_000
"""More than the pipe takes over which other threads wake a loop."""


@pytest.mark.parametrize("wakes", [0, _WAKES])
def test_a_signal_reaches_a_loop_that_other_threads_wake_very_often(
    wakes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        on_signal(loop, signal.SIGUSR1, lambda: heard.append(1))
        for _ in range(wakes):
            loop.call_soon_threadsafe(lambda: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        while not heard:
            await asyncio.sleep(0)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert heard == [1]
    assert "Exception ignored" not in capfd.readouterr().err


def test_a_signal_wakes_a_loop_that_waits() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        on_signal(loop, signal.SIGUSR1, heard.set)
        killer = await asyncio.create_subprocess_exec("kill", "-USR1", str(os.getpid()))
        await heard.wait()
        await killer.wait()
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(asyncio.wait_for(main(), 60))
