"""Encodes the records of one sealed segment as archives, one for each retention class.

The idea: this runs in a process of its own and is told everything it needs, so that the store's
process feels nothing of it. Records are sorted by class, topic, queue and offset as columns. Bytes
are touched once, when a block of them is encoded. In memory are columns of all records, of the
segment and of the archive's tail: at most 100 bytes for each record with one key, and 16 bytes for
each other key (a test holds it to that). So a segment of 1 GiB takes a tenth of that with records
of 1 KiB.

Invariants: every message of a topic that is kept, unless it is erased, is in exactly one of the
archives, which was read back from the disk and compared with the segment, record by record; a
segment with damage, or with offsets that do not rise, is refused whole, because records that can't
be told apart must not be let go of; the same segment and job give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import SegmentDamaged
from kvstore.files import Files, LocalFiles
from tiering.archive.archive_check import prove
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import (
    ArchiveOrigin,
    ArchiveSettings,
    ArchiveWriter,
    WrittenArchive,
    write_archive,
)
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment import SegmentRecords, read_segment, stored_times
from tiering.places.objects import SUFFIX

if TYPE_CHECKING:
    from kvstore.record.check import Buffer
_AT_ONCE: Final = 1 << 16
"""Records whose columns are put in order at once: a batch of the writer, if they have 128 bytes."""


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
        found = read_segment(mapped.buffer, job.base, mapped.size)
        return _SegmentEncoder(job, files, mapped.buffer, mapped.size, found).run()
    finally:
        mapped.close()


def segment_task(job: SegmentJob) -> EncodedSegment:
    """`encode_segment` with the files of this machine: the task that another process is given."""
    return encode_segment(job, LocalFiles())


class _SegmentEncoder:
    """One run of `encode_segment`. A *queue range* is where the rows of a queue begin and end in
    the order of the archives.
    """

    def __init__(
        self, job: SegmentJob, files: Files, buffer: Buffer, size: int, found: SegmentRecords
    ) -> None:
        if found.damage:
            first = found.damage[0]
            raise SegmentDamaged(
                f"{job.path} is damaged at {first.position}: {first.reason}; it stays as it is",
                job.path,
            )
        self._job = job
        self._files = files
        self._buffer = buffer
        self._size = size
        self._found = found
        self._names = [name.decode("utf-8", "surrogateescape") for name in found.names]
        self._plans = [job.topics.get(name) for name in self._names]
        self._by_name = sorted(range(len(self._names)), key=self._names.__getitem__)
        never = 1 << 62
        since = np.array([never if p is None else p.topic.since for p in self._plans] or [never])
        self._live: NDArray[np.bool_] = found.starts + job.base >= since[found.topics]
        """Which records are of a topic that is there."""
        self._order = self._sorted(self._live)
        self._ranges = self._queue_ranges()

    def run(self) -> EncodedSegment:
        found, job = self._found, self._job
        self._check_rising()
        live, whole = self._live, None
        if job.without is not None:
            kept = [plan is not None and plan.retention_class is not None for plan in self._plans]
            topics = found.topics[self._order]
            whole = self._held([(a, b) for a, b in self._ranges if kept[topics[a]]])
            rows = np.flatnonzero(live)
            batch = RecordBatch(self._buffer, found.starts[rows], found.sizes[rows])
            live = live.copy()
            live[rows[job.without.rows_of(batch)]] = False
            self._order = self._order[live[self._order]]
            self._ranges = self._queue_ranges()
        by_class: dict[str, set[int]] = {}
        over = []
        for number in self._by_name:
            plan = self._plans[number]
            if plan is None:
                continue
            if plan.retention_class is None:
                queues = np.unique(found.queues[self._live & (found.topics == number)])
                over += [(plan.topic.id, queue) for queue in queues.tolist()]
            else:
                by_class.setdefault(plan.retention_class, set()).add(number)
        built = (self._write(name, numbers) for name, numbers in sorted(by_class.items()))
        archives = [archive for archive in built if archive is not None]
        unkept = list(over)
        if whole is not None:
            left = {(q.topic, q.queue) for archive in archives for q in archive.queues}
            unkept += [(q.topic, q.queue) for q in whole if (q.topic, q.queue) not in left]
        return EncodedSegment(
            archives=archives,
            unkept=unkept,
            over=over,
            whole=whole,
            messages=sum(a.manifest.messages for a in archives),
            left_out=len(found.starts) - int(np.count_nonzero(live)),
            unplanned={
                self._names[n]: job.base + int(found.starts[found.topics == n][-1])
                for n, plan in enumerate(self._plans)
                if plan is None
            },
        )

    def _sorted(self, live: NDArray[np.bool_]) -> I64:
        """The live rows by topic name and queue, each queue's in the order of the log."""
        found = self._found
        rank = np.empty(max(len(self._names), 1), np.int64)
        rank[self._by_name] = np.arange(len(self._names))
        owner = rank[found.topics] << 32 | found.queues
        if live.all():
            return np.argsort(owner, kind="stable")
        rows = np.flatnonzero(live)
        return rows[np.argsort(owner[rows], kind="stable")]

    def _queue_ranges(self) -> list[tuple[int, int]]:
        order = self._order
        if not len(order):
            return []
        topics, queues = self._found.topics[order], self._found.queues[order]
        change = np.flatnonzero((topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])) + 1
        return list(pairwise([0, *change.tolist(), len(order)]))

    def _check_rising(self) -> None:
        offsets = self._found.offsets[self._order]
        wrong = np.zeros(len(offsets), np.bool_)
        wrong[1:] = offsets[1:] <= offsets[:-1]
        wrong[[begin for begin, _ in self._ranges]] = False
        if wrong.any():
            row = int(self._order[np.argmax(wrong)])
            raise SegmentDamaged(
                f"{self._job.path}: the record at {self._job.base + int(self._found.starts[row])} "
                f"says offset {int(self._found.offsets[row])}, which its queue had already passed; "
                "the segment stays as it is",
                self._job.path,
            )

    def _write(self, class_name: str, numbers: set[int]) -> BuiltArchive | None:
        """Writes the archive of a class, whose topics have these numbers."""
        job, found, order = self._job, self._found, self._order
        mine = [(a, b) for a, b in self._ranges if int(found.topics[order[a]]) in numbers]
        if not mine:
            return None
        path = Path(job.folder) / f"{job.base:020d}-{class_name}{SUFFIX}"
        origin = ArchiveOrigin(
            store_id=job.store_id,
            segments=((job.base, job.base + self._size),),
            retention_class=class_name,
        )

        def fill(writer: ArchiveWriter) -> Iterator[None]:
            for number, queue, records in self._queues(mine):
                plan = self._plans[number]
                assert plan is not None, "only planned topics are in an archive"
                writer.add(plan.topic, queue, records)
                yield

        written = write_archive(
            path, self._files, lambda sink: ArchiveWriter(sink, job.settings, origin), fill
        )
        assert written is not None, "each of the queues has a message"
        is_all = len(mine) == len(self._ranges)
        prove(
            path, self._files, job.settings.keys, self._buffer, found.starts, found.sizes,
            rows=order if is_all else np.concatenate([order[a:b] for a, b in mine]),
            stays="the segment stays as it is",
        )  # fmt: skip
        return BuiltArchive.of(written, self._held(mine))

    def _queues(self, mine: list[tuple[int, int]]) -> Iterator[tuple[int, int, RecordBatch]]:
        """Yields the queues of some queue ranges: number of the topic, queue, and records; of long
        queues so many at a time. Columns are put in order for many queues at once.
        """
        found, at = self._found, 0
        while at < len(mine):
            begin, first = mine[at][0], at
            while at < len(mine) and mine[at][1] - begin <= _AT_ONCE:
                at += 1
            at = max(at, first + 1)
            for low in range(begin, mine[at - 1][1], _AT_ONCE):
                rows = self._order[low : min(low + _AT_ONCE, mine[at - 1][1])]
                starts, sizes = found.starts[rows], found.sizes[rows]
                topics, queues = found.topics[rows], found.queues[rows]
                for queue_begin, queue_end in mine[first:at]:
                    a, b = max(queue_begin - low, 0), min(queue_end - low, len(rows))
                    batch = RecordBatch(
                        self._buffer, starts[a:b], sizes[a:b], bodies_checked=True, stays=True
                    )
                    yield int(topics[a]), int(queues[a]), batch

    def _held(self, mine: list[tuple[int, int]]) -> list[HeldQueue]:
        """The messages of some queue ranges."""
        if not mine:
            return []
        found = self._found
        borders = np.array(mine, np.int64)
        firsts, lasts = self._order[borders[:, 0]], self._order[borders[:, 1] - 1]
        ids = np.array([-1 if plan is None else plan.topic.id for plan in self._plans], np.int64)
        columns = (
            ids[found.topics[firsts]], found.queues[firsts], found.offsets[firsts],
            found.offsets[lasts], borders[:, 1] - borders[:, 0],
            stored_times(self._buffer, found.starts[firsts]),
        )  # fmt: skip
        return list(map(HeldQueue, *(column.tolist() for column in columns)))
