"""Archives one sealed segment: from the log into archives, step by step.

The idea: a process of its own, or a task of Spark, regroups and compresses the records into files
in a work folder (`make`); of several segments at once, if the executor does several jobs at a time.
Then one segment after the other is handed over (`settle`). Each archive is announced (an intent),
put into its place and read back. The contents of the archives are compared with the index. One
WriteBatch makes the change, and the segment goes. Whatever step a crash comes in, `tidy` at the
next start puts things right.

Invariants: the segment stays until every archive was read back byte for byte and holds just what
the index says of the segment's queues; a step that fails leaves the store as it was.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.config import Retention
from kvstore.errors import IndexDamaged
from kvstore.files import Files
from kvstore.index.archived import Arriving
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings
from tiering.catalog.catalog import ArchiveRow, Tier, encode_row
from tiering.errors import PolicyIllegal
from tiering.executor.match import Match
from tiering.executor.pool import Executor
from tiering.executor.regroup import Made, Regrouped, SegmentJob, TopicPlan, regroup_locally
from tiering.keys.sources import keys_at_hand
from tiering.places.place import Place
from tiering.places.unmade import overwrite_all
from tiering.places.waiting import WORK
from tiering.policy.retention_classes import RetentionClass, read_class
from tiering.policy.schedule import SegmentDue
from tiering.worker.publisher import Publisher
from tiering.worker.rate_limit import RateLimit
from tiering.worker.store_side import HandOver, Store, TopicFacts

I64 = NDArray[np.int64]
_EMPTY: Final = np.empty((0, 5), np.int64)


class SegmentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of archiving one segment."""

    number: int
    rows: list[ArchiveRow]
    messages: int
    raw_bytes: int
    bytes: int
    left_out: int


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
    )


class Mover:
    """Makes a segment's archives and hands them over; `places` are the places by tier."""

    def __init__(
        self,
        store: Store,
        settings: ArchiveSettings,
        places: Mapping[Tier, Place],
        executor: Executor,
        reading: RateLimit,
        publisher: Publisher,
        check: Callable[[], None],
        tell: Callable[[str, int, int], None],
        class_of: Callable[[TopicFacts], RetentionClass | None],
    ) -> None:
        self._store = store
        self._side: HandOver = store.handover
        self._files: Files = store.config.files
        self._settings = settings
        self._places = places
        self._executor = executor
        self._reading = reading
        self.publisher = publisher
        self._check = check
        self._tell = tell
        self._class_of = class_of
        self._work = store.path / WORK
        # A process that a kill of this one left behind must not write where the next one does.
        self._made = self._work / "made" / secrets.token_hex(8)

    # --- after a crash ---

    def tidy(self, known: set[str], failed: Callable[[str, Exception], None]) -> list[str]:
        """Removes the files and objects of an interrupted worker; returns their names. See
        `Publisher.clean_up`.
        """
        removed = self.publisher.clean_up(self._places.values(), known, failed)
        return removed + overwrite_all(self._work / "made", self._files)

    # --- one segment ---

    def move(self, due: SegmentDue, without: Match | None = None) -> SegmentOutcome:
        """Archives a segment, `without` some of its messages: then its file is overwritten before
        it goes. Raises the error that prevented it; the segment is where it was then.
        """
        return self.settle(due, self.make(due, self._check, without), without)

    def make(
        self, due: SegmentDue, check: Callable[[], None], without: Match | None = None
    ) -> Regrouped:
        """Makes a segment's archives, in a folder of its own. The store is asked, and not changed;
        several threads may do it at once. Raises the error that prevented it.
        """
        sealed = next((s for s in self._side.sealed() if s.number == due.number), None)
        if sealed is None:
            raise IndexDamaged(f"segment {due.number} is not in the log any more")
        folder = self._folder_of(due.number)
        # Files of an earlier attempt, in which something went wrong.
        self.clear(folder)
        self._files.make_dir(folder)
        job = self._job(due, sealed.path, sealed.first_position, without)
        regrouped = self._regroup(job, check)
        missed = self._missed(regrouped)
        if missed:
            # The segment was judged by the index, which does not know messages in no queue.
            self._clear(regrouped)
            job = msgspec.structs.replace(job, topics={**job.topics, **missed})
            regrouped = self._regroup(job, check)
        return regrouped

    def settle(
        self, due: SegmentDue, regrouped: Regrouped, without: Match | None = None
    ) -> SegmentOutcome:
        """Puts the archives that were made into the segment's place; see `move`."""
        try:
            self._compare(due.number, regrouped)
            rows, arriving = [], []
            for made in regrouped.archives:
                self._check()
                tier = self._tier_of(due, made)
                row = self.publisher.publish(made, tier, self._places[tier])
                rows.append(row)
                arriving.append(arriving_of(row, made))
            self._check()
            self._side.hand_over(
                [due.number], arriving, regrouped.unkept, erase=without is not None
            )
        finally:
            self.discard(due, regrouped)
        self.publisher.confirm(rows)
        return SegmentOutcome(
            number=due.number,
            rows=rows,
            messages=regrouped.messages,
            raw_bytes=sum(row.raw_bytes for row in rows),
            bytes=sum(row.size for row in rows),
            left_out=regrouped.left_out,
        )

    def discard(self, due: SegmentDue, regrouped: Regrouped) -> None:
        """Removes the files that were made of a segment; objects already put stay."""
        self._clear(regrouped)
        self.clear(self._folder_of(due.number))

    def _job(self, due: SegmentDue, path: Path, base: int, without: Match | None) -> SegmentJob:
        classes = {
            name: part.retention_class if part.to is not None else None
            for part in due.parts
            for name in part.topics
        }
        keys = keys_at_hand(self._settings.keys, classes)
        return SegmentJob(
            number=due.number,
            path=str(path),
            base=base,
            topics={
                info.name: TopicPlan(archived_topic(info), classes[info.name])
                for info in self._store.topics()
                if info.name in classes
            },
            settings=msgspec.structs.replace(self._settings, keys=keys),
            store_id=self._side.store_id.hex(),
            folder=str(self._folder_of(due.number)),
            without=without,
        )

    def _missed(self, regrouped: Regrouped) -> dict[str, TopicPlan]:
        """Plans for existing topics of which the segment has only messages in no queue."""
        if not regrouped.unplanned:
            return {}
        known = {info.name: info for info in self._store.topics()}
        found = {}
        for name, last in regrouped.unplanned.items():
            info = known.get(name)
            kind = self._class_of(info) if info is not None and last >= info.since else None
            if info is not None and kind is not None:
                found[name] = TopicPlan(archived_topic(info), kind.name)
        return found

    def _regroup(self, job: SegmentJob, check: Callable[[], None]) -> Regrouped:
        self._reading.take(self._side.segment_size)
        self._tell(f"regrouping segment {job.number}", 0, 0)
        return self._executor.run(check, regroup_locally, job)

    def _compare(self, number: int, regrouped: Regrouped) -> None:
        """Compares each queue's messages in the archives with those in the index."""
        held = regrouped.whole
        if held is None:
            held = [q for made in regrouped.archives for q in made.queues]
        found = _sorted(
            [(q.topic, q.queue, q.messages, q.first, q.last) for q in held if q.queue != NO_QUEUE]
        )
        says = self._index_says(number)
        if regrouped.unkept:
            there = set(map(tuple, found[:, :2].tolist()))
            gone = set(regrouped.unkept) - there
            says = says[[queue not in gone for queue in map(tuple, says[:, :2].tolist())]]
        if np.array_equal(found, says):
            return
        wrong = next(row for row in _differing(found, says) + _differing(says, found))
        queue = wrong[:2]
        raise IndexDamaged(
            f"segment {number} and the index disagree about queue {queue[1]} of topic "
            f"{queue[0]}: {_of(found, queue)} against {_of(says, queue)} (messages, first and last "
            "offset); the segment stays; `kvmq verify` tells which is wrong"
        )

    def _index_says(self, number: int) -> I64:
        """Topic, queue, messages, first and last offset of each queue, in that order."""
        parts = [_EMPTY]
        for entries in self._side.entries(number):
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

    def _tier_of(self, due: SegmentDue, made: Made) -> Tier:
        name = made.manifest.retention_class
        tiers = (p.to for p in due.parts if p.retention_class == name and p.to is not None)
        return next(tiers, None) or read_class(name).first

    def made_folder(self) -> Path:
        """Where archives are made, before they are put where they belong."""
        self._files.make_dir(self._made)
        return self._made

    def _folder_of(self, segment: int) -> Path:
        """Where a segment's archives are made; it goes whole, with what lost attempts left."""
        return self._made / f"{segment}"

    def clear(self, folder: Path | None = None) -> None:
        """Removes files that were made and are not wanted any more: in a folder, or all of them."""
        shutil.rmtree(folder or self._made, ignore_errors=True)

    def tier_near(self, tier: Tier) -> tuple[Tier, Place]:
        """A tier that has a place, and the place: this tier, if it can be. Raises `PolicyIllegal`
        if none has.
        """
        for found in (tier, *self._places):
            if found in self._places:
                return found, self._places[found]
        raise PolicyIllegal(
            "the policy has no place for archives, as which what is left of another store's is "
            "kept; give it one"
        )

    def _clear(self, regrouped: Regrouped) -> None:
        for made in regrouped.archives:
            with suppress(OSError):
                self._files.remove(made.path)


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


def arriving_of(row: ArchiveRow, made: Made) -> Arriving:
    """An archive at the place that its row names, as the store is told of it."""
    queues = [(q.topic, q.queue, q.first, q.stored_at) for q in made.queues if q.queue != NO_QUEUE]
    return Arriving(row.number, row.first_position, encode_row(row), queues)
