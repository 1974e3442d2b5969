"""Key blocks that were read, in bounded memory.

The idea: nearly every hash lies between the first hash and the last of one block, and then no other
block of its part has it. So a block that was read answers for most of its hashes without RocksDB.
Blocks are kept by the piece of the part that they are in; where they take too much, those of the
piece that was read first go.

Invariant: an answer is that of the rows as they were when they were read; `forget` drops what was
read before it, also by a look that goes on.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Final

from kvstore.core.packed_pairs import positions_inside

BLOCKS_CACHED_BYTES_MAX: Final = 32 << 20
"""Blocks in memory."""
_OVERHEAD: Final = 150
"""Bytes that a block takes in memory beside its own."""

Block = tuple[int, bytes]
"""The first hash and the value."""


class KnownBlocks:
    """The blocks of a store's key index that memory has; see the module."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[tuple[int, int], list[Block]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.version = 0
        """Rises when blocks are forgotten."""

    def __len__(self) -> int:
        return sum(map(len, self._pieces.values()))

    def positions(self, serial: int, piece: int, wanted: int) -> list[int] | None:
        """All positions that a piece of a part has of a hash, behind the part's beginning, rising;
        None if memory can't tell.
        """
        blocks = self._pieces.get((serial, piece), ())
        at = bisect_left(blocks, (wanted,))
        return positions_inside(*blocks[at - 1], wanted) if at else None

    def add(self, version: int, serial: int, piece: int, block: Block) -> None:
        """Keeps a block, which was read when the version was this one."""
        with self._lock:
            blocks = self._pieces.get((serial, piece), [])
            if version != self.version or block in blocks:
                return
            # A copy: readers look at the old list.
            blocks = blocks.copy()
            insort(blocks, block)
            self._pieces[serial, piece] = blocks
            self._bytes += len(block[1]) + _OVERHEAD
            while self._bytes > BLOCKS_CACHED_BYTES_MAX:
                _, oldest = self._pieces.popitem(last=False)
                self._bytes -= sum(len(value) + _OVERHEAD for _, value in oldest)

    def forget(self) -> None:
        """Drops all, since blocks changed."""
        with self._lock:
            self.version += 1
            self._pieces.clear()
            self._bytes = 0
