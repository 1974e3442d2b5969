"""Batch columns: decodes integer columns of several payloads in one pass.

The idea: a call of numpy takes about as long for the few hundred rows of a group as for some
thousand. So a column is unpacked for the rows of all payloads together, each row with the minimum
and the bits of its own payload. Columns of few distinct values are rare; they are decoded one by
one in between.

Invariant: the next byte to read lies inside each payload, unless a payload is damaged: at the end
the caller checks that each payload was read exactly to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, starmap
from typing import Final

import numpy as np

from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.integers import (
    CONSTANT,
    DELTAS,
    RANGE,
    WINDOW_BITS,
    Column,
    bounds_of,
    decode_column,
    read_signed,
)
from tiering.archive.columns.packed import windows

_PADDING: Final = bytes(8)
"""A number is cut out of the eight bytes that begin where it begins."""


class RowCounts:
    """The rows of several payloads, numbered through; `counts` has the rows of each payload."""

    def __init__(self, counts: Column) -> None:
        if not counts.all():
            raise ArchiveDamaged("a column has no rows")
        self.counts = counts
        self.bounds = bounds_of(counts)
        self.begins = self.bounds[:-1]
        self.number = np.arange(int(counts.sum()))

    def slices(self) -> Iterator[slice]:
        """The rows of each payload."""
        return starmap(slice, pairwise(self.bounds.tolist()))

    def spread(self, values: Column) -> Column:
        """Repeats each payload's value for each of its rows."""
        return values.repeat(self.counts)


class Several:
    """Several payloads, one behind the other, with the next byte to read and the end of each.

    Reading raises ArchiveDamaged, or IndexError behind the last payload.
    """

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.data = b"".join((*payloads, _PADDING))
        self.ends = list(accumulate(map(len, payloads)))
        self.ats = [0, *self.ends[:-1]]
        self.every = list(range(len(payloads)))

    @property
    def is_done(self) -> bool:
        """Whether each payload was read to its end."""
        return self.ats == self.ends

    def column(self, which: list[int], rows: RowCounts) -> Column:
        """The next column of the payloads `which`; `rows` has the number of rows in each."""
        data, size = self.data, len(which)
        least, first, bits, begin = [0] * size, [0] * size, [0] * size, [0] * size
        sums: list[int] = []
        others: list[tuple[int, Column]] = []
        for n, (i, count) in enumerate(zip(which, rows.counts.tolist(), strict=True)):
            at = self.ats[i]
            kind = data[at]
            if kind == CONSTANT:
                least[n], at = read_signed(data, at + 1)
            elif kind == RANGE:
                least[n], at = read_signed(data, at + 1)
                bits[n], begin[n] = data[at], at + 1
                at += 1 + ((count * bits[n] + 7) >> 3)
            elif kind == DELTAS:
                first[n], at = read_signed(data, at + 1)
                least[n], at = read_signed(data, at)
                bits[n], begin[n] = data[at], at + 1
                at += 1 + (((count - 1) * bits[n] + 7) >> 3)
                sums.append(n)
            else:
                values, at = decode_column(data, at, count)
                others.append((n, values))
            self.ats[i] = at
            if bits[n] > WINDOW_BITS:
                raise ArchiveDamaged("a column is wider than most")
        found = rows.spread(np.array(least, np.int64))
        if any(bits):
            found += self._unpacked(rows, bits, begin, sums)
        if sums:
            found = _summed(rows, found, np.array(first, np.int64), sums)
        for n, values in others:
            row = int(rows.begins[n])
            found[row : row + len(values)] = values
        return found

    def _unpacked(
        self, rows: RowCounts, bits: list[int], begin: list[int], sums: list[int]
    ) -> Column:
        """Each row's distance from the minimum of its payload; the first row of a column of
        differences has none.
        """
        width = np.array(bits, np.int64)
        firsts = rows.begins.copy()
        firsts[sums] += 1
        at = rows.spread(np.array(begin, np.int64) * 8 - firsts * width)
        widths = rows.spread(width)
        at += rows.number * widths
        at[rows.begins[sums]] = 0
        shifts = (at & 7).astype(np.uint64)
        return windows(self.data, 0, at >> 3, shifts, widths.view(np.uint64)).view(np.int64)


def _summed(rows: RowCounts, found: Column, first: Column, which: list[int]) -> Column:
    """Adds up the differences of some payloads."""
    begins = rows.begins
    found[begins[which]] = first[which]
    sums = np.cumsum(found)
    sums -= rows.spread(sums[begins] - found[begins])
    if len(which) == len(begins):
        return sums
    is_sum = np.zeros(len(begins), np.bool_)
    is_sum[which] = True
    return np.where(is_sum.repeat(rows.counts), sums, found)
