"""Runs: consecutive entries of one queue inside one segment, as one small value.

The idea: columns, not rows. Position deltas, sizes, tag hashes and store-time deltas each take the
fewest whole bytes that fit the run's largest, and a constant column takes none. A column is stored
plane by plane (all lowest bytes, then the next). RocksDB's block compression does well on planes, a
few numpy calls pack a hundred thousand small runs, and one position is a sum over the head of each
plane. Sizes, tags and times that fit less than a byte take only the bits they need; positions take
whole bytes, so that one can be found without unpacking. Layout in docs/runs.md.

Invariant: `unpack_many(pack_many(x)) == x`; bytes whose length does not follow from their header
raise `FormatError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

RUN_MAX: Final = 1024
"""Entries in one run: bounds what one read decodes."""
_BITS: Final = 8
"""A width above 8 is in bits: it is 8 plus the number of bits."""
_SKIPS: Final = (1, 0, 0, 1)
"""Entries that a column doesn't have: the first position and time are in the header."""

# Little-endian, because numpy's planes are: widths (position, size), widths (tag, time), count,
# first position in the segment, smallest size, smallest tag hash, first store time (low 4, high 2
# bytes).
HEADER: Final = Struct("<BBHIIqIH")
_SIZE: Final = HEADER.size
_HEAD: Final = np.dtype(
    [
        ("a", "u1"),
        ("b", "u1"),
        ("count", "<u2"),
        ("first", "<u4"),
        ("size", "<u4"),
        ("tag", "<i8"),
        ("low", "<u4"),
        ("high", "<u2"),
    ]
)
"""The same header for numpy."""
assert _HEAD.itemsize == _SIZE == 26


class Columns(NamedTuple):
    """Entries as columns; positions are relative to the segment, times in ms."""

    positions: I64
    sizes: I64
    tag_hashes: I64
    stored_at: I64


class Packed(NamedTuple):
    """Many consecutive runs: run `i` is `data[ends[i - 1]:ends[i]]`."""

    data: bytes
    starts: list[int]
    ends: list[int]


def split_long(starts: I64, end: int) -> I64:
    """Add boundaries so that no run has more than `RUN_MAX` entries."""
    counts = np.diff(starts, append=end)
    if not len(counts) or int(counts.max()) <= RUN_MAX:
        return starts
    pieces = -(-counts // RUN_MAX)
    owner = np.repeat(np.arange(len(starts)), pieces)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.asarray(starts[owner] + nth * RUN_MAX, dtype=np.int64)


def pack_many(columns: Columns, starts: I64) -> Packed:
    """Pack runs; run `i` begins at entry `starts[i]`, and none is longer than `RUN_MAX`."""
    total = len(columns.positions)
    counts = np.diff(starts, append=total)
    owner = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(total) - starts[owner]
    base_size = np.minimum.reduceat(columns.sizes, starts)
    base_tag = np.minimum.reduceat(columns.tag_hashes, starts)
    deltas = (
        _deltas(columns.positions, starts),
        columns.sizes - base_size[owner],
        columns.tag_hashes - base_tag[owner],
        _deltas(columns.stored_at, starts),
    )
    largest = [np.maximum.reduceat(column, starts) for column in deltas]
    widths = [_widths(most) for most in largest]
    widths[1:] = [_narrowed(w, most) for w, most in zip(widths[1:], largest[1:], strict=True)]
    lengths = np.full(len(starts), _SIZE, dtype=np.int64)
    places = []
    for skip, width in zip(_SKIPS, widths, strict=True):
        places.append(lengths.copy())
        lengths += _bytes_of(width, counts - skip)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    _put_headers(out, begins, widths, counts, columns, starts, base_size, base_tag)
    for column, skip, width, place in zip(deltas, _SKIPS, widths, places, strict=True):
        planes = np.where(width > _BITS, 0, width)
        _put_planes(out, column, skip, planes, begins + place, owner, nth, counts)
    for column, skip, width, place in zip(deltas, _SKIPS, widths, places, strict=True):
        _put_bits(out, column, skip, width - _BITS, begins + place, owner, nth)
    return Packed(out.tobytes(), begins.tolist(), ends.tolist())


def _deltas(column: I64, starts: I64) -> I64:
    found = np.diff(column, prepend=0)
    found[starts] = 0
    if len(found) and int(found.min()) < 0:
        raise FormatError("entries of a run must rise in position and store time")
    return np.asarray(found, dtype=np.int64)


def _widths(largest: I64) -> I64:
    found = np.zeros(len(largest), dtype=np.int64)
    for byte in range(8):
        more = (largest >> (8 * byte)) != 0
        if not more.any():
            break
        found += more
    return found


def _narrowed(widths: I64, largest: I64) -> I64:
    """Widths, with those of one byte given in bits where seven bits are enough."""
    bits = np.zeros(len(largest), dtype=np.int64)
    for bit in range(_BITS):
        bits += (largest >> bit) != 0
    return np.where((widths == 1) & (bits < _BITS), _BITS + bits, widths)


def _bytes_of(widths: I64, counts: I64) -> I64:
    """The size of columns in bytes."""
    in_bits = (counts * (widths - _BITS) + 7) >> 3
    return np.where(widths > _BITS, in_bits, widths * counts)


def _put_headers(
    out: U8,
    begins: I64,
    widths: list[I64],
    counts: I64,
    columns: Columns,
    starts: I64,
    base_size: I64,
    base_tag: I64,
) -> None:
    head = np.zeros(
        len(starts),
        dtype=_HEAD,
    )
    stored_at = columns.stored_at[starts]
    head["a"] = widths[0] | widths[1] << 4
    head["b"] = widths[2] | widths[3] << 4
    head["count"] = counts
    head["first"] = columns.positions[starts]
    head["size"] = base_size
    head["tag"] = base_tag
    head["low"] = stored_at & 0xFFFFFFFF
    head["high"] = stored_at >> 32
    out[begins[:, None] + np.arange(_SIZE)] = head.view(np.uint8).reshape(len(starts), _SIZE)


def _put_planes(
    out: U8, column: I64, skip: int, width: I64, begins: I64, owner: I64, nth: I64, counts: I64
) -> None:
    most = int(width.max(initial=0))
    if not most:
        return
    rows = np.flatnonzero((width[owner] > 0) & (nth >= skip))
    runs = owner[rows]
    target = begins[runs] + nth[rows] - skip
    step = counts[runs] - skip
    left, planes = column[rows], width[runs]
    uniform = int(width.min()) == most
    for plane in range(most):
        if plane and not uniform:
            more = planes > plane
            left, planes, target, step = left[more], planes[more], target[more], step[more]
        out[target] = left.astype(np.uint8)
        left >>= 8
        target += step


def _put_bits(
    out: U8, column: I64, skip: int, bits: I64, begins: I64, owner: I64, nth: I64
) -> None:
    """Put columns of so many bits a number, except those of 0 bits; the lowest bit first."""
    if int(bits.max(initial=0)) <= 0:
        return
    rows = np.flatnonzero((bits[owner] > 0) & (nth >= skip))
    runs = owner[rows]
    at = (nth[rows] - skip) * bits[runs]
    target = begins[runs] + (at >> 3)
    shifted = column[rows] << (at & 7)
    # Numbers share bytes but no bits, so adding is as good as or.
    np.add.at(out, target, (shifted & 0xFF).astype(np.uint8))
    over = np.flatnonzero(shifted > 0xFF)
    np.add.at(out, target[over] + 1, (shifted[over] >> 8).astype(np.uint8))


def count_of(value: bytes) -> int:
    """How many entries a run has."""
    if len(value) < _SIZE:
        raise FormatError(f"a run has {len(value)} bytes, at least {_SIZE} are needed")
    return int.from_bytes(value[2:4], "little")


def _positions_head(value: bytes) -> tuple[int, int, int]:
    """Width of the position column, count, first position; `FormatError` if they can't be."""
    if len(value) < _SIZE:
        raise FormatError(f"a run has {len(value)} bytes, at least {_SIZE} are needed")
    widths, _, count, first = HEADER.unpack_from(value)[:4]
    width = widths & 15
    if not count or width > 8 or _SIZE + width * (count - 1) > len(value):
        raise FormatError("a run's length does not follow from its header")
    return width, count, first


def positions_of(value: bytes) -> I64:
    """All positions of a run, in the segment."""
    width, count, first = _positions_head(value)
    found = np.empty(count, np.int64)
    found[0] = first
    found[1:] = _column(value, _SIZE, width, count - 1)
    return np.cumsum(found, out=found)


def unpack(value: bytes) -> Columns:
    """One run's columns; `FormatError` if the value is not a run."""
    return unpack_many([value])[0]


def _column(value: bytes, at: int, width: int, count: int) -> I64:
    found = np.zeros(count, dtype=np.int64)
    if at + width * count > len(value):
        raise FormatError(f"a run has {len(value)} bytes, {at + width * count} are needed")
    for plane in range(width):
        found |= np.frombuffer(value, np.uint8, count, at + plane * count).astype(np.int64) << (
            8 * plane
        )
    return found


def unpack_many(values: Sequence[bytes]) -> tuple[Columns, I64]:
    """The columns of many consecutive runs, and where each begins; the inverse of `pack_many`."""
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    if len(values) and int(lengths.min()) < _SIZE:
        raise FormatError(f"a run has {int(lengths.min())} bytes, at least {_SIZE} are needed")
    data = np.frombuffer(b"".join(values), dtype=np.uint8)
    begins = np.cumsum(lengths) - lengths
    head = np.ascontiguousarray(data[begins[:, None] + np.arange(_SIZE)]).view(_HEAD)[:, 0]
    counts = head["count"].astype(np.int64)
    widths = [(head["a"] & 15), (head["a"] >> 4), (head["b"] & 15), (head["b"] >> 4)]
    widths = [w.astype(np.int64) for w in widths]
    places = []
    at = begins + _SIZE
    for width, skip in zip(widths, _SKIPS, strict=True):
        places.append(at)
        at = at + _bytes_of(width, counts - skip)
    if (
        (counts == 0).any()
        or (at != begins + lengths).any()
        or int(widths[0].max(initial=0)) > _BITS
    ):
        raise FormatError("a run's length does not follow from its header")
    starts = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(values)), counts)
    nth = np.arange(len(owner)) - starts[owner]
    columns = [
        _unpack_planes(data, skip, np.where(width > _BITS, 0, width), place, owner, nth, counts)
        for skip, width, place in zip(_SKIPS, widths, places, strict=True)
    ]
    for column, skip, width, place in zip(columns, _SKIPS, widths, places, strict=True):
        _take_bits(column, data, skip, width - _BITS, place, owner, nth)
    stored_at = head["low"].astype(np.int64) | head["high"].astype(np.int64) << 32
    return (
        Columns(
            _sum_up(columns[0], head["first"].astype(np.int64), starts, owner),
            columns[1] + head["size"].astype(np.int64)[owner],
            columns[2] + head["tag"].astype(np.int64)[owner],
            _sum_up(columns[3], stored_at, starts, owner),
        ),
        starts,
    )


def _unpack_planes(
    data: U8, skip: int, width: I64, begins: I64, owner: I64, nth: I64, counts: I64
) -> I64:
    found = np.zeros(len(owner), dtype=np.int64)
    rows = np.flatnonzero((width[owner] > 0) & (nth >= skip))
    for plane in range(int(width.max(initial=0))):
        if plane:
            rows = rows[width[owner[rows]] > plane]
        runs = owner[rows]
        source = begins[runs] + plane * (counts[runs] - skip) + nth[rows] - skip
        found[rows] |= data[source].astype(np.int64) << (8 * plane)
    return found


def _take_bits(
    found: I64, data: U8, skip: int, bits: I64, begins: I64, owner: I64, nth: I64
) -> None:
    """Read the columns that `_put_bits` wrote, into `found`."""
    if int(bits.max(initial=0)) <= 0:
        return
    rows = np.flatnonzero((bits[owner] > 0) & (nth >= skip))
    runs = owner[rows]
    at = (nth[rows] - skip) * bits[runs]
    source = begins[runs] + (at >> 3)
    # Where a number ends with its byte, no bit of the next byte is used.
    behind = np.minimum(source + 1, len(data) - 1)
    both = data[source].astype(np.int64) | data[behind].astype(np.int64) << 8
    found[rows] = both >> (at & 7) & ((1 << bits[runs]) - 1)


def _sum_up(deltas: I64, firsts: I64, starts: I64, owner: I64) -> I64:
    sums = np.cumsum(deltas)
    return np.asarray(sums - sums[starts][owner] + firsts[owner], dtype=np.int64)
