"""A counter beside those of the core: the live locks of a group.

The idea: a `Tally` counts the locks of a group by the millisecond at which they end. A lock ends
without any call, so the caller of `live_at` gives the time, and the locks that ended since the last
call are taken off then: each lock once, whether there are ten or a million. Only groups with a
`max_in_flight` have one.

Invariants: it agrees with the rows of `locks`; a `Tally` may be asked without any table's lock, and
counts anew when the clock was set back.
"""

from __future__ import annotations

import heapq
import threading
from typing import Final

_STALE_MAX: Final = 64


class Tally:
    """Counts a group's live locks, see the module. `is_stale`: its rows were changed otherwise, so
    another has to be made.
    """

    def __init__(self) -> None:
        self.is_stale = False
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        """Time at which locks end -> how many messages they have."""
        self._coming: list[int] = []
        """A heap of the times that are after `_now`; perhaps some twice, and some that have no
        messages any more.
        """
        self._now = 0
        self._live = 0

    def add(self, due: int, messages: int) -> None:
        """Counts a lock that was made."""
        with self._lock:
            if due not in self._counts:
                self._counts[due] = 0
                if due > self._now:
                    heapq.heappush(self._coming, due)
            self._counts[due] += messages
            if due > self._now:
                self._live += messages

    def remove(self, due: int, messages: int) -> None:
        """Uncounts messages that left a lock."""
        with self._lock:
            self._counts[due] -= messages
            if not self._counts[due]:
                del self._counts[due]
            if due > self._now:
                self._live -= messages
            if len(self._coming) > _STALE_MAX + 2 * len(self._counts):
                self._coming = sorted(time for time in self._counts if time > self._now)

    def live_at(self, now: int) -> int:
        """How many messages are under locks that end after `now`."""
        with self._lock:
            if now < self._now:
                self._coming = sorted(time for time in self._counts if time > now)
                self._live = sum(self._counts[time] for time in self._coming)
            self._now = now
            last = -1
            while self._coming and self._coming[0] <= now:
                time = heapq.heappop(self._coming)
                if time != last:
                    self._live -= self._counts.get(time, 0)
                last = time
            return self._live
