"""A consumer in threads: handlers run in `concurrency` of them, two more serve these.

The idea: the fetcher pops for the room that the hand has, and gives messages to the handlers'
threads by a queue. The settler tells the store outcomes and renews locks, gathered in batches, as
long as any message is in the hand. The two are threads as a store has them (`process.background`):
a failure is logged, and the next turn tries again. (docs/consuming.md)

Invariants:

- Receipts are used by the settler alone, so none that was renewed meanwhile is used.
- A handler's exception never ends a thread.
- After `stop` no handler begins, and messages that waited for one go back.
- An error that no other try can mend ends the consumer, and `wait` raises it.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final, Self

from kvstore.clock import SystemClock
from kvstore.consume.consuming import (
    ConsumerStats,
    Consumes,
    Consuming,
    check_within,
    is_async,
)
from kvstore.consume.hand import Hand, Held, Outcome, reason_of
from kvstore.consume.rounds import WAIT, checking, fetching, is_fatal, run, settling
from kvstore.core.popping.receipts import Popped
from kvstore.errors import CallerError, StoreClosed, StoreError, StoreForked, shown
from kvstore.process.background import Background, ThreadStats, traced
from kvstore.process.locks import Signal

STOP_WITHIN: Final = 30.0
"""Seconds that handlers have to end, if the caller of `stop` says nothing."""
_IDLE: Final = 3600.0
"""Seconds between two turns of a thread that nothing wakes."""
_log = logging.getLogger("kvmq")

Handler = Callable[[Popped], object]


class Consumer:
    """A running consumer, see `Store.consume`; made by it. Threads may share it.

    >>> with store.consume("billing", "orders-*", print) as consumer:  # doctest: +SKIP
    ...     consumer.wait()
    """

    def __init__(self, store: object, plan: Consuming, handler: Handler) -> None:
        run(store, checking(plan))
        self.plan = plan
        self.error: BaseException | None = None
        """The error that ended it."""
        self._store = store
        self._handler = handler
        self._clock = SystemClock()
        self._hand = Hand(plan, self._clock)
        self._jobs: SimpleQueue[Held | None] = SimpleQueue()
        self._ended = Signal()
        self._lock = threading.Lock()
        self._workers = 0
        """Threads of handlers that have not ended."""
        self._thread = threading.local()
        """Has `is_handler` in the threads of handlers."""
        self._hung = 0
        """Those that were replaced, since their handlers ran too long."""
        self._fetcher = Background(
            "kvmq-fetcher", self._fetch, self._clock, _IDLE, failed=self._failed, at_once=True
        )
        self._settler = Background(
            "kvmq-settler", self._settle, self._clock, _IDLE, failed=self._failed
        )
        try:
            for _ in range(plan.concurrency):
                self._add_worker()
            self._fetcher.start()
            self._settler.start()
        except BaseException:
            self._close()
            self._end()
            raise

    def __repr__(self) -> str:
        state = "ended" if self.is_over else "stopping" if self._hand.is_closing else "running"
        return f"<kvstore.Consumer of {self.plan.topics!r} for {self.plan.group!r}, {state}>"

    # --- for its owner ---

    def stats(self) -> ConsumerStats:
        """Its figures now."""
        return self._hand.stats()

    def threads(self) -> list[ThreadStats]:
        """Its fetcher and its settler: their last failures."""
        return [self._fetcher.stats(), self._settler.stats()]

    @property
    def is_over(self) -> bool:
        """Whether it has ended: nothing is popped, and no message is held."""
        return self._ended.is_set()

    def has_lost(self, popped: Popped) -> bool:
        """Whether the lock of a message was lost, or its handler's time is over: a handler that
        runs long asks, and ends.
        """
        return self._hand.has_lost(popped)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for at most `timeout` seconds; False if they passed. Raises the
        error that ended it.
        """
        has_ended = self._ended.wait(timeout)
        if self.error is not None:
            raise self.error
        return has_ended

    def stop(self, within: float | None = STOP_WITHIN) -> bool:
        """Pops no more, gives messages back that no handler has begun, and lets handlers end within
        so many seconds (None: for as long as they take). True if all ended. If not, their threads
        are left to themselves, and their messages come back when their locks run out.

        In a handler of this consumer it returns False at once: the consumer ends when its handlers
        have ended.
        """
        check_within(within)
        self._close()
        if getattr(self._thread, "is_handler", False):
            return False
        if self._ended.wait(within):
            return True
        count = self._hand.abandon()
        if count:
            _log.error("kvmq left %d handlers that did not end within %s s", count, within)
        self._settler.wake.set()
        self._ended.wait(WAIT)
        return not count

    def _close(self) -> None:
        self._hand.close()
        self._fetcher.end()
        self._settler.wake.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self.stop()
        if error is None and self.error is not None:
            raise self.error

    # --- the fetcher and the settler ---

    def _fetch(self) -> None:
        with self._ending():
            self._fetch_more()

    def _fetch_more(self) -> None:
        again_in = run(self._store, fetching(self._hand, WAIT))
        for held in self._hand.unqueued():
            # Twice is as good as once, if the thread is struck between the two.
            self._jobs.put(held)
            held.is_queued = True
            # It has to know when to renew.
            self._settler.wake.set()
        if self._hand.is_spent:
            self._fetcher.end()
            self._settler.wake.set()
        elif again_in is not None:
            self._fetcher.start_next_in(again_in)

    def _settle(self) -> None:
        with self._ending():
            self._settle_all()

    def _settle_all(self) -> None:
        found = run(self._store, settling(self._hand))
        for held in found.overdue:
            self._give_up(held)
        if self._hand.is_empty and not self._fetcher.is_alive:
            self._end()
            return
        self._fetcher.wake.set()
        next_in = self._hand.next_in()
        if self._fetcher.is_stopping:
            # The fetcher's end wakes nobody.
            self._settler.start_next_in(WAIT / 10)
        if next_in is not None:
            self._settler.start_next_in(next_in)

    def _failed(self, why: BaseException) -> None:
        """A turn of the fetcher or the settler failed: each takes another."""
        self._fetcher.wake.set()
        self._settler.wake.set()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Around a turn: an error that no other try can mend ends the consumer."""
        try:
            yield
        except StoreError as e:
            if not is_fatal(e):
                raise
            self.error = self.error or e
            self._close()
            if isinstance(e, StoreClosed | StoreForked):
                # Nobody can be told any outcome: the messages come back when their locks run out.
                self._hand.abandon()
                self._end()

    def _end(self) -> None:
        self._ended.set()
        for _ in range(self._workers):
            self._jobs.put(None)
        # Last: a turn that is struck in here is taken again.
        self._settler.end()

    # --- handlers ---

    def _add_worker(self) -> None:
        with self._lock:
            self._workers += 1
        threading.Thread(target=self._work, name="kvmq-handler", daemon=True).start()

    def _give_up(self, held: Held) -> None:
        """Puts another thread in the place of one whose handler runs too long, for as many as may
        run at a time.
        """
        _log.error(
            "a handler of group %r runs for more than %s s, with offset %d of queue %d of %r",
            self.plan.group, self.plan.time_limit, held.popped.message.offset,
            held.popped.message.queue, held.popped.message.topic,
        )  # fmt: skip
        with self._lock:
            held.is_replaced = not held.has_returned and self._hung < self.plan.concurrency
            self._hung += held.is_replaced
        if held.is_replaced:
            self._add_worker()

    def _work(self) -> None:
        self._thread.is_handler = goes_on = True
        while goes_on:
            try:
                goes_on = self._take_job()
            except BaseException as e:
                self._settler.wake.set()
                _log.error("a thread of a consumer goes on after %s", traced(e))

    def _take_job(self) -> bool:
        """Handles the next message; False if the thread ends."""
        held = self._jobs.get()
        if held is None:
            return False
        try:
            self._handle(held)
        except BaseException as e:
            # Of the steps around a handler: it is as if the handler had failed.
            self._hand.end(held, Outcome.NACK, reason_of(e))
            raise
        self._settler.wake.set()
        with self._lock:
            held.has_returned = True
            if held.is_replaced:
                self._hung -= 1
                self._workers -= 1
            return not held.is_replaced

    def _handle(self, held: Held) -> None:
        if not self._hand.begin(held):
            return
        try:
            result = self._handler(held.popped)
        except BaseException as e:
            self._hand.failed(held, e)
            return
        if inspect.iscoroutine(result):
            # Nothing was done about the message, nor would be about the others.
            result.close()
            self.error = self.error or _refusal(self._handler)
            self._hand.end(held, Outcome.CANCEL, str(self.error))
            self._close()
            return
        self._hand.end(held, Outcome.ACK)


def _refusal(handler: object) -> CallerError:
    return CallerError(
        f"handler is {shown(handler)}, which is async; a consumer in threads needs a plain "
        "function; kvstore.aio takes async ones"
    )


class ConsumesInThreads(Consumes[Handler, Consumer]):
    """The call `consume`, with a consumer in threads."""

    def _consumer(self, plan: Consuming, handler: Handler) -> Consumer:
        if is_async(handler):
            raise _refusal(handler)
        return Consumer(self, plan, handler)
