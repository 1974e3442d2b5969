"""The flusher: one thread that puts the log on the disk, for every thread that waits for it.

The idea: group commit. A put that needs the disk names a position and waits. The flusher syncs once
everything appended so far, and wakes the waiters that this serves, no others. The next sync begins
when as many threads wait again. Without waiters it syncs at an interval when enough bytes are
dirty, and syncs everything at the thorough interval.

Invariants: a waiter returns only when a sync that succeeded has covered its position; after a sync
that failed, or a turn that raised an unexpected exception, the log is read-only, and every waiter,
present or later, gets `FlushFailed`; nobody waits for a thread that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kvstore.config import StoreConfig
from kvstore.errors import FlushFailed, StoreClosed
from kvstore.log.commitlog import CommitLog
from kvstore.process.background import Background
from kvstore.process.locks import Signal

_GATHER_SECONDS: Final = 0.0001
"""The time of a sync from which on it is worth waiting until the threads have put again."""
_GATHER_MAX: Final = 0.002
"""The longest such wait, in seconds."""
_LOOK: Final = 1.0
"""Seconds after which a waiter looks at the log by itself, woken or not."""


class Flusher:
    """The flusher of one log."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, *, on_durable: Callable[[], None]
    ) -> None:
        self._log = log
        self._config = config
        self._clock = config.clock
        self._on_durable = on_durable
        self._waiters: list[tuple[int, Signal]] = []
        """The position that each waiter wants on the disk, and the signal that wakes it."""
        self._expected = 0
        """The number of threads that waited when the last sync ended, served by it or not."""
        self._gathered = Signal()
        """Set when as many wait again."""
        self._sync_seconds = 0.0
        now = self._clock.monotonic()
        self._thorough_at = now + config.flush_thorough_interval
        self._drained_at = now
        interval = config.flush_interval
        if config.write_mode == "staged":
            interval = min(interval, config.stage_interval)
        self.thread = Background(
            "kvmq-flusher", self._turn, self._clock, interval, failed=self._failed
        )
        self.thread.start()

    def wait(self, position: int) -> None:
        """Returns when the log below `position` is on the disk; raises `FlushFailed` if it can't
        get there.
        """
        log = self._log
        if log.durable >= position:
            return
        waiter = position, (served := Signal())
        try:
            self._waiters.append(waiter)
            if len(self._waiters) >= self._expected:
                self._gathered.set()
            self.thread.wake.set()
            while log.durable < position:
                log.check_failure()
                if not self.thread.is_alive or self.thread.is_stopping:
                    raise StoreClosed(
                        "the store was closed while a put waited for the disk; it may or may not "
                        "be there"
                    )
                served.wait(_LOOK)
                served.clear()
        finally:
            with suppress(ValueError):  # of a waiter that was not there yet
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wakes the thread: the staging buffer is full."""
        self.thread.wake.set()

    def stop(self) -> None:
        """Ends the thread, and syncs the rest."""
        self.thread.stop()
        try:
            if self._log.failure is None:
                self._sync()
        finally:
            self._notify()

    def _turn(self) -> None:
        config, log = self._config, self._log
        if log.failure is None:
            now = self._clock.monotonic()
            dirty = log.end - log.durable
            wanted = any(position > log.durable for position, _ in list(self._waiters))
            thorough = now >= self._thorough_at
            timely = now - self._drained_at >= config.flush_interval
            if dirty and (wanted or thorough or (timely and dirty >= config.flush_dirty_bytes)):
                if wanted:
                    self._gather()
                self._sync()
                self._drained_at = now
            elif log.staging is not None and log.staging.due():
                self._drain()
            if thorough:
                self._thorough_at = now + config.flush_thorough_interval
        if self._waiters:
            # Also where there was nothing to sync: a checkpoint's sync serves, or fails, the
            # waiters too.
            self._notify()

    def _failed(self, why: BaseException) -> None:
        """A turn raised an unexpected exception: whether the written bytes are on the disk is
        unknown, and the next turn may fail the same way, so nobody is left waiting for it.
        """
        try:
            self._log.fail(why)
        finally:
            self._notify()

    def _gather(self) -> None:
        """Waits until as many threads wait as when the last sync ended, for at most as long as it
        took: those that it woke put again meanwhile, and the next sync serves all of them instead
        of half. Does nothing where a sync is faster than that.
        """
        if self._expected > 1 and self._sync_seconds > _GATHER_SECONDS:
            self._gathered.clear()
            if len(self._waiters) < self._expected:
                self._clock.wait(self._gathered, min(self._sync_seconds, _GATHER_MAX))

    def _drain(self) -> None:
        try:
            self._log.drain()
            self.thread.did("wrote the staging buffer")
        except FlushFailed as e:
            self.thread.failing(str(e))
            self._notify()

    def _sync(self) -> None:
        began = self._clock.monotonic()
        try:
            self._log.sync_to_end()
        except FlushFailed as e:
            self.thread.failing(str(e))
            self._notify()
            return
        self.thread.did("synced the log")
        self._sync_seconds = self._clock.monotonic() - began
        self._expected = len(self._waiters)
        self._notify()
        self._on_durable()

    def _notify(self) -> None:
        log = self._log
        for waiter in list(self._waiters):
            # One whose position is still to come would wake in vain.
            if waiter[0] <= log.durable or log.failure is not None or self.thread.is_stopping:
                waiter[1].set()
                with suppress(ValueError):  # it has gone by itself
                    self._waiters.remove(waiter)
