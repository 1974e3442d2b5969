"""Filter: whether a key may be in an archive, from memory alone.

The idea: a Bloom filter in blocks of 512 bits, so that one look touches one cache line. What it
holds is the 32 bits of a key's hash, not the topic's 8: one filter then answers for a key in one
topic and for a key in any. The block is the upper end of digest times number of blocks, so that
sorted digests fill it from front to back and building takes no more memory than the filter.

Invariants: what was added is never denied; at most `BITS_A_MESSAGE` bits a message, however many
keys each has.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError

BITS_A_KEY: Final = 10
BITS_A_MESSAGE: Final = 12
_BLOCK_BITS: Final = 512
_BLOCK_BYTES: Final = _BLOCK_BITS // 8
_HEAD: Final = Struct(">BI")
"""Hash functions, blocks; then the blocks."""
_HASHES_MAX: Final = 7
_BITS_OF_PLACE: Final = 9
"""Bits that say which of a block's bits; `_HASHES_MAX` of them are what one mixed number has."""
_PIECE: Final = 1 << 16
"""Digests added at a time."""
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ADD, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def build(digests: NDArray[np.uint32], messages: int) -> bytes:
    """The payload of the filter of sorted, distinct digests."""
    keys = max(len(digests), 1)
    bits = min(BITS_A_KEY * keys, BITS_A_MESSAGE * max(messages, 1))
    blocks = max(bits // _BLOCK_BITS, 1)
    hashes = min(max(round(bits / keys * 0.69), 1), _HASHES_MAX)
    filled = np.zeros((blocks, _BLOCK_BYTES), np.uint8)
    for at in range(0, len(digests), _PIECE):
        some = digests[at : at + _PIECE].astype(np.uint64)
        block = ((some * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)
        first, last = int(block[0]), int(block[-1])
        marked = np.zeros((last - first + 1, _BLOCK_BITS), np.uint8)
        mixed = _mix_many(some)
        for turn in range(hashes):
            place = (mixed >> np.uint64(_BITS_OF_PLACE * turn)) & np.uint64(_BLOCK_BITS - 1)
            marked[block - first, place.astype(np.int64)] = 1
        filled[first : last + 1] |= np.packbits(marked, axis=1, bitorder="little")
    return _HEAD.pack(hashes, blocks) + filled.tobytes()


class Filter:
    """The filter of one archive. Raises FormatError for a payload that is none."""

    __slots__ = ("_blocks", "_data", "_hashes")

    def __init__(self, payload: bytes) -> None:
        if len(payload) < _HEAD.size:
            raise FormatError("a filter has no head")
        self._hashes, self._blocks = _HEAD.unpack_from(payload)
        self._data = payload
        if not 1 <= self._hashes <= _HASHES_MAX or not self._blocks:
            raise FormatError(f"a filter of {self._hashes} hashes and {self._blocks} blocks")
        if len(payload) != _HEAD.size + self._blocks * _BLOCK_BYTES:
            raise FormatError("a filter's size does not follow from its head")

    def may_hold(self, digest: int) -> bool:
        """Whether a key of that digest (the upper 32 bits of its hash) may be in the archive."""
        at = _HEAD.size + (digest * self._blocks >> 32) * _BLOCK_BYTES
        block = int.from_bytes(self._data[at : at + _BLOCK_BYTES], "little")
        mixed = _mix(digest)
        for _ in range(self._hashes):
            if not block >> (mixed & _BLOCK_BITS - 1) & 1:
                return False
            mixed >>= _BITS_OF_PLACE
        return True

    def denied(self, digests: NDArray[np.int64]) -> int:
        """How many of those digests are said not to be there."""
        some = digests.astype(np.uint64)
        block = ((some * np.uint64(self._blocks)) >> np.uint64(32)).astype(np.int64)
        filled = np.frombuffer(self._data, np.uint8, offset=_HEAD.size)
        mixed = _mix_many(some)
        held = np.ones(len(some), np.bool_)
        for turn in range(self._hashes):
            place = (mixed >> np.uint64(_BITS_OF_PLACE * turn)) & np.uint64(_BLOCK_BITS - 1)
            byte = filled[block * _BLOCK_BYTES + (place >> np.uint64(3)).astype(np.int64)]
            held &= (byte >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        return len(held) - int(held.sum())

    @property
    def memory_bytes(self) -> int:
        """What it takes."""
        return len(self._data)


def _mix(digest: int) -> int:
    """The finisher of splitmix64: every bit of it depends on every bit of the digest."""
    mixed = digest + _ADD & _MASK
    mixed = (mixed ^ mixed >> 30) * _FIRST & _MASK
    mixed = (mixed ^ mixed >> 27) * _SECOND & _MASK
    return mixed ^ mixed >> 31


def _mix_many(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = digests + np.uint64(_ADD)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_FIRST)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_SECOND)
    return mixed ^ mixed >> np.uint64(31)
