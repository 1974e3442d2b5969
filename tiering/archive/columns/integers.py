"""Integers: columns of 64-bit numbers <-> bytes, and varints.

The idea: a column is a constant, or numbers above a minimum, or differences above a least
difference (a column that rises evenly takes no bits at all), or indexes of few distinct values.
Each form is packed at the number of bits that its largest number needs. Columns of many blocks are
encoded in one go: with a dozen rows a block, numpy's price is the call, not the row.

Store times have a form of their own. In a group of several queues' blocks they go up and down, and
so do the positions. But a log is written from front to back, so a record's position nearly tells
when it was stored. The column therefore keeps how far each time is from a straight line between the
group's first record and its last, where that takes less than the times themselves.

Invariants: all of int64 round-trips, since differences are taken modulo 2**64; the form depends on
the values alone; a line is drawn with whole numbers only, so that every machine draws the same one;
a number read from bytes allocates nothing before the caller expects as many rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.packed import pack, size_of, unpack

Column = NDArray[np.int64]

CONSTANT: Final = 0
DELTAS: Final = 1
RANGE: Final = 2
DISTINCT: Final = 3
BY_BLOCK: Final = 4

_WIDTH_MAX: Final = 64
_LONG: Final = 0xF8
"""From this number on a varint takes more than one byte."""
_DISTINCT_MAX: Final = 256
_DISTINCT_FROM: Final = 12
"""Columns narrower than this many bits are not searched for few distinct values."""
_DISTINCT_ROWS: Final = 24
"""A column needs this many rows for distinct values, and this many are looked at first."""
_MASK: Final = (1 << 64) - 1
_BYTES: Final = [bytes((i,)) for i in range(256)]


def write_varint(value: int) -> bytes:
    """`value`, 0 to 2**64 - 1, in 1 to 9 bytes. Below 0xF8 it is the byte itself. Otherwise the
    first byte is 0xF7 plus the number of bytes that follow, which are the value's, the highest
    first.
    """
    if value < _LONG:
        return bytes((value,))
    size = (value.bit_length() + 7) >> 3
    return bytes((_LONG - 1 + size,)) + value.to_bytes(size, "big")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at index `at`, and the index behind it. Raises ArchiveDamaged."""
    if at >= len(data):
        raise _short()
    value = data[at]
    at += 1
    if value < _LONG:
        return value, at
    stop = at + value - (_LONG - 1)
    if stop > len(data):
        raise _short()
    return int.from_bytes(data[at:stop], "big"), stop


def write_signed(value: int) -> bytes:
    """`value`, any int64, as a zigzag varint."""
    return write_varint(-2 * value - 1 if value < 0 else 2 * value)


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    """Like `read_varint`, with a sign."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


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


def encode_columns(values: Column, bounds: Column) -> list[bytes]:
    """Encodes one column for each slice of `values`, from `bounds[i]` to `bounds[i + 1]`; no slice
    may be empty.
    """
    starts, counts = bounds[:-1], np.diff(bounds)
    least = np.minimum.reduceat(values, starts)
    most = np.maximum.reduceat(values, starts)
    varies = least != most
    if not varies.any():
        return _constants(least)
    deltas = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=deltas[1:])
    # The first row of a slice has no difference. It repeats the next one, so as not to count.
    deltas[starts] = deltas[np.minimum(starts + 1, len(values) - 1)]
    least_delta = np.minimum.reduceat(deltas, starts)
    delta_width = _widths(least_delta, np.maximum.reduceat(deltas, starts))
    width = _widths(least, most)
    by_delta = varies & ((counts - 1) * delta_width + 16 < counts * width)
    base = np.where(by_delta, least_delta, least)
    width = np.where(varies, np.where(by_delta, delta_width, width), 0)
    per_row = np.repeat(base, counts)
    rest = (np.where(np.repeat(by_delta, counts), deltas, values) - per_row).view(np.uint64)
    packed = _pack_all(rest, starts + by_delta, bounds[1:], width)
    out = _constants(least) if not varies.all() else [b""] * len(starts)
    rising, bases, bits = by_delta.tolist(), base.tolist(), width.tolist()
    firsts = values[starts].tolist()
    for i in np.flatnonzero(varies).tolist():
        head = b"\x01" + write_signed(firsts[i]) if rising[i] else b"\x02"
        out[i] = head + write_signed(bases[i]) + _BYTES[bits[i]] + packed[i]
    _use_distinct(out, values, bounds, (width >= _DISTINCT_FROM) & (counts >= _DISTINCT_ROWS))
    return out


def encode_by_block(values: Column, bounds: Column, inner: Column) -> list[bytes]:
    """The same for numbers that rise within blocks, `inner[i]` to `inner[i + 1]`; one or more
    blocks make up a slice of `bounds`. Where that is smaller, a slice has the first value of each
    block in one column and the differences in another.
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
        out[i] = min(out[i], b"\x04" + begins[i] + differences[i], key=len)
    return out


def encode_column(values: Column) -> bytes:
    """One column; no bytes for no values."""
    if not len(values):
        return b""
    return encode_columns(values, np.array((0, len(values)), np.int64))[0]


def _constants(values: Column) -> list[bytes]:
    known: dict[int, bytes] = {}
    for value in set(values.tolist()):
        known[value] = b"\x00" + write_signed(value)
    return [known[value] for value in values.tolist()]


def _widths(least: Column, most: Column) -> Column:
    """The bits that most - least takes; one too many where rounding to a float goes up, never too
    few.
    """
    span = (most - least).view(np.uint64).astype(np.float64)
    widths: Column = np.minimum(np.frexp(span)[1], _WIDTH_MAX).astype(np.int64)
    return widths


def _use_distinct(
    out: list[bytes], values: Column, bounds: Column, which: NDArray[np.bool_]
) -> None:
    """Replaces columns by indexes of distinct values where those are smaller."""
    for i in np.flatnonzero(which).tolist():
        rows = values[int(bounds[i]) : int(bounds[i + 1])]
        if len(set(rows[:_DISTINCT_ROWS].tolist())) * 2 <= _DISTINCT_ROWS:
            out[i] = min(out[i], _distinct(rows) or out[i], key=len)


def _distinct(values: Column) -> bytes | None:
    found, index = np.unique(values, return_inverse=True)
    count = len(found)
    if count > _DISTINCT_MAX or count * 2 > len(values):
        return None
    bits = (count - 1).bit_length()
    parts = [b"\x03", write_varint(count), *map(write_signed, found.tolist()), bytes((bits,))]
    return b"".join(parts) + pack(index.reshape(-1).astype(np.uint64), bits)


def _pack_all(
    rest: NDArray[np.uint64], starts: Column, stops: Column, widths: Column
) -> list[bytes]:
    """The result of `pack` for each slice."""
    out = [b""] * len(starts)
    for bits in set(widths.tolist()):
        if not bits:
            continue
        which = np.flatnonzero(widths == bits)
        counts = stops[which] - starts[which]
        # Eight rows take `bits` bytes, so a slice that begins at a row divisible by 8 begins at a
        # whole byte.
        room = (counts + 7) & -8
        begins = np.cumsum(room) - room
        total = int(room.sum())
        rows = np.zeros(total, np.uint64)
        within = np.arange(int(counts.sum()), dtype=np.int64)
        within -= np.repeat(np.cumsum(counts) - counts, counts)
        rows[within + np.repeat(begins, counts)] = rest[within + np.repeat(starts[which], counts)]
        packed = pack(rows, bits)
        places = (begins // 8 * bits).tolist()
        sizes = ((counts * bits + 7) >> 3).tolist()
        for i, place, size in zip(which.tolist(), places, sizes, strict=True):
            out[i] = packed[place : place + size]
    return out


# --- decoding --------------------------------------------------------------------------------


def decode_column(data: bytes, at: int, count: int) -> tuple[Column, int]:
    """`count` values that begin at index `at`, and the index behind them. Raises ArchiveDamaged."""
    if not count:
        return np.empty(0, np.int64), at
    if at >= len(data):
        raise _short()
    kind = data[at]
    at += 1
    if kind == CONSTANT:
        value, at = read_signed(data, at)
        same = np.empty(count, np.int64)
        same.fill(value)
        return same, at
    if kind == RANGE:
        least, at = read_signed(data, at)
        rest, at = _unpack(data, at, count)
        rest += np.uint64(least & _MASK)
        return rest.view(np.int64), at
    if kind == DELTAS:
        first, at = read_signed(data, at)
        least, at = read_signed(data, at)
        rest, at = _unpack(data, at, count - 1)
        out = np.empty(count, np.uint64)
        out[0] = first & _MASK
        np.add(rest, np.uint64(least & _MASK), out=out[1:])
        np.cumsum(out, out=out)
        return out.view(np.int64), at
    if kind == DISTINCT:
        return _decode_distinct(data, at, count)
    raise ArchiveDamaged(f"a block has a column of a kind {kind}, which there is not")


def add_up(firsts: Column, steps: Column, counts: Column) -> Column:
    """The values of slices of `counts` values each, from the first value of each slice and the
    differences behind it.
    """
    begins = np.cumsum(counts) - counts
    is_step = np.ones(len(steps) + len(firsts), np.bool_)
    is_step[begins] = False
    sums = np.zeros(len(is_step), np.int64)
    sums[is_step] = steps
    np.cumsum(sums, out=sums)
    sums += np.repeat(firsts - sums[begins], counts)
    return sums


def _decode_distinct(data: bytes, at: int, count: int) -> tuple[Column, int]:
    size, at = read_varint(data, at)
    if not 1 <= size <= _DISTINCT_MAX:
        raise ArchiveDamaged(f"a column has {size} distinct values, at most {_DISTINCT_MAX} may be")
    found = []
    for _ in range(size):
        value, at = read_signed(data, at)
        found.append(value)
    index, at = _unpack(data, at, count)
    if int(index.max()) >= size:
        raise ArchiveDamaged("a column names a distinct value that is not there")
    return np.array(found, np.int64)[index], at


def _unpack(data: bytes, at: int, count: int) -> tuple[NDArray[np.uint64], int]:
    if at >= len(data):
        raise _short()
    bits = data[at]
    at += 1
    stop = at + size_of(bits, count)
    if bits > _WIDTH_MAX or stop > len(data):
        raise _short()
    return unpack(data, at, bits, count), stop


def _short() -> ArchiveDamaged:
    return ArchiveDamaged("a block ends in the middle of a column")


def total(values: Column, what: str, limit: int) -> int:
    """The sum of a column of lengths. Raises ArchiveDamaged if a length is negative or the sum is
    above `limit`.
    """
    # A sum of floats can't overflow. Rounding only changes by how much an absurd sum is absurd.
    if len(values) and (int(values.min()) < 0 or float(values.sum(dtype=np.float64)) > limit):
        raise ArchiveDamaged(f"{what} in a block take more than the {limit} bytes there are")
    return int(values.sum()) if len(values) else 0


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
