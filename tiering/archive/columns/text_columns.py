"""Text columns: the values that records have under one property name <-> bytes, one text a row.

The idea: the form of a column follows from its values: one value, unique ids, numbers behind the
same text, few distinct values, or text. A unique id is its 16 bytes, split into the parts that
RocketMQ makes it of; its time is kept as the difference to the record's born time. The columns of
many blocks are encoded at a time. The core decodes each form (`text_forms`).

Invariant: values come back byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvstore.core.columns.int_columns import encode_columns, write_varint
from kvstore.core.columns.packed_texts import gather, number_texts, parse_ids, parse_numbers
from tiering.archive.columns.integers import Column, bounds_of, encode_column, write_bytes

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_TIME: Final = 2
"""The part of an id that is encoded as its difference to the record's born time."""
_TIME_MASK: Final = 0xFFFF_FFFF
_LAST_DIGITS: Final = frozenset(b"%d" % i for i in range(10))
_DISTINCT_SHARE: Final = 2
"""Distinct values are used where there are at least this many rows a value."""


class Joined(NamedTuple):
    """The bytes of all values, the begin of each, and the end of the last."""

    data: bytes
    bounds: Column

    def values(self) -> list[bytes]:
        """The values as a list."""
        data = self.data
        return [data[a:b] for a, b in pairwise(self.bounds.tolist())]


def join_values(values: list[bytes]) -> Joined:
    """Values side by side."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return Joined(b"".join(values), bounds_of(sizes))


def concat_joined(parts: Sequence[Joined]) -> Joined:
    """Joins several joined columns side by side."""
    if len(parts) == 1:
        return parts[0]
    bounds, end = [parts[0].bounds[:1]], 0
    for part in parts:
        bounds.append(part.bounds[1:] + end)
        end += len(part.data)
    return Joined(b"".join([part.data for part in parts]), np.concatenate(bounds))


class Slices(NamedTuple):
    """Texts in a buffer, each with its row; rows rise."""

    data: Buffer
    starts: Column
    stops: Column
    rows: Column

    def part(self, begin: int, end: int) -> Slices:
        """Some of the texts."""
        some = slice(begin, end)
        return Slices(self.data, self.starts[some], self.stops[some], self.rows[some])

    def text(self, i: int) -> bytes:
        """One of the texts."""
        return bytes(self.data[self.starts[i] : self.stops[i]])

    def joined(self) -> Joined:
        """The texts side by side."""
        return Joined(gather(*self[:3]), bounds_of(self.stops - self.starts))


def encode_values(values: Slices, bounds: Column, times: Column) -> Iterator[tuple[int, bytes]]:
    """The column for each block that has any of the values: the block's number, and the column.
    Block i has the rows `bounds[i]` to `bounds[i + 1]`; records were born at `times`.
    """
    borders = np.searchsorted(values.rows, bounds)
    blocks = np.flatnonzero(np.diff(borders)).tolist()
    ids = parse_ids(*values[:3])
    if ids is not None:
        # The difference of two times that mostly are the same: constant, or nearly.
        ids[_TIME] = (ids[_TIME] - times[values.rows]) & _TIME_MASK
        within = np.append(borders[blocks], len(values.rows))
        columns = [encode_columns(part, within) for part in ids]
        yield from zip(blocks, map(b"".join, zip(repeat(b"\x01"), *columns)), strict=True)
        return
    # Where the first value is no number, mostly none is.
    may_be_numbers = values.text(0)[-1:] in _LAST_DIGITS
    for block in blocks:
        yield block, _encode(values.part(borders[block], borders[block + 1]), may_be_numbers)


def _encode(values: Slices, may_be_numbers: bool) -> bytes:
    """The column of a block."""
    texts = values[:3]
    count = len(values.rows)
    found = number_texts(*texts, max(count // _DISTINCT_SHARE, 1))
    if found is not None:
        numbers, firsts = found
        distinct = list(map(values.text, firsts.tolist()))
        if len(distinct) == 1:
            return b"\x00" + write_bytes(distinct[0])
        order = sorted(range(len(distinct)), key=distinct.__getitem__)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        head = b"\x03" + write_varint(len(order))
        head += b"".join([write_bytes(distinct[i]) for i in order])
        return head + encode_column(places[numbers])
    parsed = parse_numbers(*texts) if may_be_numbers else None
    if parsed is not None:
        decimals, stem, width = parsed
        head = b"\x02" + write_bytes(values.text(0)[:stem])
        return head + bytes((width,)) + encode_column(decimals)
    return b"\x04" + encode_column(values.stops - values.starts) + gather(*texts)
