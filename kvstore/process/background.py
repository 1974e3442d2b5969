"""Background: the threads of a store, which go on until they are stopped.

The idea: such a thread takes a turn whenever it is woken, and at an interval. A turn may fail, for
example for want of memory or by an exception that was thrown into the thread. The failure is
logged, kept for `Store.stats`, and told to the thread's owner, who acts on it (the flusher's owner
makes the store read-only). Then the thread takes its next turn, after a pause.

Invariants: no exception ends a thread; one that was told to stop ends after the turn it is at.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Final

import msgspec

from kvstore.clock import Clock
from kvstore.process.locks import Signal

_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 5.0
"""Seconds: the pause after a failed turn, times the failures in a row, and the longest."""
_LOOK: Final = 1.0
"""Seconds after which a thread that waits for the end of this one looks by itself, woken or not."""
_log = logging.getLogger("kvmq")


def traced(why: BaseException) -> str:
    """An unexpected exception with its traceback, as text: a log that kept the exception itself
    would keep iterators of RocksDB, which then can't be closed.
    """
    return "".join(traceback.format_exception(why)).rstrip()


class ThreadStats(msgspec.Struct, frozen=True):
    """Figures of a thread of an open store: its `last` work and the time of that, in ms since the
    epoch; the number of failed turns since the store was opened, and the reason of the last failure
    until a turn succeeds.
    """

    name: str
    alive: bool
    last: str
    last_at: int | None
    failures: int
    failure: str | None


class Background:
    """A thread that takes turns: the first one now if `at_once`, else when it is woken or at the
    interval. `failed` is called in the thread with the exception of a failed turn.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], None],
        clock: Clock,
        interval: float,
        *,
        wake: threading.Event | None = None,
        failed: Callable[[BaseException], object] = lambda why: None,
        at_once: bool = False,
    ) -> None:
        self.wake = Signal() if wake is None else wake
        """Setting it starts a turn."""
        self._turn = turn
        self._clock = clock
        self._interval = interval
        self._next_in = interval
        self._failed = failed
        self._at_once = at_once
        self.is_stopping = False
        """Whether the thread was asked to end; long turns check it."""
        self._halt = Signal()
        self._has_ended = False
        self._running = threading.Lock()
        self._running.acquire()
        self._last = "nothing yet"
        self._last_at: int | None = None
        self._failures = self._in_a_row = 0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread, once its owner has all parts that a turn uses."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether there will be another turn, or one is under way."""
        return self._thread.ident is not None and not self._has_ended

    def start_next_in(self, seconds: float) -> None:
        """Called in a turn: start the next one after at most this many seconds."""
        self._next_in = min(self._next_in, seconds)

    def did(self, what: str) -> None:
        """Records the thread's last work, for `stats`."""
        self._last = what
        self._last_at = self._clock.now_ms()

    def failing(self, why: str | None) -> None:
        """Records a failure that the turn itself handled; None: it is over."""
        if why is not None and why != self._failure:
            self._failures += 1
        self._failure = why

    def end(self) -> None:
        """Tells the thread to end after its current turn, without waiting for the end."""
        self.is_stopping = True
        self._halt.set()
        self.wake.set()

    def stop(self) -> None:
        """Ends the thread, and waits until it has ended."""
        self.end()
        while self.is_alive and threading.current_thread() is not self._thread:
            if self._running.acquire(timeout=_LOOK):
                self._running.release()

    def stats(self) -> ThreadStats:
        """See `ThreadStats`."""
        return ThreadStats(
            name=self._thread.name,
            alive=self.is_alive,
            last=self._last,
            last_at=self._last_at,
            failures=self._failures,
            failure=self._failure,
        )

    # --- in the thread ---

    def _run(self) -> None:
        # Code outside the inner `try` must not fail.
        try:
            while not self.is_stopping:
                try:
                    self._take_turn()
                except BaseException:
                    self._failures += 1  # handling a failed turn has failed as well
        finally:
            self._has_ended = True
            self._running.release()

    def _take_turn(self) -> None:
        has_begun = False
        try:
            if not self._at_once:
                self._clock.wait(self.wake, self._next_in)
                self.wake.clear()
                self._next_in = self._interval
            self._at_once = False
            if not self.is_stopping:
                has_begun = True
                self._turn()
            if self._in_a_row:
                self._in_a_row, self._failure = 0, None
        except BaseException as e:
            self._in_a_row += 1
            try:
                self._tell(e, has_begun=has_begun)
            finally:
                self._halt.wait(min(self._in_a_row * _PAUSE, _PAUSE_MAX))

    def _tell(self, why: BaseException, *, has_begun: bool) -> None:
        try:
            self._failures += 1
            self._failure = f"{type(why).__name__}: {why}"
            _log.error("the thread %s goes on after %s", self._thread.name, traced(why))
        finally:
            if has_begun:
                self._failed(why)
