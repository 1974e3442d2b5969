"""Samples the progress of popping groups for the history of offsets.

The idea: a commit writes its row of history itself. A popping group's progress lies between its
locks and moves with every ack, which shall not pay for a row. So the housekeeper samples: at each
interval it takes the groups that popped, or have messages under lock, works out what is done from
the rows of `offsets` and the in-flight table, and writes a row where that has changed.

Invariants: a row says what was done at its time, which is that of the sample; nothing is written
where nothing changed; no row is written from a sample that a commit or a reset has overtaken; no
lock row is read, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvstore.clock import Clock
from kvstore.meta.offsets import OffsetRow, Offsets
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables

_SLICE: Final = 0.02
"""Seconds after which the housekeeper begins no further group's sample."""
_SHARE: Final = 50
"""One second of this many goes into sampling."""
_CLOSING: Final = 1.0
"""Seconds after which a close begins no further sample."""


class ProgressHistory:
    """Samples the progress of popping groups, see the module."""

    def __init__(
        self, offsets: Offsets, tables: InflightTables, clock: Clock, *, after_crash: bool
    ) -> None:
        """`after_crash`: the opening before may not have taken its last sample."""
        self._offsets = offsets
        self._tables = tables
        self._clock = clock
        self._after_crash = after_crash
        self._interval = offsets.history_rows.interval_ms / 1000
        self._sample_at = clock.monotonic()

    def due(self) -> bool:
        """Whether it is time for another sample."""
        return bool(self._offsets.moved) and self._clock.monotonic() >= self._sample_at

    def sample(self) -> None:
        """Sample as many groups as there is time for, the longest unsampled first."""
        begin = self._clock.monotonic()
        self._sample_until(begin + _SLICE)
        end = self._clock.monotonic()
        self._sample_at = end + max(self._interval, (end - begin) * _SHARE)

    def finish(self) -> None:
        """Sample before a close."""
        self._sample_until(self._clock.monotonic() + _CLOSING)

    def sample_queue(self, group: int, topic: int, queue: int) -> None:
        """Sample one queue, whose history is asked for."""
        if not self._offsets.history_rows.is_on:
            return
        # A queue without history that nobody popped from gets none.
        only_known = (group, topic) not in self._offsets.moved
        if only_known and not self._after_crash:
            return
        if next(self._offsets.rows_of(group, topic, queue), None) is not None:
            with self._tables.locked(group, topic) as table:
                rows = self._offsets.rows_of(group, topic, queue)
                self._write(rows, table, only_known=only_known)

    def _sample_until(self, until: float) -> None:
        moved = self._offsets.moved
        for pair in list(moved):
            moved.pop(pair, None)
            try:
                may_move = self._sample(*pair)
            except BaseException:
                moved[pair] = True
                raise
            if may_move:
                moved[pair] = True
            if self._clock.monotonic() > until:
                return

    def _sample(self, group: int, topic: int) -> bool:
        """Sample a group in a topic. Returns whether it has messages locked or parked, whose end
        moves the progress.
        """
        if next(self._offsets.rows_of(group, topic), None) is None:
            return False  # deleted, or there never was such a group
        with self._tables.locked(group, topic) as table:
            self._write(self._offsets.rows_of(group, topic), table, only_known=False)
            return bool(table.rows or table.parked_count)

    def _write(self, rows: Iterable[OffsetRow], table: InflightTable, *, only_known: bool) -> None:
        """Write the progress in some queues where it differs from the last record."""
        changed = []
        for row in rows:
            lowest = table.lowest(row.queue)
            done = row.offset if lowest is None else min(row.offset, lowest)
            last = self._offsets.history_rows.last(row.key)
            if last != done and (last is not None or not only_known):
                changed.append(row._replace(offset=done))
        if not table.dead:
            self._offsets.write_history(changed)
