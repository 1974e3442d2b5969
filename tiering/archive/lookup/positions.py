"""Position index: the block and row of each log position, in chunks by position, and fences.

The idea: the messages of an archive in the order of their positions have ranks; `CHUNK` ranks make
a chunk. In a chunk the positions are a sorted column. Each message's block is an index into the
list of the chunk's blocks: a segment has many messages, but few queues that take them in turn. The
row in the block follows by counting from the block's first row in the chunk, since a block's
positions rise; where they do not, the rows are stored.

Invariants: positions rise strictly; a rank tells its chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError
from tiering.archive.columns.packed import I64, ByteReader, Narrow, encode_column, encode_sorted
from tiering.archive.lookup.key_index import chunk_ends

CHUNK: Final = 4096
"""Messages in a chunk."""
_HEAD: Final = Struct(">QI")
"""The fences' head: messages, chunks."""
_CHUNK_HEAD: Final = Struct(">BH")
"""The form of a chunk's rows (below), number of different blocks."""
_COUNTED, _KEPT = 0, 1


class PositionColumns(NamedTuple):
    """Some messages in the order of their positions."""

    positions: I64
    blocks: I64
    rows: I64


def encode_chunks(positions: I64, ordinals: I64, starts: I64) -> Iterator[tuple[int, bytes]]:
    """The first position and the payload of each chunk.

    `positions` rise; `ordinals` are the messages' numbers in the order of blocks and rows, and
    `starts` the number of each block's first.
    """
    for at in range(0, len(positions), CHUNK):
        some = ordinals[at : at + CHUNK]
        blocks = np.searchsorted(starts, some, side="right") - 1
        rows = some - starts[blocks]
        distinct, first, index = _distinct(blocks)
        is_counted = bool(np.array_equal(_counted(index, rows[first]), rows))
        payload = [
            _CHUNK_HEAD.pack(_COUNTED if is_counted else _KEPT, len(distinct)),
            encode_sorted(positions[at : at + CHUNK]),
            encode_sorted(distinct),
            encode_column(index),
            encode_column(rows[first] if is_counted else rows),
        ]
        yield int(positions[at]), b"".join(payload)


def _distinct(blocks: I64) -> tuple[I64, NDArray[np.intp], I64]:
    distinct, first, index = np.unique(blocks, return_index=True, return_inverse=True)
    return distinct, first, index.reshape(-1).astype(np.int64)


def _counted(index: I64, first_rows: I64) -> I64:
    """The rows, where each block's rows follow one another from its first row on."""
    order = np.argsort(index, kind="stable")
    grouped = index[order]
    begins = np.searchsorted(grouped, np.arange(len(first_rows)))
    rows = np.empty(len(index), np.int64)
    rows[order] = np.arange(len(index)) - begins[grouped] + first_rows[grouped]
    return rows


def encode_fences(messages: int, firsts: I64, sizes: I64) -> bytes:
    """The payload of the fences: first position and size of each chunk."""
    return _HEAD.pack(messages, len(firsts)) + encode_sorted(firsts) + encode_column(sizes)


def decode_chunk(payload: bytes, count: int) -> PositionColumns:
    """A chunk of `count` messages; FormatError if the payload is no such chunk."""
    cursor = ByteReader(payload)
    kind, distinct = cursor.head(_CHUNK_HEAD)
    positions = cursor.sorted(count)
    blocks = cursor.sorted(distinct)
    index = cursor.column(count)
    if kind > _KEPT or (count and not 0 <= int(index.min()) <= int(index.max()) < distinct):
        raise FormatError("a chunk of positions names a block it does not have")
    rows = cursor.column(count if kind == _KEPT else distinct)
    cursor.end()
    return PositionColumns(
        positions, blocks[index], rows if kind == _KEPT else _counted(index, rows)
    )


class PositionFences:
    """The positions of each chunk. Raises FormatError for a payload that is no fences."""

    __slots__ = ("_ends", "_firsts", "chunks", "messages")

    def __init__(self, payload: bytes, section_size: int) -> None:
        cursor = ByteReader(payload)
        self.messages, self.chunks = cursor.head(_HEAD)
        if self.chunks != -(-self.messages // CHUNK) or self.chunks > section_size:
            raise FormatError(f"position fences of {self.messages} in {self.chunks} chunks")
        self._firsts = Narrow(cursor.sorted(self.chunks))
        self._ends = chunk_ends(cursor.column(self.chunks), section_size)
        cursor.end()

    def chunk_of(self, position: int) -> int | None:
        """The chunk that has a position, if any chunk has it."""
        at = bisect_right(range(self.chunks), position, key=self._firsts.__getitem__)
        return at - 1 if at else None

    def extent(self, chunk: int) -> tuple[int, int]:
        """The begin and end of a chunk in its section."""
        return (self._ends[chunk - 1] if chunk else 0), self._ends[chunk]

    def count(self, chunk: int) -> int:
        """Messages in a chunk."""
        return min(CHUNK, self.messages - chunk * CHUNK)

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the fences take."""
        return self._firsts.memory_bytes + self._ends.memory_bytes
