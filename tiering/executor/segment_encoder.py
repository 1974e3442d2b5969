"""Encodes the records of one sealed segment as archives, one for each retention class.

The idea: this runs in a process of its own and is told everything it needs, so that the store's
process does not feel the work. One scan finds the records. Where each lies is sorted by class,
topic, queue and position outside of memory (`external_sort`). One pass over these rows writes the
archives one behind the other, and another one compares them with the segment. So memory does not
grow with the records, only with the queues, and with the archive's filter and directory: two bytes
a record.

Invariants: every message of a topic that is kept, unless it is erased, is in exactly one of the
archives, which was read back from the disk and compared with the segment, record by record; a
segment with damage, or with offsets that do not rise, is refused whole: if two records can't be
told apart, the segment stays; the same segment and job give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from kvstore.errors import SegmentDamaged
from kvstore.files import Files, LocalFiles
from tiering.archive.archive_check import prove
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import RecordBatch
from tiering.archive.external_sort import ExternalSort, MakeScratch, Rows
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import (
    ArchiveOrigin,
    ArchiveSettings,
    ArchiveWriter,
    WrittenArchive,
    scratches,
    write_archive,
)
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment import segment_parts, stored_times
from tiering.places.objects import SUFFIX

if TYPE_CHECKING:
    from kvstore.core.records import Buffer
_QUEUE_BITS: Final = 32
_QUEUE_MASK: Final = (1 << _QUEUE_BITS) - 1
_ROW: Final = np.dtype(
    [("owner", "<i8"), ("offset", "<i8"), ("start", "<u4"), ("size", "<u4"), ("erased", "?")]
)
"""A record: the rank of its topic and its queue; its offset; its place in the segment."""
_UNPLANNED: Final = -1
_NEVER: Final = 1 << 62


class TopicPlan(NamedTuple):
    """The class whose archive a topic's messages go to; None: they are dropped."""

    topic: ArchivedTopic
    retention_class: str | None


class SegmentJob(msgspec.Struct, frozen=True, kw_only=True):
    """One segment to encode: its file, which begins at `base` of the log; the topics whose
    messages count, by name; the folder for the archives; and the messages to erase on the way.
    """

    number: int
    path: str
    base: int
    topics: Mapping[str, TopicPlan]
    settings: ArchiveSettings
    store_id: str
    folder: str
    without: ErasurePredicate | None = None


class HeldQueue(NamedTuple):
    """One queue's messages in an archive: how many, of which offsets from `first` to `last`, and
    when the first was stored.
    """

    topic: int
    queue: int
    first: int
    last: int
    messages: int
    stored_at: int


class BuiltArchive(WrittenArchive, frozen=True, kw_only=True):
    """A written archive, and the messages of each queue in it."""

    queues: list[HeldQueue]

    @classmethod
    def of(cls, written: WrittenArchive, queues: list[HeldQueue]) -> BuiltArchive:
        """A written archive that holds these queues."""
        return cls(**msgspec.structs.asdict(written), queues=queues)


class EncodedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of a segment, and the messages that are not in them. `unkept` are the queues
    (topic id, queue) without a message in any archive: the plan drops them (`over`), or all their
    messages were erased.
    `left_out` counts records of deleted topics, and erased ones. If the job erases messages,
    `whole` lists the messages of kept queues as they were before. `unplanned` are topics that the
    job does not name, each with the position of its last record; `left_out` counts theirs, too.
    """

    archives: list[BuiltArchive]
    unkept: list[tuple[int, int]]
    over: list[tuple[int, int]]
    messages: int
    left_out: int
    unplanned: dict[str, int] = {}
    whole: list[HeldQueue] | None = None


def encode_segment(job: SegmentJob, files: Files) -> EncodedSegment:
    """Writes the archives of a segment.

    Raises `SegmentDamaged` for a segment that can't be read whole, `ArchiveDamaged` for an archive
    that does not give back its records. Files written so far stay where they are; the caller clears
    the folder.
    """
    mapped = files.map(Path(job.path), writable=False)
    try:
        with scratches(files, Path(job.folder)) as scratch:
            return _SegmentEncoder(job, files, mapped.buffer, mapped.size, scratch).run()
    finally:
        mapped.close()


def segment_task(job: SegmentJob) -> EncodedSegment:
    """`encode_segment` with the files of this machine: the task that another process is given."""
    return encode_segment(job, LocalFiles())


class _SegmentEncoder:
    """One run of `encode_segment`. The *rank* of a topic is its place in the order of the archives:
    by class, then by name; topics without a class come last.
    """

    def __init__(
        self, job: SegmentJob, files: Files, buffer: Buffer, size: int, scratch: MakeScratch
    ) -> None:
        self._job = job
        self._files = files
        self._buffer = buffer
        self._size = size
        self._rows = ExternalSort(_ROW, scratch)
        self._plans = sorted(job.topics.values(), key=_rank_of)
        self._ranks = {plan.topic.name: rank for rank, plan in enumerate(self._plans)}
        found = {plan.retention_class for plan in self._plans}
        self._classes = sorted(name for name in found if name is not None)
        numbers = {name: number for number, name in enumerate(self._classes)}
        self._class_of = np.array(
            [numbers.get(plan.retention_class or "", len(numbers)) for plan in self._plans],
            np.int64,
        )
        """The number of each topic's class, by rank; one more than the classes' if it has none."""
        self._left_out = 0
        self._unplanned: dict[str, int] = {}

    def run(self) -> EncodedSegment:
        self._read()
        archives: list[BuiltArchive] = []
        dropped: list[int] = []
        whole: list[HeldQueue] = []
        for name, parts in self._by_class(self._checked(whole)):
            if name is not None:
                archives.append(self._write(name, parts))
                continue
            for rows in parts:
                dropped += [owner for owner, _, _ in _ranges(rows["owner"])]
        paths = {archive.manifest.retention_class: archive.path for archive in archives}
        for name, parts in self._by_class(self._rows.sorted()):
            if name in paths:
                self._prove(paths[name], parts)
        over = [
            (self._plans[owner >> _QUEUE_BITS].topic.id, owner & _QUEUE_MASK)
            for owner in dict.fromkeys(dropped)
        ]
        unkept = list(over)
        if self._job.without is not None:
            left = {(q.topic, q.queue) for archive in archives for q in archive.queues}
            unkept += [(q.topic, q.queue) for q in whole if (q.topic, q.queue) not in left]
        return EncodedSegment(
            archives=archives,
            unkept=unkept,
            over=over,
            whole=whole if self._job.without is not None else None,
            messages=sum(a.manifest.messages for a in archives),
            left_out=self._left_out,
            unplanned=self._unplanned,
        )

    # --- the segment ---

    def _read(self) -> None:
        """Sorts the records of planned topics that are there."""
        job = self._job
        names: list[str] = []
        ranks = since = np.empty(0, np.int64)
        for found in segment_parts(self._buffer, job.base, self._size):
            if found.damage:
                first = found.damage[0]
                raise SegmentDamaged(
                    f"{job.path} is damaged at {first.position}: {first.reason}; it stays as it is",
                    job.path,
                )
            more = [name.decode("utf-8", "surrogateescape") for name in found.names[len(names) :]]
            names += more
            more_ranks = [self._ranks.get(name, _UNPLANNED) for name in more]
            ranks = np.append(ranks, np.array(more_ranks, np.int64))
            since = np.append(since, np.array(list(map(self._since, more_ranks)), np.int64))
            unplanned = np.flatnonzero(ranks[found.topics] == _UNPLANNED)[::-1]
            numbers, last = np.unique(found.topics[unplanned], return_index=True)
            starts = found.starts[unplanned[last]] + job.base
            for number, position in zip(numbers.tolist(), starts.tolist(), strict=True):
                self._unplanned[names[number]] = position
            live = np.flatnonzero(found.starts + job.base >= since[found.topics])
            starts, sizes = found.starts[live], found.sizes[live]
            erased = np.zeros(len(live), np.bool_)
            if job.without is not None and len(live):
                erased = job.without.rows_of(RecordBatch(self._buffer, starts, sizes))
            self._left_out += len(found.starts) - len(live) + int(np.count_nonzero(erased))
            owners = ranks[found.topics[live]] << _QUEUE_BITS | found.queues[live]
            self._rows.add(owners, found.offsets[live], starts, sizes, erased)

    def _since(self, rank: int) -> int:
        """The position from which on records of a topic are its own."""
        return _NEVER if rank == _UNPLANNED else self._plans[rank].topic.since

    def _checked(self, whole: list[HeldQueue]) -> Iterator[Rows]:
        """The rows in order, whose offsets rise in each queue. The messages of kept queues go to
        `whole` if the job erases some.
        """
        before, passed = -1, -1
        for rows in self._rows.sorted():
            owners, offsets = rows["owner"], rows["offset"]
            wrong = np.zeros(len(rows), np.bool_)
            wrong[1:] = (owners[1:] == owners[:-1]) & (offsets[1:] <= offsets[:-1])
            wrong[0] = owners[0] == before and offsets[0] <= passed
            if wrong.any():
                row = rows[np.argmax(wrong)]
                raise SegmentDamaged(
                    f"{self._job.path}: the record at {self._job.base + int(row['start'])} says "
                    f"offset {int(row['offset'])}, which its queue had already passed; the segment "
                    "stays as it is",
                    self._job.path,
                )
            before, passed = int(owners[-1]), int(offsets[-1])
            if self._job.without is not None:
                for held in self._held(rows, kept_only=True):
                    append_queue(whole, held)
            yield rows

    def _by_class(self, all_rows: Iterator[Rows]) -> Iterator[tuple[str | None, Iterator[Rows]]]:
        """The rows of each class without erased ones, and all of the topics without a class."""

        def parts() -> Iterator[tuple[int, Rows]]:
            for rows in all_rows:
                classes = self._class_of[rows["owner"] >> _QUEUE_BITS]
                kept = ~rows["erased"] | (classes == len(self._classes))
                for number, begin, end in _ranges(classes[kept]):
                    yield number, rows[kept][begin:end]

        for number, found in groupby(parts(), key=itemgetter(0)):
            name = self._classes[number] if number < len(self._classes) else None
            yield name, (rows for _, rows in found)

    # --- archives ---

    def _write(self, class_name: str, parts: Iterator[Rows]) -> BuiltArchive:
        """Writes the archive of a class."""
        job = self._job
        path = Path(job.folder) / f"{job.base:020d}-{class_name}{SUFFIX}"
        origin = ArchiveOrigin(
            store_id=job.store_id,
            segments=((job.base, job.base + self._size),),
            retention_class=class_name,
        )
        held: list[HeldQueue] = []

        def fill(writer: ArchiveWriter) -> Iterator[None]:
            for rows in parts:
                for queue in self._held(rows):
                    append_queue(held, queue)
                starts, sizes = rows["start"].astype(np.int64), rows["size"].astype(np.int64)
                for owner, a, b in _ranges(rows["owner"]):
                    batch = RecordBatch(
                        self._buffer, starts[a:b], sizes[a:b], bodies_checked=True, stays=True
                    )
                    plan = self._plans[owner >> _QUEUE_BITS]
                    writer.add(plan.topic, owner & _QUEUE_MASK, batch)
                    yield

        written = write_archive(
            path,
            self._files,
            lambda sink, scratch: ArchiveWriter(sink, job.settings, origin, scratch),
            fill,
        )
        assert written is not None, "the class has a message"
        return BuiltArchive.of(written, held)

    def _prove(self, path: Path, parts: Iterator[Rows]) -> None:
        """Compares an archive with the records that it should have."""
        prove(
            path,
            self._files,
            self._job.settings.keys,
            self._buffer,
            ((rows["start"].astype(np.int64), rows["size"].astype(np.int64)) for rows in parts),
            stays="the segment stays as it is",
        )

    def _held(self, rows: Rows, *, kept_only: bool = False) -> list[HeldQueue]:
        """The messages of the queues in some rows; `kept_only`: without topics that have no
        class.
        """
        owners, begins, ends = np.array(_ranges(rows["owner"]), np.int64).reshape(-1, 3).T
        if kept_only:
            kept = self._class_of[owners >> _QUEUE_BITS] < len(self._classes)
            owners, begins, ends = owners[kept], begins[kept], ends[kept]
        firsts = rows[begins]
        ids = [self._plans[rank].topic.id for rank in (owners >> _QUEUE_BITS).tolist()]
        columns = (
            (owners & _QUEUE_MASK), firsts["offset"], rows["offset"][ends - 1], ends - begins,
            stored_times(self._buffer, firsts["start"].astype(np.int64)),
        )  # fmt: skip
        return list(map(HeldQueue, ids, *(column.tolist() for column in columns)))


def _rank_of(plan: TopicPlan) -> tuple[bool, str, str]:
    """The key of the order in which topics come in the archives of a segment."""
    return plan.retention_class is None, plan.retention_class or "", plan.topic.name


def _ranges(column: I64) -> list[tuple[int, int, int]]:
    """The values of a column that never falls, and where the rows of each begin and end."""
    if not len(column):
        return []
    borders = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist(), len(column)]
    return list(zip(column[borders[:-1]].tolist(), borders[:-1], borders[1:], strict=True))


def append_queue(queues: list[HeldQueue], more: HeldQueue) -> None:
    """Adds messages to the list; those that continue its last queue extend that queue's entry."""
    if queues and queues[-1][:2] == more[:2]:
        before = queues.pop()
        more = before._replace(last=more.last, messages=before.messages + more.messages)
    queues.append(more)
