"""External sort: rows in the order of a key, however many there are, in bounded memory.

The idea: rows are sorted some `ROWS_MAX` at a time. Each sorted *run* goes to a scratch file; the
last one stays in memory, so that few rows never touch the disk. A pass merges the runs: it reads a
block of each, and hands on the rows up to the least key with which a block that goes on ends. This
is the external merge sort of Knuth, The Art of Computer Programming, volume 3, section 5.4.

Invariants: rows with the same key come out in the order in which they came in; each pass gives the
same rows; a pass takes the memory of `ROWS_MAX` rows, a few times over, and no file that has a
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvstore.core.columns.sorting import sort_rows
from kvstore.files import Scratch

ROWS_MAX: Final = 1 << 18
"""Rows in memory before a run goes to the scratch file; all runs together have as many in memory
while they are merged.
"""
_BLOCK_MIN: Final = 1 << 10
"""The least rows of a run that are read at a time."""
Rows = NDArray[Any]
"""Rows of the sort's type, whose first field is the key; or keys alone."""
MakeScratch = Callable[[], Scratch]


class _SortedRun(NamedTuple):
    """Sorted rows in the scratch file."""

    at: int
    rows: int


class ExternalSort:
    """Sorts rows of one numpy type: a plain one, or a structured one whose first field is the key,
    64 bits with a sign. All rows are added before the first pass.
    """

    def __init__(self, dtype: DTypeLike, scratch: MakeScratch) -> None:
        self._dtype = np.dtype(dtype)
        self._key = self._dtype.names[0] if self._dtype.names else None
        self._make_scratch = scratch
        self._scratch: Scratch | None = None
        self._at = 0
        self._runs: list[_SortedRun] = []
        self._waiting: list[Rows] = []
        self._waiting_rows = 0
        self._is_last_sorted = False
        self.rows = 0
        """The rows that were added."""

    def add(self, *columns: NDArray[Any]) -> None:
        """Takes rows, by the columns of their fields."""
        assert not self._is_last_sorted, "all rows come before the first pass"
        count, done = len(columns[0]), 0
        while done < count:
            some = slice(done, done + ROWS_MAX - self._waiting_rows)
            self._waiting.append(self._joined([column[some] for column in columns]))
            self._waiting_rows += len(self._waiting[-1])
            done += len(self._waiting[-1])
            if self._waiting_rows >= ROWS_MAX:
                self._spill()
        self.rows += count

    def sorted(self, *, multiple_of: int = 1) -> Iterator[Rows]:
        """One pass over all rows in order, in arrays of some rows each; each but the last has a
        multiple of that many.
        """
        rest = np.empty(0, self._dtype)
        for more in self._merged():
            rest = np.concatenate([rest, more]) if len(rest) else more
            whole = len(rest) // multiple_of * multiple_of
            if whole:
                yield rest[:whole]
            rest = rest[whole:]
        if len(rest):
            yield rest

    def _joined(self, columns: list[NDArray[Any]]) -> Rows:
        if self._dtype.names is None:
            return columns[0].astype(self._dtype)
        rows = np.empty(len(columns[0]), self._dtype)
        for name, column in zip(self._dtype.names, columns, strict=True):
            rows[name] = column
        return rows

    def _keys(self, rows: Rows) -> Rows:
        return rows if self._key is None else rows[self._key]

    def _in_order(self, parts: list[Rows]) -> Rows:
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self._key is None:
            return np.sort(rows)
        return np.frombuffer(sort_rows(rows, rows.itemsize), self._dtype)

    def _spill(self) -> None:
        """Writes the waiting rows to the scratch file, as a run."""
        data = self._in_order(self._waiting).tobytes()
        self._waiting.clear()
        if self._scratch is None:
            self._scratch = self._make_scratch()
        self._scratch.append(data)
        self._runs.append(_SortedRun(self._at, self._waiting_rows))
        self._at += len(data)
        self._waiting_rows = 0

    def _merged(self) -> Iterator[Rows]:
        if not self._is_last_sorted:
            self._waiting = [self._in_order(self._waiting)] if self._waiting else []
            self._is_last_sorted = True
        if not self._runs:
            yield from self._waiting
            return
        block = max(ROWS_MAX // len(self._runs), _BLOCK_MIN)
        parts = [np.empty(0, self._dtype) for _ in self._runs] + self._waiting
        read = [0] * len(self._runs)
        while True:
            for number, run in enumerate(self._runs):
                if len(parts[number]) <= block // 2 and read[number] < run.rows:
                    more = self._read(run, read[number], block)
                    read[number] += len(more)
                    parts[number] = np.concatenate([parts[number], more])
            going_on = [
                (self._keys(parts[number])[-1], number)
                for number, run in enumerate(self._runs)
                if read[number] < run.rows
            ]
            if not going_on:
                yield self._in_order(parts)
                return
            # Runs before the one with the least last key may hand on rows of that very key: those
            # behind it may not, because the run's own rows of that key come first.
            last, least = min(going_on)
            cuts = [
                int(np.searchsorted(self._keys(part), last, "right" if n <= least else "left"))
                for n, part in enumerate(parts)
            ]
            yield self._in_order([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
            parts = [part[cut:] for part, cut in zip(parts, cuts, strict=True)]

    def _read(self, run: _SortedRun, begin: int, most: int) -> Rows:
        assert self._scratch is not None, "runs are in the scratch file"
        size = self._dtype.itemsize
        count = min(most, run.rows - begin)
        return np.frombuffer(self._scratch.read(run.at + begin * size, count * size), self._dtype)
