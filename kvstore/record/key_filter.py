"""Key filter: whether a key may be somewhere, from a few bits a key.

The idea: a Bloom filter in blocks of 512 bits, so that one look touches one cache line. It holds
the 32 bits of a key's hash, not the topic's 8, so one filter answers for a key in one topic and for
a key in any. A digest's block is the upper bits of digest times number of blocks, so sorted digests
fill the filter from front to back: building takes no more memory than the filter, and consecutive
blocks are the filter of a range of digests. An archive has a whole filter as a section, with a
head; the key index keeps a large filter as pieces of some blocks each.

Invariant: an added key is never denied.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.hashing import add_digests, count_denied, may_hold
from kvstore.errors import FormatError

BLOCK_BITS: Final = 512
BLOCK_BYTES: Final = BLOCK_BITS // 8
_HEAD: Final = Struct(">BI")
"""Hash functions, blocks; then the blocks."""
HASHES_MAX: Final = 7


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

    def denied(self, digests: NDArray[np.uint32]) -> int:
        """The number of these digests that the filter denies."""
        return count_denied(self._data, _HEAD.size, self._blocks, digests, self.hashes)

    @property
    def memory_bytes(self) -> int:
        """The filter's size in memory."""
        return len(self._data)
