"""Key index: the messages that may have a key, in chunks of sorted (digest, rank) pairs, and
fences.

The idea: a digest is the upper 32 bits of a key's hash; a rank is the place of a message in the
order of positions. Candidates are compared with the record anyway. So only as many upper bits of
each digest are kept as tell the archive's keys apart (about one wrong candidate in 16 look-ups).
The topic's 8 bits are not kept at all, since the message's block tells its topic. So a pair takes 7
bits and a rank. The position index, which a look-up reads next to find the message's block, turns
the rank into a position.

Invariants: pairs rise, over chunks too; chunks hold `CHUNK` pairs each, the last one the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError
from tiering.archive.columns.packed import I64, ByteReader, Narrow, encode_column, encode_sorted

CHUNK: Final = 4096
"""Pairs in a chunk."""
_DIGEST_BITS: Final = 32
_SPARE_BITS: Final = 4
"""Bits of a digest beyond those that number the keys: 2 ** -4 of look-ups see a wrong candidate."""
_HEAD: Final = Struct(">BQI")
"""The fences' head: dropped bits of a digest, pairs, chunks."""


def dropped_bits(keys: int) -> int:
    """The number of lower bits of a digest that an archive with that many keys does not keep."""
    return max(_DIGEST_BITS - keys.bit_length() - _SPARE_BITS, 0)


def sort_pairs(digests: NDArray[np.uint32], ranks: NDArray[np.uint32]) -> I64:
    """Pairs in order, without duplicates, as digest << 32 | rank."""
    pairs = digests.astype(np.uint64) << np.uint64(32) | ranks.astype(np.uint64)
    pairs.sort()
    if len(pairs):
        pairs = pairs[np.concatenate(([True], pairs[1:] != pairs[:-1]))]
    return pairs.view(np.int64)


def encode_chunks(pairs: I64) -> Iterator[tuple[int, bytes]]:
    """The first kept digest and the payload of each chunk of the pairs from `sort_pairs`."""
    drop = dropped_bits(len(pairs))
    for at in range(0, len(pairs), CHUNK):
        some = pairs[at : at + CHUNK].view(np.uint64)
        kept = (some >> np.uint64(32 + drop)).astype(np.int64)
        ranks = (some & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        yield int(kept[0]), encode_sorted(kept) + encode_column(ranks)


def encode_fences(pairs: int, firsts: I64, sizes: I64) -> bytes:
    """The payload of the fences: first kept digest and size of each chunk."""
    head = _HEAD.pack(dropped_bits(pairs), pairs, len(firsts))
    return head + encode_sorted(firsts) + encode_column(sizes)


class KeyFences:
    """The digests of each chunk. Raises FormatError for a payload that is no fences."""

    __slots__ = ("_ends", "_firsts", "chunks", "drop", "pairs")

    def __init__(self, payload: bytes, section_size: int) -> None:
        cursor = ByteReader(payload)
        self.drop, self.pairs, self.chunks = cursor.head(_HEAD)
        if self.drop > _DIGEST_BITS or self.chunks != -(-self.pairs // CHUNK):
            raise FormatError(f"key fences of {self.pairs} pairs in {self.chunks} chunks")
        if self.chunks > section_size:
            raise FormatError(f"{self.chunks} chunks are not in {section_size} bytes")
        self._firsts = Narrow(cursor.sorted(self.chunks))
        self._ends = chunk_ends(cursor.column(self.chunks), section_size)
        cursor.end()

    def chunks_of(self, low: int, high: int) -> range:
        """The chunks that may have digests from `low` to `high`, both included."""
        every = range(self.chunks)
        first = bisect_left(every, low >> self.drop, key=self._firsts.__getitem__)
        stop = bisect_right(every, high >> self.drop, key=self._firsts.__getitem__)
        # A digest's pairs may begin in the chunk before the first one that begins with it.
        return range(max(first - 1, 0), stop)

    def extent(self, chunk: int) -> tuple[int, int]:
        """The begin and end of a chunk in its section."""
        return (self._ends[chunk - 1] if chunk else 0), self._ends[chunk]

    def decode(self, chunk: int, payload: bytes) -> tuple[I64, I64]:
        """Kept digests and ranks of a chunk."""
        count = min(CHUNK, self.pairs - chunk * CHUNK)
        cursor = ByteReader(payload)
        kept, ranks = cursor.sorted(count), cursor.column(count)
        cursor.end()
        return kept, ranks

    def find(self, chunk: int, payload: bytes, low: int, high: int) -> I64:
        """The ranks of a chunk's pairs whose digest may be from `low` to `high`."""
        kept, ranks = self.decode(chunk, payload)
        first = np.searchsorted(kept, low >> self.drop, side="left")
        stop = np.searchsorted(kept, high >> self.drop, side="right")
        return ranks[first:stop]

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the fences take."""
        return self._firsts.memory_bytes + self._ends.memory_bytes


def chunk_ends(sizes: I64, section_size: int) -> Narrow:
    """The end of each chunk in its section; FormatError if the chunks do not fill the section."""
    if len(sizes) and (int(sizes.min()) <= 0 or int(sizes.max()) > section_size):
        raise FormatError("a chunk's size is none")
    ends = np.cumsum(sizes)
    if (int(ends[-1]) if len(ends) else 0) != section_size:
        raise FormatError(f"chunks do not fill the {section_size} bytes of their section")
    return Narrow(ends)
