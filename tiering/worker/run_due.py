"""Runs the agenda: archives, relocates and deletes what `schedule` found due; records each step.

The idea: the executor builds a segment's archives, and makes an archive's cold copy. The next ones
are begun while one is handed over (`pipelined`), as many as the executor does at a time. The
hand-over itself is the store's, one after the other, by the same rules.

An archive keeps its number when its object moves, so that no location in the index changes. The
object is copied and read back (`copy`). Then one batch makes the catalog name the copy (`switch`).
The old object gets a row of its own, "retired", as the object of an expired archive does. It goes
when the grace time is over.

Invariants:

- The steps and their order do not depend on the executor.
- A step that fails with any error leaves everything readable as it was, is noted, and the others go
  on.
- A segment that could not be archived is left alone for the rest of the run, and for a while after
  it.
- Where a place is away, nothing more is built for it (`work_folder.Waits`).
- The object that the catalog names is there and was read back.
- An object goes only when its row says retired, and its time has come.
- Before an archive expires, its contents are judged by its topics as they are today.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing

import msgspec

from kvstore.errors import StoreClosed
from tiering.catalog.catalog import ArchiveRow, Tier, encode_row, kept_as, read_topics
from tiering.errors import (
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceUnavailable,
    TieringStopped,
)
from tiering.executor.segment_encoder import EncodedSegment
from tiering.places.publish import CopyJob, Intent, ObjectCopy, announced, checksum, copy_remotely
from tiering.places.work_folder import WORK, Waits, overwrite_all
from tiering.policy.retention_classes import RetentionClass
from tiering.policy.schedule import Agenda, ArchiveDue, SegmentDue
from tiering.worker.archive_segment import SegmentArchiver
from tiering.worker.context import WorkContext
from tiering.worker.runs import History, Run, record_errors
from tiering.worker.store_snapshot import Snapshotter, StoreSnapshot


class Relocator:
    """Copies, expires and removes the archives of one store."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._handover = context.handover
        self._publisher = context.publisher
        self._copies = context.store.path / WORK / "shifting"

    def remove_copies(self) -> list[str]:
        """Removes the local copies of an interrupted worker; returns their names."""
        found = overwrite_all(self._copies, self._context.files)
        return [f"{self._copies.name}/{name}" for name in found]

    def copy(self, row: ArchiveRow, number: int, check: Callable[[], None]) -> Intent:
        """Copies an archive to the cold place, under the name with that number, and returns the
        object. Several threads may do this at once; `switch` comes next. Raises the error that
        prevented it; the object is removed then, or by the next run.
        """
        context = self._context
        source, target = context.place_of(row), context.places["cold"]
        # The note says the crc32c, which a catalog that was found again does not know.
        crc = row.crc or checksum(source.source(row.key, row.size), pace=context.pace.reading)
        job = CopyJob(
            source=source.name, key=row.key, target=target.name,
            intent=Intent(
                number, kept_as(target.name, context.store.path),
                self._publisher.name(row, number), row.size, crc,
            ),
            source_options=context.options_of(source), target_options=context.options_of(target),
        )  # fmt: skip
        path = self._copies / f"{number:010d}"
        copy = ObjectCopy(source, target, job, path, context.files, context.pace)
        with announced(self._publisher.intents, job.intent, target):
            context.executor.transfer(check, copy_remotely, copy)
        return job.intent

    def switch(self, row: ArchiveRow, copy: Intent) -> None:
        """Makes the catalog name the copy as the archive's object, and retires the old object."""
        cold = msgspec.structs.replace(
            row, place=copy.place, key=copy.key, tier="cold", crc=copy.crc
        )
        old = self._retired(row, copy.number)
        self._handover.set_rows([(r.catalog_key, encode_row(r)) for r in (cold, old)])
        self._publisher.intents.forget(copy.number)

    def expire(self, row: ArchiveRow, kind: RetentionClass, now: int) -> bool:
        """Removes an archive from the store, if all its messages are over by its present class;
        returns whether it did.
        """
        if not kind.is_over(now - row.last_stored_at):
            return False
        number = self._handover.take_number()
        gone = self._retired(row, number)
        rows = [(row.catalog_key, None), (gone.catalog_key, encode_row(gone))]
        topics = None if row.topics is None else read_topics(row.topics)
        self._handover.expire_archive(row.number, row.name, rows, topics)
        return True

    def _retired(self, row: ArchiveRow, number: int) -> ArchiveRow:
        """A row that only keeps an object until its time has come."""
        until = self._context.grace_ends()
        return msgspec.structs.replace(row, number=number, state="retired", delete_at=until)


MOVING = "moving what is due"
"""The name of a whole run's progress, in bytes; each step tells its own progress beside it."""


class AgendaRunner:
    """Runs agendas in order, and leaves steps alone that failed."""

    def __init__(
        self,
        context: WorkContext,
        archiver: SegmentArchiver,
        relocator: Relocator,
        snapshots: Snapshotter,
        history: History,
        waits: Waits,
    ) -> None:
        self._context = context
        self._archiver = archiver
        self._relocator = relocator
        self._snapshots = snapshots
        self._history = history
        self._waits = waits
        self.skipped: set[int] = set()
        """Segments that could not be archived in this run."""

    def may_archive(self, segment: int) -> bool:
        """Whether nothing is known that keeps a segment from being archived now."""
        return segment not in self.skipped and not self._waits.is_on(name_of(segment))

    def run_due(self, agenda: Agenda, snapshot: StoreSnapshot, run: Run) -> bool:
        """Runs an agenda; returns whether any of its steps could be done."""
        total = sum(s.bytes for s in agenda.segments) + sum(a.bytes for a in agenda.archives)
        done = sum(s.bytes for s in agenda.segments)
        any_done = self._archive(agenda.segments, total, run)
        if not agenda.archives:
            return any_done
        rows = {row.key: row for row in self._context.rows()}
        leaving = [a for a in agenda.archives if a.key not in run.failed]
        cold = [a for a in leaving if a.to == "cold"]
        any_done |= self._relocate(cold, rows, (done, total), run)
        done += sum(a.bytes for a in cold)
        for archive in (a for a in leaving if a.to != "cold"):
            self._context.tell(MOVING, done, total)
            any_done |= self._expire(rows[archive.key], snapshot, run)
            done += archive.bytes
        return any_done

    def _archive(self, segments: Sequence[SegmentDue], total: int, run: Run) -> bool:
        any_done, done = False, 0

        def build(due: SegmentDue, check: Callable[[], None]) -> EncodedSegment | None:
            return None if self._is_away(due) else self._archiver.build(due, check)

        with closing(self._context.pipelined(segments, build)) as coming:
            for due, built in coming:
                self._context.tell(MOVING, done, total)
                self._context.check()
                began = self._context.clock.monotonic()
                try:
                    encoded = built()
                    if encoded is None or self._is_away(due):
                        self._skip(due, encoded, run)
                        continue
                    rows = self._archiver.replace(due, encoded)
                except (TieringStopped, StoreClosed):
                    raise
                except Exception as e:
                    # On any error the others still go: one must not fill the disk with them.
                    self.skipped.add(due.number)
                    self._back_off(name_of(due.number), tiers_of(due), e)
                    run.note_failure(name_of(due.number), e)
                else:
                    for name in (name_of(due.number), *self._places_of(due)):
                        self._waits.over(name)
                    seconds = self._context.clock.monotonic() - began
                    run.archived(due, rows, seconds, encoded.left_out)
                    any_done = True
                done += due.bytes
        return any_done

    def _place_of(self, tier: Tier) -> str:
        return self._context.places[tier].name

    def _places_of(self, due: SegmentDue) -> list[str]:
        return [self._place_of(tier) for tier in tiers_of(due)]

    def _is_away(self, due: SegmentDue) -> bool:
        return any(map(self._waits.is_on, self._places_of(due)))

    def _skip(self, due: SegmentDue, encoded: EncodedSegment | None, run: Run) -> None:
        """Leaves a segment alone, since a place of its archives is away; drops its built files."""
        self.skipped.add(due.number)
        if encoded is not None:
            self._archiver.discard(due, encoded)
        away = next(place for place in self._places_of(due) if self._waits.is_on(place))
        run.failed[name_of(due.number)] = self._waits.why(away)

    def _back_off(self, name: str, tiers: Collection[Tier], why: Exception) -> None:
        """Leaves a failed step alone for a while; or all steps of a place, if that is to blame."""
        is_away = isinstance(why, PlaceUnavailable | PlaceDenied | PlaceFull)
        if is_away and isinstance(why, PlaceError) and why.place:
            name, tiers = why.place, [t for t in tiers if self._place_of(t) == why.place]
        self._waits.failed(name, tiers, why)

    def _relocate(
        self,
        archives: Sequence[ArchiveDue],
        rows: dict[str, ArchiveRow],
        told: tuple[int, int],
        run: Run,
    ) -> bool:
        any_done, (done, total) = False, told

        def numbered() -> Iterator[tuple[ArchiveRow, int]]:
            for archive in archives:
                row = rows[archive.key]
                why = self._out_of_reach(row)
                if why is None:
                    yield row, self._context.handover.take_number()
                else:
                    run.failed[row.key] = why

        def failed(key: str, why: Exception) -> None:
            self._back_off(key, ["cold"], why)
            run.note_failure(key, why)

        def copy(one: tuple[ArchiveRow, int], check: Callable[[], None]) -> Intent:
            return self._relocator.copy(*one, check)

        with closing(self._context.pipelined(numbered(), copy)) as coming:
            for (row, _), copied in coming:
                self._context.tell(MOVING, done, total)
                self._context.check()
                with record_errors(failed, row.key, Exception):
                    self._relocator.switch(row, copied())
                    for name in (row.key, self._place_of("cold")):
                        self._waits.over(name)
                    run.relocated.append(row.key)
                    self._history.add("cold", row.key, bytes=row.size, messages=row.messages)
                    any_done = True
                done += row.size
        return any_done

    def _out_of_reach(self, row: ArchiveRow) -> str | None:
        """The reason why an archive that is due to go cold is left alone: its own, or that of a
        place; or None.
        """
        places = (self._place_of("cold"), self._context.place_of(row).name)
        away = (name for name in (row.key, *places) if self._waits.is_on(name))
        return next(map(self._waits.why, away), None)

    def _expire(self, row: ArchiveRow, snapshot: StoreSnapshot, run: Run) -> bool:
        self._context.check()
        with record_errors(run.note_failure, row.key, Exception):
            topics = self._snapshots.resolver.topics_of(row)
            kind = snapshot.today.class_of(row.retention_class, topics)
            if self._relocator.expire(row, kind, self._context.trusted.now_ms()):
                run.expired.append(row.key)
                self._history.add("expired", row.key, bytes=row.size, messages=row.messages)
                return True
        return False

    def remove_retired(self, run: Run) -> None:
        """Removes the objects of retired archives whose time has come."""

        def failed(key: str, why: Exception) -> None:
            if isinstance(why, PlaceUnavailable | PlaceDenied):
                self._waits.failed(place, (), why)
            run.note_failure(key, why)

        retired = self._context.rows("retired")
        now = self._context.trusted.now_ms() if retired else 0
        for row in retired:
            place = self._context.place_of(row).name
            if (row.delete_at is None or now >= row.delete_at) and not self._waits.is_on(place):
                with record_errors(failed, row.key, Exception):
                    if self._context.remove_retired(row):
                        run.removed.append(row.name)


def name_of(segment: int) -> str:
    """A segment's name in reports."""
    return f"segment {segment}"


def tiers_of(due: SegmentDue) -> list[Tier]:
    """The tiers that archives of a segment go to."""
    return sorted({part.to for part in due.parts if part.to is not None})
