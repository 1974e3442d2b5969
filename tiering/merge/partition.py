"""Partitions: the jobs of a merge, and cuts that let its parts be done side by side.

The idea: jobs and results are values alone, so that they can be handed to another process, or to
another machine that reaches the places. An archive's blocks lie in the order of topic, queue and
offset. So a partition of the new archive, from one place in that order to another, is a run of
neighbouring blocks in each of the old ones. The cuts follow from the directories alone: about every
`partition_bytes` of records, and less at the end, so that nobody waits for the last. A small queue
is not cut. A large one is cut at the first offset of a block, so one topic that outweighs all
others becomes many partitions.

Invariants:

- Every message of the archives is in one partition, or in one of the counts of messages that are
  left out as a whole.
- The plan follows from archives and job, not from the process that does the work.
- A partition's job has all it needs, and only the keys of its topics.
- No job and no result prints a secret.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.packed import I64
from tiering.archive.directory import DirectoryRows
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import STORE_ID_NONE, ArchivedTopic, Manifest, joined_shares
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings
from tiering.catalog.catalog import ArchiveRow, disagreements
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment_encoder import BuiltArchive
from tiering.keys.crypto import KeyProvider, KeysAtHand
from tiering.merge.compact import Compaction
from tiering.places.place import open_place

_SHARE: Final = 4
"""A portion is at most this part of the rest, unless that is less than this part of the largest."""


def portion(left: int, most: int) -> int:
    """The next portion of the `left` work, of at most `most`; 1 or more."""
    return max(min(max(left, most) // _SHARE, most), 1)


Queue = tuple[int, int]
"""Topic id and queue."""
PARTITION_BYTES: Final = 32 << 20
"""The bytes of records in a partition, about. A task holds and returns about a quarter of that, as
coded. Each partition that another process does costs an opening of the archives, and each queue
that is cut a block that is not full.
"""


class MergeInput(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to merge: its row in the catalog, and where it is, with the settings of that
    place. `unkept` are the ids of topics whose messages in it are over.
    """

    place: str
    row: ArchiveRow
    options: dict[str, object] = {}
    unkept: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"MergeInput({self.place}/{self.row.key})"

    def open(self, keys: KeyProvider | None) -> Archive:
        """Opens the archive, with the places and files of this machine."""
        place = open_place(self.place, options=self.options or None)
        return Archive.open(place.source(self.row.key, self.row.size), keys=keys)


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One merge. `topics` are those that exist, by id: others were deleted. `path` is the file to
    write. If another process does it, the keys of `settings` have to be `KeysAtHand`. `part` is the
    id of a topic that is parted from the others. A partition has about `partition_bytes` of
    records; another number may make other bytes.
    """

    inputs: Sequence[MergeInput]
    topics: dict[int, ArchivedTopic]
    settings: ArchiveSettings
    store_id: str
    retention_class: str
    path: str
    compaction: Compaction | None = None
    without: ErasurePredicate | None = None
    part: int | None = None
    partition_bytes: int = PARTITION_BYTES


class Dropped(msgspec.Struct, kw_only=True):
    """How many messages were dropped, by reason: their topic was deleted, or they are over;
    superseded; tombstones; erased; nobody can decrypt them any more.
    """

    deleted: int = 0
    over: int = 0
    superseded: int = 0
    tombstones: int = 0
    erased: int = 0
    unreadable: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: the archive (None: nothing was left for one), all queues of which the
    inputs held anything, and how many messages they held.
    """

    made: BuiltArchive | None
    queues: list[Queue]
    messages: int
    dropped: Dropped


Where = tuple[int, int, int]
"""A place in the order of an archive: topic number, queue, offset."""
OFFSETS: Final = (1 << 63) - 1
"""Above every offset."""
_WHOLE: Final = 8
"""A queue is not cut if so many of them, or more, fill a partition."""


class InputSpan(NamedTuple):
    """The blocks of one archive that hold something of a partition, from `start` to `stop`, and the
    archive's number among the job's inputs.
    """

    number: int
    start: int
    stop: int


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """All messages from `begin` on and below `end`, in the order of topic, queue and offset."""

    begin: Where
    end: Where
    spans: tuple[InputSpan, ...]

    def may_cut(self, topic: int, queue: int) -> bool:
        """Whether other partitions may have something of a queue, by its topic's number."""
        return (topic, queue) in (self.begin[:2], self.end[:2])

    def within(self, topic: int, queue: int) -> tuple[int, int]:
        """The offsets of a queue, by its topic's number, that lie in the partition: from the first
        number on, below the second.
        """
        first = self.begin[2] if (topic, queue) == self.begin[:2] else 0
        last = self.end[2] if (topic, queue) == self.end[:2] else OFFSETS
        is_here = self.begin[:2] <= (topic, queue) <= self.end[:2]
        return (first, last) if is_here else (0, 0)


class MergePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a merge. `topics` are those that may have messages in the new archive, in
    the order of their names; `left_out` has for each input the ids of the topics of which it gives
    none; `queues` are all of which the inputs held anything.
    """

    partitions: list[Partition]
    topics: list[ArchivedTopic]
    left_out: list[frozenset[int]]
    origin: ArchiveOrigin
    queues: list[Queue]
    messages: int
    dropped: Dropped


class PartitionJob(msgspec.Struct, frozen=True, kw_only=True):
    """The work on one partition. `inputs` and `left_out` are those of its spans; `topics` has by id
    the topics of which the partition may have something, with their numbers; `gone` are the
    offsets that compaction drops, rising.
    """

    partition: Partition
    inputs: list[MergeInput]
    left_out: list[frozenset[int]]
    topics: dict[int, tuple[int, ArchivedTopic]]
    settings: ArchiveSettings
    compaction: Compaction | None
    without: ErasurePredicate | None
    gone: dict[Queue, I64]

    def __repr__(self) -> str:
        return f"PartitionJob({self.partition.begin} to {self.partition.end})"


class _Blocks(NamedTuple):
    """Blocks to read, in columns: topic number, queue, first and last offset, bytes of records,
    input, and number in that input.
    """

    topic: I64
    queue: I64
    first: I64
    last: I64
    raw_bytes: I64
    number: I64
    block: I64

    def take(self, rows: I64 | NDArray[np.bool_]) -> _Blocks:
        return _Blocks(*(column[rows] for column in self))


def plan_merge(archives: Sequence[Archive], job: MergeJob) -> MergePlan:
    """The plan of a merge, from the directories of the archives, which are the job's inputs.

    Raises `ArchiveDamaged` if one is damaged, or not the archive that the catalog has.
    """
    found = _Planner(job)
    for archive, one in zip(archives, job.inputs, strict=True):
        found.add(archive, one)
    return found.plan(archives)


class _Planner:
    """Collects what archives hold, one archive after the other; then plans."""

    def __init__(self, job: MergeJob) -> None:
        self._job = job
        self._dropped = Dropped()
        self._queues: dict[Queue, None] = {}
        self._messages = 0
        self._left_out: list[frozenset[int]] = []
        self._read: set[int] = set()
        self._rows: list[tuple[I64, DirectoryRows]] = []
        """Of each archive the ids of blocks' topics, -1 if they are not read."""

    def add(self, archive: Archive, one: MergeInput) -> None:
        """Adds one archive."""
        others = disagreements(one.row, archive.manifest)
        if others:
            raise ArchiveDamaged(f"{archive.name} is another archive: {others[0]}", archive.name)
        rows = archive.rows()
        left_out = set()
        for topic, topic_id in zip(archive.manifest.topics, rows.topic_ids.tolist(), strict=True):
            self._messages += topic.messages
            why = self._why_dropped(one, topic, topic_id, archive.manifest.last_position)
            if why is not None:
                setattr(self._dropped, why, getattr(self._dropped, why) + topic.messages)
                left_out.add(topic_id)
            else:
                self._read.add(topic_id)
        self._left_out.append(frozenset(left_out))
        ids = rows.topic_ids[rows.topics]
        queues = zip(ids.tolist(), rows.queues.tolist(), strict=True)
        self._queues |= dict.fromkeys(queue for queue in queues if queue[1] != NO_QUEUE)
        ids[np.isin(ids, list(left_out))] = -1
        self._rows.append((ids, rows))

    def _why_dropped(
        self, one: MergeInput, topic: ArchivedTopic, topic_id: int, last_position: int
    ) -> str | None:
        """The count for all messages of a topic in an archive; None: they are to be read."""
        without, keys = self._job.without, self._job.settings.keys
        if without is not None and without.is_all_of(
            topic.name, topic.last_stored_at, last_position
        ):
            return "erased"
        if topic_id not in self._job.topics:
            return "deleted"
        if topic_id in one.unkept:
            return "over"
        if (
            topic.key_id is not None
            and isinstance(keys, KeysAtHand)
            and keys.is_gone(topic.name, topic.key_id)
        ):
            return "unreadable"
        return None

    def plan(self, archives: Sequence[Archive]) -> MergePlan:
        """The plan of all archives that were added."""
        job = self._job
        topics = sorted((job.topics[i] for i in self._read), key=lambda topic: topic.name)
        each = [self._blocks(number, topics) for number in range(len(archives))]
        blocks = _Blocks(*map(np.concatenate, zip(*each, strict=True)))
        in_order = np.lexsort((blocks.number, blocks.first, blocks.queue, blocks.topic))
        blocks = blocks.take(in_order)
        return MergePlan(
            partitions=_partitions(_cuts(blocks, job.partition_bytes), (len(topics), 0, 0), each),
            topics=topics,
            left_out=self._left_out,
            origin=ArchiveOrigin(
                store_id=job.store_id,
                ancestors=_ancestors([a.manifest for a in archives], job.store_id),
                segments=tuple(sorted({s for a in archives for s in a.manifest.segments})),
                shares=joined_shares([a.manifest for a in archives], job.retention_class, job.part),
                retention_class=job.retention_class,
                generation=max(archive.manifest.generation for archive in archives) + 1,
            ),
            queues=list(self._queues),
            messages=self._messages,
            dropped=self._dropped,
        )

    def _blocks(self, number: int, topics: Sequence[ArchivedTopic]) -> _Blocks:
        """The blocks of an archive that are to be read, in its order."""
        ids, rows = self._rows[number]
        known = np.array([topic.id for topic in topics], np.int64)
        order = np.argsort(known)
        kept = np.flatnonzero(ids >= 0)
        return _Blocks(
            order[np.searchsorted(known, ids[kept], sorter=order)].astype(np.int64),
            rows.queues[kept], rows.first_offset[kept], rows.last_offset[kept],
            rows.raw_bytes[kept], np.full(len(kept), number, np.int64), kept.astype(np.int64),
        )  # fmt: skip


def _ancestors(merged: Sequence[Manifest], store_id: str) -> tuple[str, ...]:
    """The ids of all other stores that had a part in merged archives."""
    ids = {one for said in merged for one in (said.store_id, *said.ancestors)}
    return tuple(sorted(ids - {store_id, STORE_ID_NONE}))


def _cuts(blocks: _Blocks, partition_bytes: int) -> list[Where]:
    """Where partitions begin, of blocks in order."""
    if not len(blocks.block):
        return []
    ends = np.cumsum(blocks.raw_bytes)
    is_first = np.ones(len(ends), np.bool_)
    is_first[1:] = (blocks.topic[1:] != blocks.topic[:-1]) | (blocks.queue[1:] != blocks.queue[:-1])
    firsts = np.flatnonzero(is_first)
    of_queue = np.add.reduceat(blocks.raw_bytes, firsts)
    total = int(ends[-1])
    cuts = [_at(blocks, 0)]
    at = portion(total, partition_bytes)
    while at < total:
        row = int(np.searchsorted(ends, at, side="right"))
        at += portion(total - at, partition_bytes)
        queue = int(np.searchsorted(firsts, row, side="right")) - 1
        if of_queue[queue] * _WHOLE <= partition_bytes:
            row = int(firsts[queue])
        where = _at(blocks, row)
        if where > cuts[-1]:
            cuts.append(where)
    return cuts


def _at(blocks: _Blocks, row: int) -> Where:
    return int(blocks.topic[row]), int(blocks.queue[row]), int(blocks.first[row])


def _partitions(cuts: Sequence[Where], end: Where, each: Sequence[_Blocks]) -> list[Partition]:
    """The partitions between cuts, the last one up to `end`; `each` are the blocks of each archive,
    in its order.
    """
    bounds = [*cuts, end]
    spans: list[list[InputSpan]] = [[] for _ in cuts]
    for number, mine in enumerate(each):
        rows = range(len(mine.block))

        def first(row: int, mine: _Blocks = mine) -> Where:
            return _at(mine, row)

        def last(row: int, mine: _Blocks = mine) -> Where:
            return int(mine.topic[row]), int(mine.queue[row]), int(mine.last[row])

        starts = [bisect_left(rows, cut, key=last) for cut in cuts]
        stops = [bisect_left(rows, bound, key=first) for bound in bounds[1:]]
        for found, start, stop in zip(spans, starts, stops, strict=True):
            if start < stop:
                span = InputSpan(number, int(mine.block[start]), int(mine.block[stop - 1]) + 1)
                found.append(span)
    return [
        Partition(begin=a, end=b, spans=tuple(found))
        for (a, b), found in zip(pairwise(bounds), spans, strict=True)
    ]


def partition_jobs(job: MergeJob, plan: MergePlan, gone: Mapping[Queue, I64]) -> list[PartitionJob]:
    """The job of each partition, if compaction drops the offsets `gone`, which rise."""
    numbers = {topic.id: number for number, topic in enumerate(plan.topics)}
    dropped = sorted((numbers[topic_id], queue, topic_id) for topic_id, queue in gone)
    found = []
    for partition in plan.partitions:
        first, last = partition.begin[0], min(partition.end[0], len(plan.topics) - 1)
        topics = {plan.topics[n].id: (n, plan.topics[n]) for n in range(first, last + 1)}
        begin = bisect_left(dropped, partition.begin[:2], key=itemgetter(0, 1))
        end = bisect_right(dropped, partition.end[:2], key=itemgetter(0, 1))
        mine = {
            (topic_id, queue): _part(gone[topic_id, queue], *partition.within(number, queue))
            for number, queue, topic_id in dropped[begin:end]
        }
        keys = _keys_of(job.settings.keys, {topic.name for _, topic in topics.values()})
        found.append(
            PartitionJob(
                partition=partition,
                inputs=[job.inputs[span.number] for span in partition.spans],
                left_out=[plan.left_out[span.number] for span in partition.spans],
                topics=topics,
                settings=msgspec.structs.replace(job.settings, keys=keys),
                compaction=job.compaction,
                without=job.without,
                gone={queue: offsets for queue, offsets in mine.items() if len(offsets)},
            )
        )
    return found


def _part(offsets: I64, begin: int, end: int) -> I64:
    """The offsets from `begin` on and below `end`."""
    return offsets[slice(*np.searchsorted(offsets, (begin, end)))]


def _keys_of(keys: KeyProvider | None, topics: set[str]) -> KeyProvider | None:
    if not isinstance(keys, KeysAtHand):
        return keys
    return KeysAtHand(
        writing={topic: key for topic, key in keys.writing.items() if topic in topics},
        reading={used: key for used, key in keys.reading.items() if used[0] in topics},
        destroyed=keys.destroyed & topics,
        gone=frozenset(used for used in keys.gone if used[0] in topics),
    )
