"""The flusher: one thread that puts the log on the disk, for every thread that waits for it.

The idea: group commit. A put that needs the disk sleeps. The flusher syncs once everything appended
so far, wakes the threads that slept when it began, and begins again if others do by then: half of
them put while the disk works for the other half. Where the disk takes longer than all of them need
to put again, the flusher waits until they have, and one sync serves all. Without waiters it syncs
at an interval when enough bytes are dirty, and syncs everything at the thorough interval.

Invariants: a waiter returns only when a sync that succeeded has covered its position; after a sync
that failed, or a turn that raised an unexpected exception, the log is read-only, and every waiter,
present or later, gets `FlushFailed`; nobody waits for a thread that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.config import StoreConfig
from kvstore.core.threads.sleepers import Sleeper, wake_all
from kvstore.errors import FlushFailed, StoreClosed
from kvstore.log.commitlog import CommitLog
from kvstore.process.background import Background
from kvstore.process.locks import Signal

_PUT_SECONDS: Final = 0.000015
"""In which one of many woken threads puts again."""
_GATHER_MAX: Final = 0.002
"""The longest wait for all of them, in seconds."""
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
        self._waiters: list[Sleeper] = []
        """In the order of their coming. Each came behind its own put."""
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
        waiter = Sleeper()
        self._waiters.append(waiter)
        if len(self._waiters) >= self._expected:
            self._gathered.set()
        self.thread.wake.set()
        while log.durable < position:
            log.check_failure()
            if not self.thread.is_alive or self.thread.is_stopping:
                raise StoreClosed(
                    "the store was closed while a put waited for the disk; it may or may not be "
                    "there"
                )
            waiter.sleep(_LOOK)

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
            self._wake_all()

    def _turn(self) -> None:
        config, log = self._config, self._log
        if log.failure is not None:
            self._wake_all()
            return
        now = self._clock.monotonic()
        waiting = len(self._waiters)
        dirty = log.end - log.durable
        thorough = now >= self._thorough_at
        timely = now - self._drained_at >= config.flush_interval
        if dirty and (waiting or thorough or (timely and dirty >= config.flush_dirty_bytes)):
            if waiting:
                self._gather()
            self._sync()
            self._drained_at = now
        else:
            # A checkpoint's sync has served those that wait with nothing left to sync.
            self._wake(waiting)
            if log.staging is not None and log.staging.due():
                self._drain()
        if thorough:
            self._thorough_at = now + config.flush_thorough_interval

    def _failed(self, why: BaseException) -> None:
        """A turn raised an unexpected exception: whether the written bytes are on the disk is
        unknown, and the next turn may fail the same way, so nobody is left waiting for it.
        """
        try:
            self._log.fail(why)
        finally:
            self._wake_all()

    def _gather(self) -> None:
        """Where a sync takes longer than all threads that waited at its end need to put again,
        waits until they have, for at most as long as it took. Otherwise this wait would cost more
        than the next sync.
        """
        if self._sync_seconds > self._expected * _PUT_SECONDS:
            self._gathered.clear()
            if len(self._waiters) < self._expected:
                self._clock.wait(self._gathered, min(self._sync_seconds, _GATHER_MAX))

    def _drain(self) -> None:
        try:
            self._log.drain()
            self.thread.did("wrote the staging buffer")
        except FlushFailed as e:
            self.thread.failing(str(e))
            self._wake_all()

    def _sync(self) -> None:
        waiting = len(self._waiters)
        began = self._clock.monotonic()
        try:
            self._log.sync_to_end()
        except FlushFailed as e:
            self.thread.failing(str(e))
            self._wake_all()
            return
        self.thread.did("synced the log")
        self._sync_seconds = self._clock.monotonic() - began
        self._expected = len(self._waiters)
        self._wake(waiting)
        self._on_durable()

    def _wake(self, count: int) -> None:
        """Wakes the first `count` waiters. They are forgotten only then: an exception that is
        thrown into this thread leaves no one asleep that no turn knows of.
        """
        if count:
            wake_all(self._waiters[:count])
            del self._waiters[:count]

    def _wake_all(self) -> None:
        self._wake(len(self._waiters))
