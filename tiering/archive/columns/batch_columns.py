"""Batch columns: decodes the integer columns of one payload or of several in one pass.

The idea: a call takes about as long for the few hundred rows of a group as for some thousand. So a
column is decoded for all payloads in one call, their rows one behind the other.

Invariants: a batch gives the same columns as its payloads one by one, or raises. The next byte to
read lies inside each payload, unless a payload is damaged: at the end the caller checks that each
payload was read exactly to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, compress, pairwise, starmap
from operator import not_

import numpy as np

from kvstore.core.columns.int_columns import (
    decode_columns,
)
from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.integers import (
    BY_BLOCK,
    LINE,
    Column,
    add_up,
    bounds_of,
    lines,
    read_line,
)


class RowCounts:
    """The rows of some payloads, numbered through; `counts` has the rows of each payload."""

    def __init__(self, counts: Column) -> None:
        self.counts = counts

    @cached_property
    def bounds(self) -> Column:
        """The first row of each payload, and the end of the last."""
        return bounds_of(self.counts)

    def slices(self) -> Iterable[slice]:
        """The rows of each payload."""
        if len(self.counts) == 1:
            return (slice(None),)
        return starmap(slice, pairwise(self.bounds.tolist()))

    def spread(self, values: Column) -> Column:
        """Repeats each payload's value for each of its rows."""
        return values.repeat(self.counts)


class ColumnReader:
    """Reads columns of payloads, which lie one behind the other in `data`. `cursors` has the next
    byte to read of each payload, `ends` its end, `every` the numbers of all payloads.

    Reading raises ArchiveDamaged, or IndexError behind the last payload.
    """

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        self.ends = list(accumulate(map(len, payloads)))
        self.cursors = [0, *self.ends[:-1]]
        self.every = list(range(len(payloads)))

    def check_end(self, what: str) -> None:
        """Raises ArchiveDamaged unless each payload was read exactly to its end."""
        for at, end in zip(self.cursors, self.ends, strict=True):
            if at < end:
                raise ArchiveDamaged(f"{end - at} bytes follow behind {what} of a block")
            if at > end:
                raise ArchiveDamaged(f"{what} of a block end in the middle of a column")

    def column(self, which: list[int], rows: RowCounts) -> Column:
        """The next column of the payloads `which`; `rows` has the number of rows in each."""
        return decode_columns(self.data, self.cursors, which, rows.counts)


class GroupReader(ColumnReader):
    """Reads the payloads of groups; `counts` has the rows of each group's blocks."""

    def __init__(self, payloads: Sequence[bytes], counts: Sequence[Column]) -> None:
        super().__init__(payloads)
        self._counts = counts
        self.rows = RowCounts(np.array([of_group.sum() for of_group in counts]))

    def next(self) -> Column:
        """The next column of all groups, their rows one behind the other."""
        return self.column(self.every, self.rows)

    def by_block(self) -> Column:
        """The same for numbers that may be encoded as first values and differences of blocks."""
        return self._by_block(self.every)

    def _by_block(self, which: list[int]) -> Column:
        def split(some: list[int], rows: RowCounts) -> Column:
            for i in some:
                self.cursors[i] += 1
            counts = [self._counts[i] for i in some]
            blocks = np.array(list(map(len, counts)))
            firsts = self.column(some, RowCounts(blocks))
            steps = self.column(some, RowCounts(rows.counts - blocks))
            return add_up(firsts, steps, counts[0] if len(some) == 1 else np.concatenate(counts))

        return self._by_kind(
            which, BY_BLOCK, split, lambda others: self.column(others, self._of(others))
        )

    def times(self, positions: Column) -> Column:
        """The same for times, which may be encoded by these positions of the rows."""

        def along(some: list[int], rows: RowCounts) -> Column:
            ends = []
            for i in some:
                first, takes, self.cursors[i] = read_line(self.data, self.cursors[i])
                ends.append((first, takes))
            mine = positions
            if some != self.every:
                mine = positions[np.isin(self.every, some).repeat(self.rows.counts)]
            return self.column(some, rows) + lines(mine, rows.counts, ends)

        return self._by_kind(self.every, LINE, along, self._by_block)

    def _by_kind(
        self,
        which: list[int],
        kind: int,
        of_kind: Callable[[list[int], RowCounts], Column],
        of_others: Callable[[list[int]], Column],
    ) -> Column:
        """A column that is of one kind in some groups, and of another in others."""
        is_some = [self.data[self.cursors[i]] == kind for i in which]
        if not any(is_some):
            return of_others(which)
        some = list(compress(which, is_some))
        found = of_kind(some, self._of(some))
        others = list(compress(which, map(not_, is_some)))
        if not others:
            return found
        is_mine = np.repeat(is_some, self.rows.counts[which])
        out = np.empty(len(is_mine), np.int64)
        out[is_mine], out[~is_mine] = found, of_others(others)
        return out

    def _of(self, which: list[int]) -> RowCounts:
        return self.rows if which == self.every else RowCounts(self.rows.counts[which])
