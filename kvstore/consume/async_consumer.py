"""A consumer in an event loop: each message has a task, two more tasks serve these.

The idea: as `consumer`, with the same hand and the same rounds, which are awaited. A handler can be
ended here: its task is cancelled when its lock is lost, when it ran too long, and when a stop gives
it no more time. (docs/consuming.md)

Invariants: as those of `consumer`; a handler whose lock is lost is cancelled; a pop that waits is
cancelled by a stop, and loses nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Self

from kvstore.clock import SystemClock
from kvstore.consume.consumer import STOP_WITHIN
from kvstore.consume.consuming import ConsumerStats, Consumes, Consuming, check_within
from kvstore.consume.hand import Hand, Held, Outcome
from kvstore.consume.rounds import checking, fetching, is_fatal, run_awaited, settling
from kvstore.core.popping.receipts import Popped
from kvstore.errors import CallerError, StoreClosed, StoreForked, shown
from kvstore.process.background import traced

_WAIT: Final = 3600.0
"""Seconds of one pop, which can be cancelled."""
_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 5.0
"""Seconds: the pause after a failed round, times the failures in a row, and the longest."""
_LAST: Final = 5.0
"""Seconds that handlers have to end after they were cancelled."""
_STOPPED: Final = "stopped before it had ended"
_handler_task: ContextVar[asyncio.Task[None] | None] = ContextVar("handler_task", default=None)
"""The task of the handler in which this code runs; tasks that a handler starts have it, too."""
_log = logging.getLogger("kvmq")

AsyncHandler = Callable[[Popped], Awaitable[object]]


class AsyncConsumer:
    """A consumer, see `kvstore.aio.Store.consume`; made by it. It begins when it is awaited, or
    entered by `async with`.

    >>> async def work(store: kvstore.aio.Store) -> None:
    ...     async with store.consume("billing", "orders-*", handle) as consumer:
    ...         await consumer.wait()
    """

    def __init__(self, store: object, plan: Consuming, handler: AsyncHandler) -> None:
        self.plan = plan
        self.error: BaseException | None = None
        """The error that ended it."""
        self._store = store
        self._handler = handler
        self._hand = Hand(plan, SystemClock())
        self._slots = asyncio.Semaphore(plan.concurrency)
        self._room = asyncio.Event()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_cancelling = False
        """Whether a stop gave handlers no more time."""
        self._handlers: dict[Held, asyncio.Task[None]] = {}
        self._fetcher: asyncio.Task[None] | None = None
        self._settler: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self.is_over else "stopping" if self._hand.is_closing else "running"
        return f"<kvstore.aio consumer of {self.plan.topics!r} for {self.plan.group!r}, {state}>"

    def __await__(self) -> Generator[Any, None, Self]:
        return self._begin().__await__()

    async def _begin(self) -> Self:
        if self._settler is None:
            await run_awaited(self._store, checking(self.plan))
            self._fetcher = asyncio.create_task(self._fetch())
            self._settler = asyncio.create_task(self._settle(self._fetcher))
        return self

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(self, _kind: object, error: object, _trace: object) -> None:
        await self.stop()
        if error is None and self.error is not None:
            raise self.error

    # --- for its owner ---

    def stats(self) -> ConsumerStats:
        """Its figures now."""
        return self._hand.stats()

    @property
    def is_over(self) -> bool:
        """Whether it has ended: nothing is popped, and no message is held."""
        return self._ended.is_set()

    async def wait(self) -> None:
        """Waits until it has ended; raises the error that ended it."""
        await self._ended.wait()
        if self.error is not None:
            raise self.error

    async def stop(self, within: float | None = STOP_WITHIN) -> bool:
        """Pops no more, gives messages back that no handler has begun, and lets handlers end within
        so many seconds (None: for as long as they take). True if all ended. The others are
        cancelled, and their messages given back at once.

        In a handler of this consumer it returns False at once: the consumer ends when its handlers
        have ended.
        """
        check_within(within)
        self._close()
        if _handler_task.get() in self._handlers.values():
            return False
        if self._settler is None:
            self._ended.set()
            return True
        await asyncio.wait({self._settler}, timeout=within)
        if self._settler.done():
            return True
        self._is_cancelling = True
        self._cancel(list(self._handlers))
        await asyncio.wait({self._settler}, timeout=_LAST)
        if not self._settler.done():
            count = self._hand.abandon()
            _log.error("kvmq left %d handlers that did not end when they were cancelled", count)
            self._changed.set()
            await asyncio.wait({self._settler}, timeout=_LAST)
        return False

    def _close(self) -> None:
        self._hand.close()
        if self._fetcher is not None:
            self._fetcher.cancel()
        self._changed.set()

    # --- its tasks ---

    async def _fetch(self) -> None:
        failures = 0
        try:
            while not self._hand.is_closing and not self._hand.is_spent:
                self._room.clear()
                try:
                    again_in = await run_awaited(self._store, fetching(self._hand, _WAIT))
                except Exception as e:
                    failures += 1
                    again_in = await self._failed(e, failures)
                else:
                    failures = 0
                for held in self._hand.unqueued():
                    self._handlers[held] = asyncio.create_task(self._handle(held))
                    held.is_queued = True
                    self._changed.set()  # to know when to renew
                if again_in != 0:
                    await _rung(self._room, again_in)
        finally:
            self._changed.set()

    async def _settle(self, fetcher: asyncio.Task[None]) -> None:
        failures = 0
        try:
            while not (self._hand.is_empty and fetcher.done()):
                self._changed.clear()
                try:
                    found = await run_awaited(self._store, settling(self._hand))
                except Exception as e:
                    failures += 1
                    await _rung(self._changed, await self._failed(e, failures))
                    continue
                failures = 0
                self._cancel(found.overdue + found.lost)
                self._room.set()
                if not (self._hand.is_empty and fetcher.done()):
                    await _rung(self._changed, self._hand.next_in())
        finally:
            self._ended.set()

    async def _failed(self, why: Exception, failures: int) -> float:
        """A round failed; returns in how many seconds to try again."""
        if is_fatal(why):
            self.error = self.error or why
            if isinstance(why, StoreClosed | StoreForked):
                # Nobody can be told any outcome: the messages come back when their locks run out.
                self._hand.abandon()
                self._cancel(list(self._handlers))
            self._hand.close()
            self._changed.set()
            return 0.0
        _log.error("a consumer of group %r goes on after %s", self.plan.group, traced(why))
        return min(failures * _PAUSE, _PAUSE_MAX)

    def _cancel(self, helds: Sequence[Held]) -> None:
        for held in helds:
            task = self._handlers.get(held)
            if task is not None:
                task.cancel()

    async def _handle(self, held: Held) -> None:
        try:
            async with self._slots:
                if self._hand.begin(held):
                    await self._run(held)
        except asyncio.CancelledError:
            # Lost, too late, or stopped; or the handler cancelled itself.
            outcome = Outcome.CANCEL if self._is_cancelling else Outcome.NACK
            self._hand.end(held, outcome, _STOPPED if self._is_cancelling else "cancelled")
        except BaseException as e:
            self._hand.failed(held, e)
            if not isinstance(e, Exception):
                raise
        finally:
            self._handlers.pop(held, None)
            self._changed.set()

    async def _run(self, held: Held) -> None:
        _handler_task.set(asyncio.current_task())
        handler: Callable[[Popped], object] = self._handler  # one that is not async comes as well
        result = handler(held.popped)
        if inspect.isawaitable(result):
            await result
            self._hand.end(held, Outcome.ACK)
            return
        self.error = self.error or CallerError(
            f"handler is {shown(self._handler)}, which returned {shown(result)}; it must be async"
        )
        self._hand.end(held, Outcome.CANCEL, str(self.error))
        self._close()


async def _rung(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until an event is set, for at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class ConsumesAwaited(Consumes[AsyncHandler, AsyncConsumer]):
    """The call `consume`, with a consumer in a loop; for `async with`, or to be awaited."""

    def _consumer(self, plan: Consuming, handler: AsyncHandler) -> AsyncConsumer:
        return AsyncConsumer(self, plan, handler)
