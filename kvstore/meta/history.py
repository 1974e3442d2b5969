"""The history of offsets: rows that say how far a group was, and when.

The idea: the time is cut into intervals of `offset_history_interval`. The key of a row has the
beginning of an interval, the value has the offset and the rest of the time. So a later commit in an
interval overwrites the earlier one, and nothing is read for it. Rows older than
`offset_history_for` are not shown; `sweep` removes them in slices.

Invariants: of one setting of the interval there is at most one row an interval and queue; `now`
gives no time before that of a row that was put since the opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

import msgspec

from kvstore.clock import whole_ms
from kvstore.config import StoreConfig
from kvstore.errors import IndexDamaged
from kvstore.index.families import Batch, Families, Row
from kvstore.index.keys import OFFSET_HISTORY, U64, history_key, read_history

_ROW: Final = Struct(
    ">QII"
)  # offset, recoveries noted before it, ms from the key's time to its own
_SWEPT_AT_ONCE: Final = 2000
"""Queues' histories that one slice of a sweep looks at: some 20 ms."""
_SWEEPS: Final = 8
"""Sweeps in the time that history is kept: a row stays an eighth of that time longer, about."""
_SWEEP_MIN: Final = 60.0
_SWEEP_FIRST: Final = 10.0
"""Seconds after the opening: a program that opens often and shortly sweeps too, but not each
time.
"""
_END: Final = b"\xff" * 9
"""Behind every key of a queue's history, added to the beginning they share."""


class OffsetCommit(msgspec.Struct, frozen=True):
    """The progress of a group at a time (ms since the epoch): all below `offset` was done."""

    offset: int
    committed_at: int


class History:
    """The rows of offset history, see the module. A queue is named by its key in `offsets`."""

    def __init__(self, families: Families, config: StoreConfig) -> None:
        self._families = families
        self._clock = config.clock
        self._kept_ms = whole_ms(config.offset_history_for)
        self.interval_ms: Final = max(1, whole_ms(config.offset_history_interval))
        self.is_on: Final = self._kept_ms > 0
        """Whether any history is kept."""
        self._last_ms = 0
        self._sweep_at = config.clock.monotonic() + _SWEEP_FIRST
        self._swept = b""

    def now(self) -> int:
        """The time for a row that is written now: a clock that is set back doesn't change the rows'
        order. Asking alone changes nothing: a later row may get an earlier time by the clock.
        """
        return max(self._last_ms, self._clock.now_ms())

    def put(self, batch: Batch, queue: bytes, offset: int, recoveries: int, at: int) -> None:
        """Adds a row to a batch."""
        self._last_ms = max(self._last_ms, at)
        late = at % self.interval_ms
        batch.put(
            OFFSET_HISTORY, history_key(queue, at - late), _ROW.pack(offset, recoveries, late)
        )

    def rows(self, queue: bytes) -> list[tuple[int, int, int]]:
        """The rows of a queue: times, offsets and recoveries, oldest first."""
        oldest = self._clock.now_ms() - self._kept_ms
        found: list[tuple[int, int, int]] = []
        for key, row in self._families.rows(OFFSET_HISTORY, queue, queue + _END):
            offset, recoveries, late = _read_row(row)
            at = read_history(key)[3] + late
            if at >= oldest:
                found.append((at, offset, recoveries))
        # Another setting, or a clock that was set back, may have made other intervals.
        found.sort(key=lambda row: row[0])
        return found

    def last(self, queue: bytes) -> int | None:
        """The offset in the last row of a queue until now, as it was written; None if there is no
        row.
        """
        it = self._families.iter(OFFSET_HISTORY)
        # A row that an earlier opening wrote by a clock that was ahead is not the last.
        it.seek_for_prev(history_key(queue, self.now()))
        if not self._families.valid(it) or it.key()[: len(queue)] != queue:
            return None
        return _read_row(it.value())[0]

    def clamped(self, highest: Callable[[int, int], int]) -> Iterator[Row]:
        """The rows whose offset is above the highest that they may have, with that one. `highest`
        is of a queue (topic id << 32 | queue id) and a number of recoveries.
        """
        for key, row in self._families.rows(OFFSET_HISTORY, b""):
            try:
                offset, recoveries, late = _read_row(row)
            except IndexDamaged:
                continue  # its readers are told
            _, topic, queue, _ = read_history(key)
            most = highest(topic << 32 | queue, recoveries)
            if offset > most:
                yield OFFSET_HISTORY, key, _ROW.pack(most, recoveries, late)

    def sweep_due(self) -> bool:
        """Whether a sweep is under way, or it is time for another."""
        return bool(self._swept) or self._clock.monotonic() >= self._sweep_at

    def sweep(self) -> int:
        """Removes history that is too old, of some queues; the next call goes on behind them.
        Returns the number of queues with such history.
        """
        oldest = max(0, self._clock.now_ms() - self._kept_ms)
        batch, it = self._families.batch(), self._families.iter(OFFSET_HISTORY)
        at, found = self._swept, 0
        for _ in range(_SWEPT_AT_ONCE):
            it.seek(at)
            if not self._families.valid(it):
                at = b""
                break
            key: bytes = it.key()
            prefix = key[:12]
            # Keys have the beginning of their interval; only intervals that are wholly over go.
            limit = prefix + U64.pack(max(0, oldest - self.interval_ms))
            if not self._kept_ms:
                limit = prefix + _END
            if key < limit:
                batch.delete_range(OFFSET_HISTORY, prefix, limit)
                found += 1
            at = prefix + _END
        if found:
            self._families.write(batch)
        if not at:
            wait = max(_SWEEP_MIN, self._kept_ms / 1000 / _SWEEPS)
            self._sweep_at = self._clock.monotonic() + wait
        self._swept = at
        return found


def _read_row(row: bytes) -> tuple[int, int, int]:
    if len(row) != _ROW.size:
        raise IndexDamaged(
            f"a row of offset_history has {len(row)} bytes, not {_ROW.size}; it goes when "
            "it is old, or with its group"
        )
    offset, recoveries, late = _ROW.unpack(row)
    return offset, recoveries, late
