"""Tail columns: the columns that an archive's blocks leave behind for its tail.

The idea: directory, filter and indexes need a few numbers of every block, and of every message its
position and its keys' digests. A piece of an archive has these as `TailColumns`. Of a whole archive
`ArchiveColumns` keeps the blocks' numbers in memory, and sorts the messages' outside memory: by
position, which makes ranks; then pairs of digest and rank.

Invariants: a message's number is its place in the order of blocks and rows; the columns do not
depend on the portions in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import CallerError
from tiering.archive.columns.packed import I64
from tiering.archive.external_sort import ExternalSort, MakeScratch, Rows
from tiering.archive.indexes import CHUNK

MESSAGES_MAX: Final = (1 << 32) - 1
"""A message's rank takes 32 bits in the key index."""
ROW_COLUMNS: Final = 10
GROUP_COLUMNS: Final = 7
_PLACED: Final = np.dtype([("position", "<i8"), ("number", "<u4")])
_KEYED: Final = np.dtype([("position", "<i8"), ("digest", "<u4")])
_DIGEST_SHIFT: Final = np.uint64(32)


class BlockColumns(NamedTuple):
    """`rows` are the columns of the directory with one row a block: topic number, queue, then those
    of `BlockRows`. `groups` have one row a group: its blocks, the sizes of its parts, and their
    decoded sizes.
    """

    rows: tuple[I64, ...]
    groups: tuple[I64, ...]

    @classmethod
    def join(cls, parts: Sequence[BlockColumns]) -> BlockColumns:
        """The columns of all parts, in that order."""
        parts = [_NO_BLOCKS, *parts]
        rows = tuple(map(np.concatenate, zip(*(part.rows for part in parts), strict=True)))
        groups = tuple(map(np.concatenate, zip(*(part.groups for part in parts), strict=True)))
        return cls(rows, groups)


_NONE: Final = np.zeros(0, np.int64)
_NO_BLOCKS: Final = BlockColumns((_NONE,) * ROW_COLUMNS, (_NONE,) * GROUP_COLUMNS)


class TailColumns(NamedTuple):
    """The columns of some blocks; each message's position; and the digests of keys, each with the
    number of its message.
    """

    blocks: BlockColumns
    positions: I64
    digests: NDArray[np.uint32]
    keyed: NDArray[np.uint32]

    @classmethod
    def join(cls, parts: Sequence[TailColumns]) -> TailColumns:
        """The columns of all parts, in that order."""
        no_keys = np.zeros(0, np.uint32)
        parts = [cls(_NO_BLOCKS, _NONE, no_keys, no_keys), *parts]
        numbers = np.cumsum([0, *(len(part.positions) for part in parts[:-1])], dtype=np.uint32)
        return cls(
            BlockColumns.join([part.blocks for part in parts]),
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.digests for part in parts]),
            np.concatenate([part.keyed + at for part, at in zip(parts, numbers, strict=True)]),
        )


class ArchiveColumns:
    """The columns of an archive that is being written: `add` in the order of its blocks, then the
    rest.
    """

    def __init__(self, scratch: MakeScratch) -> None:
        self._scratch = scratch
        self._blocks: list[BlockColumns] = []
        self._positions = ExternalSort(_PLACED, scratch)
        self._keys = ExternalSort(_KEYED, scratch)
        self.first_position = self.last_position = 0

    @property
    def messages(self) -> int:
        """The number of messages."""
        return self._positions.rows

    @property
    def blocks(self) -> BlockColumns:
        """The columns of all blocks."""
        return BlockColumns.join(self._blocks)

    def add(self, more: TailColumns) -> None:
        """Appends columns. Raises CallerError if an archive can't hold that many."""
        base, count = self.messages, len(more.positions)
        if base + count > MESSAGES_MAX:
            raise CallerError(f"an archive holds at most {MESSAGES_MAX:,} messages")
        if not count:
            return
        first, last = int(more.positions.min()), int(more.positions.max())
        self.first_position = min(self.first_position, first) if base else first
        self.last_position = max(self.last_position, last)
        self._blocks.append(more.blocks)
        self._positions.add(more.positions, np.arange(base, base + count))
        # A message may name a key twice.
        keys = np.sort(more.keyed.astype(np.uint64) << _DIGEST_SHIFT | more.digests)
        keys = keys[np.diff(keys, prepend=~keys[:1]) != 0]
        keyed = (keys >> _DIGEST_SHIFT).astype(np.int64)
        self._keys.add(more.positions[keyed], keys.astype(np.uint32))

    def by_position(self) -> Iterator[tuple[I64, I64]]:
        """Positions, rising, and the messages' numbers; some chunks of an index at a time. Raises
        CallerError if two records have one position.
        """
        before = -1
        for rows in self._positions.sorted(multiple_of=CHUNK):
            positions = rows["position"].astype(np.int64)
            if before == positions[0] or bool((positions[1:] == positions[:-1]).any()):
                raise CallerError("two records have the same position")
            before = int(positions[-1])
            yield positions, rows["number"].astype(np.int64)

    def key_pairs(self) -> ExternalSort:
        """The pairs of the key index, as digest << 32 | rank; no two are the same."""
        pairs = ExternalSort(np.uint64, self._scratch)
        keys = self._keys.sorted()
        ahead = np.empty(0, _KEYED)
        rank = 0
        for positions, _ in self.by_position():
            last = positions[-1]
            parts: list[Rows] = [ahead]
            while not len(parts[-1]) or parts[-1]["position"][-1] <= last:
                more = next(keys, None)
                if more is None:
                    break
                parts.append(more)
            ahead = np.concatenate(parts)
            mine = ahead[: np.searchsorted(ahead["position"], last, "right")]
            ahead = ahead[len(mine) :]
            ranks = np.searchsorted(positions, mine["position"]) + rank
            pairs.add(mine["digest"].astype(np.uint64) << _DIGEST_SHIFT | ranks.astype(np.uint64))
            rank += len(positions)
        return pairs
