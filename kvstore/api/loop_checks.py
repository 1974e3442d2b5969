"""Loop checks: asks checkers that are coroutine functions, for `kvstore.aio`.

The idea: a checker's thread asks (`timing.checks`), and waits while the coroutine runs in the loop
in which it was registered.

Invariant: neither an exception of the coroutine nor its exit ends the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kvstore.message import StoredMessage
from kvstore.timing.checks import Answer

AsyncAsk = Callable[[StoredMessage], Coroutine[Any, Any, Answer]]


def ask_in(loop: asyncio.AbstractEventLoop, checker: AsyncAsk, message: StoredMessage) -> Answer:
    """Asks a coroutine function, which runs in another thread's loop; raises its exit as well."""
    asking = _outcome(checker, message)
    try:
        found = asyncio.run_coroutine_threadsafe(asking, loop).result()
    except RuntimeError:
        asking.close()  # the loop has ended
        raise
    if isinstance(found, SystemExit):
        raise found
    return found


async def _outcome(checker: AsyncAsk, message: StoredMessage) -> Answer | SystemExit:
    """The answer, or the exit: a loop ends with the exit that one of its tasks raises."""
    try:
        return await checker(message)
    except SystemExit as e:
        return e
