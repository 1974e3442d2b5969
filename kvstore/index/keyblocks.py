"""Message keys packed: blocks of sorted (key hash, position) pairs of one segment.

The idea: a pair is the key's 40-bit hash and the record's position in the segment. Hashes are
stored as distance from the block's first (which is the row's key), both columns plane by plane like
a run's: the high planes of a sorted column compress to almost nothing, and a hash is found by
bisection on the packed bytes, decoding nothing. Layout in docs/keys.md.

Invariants: inside one part (segment, part number) hashes rise from block to block, and one hash is
in one block; a block of several pairs has at least one byte for each, so that reading one allocates
no more than its length allows.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError

I64 = NDArray[np.int64]

BLOCK: Final = 256
"""Pairs in a block."""

# Little-endian: widths (hash | position << 4), count; then the planes of the hash distances, then
# of the positions.
HEADER: Final = Struct("<BI")
_SIZE: Final = HEADER.size


def sort_pairs(hashes: I64, positions: I64) -> tuple[I64, I64]:
    """Pairs in the order blocks want: by hash. Pairs of one hash come in the order they had."""
    if len(hashes) < 1 << 24:
        # One sort of one number (hash, then place in the input) is five times as fast as argsort.
        joint = hashes.astype(np.uint64) << np.uint64(24) | np.arange(len(hashes), dtype=np.uint64)
        joint.sort()
        order = (joint & np.uint64(0xFFFFFF)).astype(np.int64)
        return (joint >> np.uint64(24)).astype(np.int64), positions[order]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], positions[order]


def pack_blocks(hashes: I64, positions: I64) -> list[tuple[int, bytes]]:
    """Blocks of sorted pairs as (first hash, value); positions are relative to the segment.

    Pairs of one hash stay in one block, so that one seek finds them all; a block with a very common
    key is as large as it has to be.
    """
    blocks = []
    at, total = 0, len(hashes)
    while at < total:
        end = min(at + BLOCK, total)
        if end < total and hashes[end - 1] == hashes[end]:
            common = hashes[end]
            left = int(np.searchsorted(hashes, common, side="left"))
            end = left if left > at else int(np.searchsorted(hashes, common, side="right"))
        blocks.append((int(hashes[at]), _pack(hashes[at:end] - hashes[at], positions[at:end])))
        at = end
    return blocks


def _pack(distances: I64, positions: I64) -> bytes:
    wide = (int(distances[-1]).bit_length() + 7) // 8
    far = (int(positions.max()).bit_length() + 7) // 8
    if wide + far == 0 and len(distances) > 1:
        far = 1
    return (
        HEADER.pack(wide | far << 4, len(distances))
        + _planes(distances, wide)
        + _planes(positions, far)
    )


def _planes(column: I64, width: int) -> bytes:
    rows = np.ascontiguousarray(column, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return rows[:, :width].T.tobytes()


def find_in_block(first: int, value: bytes, low: int, high: int) -> list[int]:
    """Positions of the pairs whose hash is `low` to `high`, both included; in no order, maybe
    repeated.
    """
    wide, far, count = _header(value)
    i = _bisect(value, wide, count, low - first)
    found = []
    at = _SIZE + wide * count
    while i < count and first + _number(value, _SIZE + i, wide, count) <= high:
        found.append(_number(value, at + i, far, count))
        i += 1
    return found


def _bisect(value: bytes, width: int, count: int, wanted: int) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _number(value, _SIZE + middle, width, count) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _number(value: bytes, at: int, width: int, step: int) -> int:
    number = 0
    for plane in range(width):
        number |= value[at + plane * step] << (8 * plane)
    return number


def unpack_block(first: int, value: bytes) -> tuple[I64, I64]:
    """Hashes and positions of a block; `FormatError` if the value is none."""
    wide, far, count = _header(value)
    return first + _take(value, _SIZE, wide, count), _take(value, _SIZE + wide * count, far, count)


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


def _take(value: bytes, at: int, width: int, count: int) -> I64:
    out = np.zeros((count, 8), dtype=np.uint8)
    if width:
        out[:, :width] = np.frombuffer(value, np.uint8, width * count, at).reshape(width, count).T
    return out.view("<i8")[:, 0].astype(np.int64, copy=False)
