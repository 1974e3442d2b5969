"""Joint: the fixed columns of several groups, decoded at one go.

The idea: a call of numpy takes about as long for the few hundred rows of a group as for some
thousand. So each column is unpacked for the rows of all groups together, each row with the minimum
and the bits of its own group; where groups have it in different kinds, for those of a kind. Columns
of few distinct values, which are seldom, are decoded group by group in between.

Invariants: it gives what each group by itself gives; where anything is wrong, or of a form that is
not meant for it, it gives nothing at all, and whoever decodes one by one finds out what and where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, compress, pairwise, starmap
from operator import not_
from typing import Final, NamedTuple

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import HOSTS_V6, NOT_ORDINARY
from tiering.archive.columns import (
    FOLLOWS,
    SELDOM,
    Columns,
    Stretches,
    constants_of,
    misfits,
    offsets_of,
)
from tiering.archive.integers import (
    CONSTANT,
    DELTAS,
    RANGE,
    STRETCHES,
    WINDOW_BITS,
    Column,
    bounds_of,
    decode_column,
    read_signed,
    read_varint,
    rising,
)
from tiering.archive.layout import BLOCK_ROWS_MAX, COLUMNS_FORMAT, DECODED_MAX
from tiering.archive.packed import windows
from tiering.archive.times import LINE, lines, read_line

_PADDING: Final = bytes(8)
"""A number is taken out of the eight bytes from where it begins."""


def decode_jointly(
    payloads: Sequence[bytes], stretches: Sequence[Stretches]
) -> list[Columns] | None:
    """The columns of groups with these fixed parts; None: decode them one by one. They are slices,
    of columns that are kept as a whole by each.
    """
    try:
        return _Groups(payloads, stretches).columns()
    except (ArchiveDamaged, IndexError):
        return None


class _Seldom(NamedTuple):
    """The columns that differ seldom, of all rows; and of each group whether it is ordinary."""

    columns: list[Column]
    is_ordinary: list[bool]


class _Rows:
    """Rows of several groups, so many of each, numbered through."""

    def __init__(self, counts: Column) -> None:
        if not counts.all():
            raise ArchiveDamaged("a column has no rows")
        self.counts = counts
        self.begins = bounds_of(counts)[:-1]
        self.number = np.arange(int(counts.sum()))

    def spread(self, values: Column) -> Column:
        """What there is of each group, for each of its rows."""
        return values.repeat(self.counts)


class _Groups:
    """Where each group is read next, which is inside of its own payload as long as all is well."""

    def __init__(self, payloads: Sequence[bytes], stretches: Sequence[Stretches]) -> None:
        self._data = b"".join((*payloads, _PADDING))
        self._ends = list(accumulate(map(len, payloads)))
        self._ats = [0, *self._ends[:-1]]
        self._every = list(range(len(payloads)))
        self._inner = Stretches(*map(np.concatenate, zip(*stretches, strict=True)))
        self._blocks = np.array([len(one.counts) for one in stretches])
        self._group_of_block = np.repeat(self._every, self._blocks)
        self._rows = _Rows(np.add.reduceat(self._inner.counts, bounds_of(self._blocks)[:-1]))

    def columns(self) -> list[Columns] | None:
        """See `decode_jointly`. Raises ArchiveDamaged; IndexError for what has no end."""
        if not self._begin():
            return None
        offset = offsets_of(self._next(), self._inner)
        position = self._rising(self._every)
        stored_at = self._times(position)
        born_at = self._next() + stored_at
        ends = self._ends_of_bodies()
        seldom = self._seldom()
        if seldom is None or self._ats != self._ends:
            return None
        rows = starmap(slice, pairwise((*self._rows.begins.tolist(), len(offset))))
        return [
            Columns.of_regular(
                (offset[some], position[some], stored_at[some], born_at[some]),
                mine,
                [column[some] for column in seldom.columns],
                is_ordinary=is_ordinary,
            )
            for some, mine, is_ordinary in zip(rows, ends, seldom.is_ordinary, strict=True)
        ]

    def _begin(self) -> bool:
        for i, rows in enumerate(self._rows.counts.tolist()):
            at = self._ats[i]
            count, self._ats[i] = read_varint(self._data, at + 1)
            is_stated = count == rows and 1 <= count <= BLOCK_ROWS_MAX
            if self._data[at] != COLUMNS_FORMAT or not is_stated:
                return False
        return int(self._inner.counts.min()) > 0

    def _ends_of_bodies(self) -> list[Column]:
        """Where the bodies of each group begin, and where its last ends."""
        lengths = self._next()
        if int(lengths.min()) < 0 or int(lengths.max()) > DECODED_MAX:
            raise ArchiveDamaged("a body is longer than any")
        # One more than rows, of each group.
        counts = self._rows.counts + 1
        firsts = bounds_of(counts)
        ends = np.zeros(int(firsts[-1]), np.int64)
        is_end = np.ones(len(ends), np.bool_)
        is_end[firsts[:-1]] = False
        ends[is_end] = lengths
        np.cumsum(ends, out=ends)
        ends -= ends[firsts[:-1]].repeat(counts)
        if int(ends.max()) > DECODED_MAX:
            raise ArchiveDamaged("bodies are longer than any")
        return [ends[a:b] for a, b in pairwise(firsts.tolist())]

    # --- what is next in some groups, their rows one behind the other ---

    def _next(self) -> Column:
        return self._column(self._every, self._rows)

    def _rising(self, which: list[int]) -> Column:
        """Numbers that may be told by first values and differences of blocks."""

        def split(some: list[int], rows: _Rows) -> Column:
            for i in some:
                self._ats[i] += 1
            blocks = self._blocks[some]
            firsts = self._column(some, _Rows(blocks))
            steps = self._column(some, _Rows(rows.counts - blocks))
            is_mine = np.isin(self._group_of_block, some)
            return rising(firsts, steps, self._inner.counts[is_mine])

        return self._by_kind(
            which, STRETCHES, split, lambda others: self._column(others, self._of(others))
        )

    def _times(self, position: Column) -> Column:
        """Store times, which may be told by positions."""

        def along(some: list[int], rows: _Rows) -> Column:
            ends = []
            for i in some:
                first, takes, self._ats[i] = read_line(self._data, self._ats[i])
                ends.append((first, takes))
            is_mine = np.repeat(np.isin(self._every, some), self._rows.counts)
            return self._column(some, rows) + lines(position[is_mine], rows.counts, ends)

        return self._by_kind(self._every, LINE, along, self._rising)

    def _by_kind(
        self,
        which: list[int],
        kind: int,
        of_kind: Callable[[list[int], _Rows], Column],
        of_others: Callable[[list[int]], Column],
    ) -> Column:
        """A column that is of a kind in some groups, and not in others."""
        is_some = [self._data[self._ats[i]] == kind for i in which]
        some = list(compress(which, is_some))
        others = list(compress(which, map(not_, is_some)))
        if not some:
            return of_others(which)
        found = of_kind(some, self._of(some))
        if not others:
            return found
        is_mine = np.repeat(is_some, self._rows.counts[which])
        out = np.empty(len(is_mine), np.int64)
        out[is_mine], out[~is_mine] = found, of_others(others)
        return out

    def _of(self, which: list[int]) -> _Rows:
        return self._rows if which == self._every else _Rows(self._rows.counts[which])

    def _column(self, which: list[int], rows: _Rows) -> Column:
        """A column of a plain kind: numbers above the least, or differences above the least."""
        data, size = self._data, len(which)
        least, first, bits, begin = [0] * size, [0] * size, [0] * size, [0] * size
        sums: list[int] = []
        others: list[tuple[int, Column]] = []
        for n, (i, count) in enumerate(zip(which, rows.counts.tolist(), strict=True)):
            at = self._ats[i]
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
            self._ats[i] = at
            if bits[n] > WINDOW_BITS:
                raise ArchiveDamaged("a column is wider than most")
        found = rows.spread(np.array(least, np.int64))
        if any(bits):
            found += self._unpacked(rows, bits, begin, sums)
        if sums:
            found = _summed(rows, found, np.array(first, np.int64), sums)
        for n, values in others:
            begin_of = int(rows.begins[n])
            found[begin_of : begin_of + len(values)] = values
        return found

    def _unpacked(self, rows: _Rows, bits: list[int], begin: list[int], sums: list[int]) -> Column:
        """What each row has above the least of its group; the first of differences has none."""
        width = np.array(bits, np.int64)
        firsts = rows.begins.copy()
        firsts[sums] += 1
        at = rows.spread(np.array(begin, np.int64) * 8 - firsts * width)
        widths = rows.spread(width)
        at += rows.number * widths
        at[rows.begins[sums]] = 0
        shifts = (at & 7).astype(np.uint64)
        return windows(self._data, 0, at >> 3, shifts, widths.view(np.uint64)).view(np.int64)

    def _seldom(self) -> _Seldom | None:
        """What differs seldom, to the end of each group."""
        rests = [self._data[at:end] for at, end in zip(self._ats, self._ends, strict=True)]
        found = [one for one in map(constants_of, rests) if one is not None]
        if len(found) == len(rests):
            values = np.array([one.values for one in found]).T
            self._ats = list(self._ends)
            return _Seldom(
                [*values.repeat(self._rows.counts, axis=1)], [one.is_ordinary for one in found]
            )
        columns = [self._next() for _ in range(SELDOM)]
        flags, system_flags, version, reconsume_times, *_ = columns
        is_wrong = misfits(flags, system_flags, version, reconsume_times).any()
        if is_wrong or (system_flags & HOSTS_V6).any():
            return None
        for i, at in enumerate(self._ats):
            if self._data[at : at + 1] != FOLLOWS:
                return None
            self._ats[i] = at + 1
        odd = (system_flags & NOT_ORDINARY != 0) | (version != 1)
        ordinary = ~np.logical_or.reduceat(odd, self._rows.begins)
        return _Seldom(columns, ordinary.tolist())


def _summed(rows: _Rows, found: Column, first: Column, which: list[int]) -> Column:
    """Differences added up, in some groups."""
    begins = rows.begins
    found[begins[which]] = first[which]
    sums = np.cumsum(found)
    sums -= rows.spread(sums[begins] - found[begins])
    if len(which) == len(begins):
        return sums
    is_sum = np.zeros(len(begins), np.bool_)
    is_sum[which] = True
    return np.where(is_sum.repeat(rows.counts), sums, found)
