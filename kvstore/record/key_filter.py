"""Key filter: whether a key may be somewhere, from a few bits a key.

The idea: a Bloom filter in blocks of 512 bits, so that one look touches one cache line. It holds
the 32 bits of a key's hash, not the topic's 8, so one filter answers for a key in one topic and for
a key in any. A digest's block is the upper bits of digest times number of blocks, so sorted digests
fill the filter from front to back: building takes no more memory than the filter, and consecutive
blocks are the filter of a range of digests. An archive has a whole filter as a section, with a
head; the key index keeps a large filter as pieces, each some blocks of it.

Invariant: an added key is never denied.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.hashing import add_digests, may_hold
from kvstore.errors import FormatError

BLOCK_BITS: Final = 512
BLOCK_BYTES: Final = BLOCK_BITS // 8
_HEAD: Final = Struct(">BI")
"""Hash functions, blocks; then the blocks."""
HASHES_MAX: Final = 7
_BITS_OF_PLACE: Final = 9
"""Bits that say which of a block's bits; `HASHES_MAX` of them are what one mixed number has."""
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ADD, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hashes_for(bits_a_key: float) -> int:
    """The number of bits of its block that a key sets, in a filter of so many bits a key."""
    return min(max(round(bits_a_key * 0.69), 1), HASHES_MAX)


def fill(digests: NDArray[np.uint32], blocks: int, first: int, count: int, hashes: int) -> bytes:
    """The blocks from `first` on, `count` of them, of a filter of `blocks`: digests, all of which
    belong there.
    """
    filled = bytearray(count * BLOCK_BYTES)
    add_digests(filled, digests, blocks, first, hashes)
    return bytes(filled)


def masks_of(digest: int) -> tuple[int, ...]:
    """The bits of a digest in its block, as a number, for each possible number of hashes of a
    filter.
    """
    masks, mixed = [0], _mix(digest)
    for _ in range(HASHES_MAX):
        masks.append(masks[-1] | 1 << (mixed & BLOCK_BITS - 1))
        mixed >>= _BITS_OF_PLACE
    return tuple(masks)


class FilterBuilder:
    """The filter of so many distinct digests, of about so many bits, while it is built."""

    def __init__(self, keys: int, bits: int) -> None:
        self._hashes = hashes_for(bits / max(keys, 1))
        self._filled = np.zeros((max(bits // BLOCK_BITS, 1), BLOCK_BYTES), np.uint8)

    def add(self, digests: NDArray[np.uint32]) -> None:
        """Adds digests; one may come again."""
        add_digests(self._filled, digests, len(self._filled), 0, self._hashes)

    def payload(self) -> bytes:
        """The filter as a section."""
        return b"".join((_HEAD.pack(self._hashes, len(self._filled)), self._filled.data))


class Filter:
    """A whole filter, with so many hash functions. Raises FormatError for a payload that is not a
    filter.
    """

    __slots__ = ("_blocks", "_data", "hashes")

    def __init__(self, payload: bytes) -> None:
        if len(payload) < _HEAD.size:
            raise FormatError("a filter has no head")
        self.hashes, self._blocks = _HEAD.unpack_from(payload)
        self._data = payload
        if not 1 <= self.hashes <= HASHES_MAX or not self._blocks:
            raise FormatError(f"a filter of {self.hashes} hashes and {self._blocks} blocks")
        if len(payload) != _HEAD.size + self._blocks * BLOCK_BYTES:
            raise FormatError("a filter's size does not follow from its head")

    def may_hold(self, digest: int) -> bool:
        """Whether a key of that digest (the upper 32 bits of its hash) may be there."""
        return may_hold(self._data, _HEAD.size, self._blocks, 0, digest, self.hashes)

    def blocks(self) -> NDArray[np.uint64]:
        """The filter's blocks, a row of 8 words each."""
        return np.frombuffer(self._data, "<u8", offset=_HEAD.size).reshape(self._blocks, -1)

    def denied(self, digests: NDArray[np.int64]) -> int:
        """The number of these digests that the filter denies."""
        some = digests.astype(np.uint64)
        block = ((some * np.uint64(self._blocks)) >> np.uint64(32)).astype(np.int64)
        filled = np.frombuffer(self._data, np.uint8, offset=_HEAD.size)
        mixed = _mix_many(some)
        held = np.ones(len(some), np.bool_)
        for turn in range(self.hashes):
            place = (mixed >> np.uint64(_BITS_OF_PLACE * turn)) & np.uint64(BLOCK_BITS - 1)
            byte = filled[block * BLOCK_BYTES + (place >> np.uint64(3)).astype(np.int64)]
            held &= (byte >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        return len(held) - int(held.sum())

    @property
    def memory_bytes(self) -> int:
        """The filter's size in memory."""
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
