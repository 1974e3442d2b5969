"""Directory tables: keeps rows of archives' directories between two looks of a stream.

The idea: a stream asks the same directories again and again, until it has gone past them. Only the
columns that say which messages a block has are kept of each, in bounded memory.

Invariant: a table is of one object, which never changes, so it is never old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import Manifest
from tiering.catalog.bucket import AT_ONCE
from tiering.spark.listing import ListedArchive, Opener

I64 = NDArray[np.int64]
_BLOCKS_MAX: Final = 2_000_000
"""Blocks that are kept: 56 bytes each."""


class Table(NamedTuple):
    """The blocks of queues, one row each: number in the archive, the queue's code, first and last
    offset, messages, bytes of records, position of the first message.
    """

    blocks: I64
    codes: I64
    first: I64
    last: I64
    messages: I64
    raw_bytes: I64
    position: I64

    def where(self, mask: NDArray[np.bool_]) -> Table:
        """The rows where `mask` is true."""
        return Table(*(column[mask] for column in self))

    def at(self, rows: I64) -> Table:
        """The rows of these numbers."""
        return Table(*(column[rows] for column in self))


class StreamedArchive(NamedTuple):
    """An archive that was looked at: its manifest, and its blocks."""

    manifest: Manifest
    table: Table


class DirectoryTables:
    """Opens archives for their tables, and keeps the tables in bounded memory."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._kept: dict[ListedArchive, Table] = {}
        self._blocks = 0

    def look(self, held: ListedArchive) -> StreamedArchive:
        """Opens an archive. Raises ArchiveDamaged, FormatTooNew, PlaceError."""
        archive = self._opener.opened(held)
        rows = archive.rows()
        mine = rows.queues != NO_QUEUE
        table = Table(
            np.arange(len(mine)), rows.topic_ids[rows.topics] << 32 | rows.queues,
            rows.first_offset, rows.last_offset, rows.messages, rows.raw_bytes,
            rows.first_position,
        )  # fmt: skip
        return StreamedArchive(archive.manifest, table.where(mine))

    def each(
        self, held: Sequence[ListedArchive]
    ) -> Iterator[tuple[ListedArchive, Table | Exception]]:
        """The tables of archives, in that order; those that are not kept are opened several at
        once. If an archive can't be read, the error is given in its place.
        """
        for at in range(0, len(held), AT_ONCE):
            some = held[at : at + AT_ONCE]
            missing = [one for one in some if one not in self._kept]
            opened = dict(zip(missing, self.look_all(missing), strict=True))
            # ViewedArchive tables are taken first, before one is dropped to make room.
            kept = {one: self._kept[one] for one in some if one not in opened}
            for one in some:
                looked = opened.get(one)
                if isinstance(looked, Exception):
                    yield one, looked
                    continue
                table = kept[one] if looked is None else looked.table
                self.keep(one, table)
                yield one, table

    def look_all(self, held: Sequence[ListedArchive]) -> list[StreamedArchive | Exception]:
        """`look` at several at once; if an archive can't be read, the error is in its place."""

        def one(of: ListedArchive) -> StreamedArchive | Exception:
            try:
                return self.look(of)
            except Exception as e:  # the caller raises it, or leaves the archive out
                return e

        if len(held) < 2:
            return [one(of) for of in held]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-stream") as pool:
            return list(pool.map(one, held))

    def keep(self, held: ListedArchive, table: Table) -> None:
        """Keeps a table; drops those that were asked for longest ago."""
        self.forget([held])
        self._kept[held] = table
        self._blocks += len(table.blocks)
        while self._blocks > _BLOCKS_MAX and len(self._kept) > 1:
            self.forget([next(iter(self._kept))])

    def forget(self, held: Iterable[ListedArchive]) -> None:
        """Drops tables."""
        for one in held:
            found = self._kept.pop(one, None)
            if found is not None:
                self._blocks -= len(found.blocks)
