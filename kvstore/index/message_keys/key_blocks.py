"""Key blocks: (key hash, position) pairs, sorted by both and packed.

The idea: a pair is the key's 40-bit hash and the record's position behind the part's beginning.
Hashes are stored as distance from the block's first (which is in the row's key), both columns plane
by plane like a run's: the high planes of a sorted column compress to almost nothing, and a hash is
found by bisection on the packed bytes, decoding nothing. Layout in docs/keys.md.

Invariants: a block has no more than `BLOCK` pairs; one of several pairs has at least one byte for
each, so that reading one allocates no more than its length allows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

BLOCK: Final = 256
"""Pairs in a block."""
_TOGETHER: Final = 1 << 18
"""Pairs packed at a time: bounds the memory."""

# Little-endian: widths (hash | position << 4), count; then the planes of the hash distances, then
# of the positions.
HEADER: Final = Struct("<BI")
_SIZE: Final = HEADER.size


def sort_pairs(hashes: I64, positions: I64) -> tuple[I64, I64]:
    """Pairs in the order of blocks: by hash. Pairs of one hash come in the order they had."""
    if len(hashes) < 1 << 24:
        # One sort of one number (hash, then place in the input) is five times as fast as argsort.
        joint = hashes.astype(np.uint64)
        joint <<= np.uint64(24)
        joint |= np.arange(len(hashes), dtype=np.uint64)
        joint.sort()
        order = (joint & np.uint64(0xFFFFFF)).view(np.int64)
        joint >>= np.uint64(24)
        return joint.view(np.int64), positions[order]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], positions[order]


def pack_blocks(hashes: I64, positions: I64) -> list[tuple[int, bytes]]:
    """Blocks of sorted pairs as (first hash, value); a hash with many pairs begins several."""
    if not len(hashes):
        return []
    starts = np.arange(0, len(hashes), BLOCK, dtype=np.int64)
    firsts = hashes[starts]
    return list(zip(firsts.tolist(), _packed(hashes, positions, starts, firsts), strict=True))


def pack_block(first: int, hashes: I64, positions: I64) -> bytes:
    """One block of a few sorted pairs, none below `first`."""
    start = np.zeros(1, dtype=np.int64)
    return _packed(hashes, positions, start, np.array([first], dtype=np.int64))[0]


def _packed(hashes: I64, positions: I64, starts: I64, firsts: I64) -> list[bytes]:
    counts = np.diff(starts, append=len(hashes))
    wide = _widths(hashes[starts + counts - 1] - firsts)
    far = _widths(np.maximum.reduceat(positions, starts))
    far[(wide + far == 0) & (counts > 1)] = 1
    values: list[bytes] = [b""] * len(starts)
    # Nearly all blocks have the same count and widths. They are packed together, which takes a
    # third of the time of packing each alone, and hardly any of it under the GIL.
    for alike in _alike(counts, wide << 4 | far):
        count, w, f = int(counts[alike[0]]), int(wide[alike[0]]), int(far[alike[0]])
        pairs = starts[alike][:, None] + np.arange(count)
        out = np.empty((len(alike), _SIZE + (w + f) * count), dtype=np.uint8)
        out[:, :_SIZE] = np.frombuffer(HEADER.pack(w | f << 4, count), np.uint8)
        _put_planes(out, _SIZE, hashes[pairs] - firsts[alike][:, None], w)
        _put_planes(out, _SIZE + w * count, positions[pairs], f)
        raw, size = out.tobytes(), out.shape[1]
        for number, block in enumerate(alike.tolist()):
            values[block] = raw[number * size : (number + 1) * size]
    return values


def _widths(largest: I64) -> I64:
    """The width of numbers in bytes."""
    found = np.zeros(len(largest), dtype=np.int64)
    while largest.any():
        found += largest != 0
        largest = largest >> 8
    return found


def _alike(counts: I64, widths: I64) -> Iterator[I64]:
    """The numbers of blocks that have count and widths in common, in groups of bounded size."""
    kinds = counts << 8 | widths
    for kind in sorted(set(kinds.tolist())):
        alike = np.flatnonzero(kinds == kind)
        together = max(_TOGETHER // (kind >> 8), 1)
        for at in range(0, len(alike), together):
            yield alike[at : at + together]


def _put_planes(out: U8, at: int, columns: I64, width: int) -> None:
    """Put numbers, a row for each block, into the blocks from `at` on, plane by plane."""
    count = columns.shape[1]
    planes = np.ascontiguousarray(columns, dtype="<i8").view(np.uint8).reshape(-1, count, 8)
    for plane in range(width):
        out[:, at + plane * count : at + (plane + 1) * count] = planes[:, :, plane]


def find_in_block(first: int, value: bytes, low: int, high: int) -> list[tuple[int, int]]:
    """The pairs whose hash is `low` to `high`, both included: hashes and positions, in order."""
    wide, far, count = _header(value)
    begin = _before(value, wide, count, low - first)
    end = _before(value, wide, count, high + 1 - first)
    at = _SIZE + wide * count
    return [
        (first + _number(value, _SIZE + i, wide, count), _number(value, at + i, far, count))
        for i in range(begin, end)
    ]


def count_in(value: bytes) -> int:
    """How many pairs a block has."""
    return _header(value)[2]


def _before(value: bytes, width: int, count: int, wanted: int) -> int:
    """How many distances of a block are below `wanted`."""
    if wanted <= 0 or wanted >> 8 * width:
        return 0 if wanted <= 0 else count
    low, high = 0, count
    # Where the higher bytes are equal, the next byte rises: each plane is bisected in turn.
    for plane in range(width - 1, -1, -1):
        at, byte = _SIZE + plane * count, wanted >> 8 * plane & 0xFF
        low = bisect_left(value, byte, at + low, at + high) - at
        high = bisect_right(value, byte, at + low, at + high) - at
        if low == high:
            break
    return low


def _number(value: bytes, at: int, width: int, step: int) -> int:
    number = 0
    for plane in range(width):
        number |= value[at + plane * step] << (8 * plane)
    return number


def unpack_block(first: int, value: bytes) -> tuple[I64, I64]:
    """Hashes and positions of a block; `FormatError` if the value is not a block."""
    return unpack_blocks([first], [value])


def unpack_blocks(firsts: Sequence[int], values: Sequence[bytes]) -> tuple[I64, I64]:
    """Hashes and positions of consecutive blocks; `FormatError` if one of the values is not a
    block.
    """
    headers = np.array([_header(value) for value in values], dtype=np.int64).reshape(-1, 3)
    wide, far, counts = headers[:, 0], headers[:, 1], headers[:, 2]
    ends = np.cumsum(counts)
    bases, starts = np.array(firsts, dtype=np.int64), ends - counts
    total = int(counts.sum())
    hashes, positions = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for alike in _alike(counts, wide << 4 | far):
        count, w, f = int(counts[alike[0]]), int(wide[alike[0]]), int(far[alike[0]])
        raw = np.frombuffer(b"".join([values[i] for i in alike.tolist()]), np.uint8)
        blocks = raw.reshape(len(alike), -1)
        pairs = starts[alike][:, None] + np.arange(count)
        hashes[pairs] = bases[alike][:, None] + _unpack_planes(blocks, _SIZE, w, count)
        positions[pairs] = _unpack_planes(blocks, _SIZE + w * count, f, count)
    return hashes, positions


def _header(value: bytes) -> tuple[int, int, int]:
    if len(value) < _SIZE:
        raise FormatError(f"a key block has {len(value)} bytes, at least {_SIZE} are needed")
    widths, count = HEADER.unpack_from(value)
    wide, far = widths & 15, widths >> 4
    if not count or (wide + far == 0 and count > 1):
        raise FormatError(f"a key block of no bytes a pair can't hold {count} pairs")
    if wide > 8 or far > 8 or len(value) != _SIZE + (wide + far) * count:
        raise FormatError("a key block's length does not follow from its header")
    return wide, far, count


def _unpack_planes(blocks: U8, at: int, width: int, count: int) -> I64:
    """The inverse of `_put_planes`."""
    found = np.zeros((len(blocks), count, 8), dtype=np.uint8)
    for plane in range(width):
        found[:, :, plane] = blocks[:, at + plane * count : at + (plane + 1) * count]
    return found.view("<i8")[:, :, 0].astype(np.int64, copy=False)
