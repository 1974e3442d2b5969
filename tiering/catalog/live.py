"""Live archives: the live rows of the catalog, in columns.

The idea: positions and times are sorted arrays, so a look-up bisects and visits few archives, not
all of them.

Invariant: a value never changes; another catalog is another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tiering.archive.columns.packed import I64
from tiering.catalog.catalog import ArchiveRow


class LiveArchives:
    """The live archives among some rows of the catalog. It never changes."""

    def __init__(self, rows: Iterable[ArchiveRow]) -> None:
        live = sorted((r for r in rows if r.state == "live"), key=lambda r: r.first_position)
        self._numbers = np.array([row.number for row in live], np.int64)
        self._first_positions = np.array([row.first_position for row in live], np.int64)
        self._last_positions = np.array([row.last_position for row in live], np.int64)
        # The highest position of an archive and of all before it: behind it none of them reaches.
        self._reach = np.maximum.accumulate(self._last_positions)
        self._first_times = np.array([row.first_stored_at for row in live], np.int64)
        self._last_times = np.array([row.last_stored_at for row in live], np.int64)

    def at(self, position: int) -> Iterator[int]:
        """The numbers of the archives whose positions a position is among."""
        i = int(np.searchsorted(self._first_positions, position, side="right")) - 1
        while i >= 0 and self._reach[i] >= position:
            if self._last_positions[i] >= position:
                yield int(self._numbers[i])
            i -= 1

    def of_time(self, begin: int | None, end: int | None) -> I64:
        """The numbers of the archives that may have messages stored from `begin` to `end`, in ms
        since the epoch; None is no bound.
        """
        if begin is None and end is None:
            return self._numbers
        held = np.ones(len(self._numbers), np.bool_)
        if begin is not None:
            held &= self._last_times >= begin
        if end is not None:
            held &= self._first_times <= end
        return self._numbers[held]
