"""Does one partition of a merge: surveys its keys, or reads and encodes its messages.

The idea: each function takes one job with all it needs, so that any process can do any partition.
`PartitionReader` reads a partition's archives. They are opened for it alone; or, if one process
does all partitions in turn, once for all of them, so that a window is not read twice.

Invariants: messages come in the order of their offsets, and each is in the piece or in a count of
dropped messages; a piece gives back the messages that were put in, which was tried; memory is a
window of each archive, some megabytes of records, and the piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tiering.archive.archive_reader import Archive
from tiering.archive.coder import Coder
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.pieces import EncodedPiece, PieceWriter
from tiering.archive.writer import ArchiveSettings
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment_encoder import HeldQueue
from tiering.merge.compact import Compaction, KeyTable, QueueCompaction
from tiering.merge.partition import MergeInput, PartitionJob, Queue
from tiering.merge.sequential_reader import QueueCursor, QueueRows, Window, in_order

I64 = NDArray[np.int64]
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


def append_queue(stays: list[HeldQueue], more: HeldQueue) -> None:
    """Adds messages to the list; those that continue its last queue extend that queue's entry."""
    if stays and stays[-1][:2] == more[:2]:
        before = stays[-1]
        more = before._replace(last=more.last, messages=before.messages + more.messages)
        stays.pop()
    stays.append(more)
