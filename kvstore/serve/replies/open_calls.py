"""Open calls: calls that doors have made of the gatherer, and their results.

The idea: as `asyncio.Future`, but its callbacks are called at once, and not in another turn of the
loop. So the replies to all calls of a step are there when the step is over, and go out together.

Invariants: used in the loop's thread; each callback is called once; one that fails is logged, and
keeps no other from being called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kvstore.process.background import traced

T = TypeVar("T")
_log: Final = logging.getLogger("kvmq.serve")


class OpenCall(Generic[T]):
    """A call and its result, which can be awaited, or given callbacks; see the module."""

    __slots__ = ("_callbacks", "_error", "_is_cancelled", "_is_done", "_loop", "_result")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: list[Callable[[OpenCall[T]], object]] = []
        self._is_done = False
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._result: T | None = None

    def done(self) -> bool:
        """Whether it has a result or an error, or was cancelled."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._is_cancelled

    def exception(self) -> BaseException | None:
        """The error of a call that is done; None if it has a result. `CancelledError`."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._error

    def result(self) -> T:
        """The result of a call that is done; raises its error."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is done

    def add_done_callback(self, callback: Callable[[OpenCall[T]], object]) -> None:
        """Has a function called with this when it is done; soon, if it is."""
        if self._is_done:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def set_result(self, result: T) -> None:
        """The call was made."""
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """The call failed."""
        self._error = error
        self._end()

    def cancel(self) -> None:
        """Gives it up; its callbacks are told. A call that is done stays as it is."""
        if not self._is_done:
            self._is_cancelled = True
            self._end()

    def _end(self) -> None:
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as e:
                _log.error("what follows a call failed: %s", traced(e))

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            future = self._loop.create_future()
            self.add_done_callback(partial(_wake, future))
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


def _wake(future: asyncio.Future[None], _: OpenCall[Any]) -> None:
    if not future.done():
        future.set_result(None)
