"""Signals: calls a function in the loop of asyncio when a signal comes.

The idea: asyncio sends itself a byte for each signal, over the same pipe over which other threads
wake the loop. A few hundred of these fill the pipe, and asyncio loses the signal: a busy server
would not hear that it is to stop. So the signal's own handler hands the call to the loop, and the
byte only wakes the loop, for which any byte will do.

Invariant: each signal that comes while the handler is there leads to a call.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress


def on_signal(loop: asyncio.AbstractEventLoop, number: int, act: Callable[[], object]) -> None:
    """Calls `act` in the running loop when a signal comes, until `loop.remove_signal_handler`.
    Another thread than the main one gets no signals, and its caller ends the work in another way.
    """
    with suppress(RuntimeError, ValueError):
        loop.add_signal_handler(number, _nothing)
        # A full pipe is as good as a byte in it: there is nothing to warn of.
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(act))


def _nothing() -> None:
    """The byte was read."""
