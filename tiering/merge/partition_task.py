"""Does one partition of a merge: surveys its keys, or reads and encodes its messages.

The idea: each function takes one job with all it needs, so that any process can do any partition.
`PartitionReader` reads a partition's archives. They are opened for it alone; or, if one process
does all partitions in turn, once for all of them, so that a window is not read twice. Blocks lie in
the order in which a merge wants them. So each archive is read in windows of some megabytes,
whatever queues the blocks are of: a block of a few messages costs no request of its own.

Invariants:

- Messages come in the order of their offsets, and each is in the piece or in a count of dropped
  messages.
- A piece gives back the messages that were put in, which was tried.
- A window holds the coded bytes of neighbouring blocks, and one block an archive, with those that
  share its bytes, is decoded at a time.
- Memory is a window of each archive, some megabytes of records, and the piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.coder import Coder
from tiering.archive.columns.packed import I64
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.pieces import EncodedPiece, PieceWriter
from tiering.archive.tail import read_exactly
from tiering.archive.writer import ArchiveSettings
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment_encoder import HeldQueue, append_queue
from tiering.merge.compact import Compaction, KeyTable, QueueCompaction
from tiering.merge.partition import MergeInput, PartitionJob, Queue


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


WINDOW_BYTES: Final = 32 << 20
"""Bytes that are read ahead, of all archives together, unless `_WINDOW_MIN` of each is more."""
_WINDOW_MIN: Final = 256 << 10


class Survey(NamedTuple):
    """The findings of compaction in a partition. Of queues that are whole in it: the offsets that
    are superseded, and those of tombstones that may go. Of those at its ends, which may go on in
    the partition before or behind it: the key tables of this one.
    """

    whole: dict[Queue, tuple[I64, I64]]
    begun: dict[Queue, KeyTable]


class Encoded(NamedTuple):
    """An encoded partition, the queues that it holds, and how many messages were erased."""

    piece: EncodedPiece
    queues: list[HeldQueue]
    erased: int


class PartitionReader:
    """Reads the archives of partitions: `windows` by the numbers of the job's inputs."""

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self._windows = windows
        self._coder: tuple[ArchiveSettings, Coder] | None = None

    @classmethod
    def of(cls, archives: Sequence[Archive]) -> PartitionReader:
        """A reader for all partitions in turn; the archives are the job's inputs."""
        size = max(WINDOW_BYTES // len(archives), _WINDOW_MIN)
        return cls({number: Window(archive, size) for number, archive in enumerate(archives)})

    @classmethod
    def for_one(cls, job: PartitionJob) -> PartitionReader:
        """A reader for one partition, with the places and files of this machine."""
        spans = job.partition.spans
        size = max(WINDOW_BYTES // max(len(spans), 1), _WINDOW_MIN)
        archives = open_inputs(job.inputs, job.settings)
        return cls(
            {
                span.number: Window(archive, size, span.stop)
                for span, archive in zip(spans, archives, strict=True)
            }
        )

    def window(self, number: int) -> Window:
        """The window of one input."""
        return self._windows[number]

    def coder(self, settings: ArchiveSettings) -> Coder:
        """A coder with these settings; it is made only once, as that takes some time."""
        wanted = msgspec.structs.replace(settings, keys=None)
        if self._coder is None or self._coder[0] != wanted:
            coder = Coder(settings.codec, settings.level)
            self._coder = wanted, coder
        return self._coder[1]


def open_inputs(inputs: Sequence[MergeInput], settings: ArchiveSettings) -> list[Archive]:
    """Opens the archives, with the places and files of this machine."""
    return [one.open(settings.keys) for one in inputs]


class _MergedQueue(NamedTuple):
    """One queue in a partition: its topic's number, the topic, where its messages are."""

    number: int
    topic: ArchivedTopic
    queue: int
    cursors: list[QueueCursor]

    @property
    def id(self) -> Queue:
        return self.topic.id, self.queue


def _queues(job: PartitionJob, reading: PartitionReader) -> Iterator[_MergedQueue]:
    """The queues of a partition, in order."""
    found: dict[tuple[int, int], _MergedQueue] = {}
    for span, left_out in zip(job.partition.spans, job.left_out, strict=True):
        window = reading.window(span.number)
        ids, topics, queues = window.owners
        mine = slice(span.start, span.stop)
        changes = (np.diff(topics[mine]) != 0) | (np.diff(queues[mine]) != 0)
        begins = [span.start, *(np.flatnonzero(changes) + span.start + 1).tolist()]
        owners = zip(ids[topics[begins]].tolist(), queues[begins].tolist(), strict=True)
        for (topic_id, queue), begin, end in zip(
            owners, begins, [*begins[1:], span.stop], strict=True
        ):
            if topic_id in left_out:
                continue
            number, topic = job.topics[topic_id]
            is_cut = job.partition.may_cut(number, queue)
            offsets = job.partition.within(number, queue) if is_cut else (None, None)
            cursor = QueueCursor(window, range(begin, end), *offsets)
            held = found.setdefault((number, queue), _MergedQueue(number, topic, queue, []))
            held.cursors.append(cursor)
    for key in sorted(found):
        yield found[key]


def survey_keys(job: PartitionJob, reading: PartitionReader) -> Survey:
    """Surveys the keys of a partition for compaction. Raises `ArchiveDamaged`."""
    survey = Survey({}, {})
    if job.compaction is None:
        return survey
    for held in _queues(job, reading):
        if held.topic.kind != "compacted" or held.queue == NO_QUEUE:
            continue
        queue = QueueCompaction(job.compaction, held.id)
        for rows in in_order(held.cursors):
            kept = rows if job.without is None else rows.only(~job.without.rows(rows.records))
            queue.add(kept.records, kept.offsets)
        if job.partition.may_cut(held.number, held.queue):
            survey.begun[held.id] = queue.table()
        else:
            survey.whole[held.id] = queue.finish()
    return survey


def survey_task(job: PartitionJob) -> Survey:
    """`survey_keys` with the places of this machine."""
    return survey_keys(job, PartitionReader.for_one(job))


def join_surveys(
    compaction: Compaction, surveys: Iterable[Survey]
) -> tuple[dict[Queue, I64], int, int]:
    """Joins the findings of all partitions: the offsets that compaction drops of each queue,
    rising; how many are superseded, and how many are tombstones.
    """
    found: dict[Queue, tuple[I64, I64]] = {}
    begun: dict[Queue, QueueCompaction] = {}
    for survey in surveys:
        found |= survey.whole
        for queue, table in survey.begun.items():
            begun.setdefault(queue, QueueCompaction(compaction, queue)).take(table)
    found |= {queue: compacting.finish() for queue, compacting in begun.items()}
    gone = {queue: np.sort(np.concatenate(both)) for queue, both in found.items()}
    return (
        {queue: offsets for queue, offsets in gone.items() if len(offsets)},
        sum(len(superseded) for superseded, _ in found.values()),
        sum(len(tombstones) for _, tombstones in found.values()),
    )


def encode_partition(job: PartitionJob, reading: PartitionReader) -> Encoded:
    """Encodes a partition for the new archive. Raises `ArchiveDamaged` if it can't be read whole,
    or if its piece does not give back the same messages.
    """
    writer = PieceWriter(dict(job.topics.values()), job.settings, reading.coder(job.settings))
    stays: list[HeldQueue] = []
    erased = 0
    for held in _queues(job, reading):
        for rows in in_order(held.cursors):
            kept, count = _kept(rows, job.without, job.gone.get(held.id))
            erased += count
            if len(kept.offsets):
                append_queue(stays, _held_queue(held.id, kept))
                writer.add(held.number, held.queue, kept.records)
    return Encoded(writer.finish(), stays, erased)


def encode_task(job: PartitionJob) -> Encoded:
    """`encode_partition` with the places of this machine."""
    return encode_partition(job, PartitionReader.for_one(job))


def _kept(
    rows: QueueRows, without: ErasurePredicate | None, gone: I64 | None
) -> tuple[QueueRows, int]:
    """The rows that stay, and how many are erased."""
    count = 0
    if without is not None:
        erased = without.rows(rows.records)
        count = int(np.count_nonzero(erased))
        rows = rows.only(~erased)
    if gone is not None:
        rows = rows.only(~np.isin(rows.offsets, gone, assume_unique=True))
    return rows, count


def _held_queue(queue: Queue, kept: QueueRows) -> HeldQueue:
    first, last = int(kept.offsets[0]), int(kept.offsets[-1])
    return HeldQueue(*queue, first, last, len(kept.offsets), int(kept.stored_at[0]))
