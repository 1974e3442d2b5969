"""Reconnecting: when a client tries to reach its server again, and when it gives up.

The idea: the first trial after a loss is made at once, each further one behind a pause that doubles
up to `_PAUSE_MAX`. A random part of each pause keeps the clients of a busy server from coming all
together. No sockets here, so threads and asyncio share this.

Invariants: trials end `reconnect_for` seconds behind the first, also at a server that takes
connections and then says that it is too busy (`StoreBusy`); such a server, and one that ends
connections unused, gets the same pauses as one that is not there. They begin anew when a connection
was of use, but behind a `StoreBusy` only when one has held for `_STEADY` seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from kvstore.client.exchange import is_refusal
from kvstore.errors import StoreBusy, StoreError

_PAUSE: Final = 0.05
_PAUSE_MAX: Final = 1.0
"""Seconds between two trials to connect: the first pause, and the longest."""
_JITTER: Final = 0.5
"""The random share of a pause."""
_PARTS: Final = 1 << 20
_STEADY: Final = 10.0
"""Seconds of a connection, or without a trial, behind which all begins anew."""


class Reconnecting:
    """See the module. `now` is a clock in seconds. The caller lets one thread in at a time."""

    def __init__(self, reconnect_for: float, now: Callable[[], float]) -> None:
        self._reconnect_for = reconnect_for
        self._now = now
        self._pause = 0.0
        self._until: float | None = None
        """The time at which the trials end; None before the first."""
        self._busy: StoreBusy | None = None
        """The last connection's goodbye, if it was that one."""
        self._tried_at = self._made_at = now()
        self._received = 0

    def made(self, received: int) -> None:
        """Notes a connection, before which so many frames had come."""
        self._made_at, self._received = self._now(), received

    def lost(self, why: Exception | None, received: int) -> None:
        """Notes the loss of that connection, by when so many frames had come."""
        was_busy, self._busy = self._busy, why if isinstance(why, StoreBusy) else None
        is_refused = was_busy is not None or self._busy is not None
        was_of_use = received != self._received
        if self._now() - self._made_at >= _STEADY or (was_of_use and not is_refused):
            self._begin_anew()
        elif not is_refused:
            self._until = None
        if self._busy is not None:
            self._pause = max(self._pause, _PAUSE)

    def begin(self) -> StoreError | None:
        """Called before the first trial behind a loss. The error of the server that is still busy
        when the time is over.
        """
        now = self._now()
        if now - self._tried_at >= max(_STEADY, self._reconnect_for):
            self._begin_anew()
        if self._until is None:
            self._until = now + self._reconnect_for
        elif self._busy is not None and now >= self._until:
            self._begin_anew()
            return self._busy
        return None

    def pause(self) -> float:
        """The seconds to wait before the next trial; the last one is made when the time is over."""
        pause, now = self._pause, self._now()
        self._tried_at = now
        self._pause = min(max(2 * pause, _PAUSE), _PAUSE_MAX)
        left = pause if self._until is None else max(self._until - now, 0.0)
        return min(pause * (1 - _JITTER * secrets.randbelow(_PARTS) / _PARTS), left)

    def is_over(self, error: StoreError) -> bool:
        """Whether no trial is to follow the one that failed so."""
        if not is_refusal(error) and self._until is not None and self._now() < self._until:
            return False
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._pause, self._until = 0.0, None
