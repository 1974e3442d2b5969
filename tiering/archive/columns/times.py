"""Times: the store times of a group's records, encoded by the records' positions in the log.

The idea: in a group of several queues' blocks the store times go up and down, and so do the
positions. But a log is written from front to back, so a record's position nearly tells when it was
stored. The column therefore keeps how far each time is from a straight line between the group's
first record and its last, where that takes less than the times themselves.

Invariants: the line is drawn with whole numbers only, so that every machine draws the same one; any
bytes decode to as many times as there are positions, or raise ArchiveDamaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tiering.archive.columns.integers import (
    Column,
    encode_by_block,
    encode_columns,
    read_signed,
    write_signed,
)

LINE: Final = 5
"""The kind of such a column; the kinds of `integers` have the numbers below."""
_INT64_MAX: Final = (1 << 63) - 1
_PRODUCT_MAX: Final = 1 << 62
"""The most that a length of log, in bytes, times a length of time, in ms, may come to."""


def encode_times(times: Column, positions: Column, bounds: Column, inner: Column) -> list[bytes]:
    """The column for each group. Group i has the rows `bounds[i]` to `bounds[i + 1]`, and block i
    the rows `inner[i]` to `inner[i + 1]`. Positions are not negative.
    """
    out = encode_by_block(times, bounds, inner)
    several = np.diff(np.searchsorted(inner, bounds)) > 1
    if not several.any():
        return out
    begins, counts = bounds[:-1], np.diff(bounds)
    least, most = (of.reduceat(positions, begins) for of in (np.minimum, np.maximum))
    first, last = (of.reduceat(times, begins) for of in (np.minimum, np.maximum))
    length, takes = most - least, last - first
    fits = several & (length > 0) & (length.astype(float) * takes < _PRODUCT_MAX)
    groups = [np.repeat(column, counts) for column in (least, length.clip(1), first, takes * fits)]
    off = encode_columns(times - _line(positions, *groups), bounds)
    for i in np.flatnonzero(fits).tolist():
        head = bytes((LINE,)) + write_signed(int(first[i])) + write_signed(int(takes[i]))
        out[i] = min(out[i], head + off[i], key=len)
    return out


def read_line(data: bytes, at: int) -> tuple[int, int, int]:
    """The first time and the duration of the line at index `at`, and the index behind it. Raises
    ArchiveDamaged.
    """
    first, at = read_signed(data, at + 1)
    takes, at = read_signed(data, at)
    return first, takes, at


def lines(positions: Column, counts: Column, ends: Sequence[tuple[int, int]]) -> Column:
    """The times on the lines of groups with `counts` records each. `ends` has the first time and
    the duration of each group's line.
    """
    begins = np.cumsum(counts) - counts
    least = np.minimum.reduceat(positions, begins)
    # A time beyond 64 bits wraps: it is no real time then, but no error either.
    length = np.maximum((np.maximum.reduceat(positions, begins) - least) & _INT64_MAX, 1)
    first, takes = (np.array(column, np.int64) for column in zip(*ends, strict=True))
    return _line(positions, *(column.repeat(counts) for column in (least, length, first, takes)))


def _line(positions: Column, least: Column, length: Column, first: Column, takes: Column) -> Column:
    found: Column = first + (positions - least) * takes // length
    return found
