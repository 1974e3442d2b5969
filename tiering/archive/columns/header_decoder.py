"""Header decoder: the payloads of groups' first parts -> the columns of `header_fields`.

The idea: it goes column by column, for all groups together (see
`tiering.archive.columns.batch_columns`). Where groups encode a column in different kinds, it
decodes the groups of each kind together. One group is a batch of one.

Invariants: a batch gives the same columns as its groups one by one, or raises, for damage or for a
mixture that only its groups one by one can have decoded; nothing is allocated before the number of
rows is known to be the directory's and at most BLOCK_ROWS_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import HOSTS_V6
from kvstore.record.names import BORN_HOST_V6, STORE_HOST_V6
from tiering.archive.columns.batch_columns import GroupReader, RowCounts
from tiering.archive.columns.constant_headers import (
    CRCS_OMITTED,
    HEADER_COLUMNS,
    U32_MAX,
    ConstantHeaders,
    VaryingHeaders,
    constant_headers,
    misfits,
)
from tiering.archive.columns.header_fields import (
    CRCS_STORED,
    HOST_REST,
    HeaderColumns,
    OffsetRanges,
    offsets_of,
)
from tiering.archive.columns.integers import Column, bounds_of, read_varint, total
from tiering.archive.layout import BLOCK_ROWS_MAX, COLUMNS_FORMAT, DECODED_MAX, VERBATIM_FORMAT

_FORMATS: Final = (COLUMNS_FORMAT, VERBATIM_FORMAT)


def decode_headers(
    payloads: Sequence[bytes], ranges: Sequence[OffsetRanges]
) -> list[HeaderColumns]:
    """The columns of groups with these fixed parts. Those of a batch are slices of larger columns,
    which each slice keeps in memory. Raises ArchiveDamaged; of a batch each group may yet be whole,
    which decoding it by itself tells.
    """
    try:
        return _HeaderReader(payloads, ranges).headers()
    except IndexError:
        raise ArchiveDamaged("a block ends in the middle of a column") from None


class _HeaderReader(GroupReader):
    """The fixed parts of groups."""

    def __init__(self, payloads: Sequence[bytes], ranges: Sequence[OffsetRanges]) -> None:
        super().__init__(payloads, [of_group.counts for of_group in ranges])
        self._ranges = ranges[0]
        if len(ranges) > 1:
            self._ranges = OffsetRanges(*map(np.concatenate, zip(*ranges, strict=True)))

    def headers(self) -> list[HeaderColumns]:
        """The columns of all groups. Raises ArchiveDamaged; IndexError behind the last payload."""
        is_whole = self._read_formats()
        offset = offsets_of(self.next(), self._ranges)
        position = self.by_block()
        stored_at = self.times(position)
        born_at = None if is_whole else self.next() + stored_at
        ends = self._ends_of_bodies()
        headers: Sequence[ConstantHeaders | VaryingHeaders | None] = [None] * len(ends)
        if born_at is not None:
            headers = self._headers()
        self.check_end("the fixed columns")
        found = []
        for some, mine, of_group in zip(self.rows.slices(), ends, headers, strict=True):
            found.append(
                HeaderColumns(offset[some], position[some], stored_at[some], mine, of_group)
            )
            if born_at is not None:
                found[-1].born_at = born_at[some]
        return found

    def _read_formats(self) -> bool:
        """Reads what each payload begins with; whether all of them hold whole records."""
        if int(self._ranges.counts.min()) < 1:
            raise ArchiveDamaged("it has a block without messages, as the directory says")
        kinds = set()
        for i, stated in enumerate(self.rows.counts.tolist()):
            at = self.cursors[i]
            kinds.add(self.data[at])
            count, self.cursors[i] = read_varint(self.data, at + 1)
            if not 1 <= count <= BLOCK_ROWS_MAX:
                raise ArchiveDamaged(f"it has {count} messages, 1 to {BLOCK_ROWS_MAX} may be")
            if count != stated:
                raise ArchiveDamaged(f"it has {count} messages instead of {stated}")
        kind = kinds.pop()
        if kinds or kind not in _FORMATS:
            raise ArchiveDamaged(f"its fixed part is of format {kind}, which there is not")
        return kind == VERBATIM_FORMAT

    def _ends_of_bodies(self) -> list[Column]:
        """Where each body of a group begins in the group's bodies, and where the last one ends."""
        lengths = self.next()
        total(lengths, "bodies", DECODED_MAX)
        ends = bounds_of(lengths)
        if len(self.every) == 1:
            return [ends]
        return [ends[a : b + 1] - ends[a] for a, b in pairwise(self.rows.bounds.tolist())]

    def _headers(self) -> Sequence[ConstantHeaders | VaryingHeaders]:
        """The columns of each group that are mostly constant, up to its end."""
        rests = [self.data[at:end] for at, end in zip(self.cursors, self.ends, strict=True)]
        known = [one for one in map(constant_headers, rests) if one is not None]
        if len(known) == len(rests):
            # Mostly the same bytes in each group.
            self.cursors = list(self.ends)
            return known
        columns = [self.next() for _ in range(HEADER_COLUMNS)]
        flags, system_flags, version, reconsume_times, *_ = columns
        if misfits(flags, system_flags, version, reconsume_times).any():
            raise ArchiveDamaged("it has a number that does not fit its field")
        found = []
        for i, some in enumerate(self.rows.slices()):
            v6 = system_flags[some] & HOSTS_V6
            found.append(
                VaryingHeaders(
                    [column[some] for column in columns],
                    self._read_more(i, v6 & BORN_HOST_V6) if v6.any() else None,
                    self._read_more(i, v6 & STORE_HOST_V6) if v6.any() else None,
                    self._read_crcs(i, len(v6)),
                )
            )
        return found

    def _read_more(self, i: int, is_v6: Column) -> list[bytes]:
        """By row of a group: the bytes behind the first 8 of its host."""
        rows = np.flatnonzero(is_v6).tolist()
        more = np.empty(len(rows), HOST_REST)
        for name in HOST_REST.names or ():
            more[name] = self.column([i], RowCounts(np.array([len(rows)])))
        out = [b""] * len(is_v6)
        for row, host in zip(rows, more, strict=True):
            out[row] = host.tobytes()
        return out

    def _read_crcs(self, i: int, count: int) -> Column | None:
        """The body CRCs of a group, if they are stored."""
        at = self.cursors[i]
        form = self.data[at : at + 1]
        self.cursors[i] = at + 1
        if form == CRCS_OMITTED:
            return None
        if form != CRCS_STORED:
            raise ArchiveDamaged("its body CRCs are of an unknown form")
        crcs = self.column([i], RowCounts(np.array([count])))
        if (crcs & ~U32_MAX).any():
            raise ArchiveDamaged("it has a number that does not fit its field")
        return crcs
