"""Limits how fast the worker reads, and how fast it uploads.

The idea: a token bucket kept as one time: the moment at which all bytes let through so far would
have been due at an even rate. A caller takes its turn by moving that moment on, under the lock, and
waits for its turn outside of the lock. So turns are in the order of coming, and a caller that asks
for more than the burst waits, and is not refused.

Invariant: over any time no more bytes are let through than the burst and the rate times that time,
but for one call that asks for more than the burst: it waits until all of its bytes are due.
"""

from __future__ import annotations

import math
import threading

from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.process.locks import Signal
from tiering.errors import TieringStopped


class RateLimit:
    """`bytes_per_second` None is no limit; `burst` is in bytes (default: the bytes of one second).
    Threads may share one. `limit.take` is a `Pace` for `Place.put`.
    """

    def __init__(
        self, bytes_per_second: float | None, clock: Clock, *, burst: float | None = None
    ) -> None:
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ConfigError(f"a rate of {bytes_per_second} bytes a second can't be; None is none")
        if burst is not None and not 0 <= burst < math.inf:
            raise ConfigError(f"a burst of {burst} bytes can't be")
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = Signal()
        self._rate = bytes_per_second
        self._ahead = 1.0 if bytes_per_second is None or burst is None else burst / bytes_per_second
        self._due = clock.monotonic() - self._ahead

    def take(self, size: int) -> None:
        """Waits until `size` more bytes may pass; `TieringStopped` once `stop` was called."""
        wait = self._turn(size)
        if self._stopped.is_set() or (wait > 0 and self._clock.wait(self._stopped, wait)):
            raise TieringStopped("told to stop while waiting for its share of the rate")

    def stop(self) -> None:
        """Ends all waiting: from now on `take` raises `TieringStopped`."""
        self._stopped.set()

    def _turn(self, size: int) -> float:
        """Takes the next turn; returns the seconds until it comes."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            due = max(self._due, now - self._ahead) + size / self._rate
            self._due = due
        return due - now
