"""Pieces: one archive put together from ranges of blocks that were encoded separately.

The idea: a block depends on nothing before it, except the number of its topic, to which encrypted
parts are bound. So a range of an archive's records can be encoded anywhere (`PieceWriter`), under
preliminary topic numbers. A piece is its bytes and its columns for the tail. `PiecesWriter` writes
pieces one behind the other, then the tail. A topic that occurs in no piece gets no number there;
encrypted parts are bound to the new numbers, which changes no size.

Invariants:

- A piece was decoded again and gives back its input.
- Pieces that are not in the order of their queues and offsets are refused.
- The same pieces give the same bytes, on whatever machine they were made.
- One piece at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_128

from kvstore.errors import ArchiveDamaged, CallerError
from tiering.archive.archive_reader import Archive
from tiering.archive.block import BlockGroup, GroupBlocks, GroupOrigin
from tiering.archive.block_writer import BlockWriter, TopicToWrite
from tiering.archive.coder import Coder, rebound
from tiering.archive.columns.header_fields import OffsetRanges
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import RecordBatch
from tiering.archive.external_sort import MakeScratch
from tiering.archive.layout import HEADER_SIZE, PartKind, Sizes
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.archive.tail_columns import BlockColumns, TailColumns
from tiering.archive.writer import ArchiveFile, ArchiveOrigin, ArchiveSettings, Sink, temporary

_FIRST_OFFSET: Final = 2
_LAST_OFFSET: Final = 3
_MESSAGES: Final = 4
_DECODED: Final = 4


class EncodedPiece(NamedTuple):
    """Some blocks as they are written, and their columns, in which topics have the numbers that the
    caller gave them and the messages of keys are numbered from 0.
    """

    data: bytes
    columns: TailColumns

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self.columns.positions)


class PieceWriter:
    """Encodes one piece: `add` as with `ArchiveWriter`, then `finish`. `topics` are all topics that
    may come, by numbers that rise with their names.
    """

    def __init__(
        self, topics: Mapping[int, ArchivedTopic], settings: ArchiveSettings, coder: Coder
    ) -> None:
        self._topics = {
            number: TopicToWrite(topic, settings.keys) for number, topic in topics.items()
        }
        self._coder = coder
        self._chunks: list[bytes] = []
        self._columns: list[TailColumns] = []
        self._given = xxh3_128()
        self._blocks = BlockWriter(
            self._chunks.append, self._columns.append, coder, settings.block_bytes, self._topics
        )

    def add(self, number: int, queue: int, records: Sequence[bytes]) -> None:
        """Takes records of one queue, by the number of its topic. Raises CallerError for records
        out of order.
        """
        for record in records:
            self._given.update(record)
        if records:
            self._blocks.add(number, queue, RecordBatch.of_records(records))

    def finish(self) -> EncodedPiece:
        """The piece. Raises ArchiveDamaged if it does not give back its input."""
        self._blocks.flush()
        piece = EncodedPiece(b"".join(self._chunks), TailColumns.join(self._columns))
        self._chunks.clear()
        self._columns.clear()
        found = xxh3_128()
        for group in self._groups(piece):
            for record in group.records().values():
                found.update(record)
        if found.digest() != self._given.digest():
            raise ArchiveDamaged(
                "a piece of an archive does not give back what was put into it; what it was to "
                "replace stays"
            )
        return piece

    def _groups(self, piece: EncodedPiece) -> Iterator[BlockGroup]:
        """The groups of a piece, as a reader would have them."""
        numbers, queues, first, last, messages = piece.columns.blocks.rows[: _MESSAGES + 1]
        at = begin = 0
        for count, sizes, decoded in _group_sizes(piece.columns.blocks):
            mine = slice(begin, begin + count)
            topics = [self._topics[number] for number in numbers[mine].tolist()]
            end = at + sum(sizes)
            yield BlockGroup(
                piece.data[at:end], sizes, decoded, self._coder,
                GroupBlocks(
                    [one.topic.name for one in topics], queues[mine].tolist(),
                    OffsetRanges(messages[mine], first[mine], last[mine]),
                ),
                GroupOrigin("", begin, int(numbers[begin]), topics[0].secret),
            )  # fmt: skip
            at, begin = end, begin + count


class PiecesWriter:
    """Writes one archive of pieces to `sink`: `add` in order, then `finish`. `topics` are all
    topics that the pieces may have, by their numbers in the pieces.
    """

    def __init__(
        self,
        sink: Sink,
        settings: ArchiveSettings,
        origin: ArchiveOrigin,
        topics: Sequence[ArchivedTopic],
        scratch: MakeScratch = temporary,
    ) -> None:
        self._keys = settings.keys
        self._known = topics
        self._topics: list[TopicToWrite] = []
        self._numbers: dict[int, int] = {}
        self._file = ArchiveFile(sink, settings, origin, scratch)
        self._last: tuple[int, int, int] = (-1, -1, -1)

    @property
    def blocks(self) -> BlockColumns:
        """The columns of the blocks of all pieces."""
        return self._file.columns.blocks

    def add(self, piece: EncodedPiece) -> None:
        """Takes the next piece. Raises CallerError if it is not behind the one before."""
        if not piece.messages:
            return
        rows = piece.columns.blocks.rows
        first, last = _edge(rows, 0, _FIRST_OFFSET), _edge(rows, -1, _LAST_OFFSET)
        if first <= self._last:
            number, queue, offset = first
            raise CallerError(
                f"a piece that begins with offset {offset} of queue {queue} of "
                f"{self._known[number].name!r} comes after a later one"
            )
        self._last = last
        for number in np.unique(rows[0]).tolist():
            if number not in self._numbers:
                self._numbers[number] = len(self._topics)
                self._topics.append(TopicToWrite(self._known[number], self._keys))
        self._file.write(self._rebound(piece))
        numbers = np.array([self._numbers[number] for number in rows[0].tolist()], np.int64)
        blocks = piece.columns.blocks._replace(rows=(numbers, *rows[1:]))
        self._file.columns.add(piece.columns._replace(blocks=blocks))

    def finish(self) -> Manifest:
        """Writes everything behind the blocks."""
        return self._file.end([one.topic for one in self._topics])

    def _rebound(self, piece: EncodedPiece) -> bytes:
        """A piece's bytes, with encrypted parts bound to the topic numbers of this archive."""
        numbers = piece.columns.blocks.rows[0]
        moved = {
            number
            for number in np.unique(numbers).tolist()
            if self._numbers[number] != number
            and self._topics[self._numbers[number]].secret is not None
        }
        if not moved:
            return piece.data
        out = []
        at = begin = 0
        for count, sizes, _ in _group_sizes(piece.columns.blocks):
            ends = list(accumulate(sizes, initial=at))
            number = int(numbers[begin])
            parts = [piece.data[a:b] for a, b in pairwise(ends)]
            if number in moved:
                to = self._numbers[number]
                secret = self._topics[to].secret
                assert secret is not None, "only encrypted parts are bound to a number"
                parts = [
                    rebound(part, kind, number, to, secret)
                    for kind, part in zip(PartKind, parts, strict=True)
                ]
            out += parts
            at, begin = ends[-1], begin + count
        return b"".join(out)


def check_tail(archive: Archive, blocks: BlockColumns) -> None:
    """Checks that an archive's tail describes its blocks as they were written. Raises
    ArchiveDamaged.
    """
    rows = archive.rows()
    is_same = all(map(np.array_equal, rows.of_blocks, blocks.rows))
    is_same &= all(map(np.array_equal, rows.decoded_sizes, blocks.groups[_DECODED:]))
    at, begin = HEADER_SIZE, 0
    for count, sizes, _ in _group_sizes(blocks):
        is_same = is_same and archive.directory.extent(begin) == (at, sizes)
        at, begin = at + sum(sizes), begin + count
    if not is_same or begin != archive.directory.blocks:
        raise ArchiveDamaged(
            f"{archive.name} does not say where its blocks are; what it was to replace stays",
            archive.name,
        )


def _edge(rows: Sequence[I64], at: int, offset: int) -> tuple[int, int, int]:
    """Topic number and queue of a block, and the offset from one of its columns."""
    return int(rows[0][at]), int(rows[1][at]), int(rows[offset][at])


def _group_sizes(blocks: BlockColumns) -> Iterator[tuple[int, Sizes, Sizes]]:
    """For each group: its blocks, the sizes of its parts, and their decoded sizes."""
    for count, a, b, c, d, e, f in zip(*(g.tolist() for g in blocks.groups), strict=True):
        yield count, (a, b, c), (d, e, f)
