"""Header codec: the columns of `header_fields` <-> the payloads of groups' first parts.

The idea: the columns that differ from record to record come first, so that behind them the same
bytes stand in every group. They are decoded once, and the result is cached by these bytes. Decoding
goes column by column, for all groups together (`batch_columns`). Where groups encode a column in
different kinds, it decodes the groups of each kind together. One group is a batch of one.

Invariants: a batch gives the same columns as its groups one by one, or raises, for damage or for a
mixture that only its groups one by one can have decoded; nothing is allocated before the number of
rows is known to be the directory's and at most BLOCK_ROWS_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from kvstore.core.columns.int_columns import (
    CONSTANT,
    encode_columns,
    read_signed,
    read_varint,
    write_varint,
)
from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import HOSTS_V6, NOT_ORDINARY
from kvstore.record.names import BORN_HOST_V6, STORE_HOST_V6
from tiering.archive.columns.batch_columns import GroupReader, RowCounts
from tiering.archive.columns.header_fields import (
    HEADER_COLUMNS,
    HOST_REST,
    ConstantHeaders,
    HeaderColumns,
    OffsetRanges,
    VaryingHeaders,
)
from tiering.archive.columns.integers import (
    Column,
    bounds_of,
    encode_by_block,
    encode_column,
    encode_times,
    total,
)
from tiering.archive.columns.records import Fields
from tiering.archive.layout import BLOCK_ROWS_MAX, COLUMNS_FORMAT, DECODED_MAX, VERBATIM_FORMAT

_FORMATS: Final = (COLUMNS_FORMAT, VERBATIM_FORMAT)
CRCS_OMITTED: Final = b"\x00"
"""Behind the columns: each record's body CRC is that of its body, and is not stored."""
CRCS_STORED: Final = b"\x01"
_CONSTANTS_MAX: Final = 128
"""The most bytes that the columns take that are mostly constant, if all are."""
_U32_MAX: Final = 0xFFFF_FFFF
_I32_OFFSET: Final = 1 << 31

T = TypeVar("T", int, Column)


def encode_fixed(fields: Fields, bounds: Column, inner: Column) -> list[bytes]:
    """The payload for each group; group i has the rows `bounds[i]` to `bounds[i + 1]`, and block i
    `inner[i]` to `inner[i + 1]`.
    """
    mostly_constant = (
        fields.flags,
        fields.system_flags,
        fields.version,
        fields.reconsume_times,
        fields.prepared_position,
        fields.born_host,
        fields.store_host,
    )
    varying = (fields.born_at - fields.stored_at, fields.body_size)
    columns = [
        encode_columns(_missing(fields.offset, inner), bounds),
        encode_by_block(fields.position, bounds, inner),
        encode_times(fields.stored_at, fields.position, bounds, inner),
        *(encode_columns(values, bounds) for values in (*varying, *mostly_constant)),
    ]
    start = bytes((COLUMNS_FORMAT,))
    heads = [start + write_varint(count) for count in np.diff(bounds).tolist()]
    wrong = np.logical_or.reduceat(fields.wrong_crcs(), bounds[:-1])
    ends = [CRCS_OMITTED] * len(heads)
    for i in np.flatnonzero(wrong).tolist():
        ends[i] = CRCS_STORED + encode_column(fields.body_crc[int(bounds[i]) : int(bounds[i + 1])])
    if fields.born_more or fields.store_more:
        for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
            rows = range(begin, end)
            ends[i] = (
                _encode_more([fields.born_more[row] for row in rows if row in fields.born_more])
                + _encode_more([fields.store_more[row] for row in rows if row in fields.store_more])
                + ends[i]
            )
    return [b"".join(parts) for parts in zip(heads, *columns, ends, strict=True)]


def _encode_more(hosts: list[bytes]) -> bytes:
    found = np.frombuffer(b"".join(hosts), HOST_REST)
    return b"".join(encode_column(found[name].astype(np.int64)) for name in ("middle", "last"))


def encode_whole(fields: Fields, inner: Column) -> bytes:
    """The payload for a group that holds the records of its rows as they are."""
    begin, end = int(inner[0]), int(inner[-1])
    columns = (fields.position, fields.stored_at, fields.sizes)
    head = bytes((VERBATIM_FORMAT,)) + write_varint(end - begin)
    missing = encode_column(_missing(fields.offset[begin:end], inner - begin))
    return head + missing + b"".join(encode_column(column[begin:end]) for column in columns)


def _missing(offsets: Column, inner: Column) -> Column:
    """The number of offsets that each block lacks before each of its rows."""
    begins = inner[:-1]
    found: Column = offsets - np.arange(len(offsets))
    return found - np.repeat(found[begins], np.diff(inner))


def offsets_of(missing: Column, ranges: OffsetRanges) -> Column:
    """The offsets of messages, from the number of offsets missing before each in its block. Raises
    ArchiveDamaged.
    """
    counts, firsts = ranges.counts, ranges.first_offsets
    begins = np.cumsum(counts) - counts
    found: Column = missing + np.arange(len(missing))
    found += np.repeat(firsts - begins, counts)
    held = found[begins], found[begins + counts - 1]
    wrong = (held[0] != firsts) | (held[1] != ranges.last_offsets)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ArchiveDamaged(
            f"it holds offsets {held[0][at]} to {held[1][at]}, which the directory does not say"
        )
    return found


# --- decoding ---


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
        known = [one for one in map(_constant_headers, rests) if one is not None]
        if len(known) == len(rests):
            # Mostly the same bytes in each group.
            self.cursors = list(self.ends)
            return known
        columns = [self.next() for _ in range(HEADER_COLUMNS)]
        flags, system_flags, version, reconsume_times, *_ = columns
        if _misfits(flags, system_flags, version, reconsume_times).any():
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
        if (crcs & ~_U32_MAX).any():
            raise ArchiveDamaged("it has a number that does not fit its field")
        return crcs


def _misfits(flags: T, system_flags: T, version: T, reconsume_times: T) -> T:
    """Not zero where one of the values does not fit its field."""
    unsigned = flags | system_flags | (reconsume_times + _I32_OFFSET)
    return unsigned & ~_U32_MAX | (version - 1) & ~1


def _constant_headers(data: bytes) -> ConstantHeaders | None:
    """The columns, if `data` has all of them and nothing else, each is constant, and the CRCs are
    the bodies'. None: decode each column.
    """
    return _read_constants(data) if len(data) <= _CONSTANTS_MAX else None


@lru_cache(maxsize=256)
def _read_constants(data: bytes) -> ConstantHeaders | None:
    values, at = [], 0
    for _ in range(HEADER_COLUMNS):
        if data[at : at + 1] != bytes((CONSTANT,)):
            return None
        value, at = read_signed(data, at + 1)
        values.append(value)
    flags, system_flags, version, reconsume_times, prepared_position, born, store = values
    is_wrong = _misfits(flags, system_flags, version, reconsume_times)
    if data[at:] != CRCS_OMITTED or system_flags & HOSTS_V6 or is_wrong:
        return None
    is_ordinary = not system_flags & NOT_ORDINARY and version == 1
    return ConstantHeaders(
        flags, system_flags, version, reconsume_times, prepared_position, born, store, is_ordinary
    )
