"""Unique ids: the 32 hexadecimal digits that every message gets at its put.

The idea: RocketMQ's form: address, pid, a token of this store's, milliseconds since the month
began, counter. A millisecond has 65,536 ids; when they are used up, the time in the id goes on by 1
ms.

Invariant: no id comes twice from one source within a month, even with a clock that stands still or
goes back. In later months the same time comes again, and an id does if the counter agrees as well.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from kvstore.record.ids import id_prefix, month_start_ms

_HEX4: Final = [f"{i:04X}" for i in range(1 << 16)]
_MONTH_MIN_MS: Final = 28 * 86_400_000


class UniqueIds:
    """The source of a store's unique ids."""

    def __init__(self, address: bytes, pid: int, token: int) -> None:
        self._prefix = id_prefix(address, pid, token)
        self._lock = threading.Lock()
        self._counter = 0
        self._now = 0
        self._used = 0
        self._month_start = 0
        self._month_end = 0
        self._stem = ""
        self._begin(0)

    def make(self, now_ms: int, count: int) -> list[str]:
        """`count` new ids."""
        ids: list[str] = []
        while len(ids) < count:
            part = min(count - len(ids), 1 << 16)
            stem, first = self._reserve(now_ms, part)
            end = first + part
            ids += [stem + c for c in _HEX4[first:end]]
            if end > 1 << 16:
                ids += [stem + c for c in _HEX4[: end & 0xFFFF]]
        return ids

    def fill(self, given: Sequence[str | None], now_ms: int) -> list[str]:
        """`given` with a new id in the place of each None."""
        missing = given.count(None)
        made = self.make(now_ms, missing) if missing else []
        if missing == len(given):
            return made
        turn = iter(made)
        return [next(turn) if i is None else i for i in given]

    def make_one(self, now_ms: int) -> str:
        """One new id."""
        with self._lock:
            if now_ms == self._now and self._used < 1 << 16:
                # As `_reserve`, in the millisecond of the last call, whose stem is still good.
                first = self._counter
                self._used += 1
                self._counter = (first + 1) & 0xFFFF
                return self._stem + _HEX4[first]
        stem, first = self._reserve(now_ms, 1)
        return stem + _HEX4[first]

    def _reserve(self, now_ms: int, count: int) -> tuple[str, int]:
        with self._lock:
            if now_ms > self._now:
                self._begin(now_ms)
            elif self._used + count > 1 << 16:
                self._begin(self._now + 1)
            self._used += count
            first = self._counter
            self._counter = (first + count) & 0xFFFF
            return self._stem, first

    def _begin(self, now_ms: int) -> None:
        """Go on with another millisecond, in which no id is used up yet."""
        self._now, self._used = now_ms, 0
        if not self._month_start <= now_ms < self._month_end:
            self._month_start = month_start_ms(now_ms)
            # From the end of the shortest month on, the month is looked up for each new
            # millisecond.
            self._month_end = self._month_start + _MONTH_MIN_MS
        self._stem = f"{self._prefix}{(now_ms - self._month_start) & 0xFFFFFFFF:08X}"
