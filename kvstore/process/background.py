"""Background: the threads of a store, which go on until they are stopped.

The idea: such a thread takes a turn whenever it is woken, and at an interval. A turn that fails,
be it for want of memory or by an exception that was thrown into the thread, is logged, kept for
`Store.stats`, and told to the thread's owner, who says what it means (the flusher's makes the store
read-only); then the thread takes its next turn, after a pause.

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

_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 5.0
"""Seconds: the pause after a failed turn, times the failures in a row, and the longest."""
_log = logging.getLogger("kvmq")


def traced(why: BaseException) -> str:
    """An unexpected exception with its way here, as text: a log that kept the exception itself
    would keep iterators of RocksDB, which then can't be closed.
    """
    return "".join(traceback.format_exception(why)).rstrip()


class ThreadStats(msgspec.Struct, frozen=True):
    """A thread of an open store: what it did `last` and when, in ms since the epoch; how many turns
    failed since the store was opened, and why the last one did, until one succeeds.
    """

    name: str
    alive: bool
    last: str
    last_at: int | None
    failures: int
    failure: str | None


class Background:
    """See the module. The thread begins with a turn if `at_once`, else with the wait for one.
    `failed` is called in the thread with what a turn raised.
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
        self.wake = threading.Event() if wake is None else wake
        """Set to have a turn now."""
        self._turn = turn
        self._clock = clock
        self._interval = interval
        self._next_in = interval
        self._failed = failed
        self._at_once = at_once
        self.is_stopping = False
        """Whether the thread was asked to end: long turns look here."""
        self._halt = threading.Event()
        self._last = "nothing yet"
        self._last_at: int | None = None
        self._failures = self._in_a_row = 0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the owner has everything by now that a turn needs."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether there will be another turn, or one is under way."""
        return self._thread.is_alive()

    def take_next_in(self, seconds: float) -> None:
        """In a turn: take the next one after so many seconds, if that is sooner."""
        self._next_in = min(self._next_in, seconds)

    def did(self, what: str) -> None:
        """Note what the thread has done, for `stats`."""
        self._last = what
        self._last_at = self._clock.now_ms()

    def failing(self, why: str | None) -> None:
        """Note a failure that the turn itself dealt with; None: it is over."""
        if why is not None and why != self._failure:
            self._failures += 1
        self._failure = why

    def end(self) -> None:
        """Have the thread end after the turn it is at, without waiting for that."""
        self.is_stopping = True
        self._halt.set()
        self.wake.set()

    def stop(self) -> None:
        """Have the thread end, and wait for that."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

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
        # Nothing out here calls anything that could fail.
        while not self.is_stopping:
            try:
                self._take_turn()
            except BaseException:
                self._failures += 1  # dealing with a failed turn has failed, too

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
