"""Batches of a loop: single puts and acks of many tasks go to the server as few requests.

The idea: a call joins those of its kind, and when the turn of the loop is over, all that joined are
one `put_batch`, one `ack_batch`. A batch that the server refuses changed nothing; then each of its
calls is made by itself, so an illegal message fails alone, with its own error.

Invariants: each call has one result or error, its own; calls are sent in the order in which they
came, but for those of a refused batch; a call that was cancelled before it was sent is not made.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from kvstore.errors import CallerError, FormatError, StoreError

_COUNT_MAX: Final = 1024
_BYTES_MAX: Final = 1 << 20
"""Calls of a batch, and bytes of those beyond the first."""

Make = Callable[[str, list[Any]], Coroutine[Any, Any, Sequence[Any]]]
"""Makes a call that takes a list, by its name; the results are those of the list's elements."""


class _Single:
    """A call for one message or receipt, the bytes it takes, and who waits for it."""

    __slots__ = ("asked", "future", "size")

    def __init__(self, asked: Any, size: int, future: asyncio.Future[Any]) -> None:
        self.asked = asked
        self.size = size
        self.future = future


class LoopBatches:
    """The calls of one connection that go together; see the module. It is made in the loop."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._joined: dict[str, list[_Single]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, method: str, asked: Any, size: int = 0) -> Any:
        """The result of one element of a call that takes a list; raises its error, or that of the
        whole call.
        """
        future = self._loop.create_future()
        if not self._joined:
            self._loop.call_soon(self._send)
        self._joined.setdefault(method, []).append(_Single(asked, size, future))
        return await future

    def _send(self) -> None:
        joined, self._joined = self._joined, {}
        for method, singles in joined.items():
            for batch in _batches(singles):
                task = self._loop.create_task(self._send_batch(method, batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, method: str, batch: list[_Single]) -> None:
        try:
            results = await self._make(method, [one.asked for one in batch])
        except asyncio.CancelledError:
            for one in batch:
                one.future.cancel()
            raise
        except Exception as e:
            is_refused = isinstance(e, CallerError | FormatError) or not isinstance(e, StoreError)
            if is_refused and len(batch) > 1:
                await asyncio.gather(*(self._send_batch(method, [one]) for one in batch))
                return
            for one in batch:
                if not one.future.done():
                    # Each caller adds its own traceback.
                    one.future.set_exception(copy.copy(e) if isinstance(e, StoreError) else e)
            return
        for one, result in zip(batch, results, strict=True):
            if not one.future.done():
                one.future.set_result(result)


def _batches(singles: list[_Single]) -> Iterator[list[_Single]]:
    """Cuts calls into batches, without those that were cancelled."""
    batch: list[_Single] = []
    size = 0
    for one in singles:
        if one.future.done():
            continue
        size += one.size
        if batch and (size > _BYTES_MAX or len(batch) == _COUNT_MAX):
            yield batch
            batch, size = [], one.size
        batch.append(one)
    if batch:
        yield batch
