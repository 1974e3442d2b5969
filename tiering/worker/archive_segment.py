"""Archives one sealed segment: from the log into archives, step by step.

The idea: `build` encodes one segment into files in a work folder; an executor may build several at
once. Then one segment after the other is handed over (`replace`). The contents of the archives are
compared with the index, and each archive is published. One WriteBatch makes the change, and the
segment goes. After a crash at any step, the next run removes the archives that are not in the
catalog.

Invariants: the segment stays until every archive was read back, with the crc32c that was put, and
has as many messages of each queue as the index says, with the same first and last offset; a step
that fails before the batch leaves the store as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.config import Retention
from kvstore.errors import IndexDamaged
from kvstore.index.archived import Arriving
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.catalog.catalog import ArchiveRow, Tier, encode_row
from tiering.errors import TieringBusy
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment_encoder import (
    BuiltArchive,
    EncodedSegment,
    SegmentJob,
    TopicPlan,
    segment_task,
)
from tiering.keys.crypto import keys_at_hand
from tiering.policy.retention_classes import RetentionClass, life_of, read_class
from tiering.policy.schedule import SegmentDue, encrypted_of, traits_of
from tiering.worker.context import WorkContext
from tiering.worker.store_protocols import TopicFacts

I64 = NDArray[np.int64]
_EMPTY: Final = np.empty((0, 5), np.int64)


def archived_topic(info: TopicFacts) -> ArchivedTopic:
    """A topic as an archive's manifest has it."""
    retention: Retention = info.retention
    return ArchivedTopic(
        name=info.name,
        id=info.id,
        kind=info.kind,
        queues=info.write_queues,
        read_queues=info.read_queues,
        since=info.since,
        key_index=info.key_index,
        key_history=tuple((position, level) for position, level in info.key_history),
        retention={k: v for k, v in msgspec.to_builtins(retention).items() if v is not None},
        attributes=dict(info.attributes),
        compress_above=info.compress_above,
        compression=info.compression,
        takes_delays=info.takes_delays,
        dedup_window=info.dedup_window,
    )


class SegmentArchiver:
    """Builds the archives of a segment, and hands the segment over."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._store = context.store
        self._handover = context.handover
        self._files = context.files
        self._publisher = context.publisher

    def build(
        self, due: SegmentDue, check: Callable[[], None], without: ErasurePredicate | None = None
    ) -> EncodedSegment:
        """Builds a segment's archives, `without` some of its messages, in a folder of the segment's
        own. The store does not change; several threads may do this at once. Raises the error that
        prevented it.
        """
        sealed = next((s for s in self._handover.sealed() if s.number == due.number), None)
        if sealed is None:
            raise IndexDamaged(f"segment {due.number} is not in the log any more")
        folder = self._folder_of(due.number)
        # An earlier attempt that failed has left files.
        self.clear(folder)
        self._files.make_dir(folder)
        job = self._job(due, sealed.path, sealed.first_position, without)
        encoded = self._encode(job, check)
        missed = self._missed(encoded)
        if missed:
            # The segment was judged by the index, which does not know messages in no queue.
            self._remove_files(encoded)
            job = msgspec.structs.replace(job, topics={**job.topics, **missed})
            encoded = self._encode(job, check)
        return encoded

    def replace(
        self, due: SegmentDue, encoded: EncodedSegment, without: ErasurePredicate | None = None
    ) -> list[ArchiveRow]:
        """Publishes the archives of a segment, and hands the segment over; returns their rows. If
        messages were left out, the segment's file is overwritten before it goes. Raises the error
        that prevented it; the segment stays then, unless only its file could not be removed.
        """
        rows: list[ArchiveRow] = []
        arriving: list[Arriving] = []
        try:
            self._compare(due.number, encoded)
            for archive in encoded.archives:
                self._context.check()
                tier = self._tier_of(due, archive)
                row = self._publisher.publish(archive, tier, self._context.places[tier])
                rows.append(row)
                arriving.append(arriving_of(row, archive))
            self._context.check()
            self._handover.hand_over(
                [due.number],
                arriving,
                encoded.unkept,
                over=encoded.over,
                erase=without is not None,
            )
        finally:
            self.discard(due, encoded)
        self._publisher.confirm(rows)
        return rows

    def discard(self, due: SegmentDue, encoded: EncodedSegment) -> None:
        """Removes the files that were built of a segment; published objects stay."""
        self._remove_files(encoded)
        self.clear(self._folder_of(due.number))

    def clear(self, folder: Path | None = None) -> None:
        """Removes the files in a folder of built archives; None: in all of them."""
        shutil.rmtree(folder or self._context.built, ignore_errors=True)

    def _job(
        self, due: SegmentDue, path: Path, base: int, without: ErasurePredicate | None
    ) -> SegmentJob:
        classes = {
            name: part.retention_class if part.to is not None else None
            for part in due.parts
            for name in part.topics
        }
        settings = self._context.settings
        return SegmentJob(
            number=due.number,
            path=str(path),
            base=base,
            topics={
                info.name: TopicPlan(archived_topic(info), classes[info.name])
                for info in self._store.topics()
                if info.name in classes
            },
            settings=msgspec.structs.replace(settings, keys=keys_at_hand(settings.keys, classes)),
            store_id=self._handover.store_id.hex(),
            folder=str(self._folder_of(due.number)),
            without=without,
        )

    def _missed(self, encoded: EncodedSegment) -> dict[str, TopicPlan]:
        """Plans for existing topics of which the segment has only messages in no queue."""
        if not encoded.unplanned:
            return {}
        known = {info.name: info for info in self._store.topics()}
        found = {}
        for name, last in encoded.unplanned.items():
            info = known.get(name)
            kind = self._class_of(info) if info is not None and last >= info.since else None
            if info is not None and kind is not None:
                found[name] = TopicPlan(archived_topic(info), kind.name)
        return found

    def _class_of(self, topic: TopicFacts) -> RetentionClass | None:
        """The retention class of a topic's messages once they left hot; None: they are dropped."""
        context = self._context
        traits = traits_of([topic], encrypted_of([topic], context.keys))
        return life_of(context.policy, traits[topic.name]).kind

    def _encode(self, job: SegmentJob, check: Callable[[], None]) -> EncodedSegment:
        self._context.pace.reading(self._handover.segment_size)
        self._context.tell(f"encoding segment {job.number}", 0, 0)
        return self._context.executor.run(check, segment_task, job)

    def _compare(self, number: int, encoded: EncodedSegment) -> None:
        """Compares each queue's messages in the archives with those in the index."""
        held = encoded.whole
        if held is None:
            held = [q for made in encoded.archives for q in made.queues]
        found = _sorted(
            [(q.topic, q.queue, q.messages, q.first, q.last) for q in held if q.queue != NO_QUEUE]
        )
        says = self._index_says(number)
        if encoded.unkept:
            there = set(map(tuple, found[:, :2].tolist()))
            gone = set(encoded.unkept) - there
            says = says[[queue not in gone for queue in map(tuple, says[:, :2].tolist())]]
        if np.array_equal(found, says):
            return
        wrong = next(row for row in _differing(found, says) + _differing(says, found))
        queue = wrong[:2]
        if queue[0] not in {info.id for info in self._store.topics()}:
            raise TieringBusy(
                f"topic {queue[0]} was deleted while segment {number} was read; the segment stays, "
                "and a later run archives it without that topic"
            )
        raise IndexDamaged(
            f"segment {number} and the index disagree about queue {queue[1]} of topic "
            f"{queue[0]}: {_of(found, queue)} against {_of(says, queue)} (messages, first and last "
            "offset); the segment stays; `kvmq verify` tells which is wrong"
        )

    def _index_says(self, number: int) -> I64:
        """Topic, queue, messages, first and last offset of each queue, in that order."""
        parts = [_EMPTY]
        for entries in self._handover.entries(number):
            if not len(entries.offsets):
                continue
            change = (np.diff(entries.topics) != 0) | (np.diff(entries.queues) != 0)
            begins = np.append(0, np.flatnonzero(change) + 1)
            ends = np.append(begins[1:], len(entries.offsets))
            columns = (
                entries.topics[begins], entries.queues[begins], ends - begins,
                entries.offsets[begins], entries.offsets[ends - 1],
            )  # fmt: skip
            parts.append(np.stack(columns, axis=1))
        rows = np.concatenate(parts)
        # A queue that goes on in the next slice of entries is there twice.
        begins = np.flatnonzero(np.append(True, (np.diff(rows[:, :2], axis=0) != 0).any(axis=1)))
        if len(begins) == len(rows) or not len(rows):
            return rows
        ends = np.append(begins[1:], len(rows)) - 1
        counts = np.add.reduceat(rows[:, 2], begins)
        first = rows[begins]
        return np.stack((first[:, 0], first[:, 1], counts, first[:, 3], rows[ends, 4]), axis=1)

    def _tier_of(self, due: SegmentDue, made: BuiltArchive) -> Tier:
        name = made.manifest.retention_class
        tiers = (p.to for p in due.parts if p.retention_class == name and p.to is not None)
        return next(tiers, None) or read_class(name).first

    def _folder_of(self, segment: int) -> Path:
        """The folder where a segment's archives are built. It goes whole, with the files of failed
        attempts.
        """
        return self._context.built / f"{segment}"

    def _remove_files(self, encoded: EncodedSegment) -> None:
        for archive in encoded.archives:
            with suppress(OSError):
                self._files.remove(archive.path)


def _sorted(rows: list[tuple[int, ...]]) -> I64:
    """Rows of five, by topic and queue."""
    found = np.array(rows, np.int64).reshape(-1, 5)
    return found[np.lexsort((found[:, 1], found[:, 0]))]


def _differing(rows: I64, others: I64) -> list[tuple[int, ...]]:
    """Rows that the others have not, or have otherwise."""
    known = set(map(tuple, others.tolist()))
    return [row for row in map(tuple, rows.tolist()) if row not in known]


def _of(rows: I64, queue: tuple[int, ...]) -> list[int] | None:
    """A queue's numbers in the rows: messages, first and last offset; None if it has no row."""
    return next((row[2:] for row in rows.tolist() if tuple(row[:2]) == queue), None)


def arriving_of(row: ArchiveRow, made: BuiltArchive) -> Arriving:
    """An archive at the place that its row names, as the store learns about it."""
    queues = [(q.topic, q.queue, q.first, q.stored_at) for q in made.queues if q.queue != NO_QUEUE]
    return Arriving(row.number, row.first_position, encode_row(row), queues)
