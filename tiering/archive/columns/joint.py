"""Joint columns: decodes the fixed columns of several groups in one pass.

The idea: it goes column by column, for all groups together (see
`tiering.archive.columns.batch_columns`). Where groups encode a column in different kinds, it
decodes the groups of each kind together.

Invariants: the result is the same as of each group by itself; for damaged or unusual bytes there is
no result at all, and the caller decodes one group after the other to find the fault and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, pairwise
from operator import not_

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import HOSTS_V6, NOT_ORDINARY
from tiering.archive.columns.batch_columns import RowCounts, Several
from tiering.archive.columns.constant_headers import (
    FOLLOWS,
    SELDOM,
    Constants,
    Varying,
    constants_of,
    misfits,
)
from tiering.archive.columns.header_fields import Columns, Stretches, offsets_of
from tiering.archive.columns.integers import STRETCHES, Column, bounds_of, read_varint, rising
from tiering.archive.columns.times import LINE, lines, read_line
from tiering.archive.layout import BLOCK_ROWS_MAX, COLUMNS_FORMAT, DECODED_MAX


def decode_jointly(
    payloads: Sequence[bytes], stretches: Sequence[Stretches]
) -> list[Columns] | None:
    """The columns of groups with these fixed parts; None: decode them one by one. They are slices
    of larger columns, which each slice keeps in memory.
    """
    try:
        return _Groups(payloads, stretches).columns()
    except (ArchiveDamaged, IndexError):
        return None


class _Groups(Several):
    """The fixed parts of groups."""

    def __init__(self, payloads: Sequence[bytes], stretches: Sequence[Stretches]) -> None:
        super().__init__(payloads)
        self._inner = Stretches(*map(np.concatenate, zip(*stretches, strict=True)))
        self._blocks = np.array([len(one.counts) for one in stretches])
        self._group_of_block = np.repeat(self.every, self._blocks)
        self._rows = RowCounts(np.add.reduceat(self._inner.counts, bounds_of(self._blocks)[:-1]))

    def columns(self) -> list[Columns] | None:
        """The columns of all groups, see `decode_jointly`. Raises ArchiveDamaged; IndexError for a
        payload without an end.
        """
        if not self._begin():
            return None
        offset = offsets_of(self._next(), self._inner)
        position = self._rising(self.every)
        stored_at = self._times(position)
        born_at = self._next() + stored_at
        ends = self._ends_of_bodies()
        seldom = self._seldom()
        if seldom is None or not self.is_done:
            return None
        return [
            Columns.of_regular(
                (offset[some], position[some], stored_at[some], born_at[some]), mine, of_group
            )
            for some, mine, of_group in zip(self._rows.slices(), ends, seldom, strict=True)
        ]

    def _begin(self) -> bool:
        for i, rows in enumerate(self._rows.counts.tolist()):
            at = self.ats[i]
            count, self.ats[i] = read_varint(self.data, at + 1)
            is_stated = count == rows and 1 <= count <= BLOCK_ROWS_MAX
            if self.data[at] != COLUMNS_FORMAT or not is_stated:
                return False
        return int(self._inner.counts.min()) > 0

    def _ends_of_bodies(self) -> list[Column]:
        """The begin of each group's bodies, and the end of its last one."""
        lengths = self._next()
        if int(lengths.min()) < 0 or int(lengths.max()) > DECODED_MAX:
            raise ArchiveDamaged("a body is longer than any")
        # One more than the rows of each group.
        counts = self._rows.counts + 1
        ends = rising(np.zeros(len(counts), np.int64), lengths, counts)
        if int(ends.max()) > DECODED_MAX:
            raise ArchiveDamaged("bodies are longer than any")
        return [ends[a:b] for a, b in pairwise(bounds_of(counts).tolist())]

    # --- the next column of some groups, their rows one behind the other ---

    def _next(self) -> Column:
        return self.column(self.every, self._rows)

    def _rising(self, which: list[int]) -> Column:
        """Numbers that may be encoded as first values and differences of blocks."""

        def split(some: list[int], rows: RowCounts) -> Column:
            for i in some:
                self.ats[i] += 1
            blocks = self._blocks[some]
            firsts = self.column(some, RowCounts(blocks))
            steps = self.column(some, RowCounts(rows.counts - blocks))
            counts = self._inner.counts
            if some != self.every:
                counts = counts[np.isin(self._group_of_block, some)]
            return rising(firsts, steps, counts)

        return self._by_kind(
            which, STRETCHES, split, lambda others: self.column(others, self._of(others))
        )

    def _times(self, position: Column) -> Column:
        """Store times, which may be encoded by positions."""

        def along(some: list[int], rows: RowCounts) -> Column:
            ends = []
            for i in some:
                first, takes, self.ats[i] = read_line(self.data, self.ats[i])
                ends.append((first, takes))
            mine = position
            if some != self.every:
                mine = position[np.isin(self.every, some).repeat(self._rows.counts)]
            return self.column(some, rows) + lines(mine, rows.counts, ends)

        return self._by_kind(self.every, LINE, along, self._rising)

    def _by_kind(
        self,
        which: list[int],
        kind: int,
        of_kind: Callable[[list[int], RowCounts], Column],
        of_others: Callable[[list[int]], Column],
    ) -> Column:
        """A column that is of one kind in some groups, and of another in others."""
        is_some = [self.data[self.ats[i]] == kind for i in which]
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

    def _of(self, which: list[int]) -> RowCounts:
        return self._rows if which == self.every else RowCounts(self._rows.counts[which])

    def _seldom(self) -> Sequence[Constants | Varying] | None:
        """The columns of each group that are mostly constant, up to its end."""
        rests = [self.data[at:end] for at, end in zip(self.ats, self.ends, strict=True)]
        found = [one for one in map(constants_of, rests) if one is not None]
        if len(found) == len(rests):
            self.ats = list(self.ends)
            return found
        columns = [self._next() for _ in range(SELDOM)]
        flags, system_flags, version, reconsume_times, *_ = columns
        is_wrong = misfits(flags, system_flags, version, reconsume_times).any()
        if is_wrong or (system_flags & HOSTS_V6).any():
            return None
        for i, at in enumerate(self.ats):
            if self.data[at : at + 1] != FOLLOWS:
                return None
            self.ats[i] = at + 1
        odd = (system_flags & NOT_ORDINARY != 0) | (version != 1)
        ordinary = ~np.logical_or.reduceat(odd, self._rows.begins)
        return [
            Varying([column[some] for column in columns], is_ordinary)
            for some, is_ordinary in zip(self._rows.slices(), ordinary.tolist(), strict=True)
        ]
