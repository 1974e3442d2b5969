"""Integers: columns of 64-bit numbers in blocks, where they rise and when they were stored.

The idea: `kvstore.core.columns.int_columns` makes bytes of columns, of many blocks in one go. Two
forms stand above it. Numbers that rise within each block of a group have a column of first values
and one of differences.

Store times have a form of their own. In a group of several queues' blocks they go up and down, and
so do the positions. But a log is written from front to back, so a record's position nearly tells
when it was stored. The column therefore keeps how far each time is from a straight line between the
group's first record and its last, where that takes less than the times themselves.

Invariants:

- All of int64 round-trips, since differences are taken modulo 2**64.
- The form depends on the values alone.
- A line is drawn with whole numbers only, so that every machine draws the same one.
- A number read from bytes allocates nothing before the caller expects as many rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.int_columns import (
    encode_columns,
    read_varint,
    write_signed,
    write_varint,
)
from kvstore.errors import ArchiveDamaged

Column = NDArray[np.int64]

BY_BLOCK: Final = 4
"""The kind of a column of rising numbers, block by block; `int_columns` has those below."""


def write_bytes(value: bytes) -> bytes:
    """A byte string with its length before it."""
    return write_varint(len(value)) + value


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """The inverse of `write_bytes`, and the index behind it. Raises ArchiveDamaged."""
    size, at = read_varint(data, at)
    if size > len(data) - at:
        raise ArchiveDamaged(f"{size} bytes should follow in a block, {len(data) - at} do")
    return data[at : at + size], at + size


# --- encoding --------------------------------------------------------------------------------


def encode_by_block(values: Column, bounds: Column, inner: Column) -> list[bytes]:
    """Encodes numbers that rise within blocks, from `inner[i]` to `inner[i + 1]`, one column for
    each slice of `bounds`, which is one or more blocks. Where that is smaller, a slice has the
    first value of each block in one column and the differences in another.
    """
    out = encode_columns(values, bounds)
    if len(inner) == len(bounds):
        return out
    firsts = np.searchsorted(inner, bounds)
    # Behind each first value stand as many differences as there are other rows; often none.
    steps = bounds - firsts
    is_step = np.ones(len(values), np.bool_)
    is_step[inner[:-1]] = False
    some = np.flatnonzero((np.diff(steps) > 0) & (np.diff(firsts) > 1))
    if not len(some):
        return out
    every = np.flatnonzero(np.diff(steps) > 0)
    rising = np.zeros_like(values)
    np.subtract(values[1:], values[:-1], out=rising[1:])
    found = encode_columns(rising[is_step], np.append(steps[every], steps[-1]))
    differences = dict(zip(every.tolist(), found, strict=True))
    begins = encode_columns(values[inner[:-1]], firsts)
    for i in some.tolist():
        out[i] = min(out[i], bytes((BY_BLOCK,)) + begins[i] + differences[i], key=len)
    return out


def encode_column(values: Column) -> bytes:
    """One column; no bytes for no values."""
    if not len(values):
        return b""
    return encode_columns(values, np.array((0, len(values)), np.int64))[0]


def cut_by_bytes(sizes: Column, most: int, rows: int | None = None) -> Iterator[tuple[int, int]]:
    """Cuts items of these sizes into slices of at most `most` bytes and `rows` items; an item of
    more bytes gets a slice of its own. Yields the first item of each slice, and the one behind its
    last.
    """
    ends = np.cumsum(sizes)
    rows = len(ends) if rows is None else rows
    if 0 < len(ends) <= rows and ends[-1] <= most:
        yield 0, len(ends)
        return
    at = 0
    while at < len(ends):
        before = int(ends[at - 1]) if at else 0
        stop = max(int(np.searchsorted(ends, before + most, side="right")), at + 1)
        stop = min(stop, at + rows)
        yield at, stop
        at = stop


def bounds_of(lengths: Sequence[int] | Column) -> Column:
    """The begin of each item and the end of the last, for items of these lengths one behind the
    other.
    """
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


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


def _line(positions: Column, least: Column, length: Column, first: Column, takes: Column) -> Column:
    found: Column = first + (positions - least) * takes // length
    return found
