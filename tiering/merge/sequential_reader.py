"""Reads archives from front to back, several at once, for a merge.

The idea: blocks lie in the order in which a merge wants them. So each archive is read in windows of
some megabytes, whatever queues the blocks are of: a block of a few messages costs no request of its
own.

Invariants: a window holds the coded bytes of neighbouring blocks, at most one window an archive;
one block an archive, with those that share its bytes, is decoded at a time; the offsets of the
messages that `in_order` gives rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.tail import read_exactly

I64 = NDArray[np.int64]


class QueueRows(NamedTuple):
    """Messages of one queue: whole records, and their offsets and store times."""

    records: list[bytes]
    offsets: I64
    stored_at: I64

    @classmethod
    def of(cls, block: Block) -> QueueRows:
        """All messages of a block."""
        return cls(block.records(), block.offsets, block.stored_at)

    def part(self, start: int, stop: int) -> QueueRows:
        """The rows from `start` on and below `stop`."""
        return QueueRows(
            self.records[start:stop], self.offsets[start:stop], self.stored_at[start:stop]
        )

    def within(self, begin: int | None, end: int | None) -> QueueRows:
        """The rows of the offsets from `begin` on and below `end`; None is no border."""
        if begin is None and end is None:
            return self
        start = 0 if begin is None else int(np.searchsorted(self.offsets, begin))
        stop = len(self.records) if end is None else int(np.searchsorted(self.offsets, end))
        return self.part(start, stop)

    def only(self, kept: NDArray[np.bool_]) -> QueueRows:
        """The rows for which `kept` is true."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept)
        records = [self.records[row] for row in rows.tolist()]
        return QueueRows(records, self.offsets[rows], self.stored_at[rows])


class Window:
    """An archive with some neighbouring blocks in memory, coded; only blocks below `stop`, if it
    is given.
    """

    def __init__(self, archive: Archive, size: int, stop: int | None = None) -> None:
        self.archive = archive
        self._size = size
        self._stop = stop
        self._begin = 0
        self._data = memoryview(b"")
        self._group: BlockGroup | None = None

    @cached_property
    def owners(self) -> tuple[I64, I64, I64]:
        """The store's ids of the archive's topics; each block's topic, as a number of these; each
        block's queue.
        """
        rows = self.archive.rows()
        return rows.topic_ids, rows.topics, rows.queues

    def block(self, number: int) -> Block:
        """A block. Unless it is in memory, it is read, with some of those that follow it."""
        if self._group is None or number not in self._group:
            at, sizes, _ = place = self.archive.directory.group(number)
            if not self._begin <= at < self._begin + len(self._data):
                self._read(number)
            data = self._data[at - self._begin : at - self._begin + sum(sizes)]
            self._group = self.archive.decode_group(place, data, asked=number)
        return self.archive.block_of(number, self._group)

    def _read(self, number: int) -> None:
        directory = self.archive.directory
        begin, sizes = directory.extent(number)
        end = begin + sum(sizes)
        stop = directory.blocks if self._stop is None else self._stop
        for following in range(number + 1, stop):
            at, sizes = directory.extent(following)
            if at + sum(sizes) - begin > self._size:
                break
            end = at + sum(sizes)
        self._data = memoryview(read_exactly(self.archive.source, begin, end - begin))
        self._begin = begin


class QueueCursor:
    """How far the blocks of one queue in one archive have been read; only messages from the offset
    `begin` on and below `end`, where they are given.
    """

    def __init__(
        self, window: Window, blocks: range, begin: int | None = None, end: int | None = None
    ) -> None:
        self._window = window
        self._blocks = iter(blocks)
        self._begin, self._end = begin, end
        self._rows = QueueRows([], np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._at = 0
        self.name = window.archive.name

    def is_done(self) -> bool:
        """Whether there is nothing more; reads the next block if it is not known."""
        while self._at == len(self._rows.records):
            number = next(self._blocks, None)
            if number is None:
                return True
            rows = QueueRows.of(self._window.block(number))
            self._rows, self._at = rows.within(self._begin, self._end), 0
        return False

    @property
    def offset(self) -> int:
        """The next message's offset."""
        return int(self._rows.offsets[self._at])

    def take(self, until: int | None) -> QueueRows:
        """The next messages of the same block, those below an offset."""
        rows, begin = self._rows, self._at
        stop = len(rows.records)
        if until is not None:
            stop = int(np.searchsorted(rows.offsets, until))
        self._at = stop
        return rows.part(begin, stop)


def in_order(cursors: Iterable[QueueCursor]) -> Iterator[QueueRows]:
    """The messages of one queue, from all archives, by offset; `ArchiveDamaged` if two have the
    same.
    """
    left = [cursor for cursor in cursors if not cursor.is_done()]
    while left:
        left.sort(key=lambda cursor: cursor.offset)
        until = left[1].offset if len(left) > 1 else None
        if until == left[0].offset:
            raise ArchiveDamaged(
                f"{left[0].name} and {left[1].name} both hold offset {until} of a queue; they stay",
                left[0].name,
            )
        yield left[0].take(until)
        if left[0].is_done():
            left.pop(0)
