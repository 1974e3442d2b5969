"""Erases every copy of some messages, wherever they lie, and shows that none is left.

The idea: messages that wait, and are meant, are cancelled or rolled back first: they would be
delivered else, and put to the log's end before their segments leave. The active segment is sealed,
so that all messages put before the erasure are in sealed segments. Segments that hold a match
become archives without it, and their files are overwritten. Archives that hold a match are
rewritten; the next ones are made while one is handed over, if the executor does several jobs at a
time. Objects that were replaced, by this or by an earlier merge, go at once, without the grace
time. Then segments and archives are searched once more, and the messages that still match are
counted.

The search reads as little as possible (`Searcher`). A record names its topic itself, so a segment
is read whole. In an archive only the directory says the topic of a record: blocks of topics that
can't be meant are not read. An archive without a topic that may be meant is not even opened, if its
row in the catalog has all topic ids.

Invariants: a message that is not meant is readable at every moment; one that could not be erased is
in the report with the reason, and nothing says proven then; a second run does the rest. A message
that is not read can't match; a deleted topic is looked up by its name in the archive, since its id
says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kvstore.core.names import PENDING_TOPICS
from kvstore.errors import StoreError
from kvstore.files import LocalFiles
from kvstore.index.archived import Sealed
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import RecordBatch
from tiering.catalog.catalog import ArchiveRow, encode_row, read_topics
from tiering.errors import PolicyIllegal
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment import segment_parts
from tiering.executor.segment_encoder import EncodedSegment
from tiering.keys.crypto import KeyProvider, KeysAtHand, keys_at_hand
from tiering.merge.partition import MergeInput
from tiering.merge.partition_task import QueueRows, Window
from tiering.policy.schedule import SegmentDue
from tiering.worker.archive_segment import SegmentArchiver
from tiering.worker.context import WorkContext
from tiering.worker.replace import Replacement, Replacer
from tiering.worker.run_due import name_of
from tiering.worker.runs import record_errors

WINDOW_BYTES = 8 << 20


class MatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a segment or archive holds, how many match, how many can't be read."""

    messages: int = 0
    found: int = 0
    unreadable: int = 0


def count_in_segment(
    path: str, base: int, match: ErasurePredicate, size: int | None = None
) -> MatchCount:
    """Counts the matches in a segment's file, with records that no queue holds; of a segment that
    is not sealed `size` bytes are used.
    """
    files = LocalFiles()
    mapped = files.map(Path(path), writable=False)
    try:
        end = mapped.size if size is None else min(size, mapped.size)
        messages = meant = damaged = 0
        for part in segment_parts(mapped.buffer, base, end):
            messages += len(part.starts)
            meant += int(match.rows_of(RecordBatch(mapped.buffer, part.starts, part.sizes)).sum())
            damaged += len(part.damage)
        # Damaged bytes may be anything.
        return MatchCount(messages=messages, found=meant, unreadable=damaged)
    finally:
        mapped.close()


def count_in_archive(
    one: MergeInput, match: ErasurePredicate, keys: KeysAtHand | None
) -> MatchCount:
    """Counts the matches in an archive; see `count`."""
    return count(one.open(keys), match, keys)


def count(archive: Archive, match: ErasurePredicate, keys: KeysAtHand | None) -> MatchCount:
    """Counts the matches in an archive. Every block of a topic that may be meant is read, unless
    the topic's key is destroyed.
    """
    manifest = archive.manifest
    if not any(match.may_be_in(topic.name) for topic in manifest.topics):
        return MatchCount(messages=manifest.messages)
    window = Window(archive, WINDOW_BYTES)
    messages = found = unreadable = 0
    for number, _, blocks in archive.directory.queues():
        topic = manifest.topics[number]
        held = sum(map(archive.directory.count, blocks))
        if not match.may_be_in(topic.name):
            messages += held
            continue
        if topic.key_id is not None and (keys is None or keys.is_gone(topic.name, topic.key_id)):
            whole = match.is_all_of(topic.name, topic.last_stored_at, manifest.last_position)
            found += held * whole
            unreadable += held * (not whole)
            continue
        for block in blocks:
            records = QueueRows.of(window.block(block)).records
            messages += len(records)
            found += int(match.rows(records).sum())
    return MatchCount(messages=messages, found=found, unreadable=unreadable)


class Searcher:
    """Searches the segments and archives of one store."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._store = context.store
        self._handover = context.handover
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Reads which topics there are."""
        self._names = {info.id: info.name for info in self._store.topics()}

    def segments(self) -> Iterator[Sealed]:
        """All segments, also those that are not sealed: these end where the log does."""
        size, stats = self._handover.segment_size, self._store.stats()
        following = stats.first_position // size
        for sealed in self._handover.sealed():
            yield sealed
            following = sealed.number + 1
        end = stats.end_position
        for number in range(following, -(-end // size)):
            begin, path = number * size, self._handover.segment_path(number)
            # A segment that left the log may be the last before the active one.
            if self._store.config.files.size(path) is not None:
                yield Sealed(number, path, begin, min(begin + size, end))

    def in_segment(
        self, segment: Sealed, match: ErasurePredicate, check: Callable[[], None]
    ) -> MatchCount:
        """Counts the matches in a segment."""
        begin = segment.first_position
        return self._context.executor.run(
            check, count_in_segment, str(segment.path), begin, match, segment.end_position - begin
        )

    def in_archive(
        self, row: ArchiveRow, match: ErasurePredicate, check: Callable[[], None]
    ) -> MatchCount:
        """Counts the matches in an archive. Raises the error that keeps it from being read."""
        if not self.may_hold(row, match):
            return MatchCount(messages=row.messages)
        keys = self._context.keys_for([self._context.manifest_of(row)])
        one = self._context.input_of(row)
        return self._context.executor.run(check, count_in_archive, one, match, keys)

    def may_hold(self, row: ArchiveRow, match: ErasurePredicate) -> bool:
        """Whether an archive may hold messages that match, by its row alone."""
        is_later = match.before is not None and row.first_stored_at >= match.before
        if row.topics is None or (match.topic is None and not is_later):
            return True
        # A deleted topic is not known by its id. Messages that waited may be older than they look.
        names = [self._names.get(number) for number in read_topics(row.topics)]
        if is_later:
            names = [name for name in names if name is None or name in PENDING_TOPICS]
        return any(name is None or match.may_be_in(name) for name in names)


REWRITTEN_AT_ONCE: Final = 4
"""Archives that are rebuilt at the same time at most: each is several jobs by itself."""


class Destroyer(KeyProvider, Protocol):
    """A key provider that can destroy keys, as `KeyFile` does."""

    def destroy(self, topic: str) -> None:
        """Deletes the topic's encryption key from every key source."""
        ...


class ErasureReport(msgspec.Struct, kw_only=True):
    """The results of an erasure. `messages` counts the erased ones; a message with a copy, in a
    retry topic say, counts as often as it was there. `ended` are the messages that waited, and
    don't any more: delayed and prepared ones, with those of a set of which one is erased.
    `schedules` put such messages at their times, and go on. `segments` became archives.
    `rewritten` are the names of archives that were replaced, `archives` of those that replaced
    them, `removed` of objects that are gone.

    The proof: of `checked` messages `found` matched (each was read, or is of a topic in an archive
    that can't match); `unreadable` more are encrypted with keys that are destroyed. `failed` has
    each thing that could not be done or read, with the reason.
    """

    what: str
    messages: int = 0
    ended: int = 0
    schedules: list[str] = []
    segments: list[int] = []
    rewritten: list[str] = []
    archives: list[str] = []
    removed: list[str] = []
    checked: int = 0
    found: int = 0
    unreadable: int = 0
    failed: dict[str, str] = {}

    @property
    def is_proven(self) -> bool:
        """Whether everything was searched again, and nothing matched."""
        return not self.found and not self.failed


class ErasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that an erasure would have now: so many messages match, with the notes of waits
    that it ends and is about as well; so many waits would end, and the `schedules` of such messages
    go on (see `ErasureReport`). `segments` would become archives without what matches (also the
    active segment, which is sealed for that); `archives` are the names of those that would be
    rewritten, with the bytes of both. `removed` are names of objects that were replaced before, and
    would go at once. `failed` has each thing that could not be looked at, with the reason.
    """

    what: str
    messages: int = 0
    ended: int = 0
    schedules: list[str] = []
    segments: list[int] = []
    segment_bytes: int = 0
    archives: list[str] = []
    archive_bytes: int = 0
    removed: list[str] = []
    failed: dict[str, str] = {}


class DestroyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of destroying a topic's key, and its limits. `archives` are the names of those
    with messages of the topic that nobody can read any more. `readable` are the names of those with
    messages that were never encrypted, or with another key. `segments` are the sealed ones with
    messages of the topic; records of the log are never encrypted. `Worker.erase` is for the
    readable ones. `removed` are the names of objects that are gone: they had been replaced, and may
    have held messages from before the topic had a key. `failed` names archives that could not be
    looked at, and objects that could not be removed, with the reason: encrypted messages in them
    are gone with the key.
    """

    topic: str
    archives: list[str] = []
    readable: list[str] = []
    segments: list[int] = []
    removed: list[str] = []
    failed: dict[str, str] = {}

    @property
    def is_whole(self) -> bool:
        """Whether everything was looked at, and nothing of the topic can be read any more."""
        return not (self.readable or self.segments or self.failed)


class Eraser:
    """Plans, does and proves erasures; `due_now` says where a segment's messages go if it is
    archived now.
    """

    def __init__(
        self,
        context: WorkContext,
        archiver: SegmentArchiver,
        replacer: Replacer,
        due_now: Callable[[int], SegmentDue | None],
    ) -> None:
        self._context = context
        self._store = context.store
        self._handover = context.handover
        self._archiver = archiver
        self._replacer = replacer
        self._due_now = due_now
        self._one_at_a_time = threading.Lock()
        self._search = Searcher(context)

    def plan(self, match: ErasurePredicate) -> ErasurePlan:
        """The plan of an erasure; nothing is changed."""
        self._store.checkpoint()
        self._search.begin()
        waits = self._handover.planned_waits(match.rows)
        ended = waits.ended
        plan = ErasurePlan(
            what=str(match), messages=waits.notes, ended=ended.delayed + ended.prepared,
            schedules=ended.schedules,
        )  # fmt: skip
        note = _noted_in(plan.failed)
        with_notes = set(waits.segments)
        for segment in self._search.segments():
            self._context.check()
            with record_errors(note, name_of(segment.number), StoreError, OSError):
                counted = self._search.in_segment(segment, match, self._context.check)
                if counted.found or counted.unreadable or segment.number in with_notes:
                    with_notes.discard(segment.number)
                    plan = msgspec.structs.replace(
                        plan, messages=plan.messages + counted.found,
                        segments=[*plan.segments, segment.number],
                        segment_bytes=plan.segment_bytes + self._handover.segment_size,
                    )  # fmt: skip
        # Notes that have no room in the active segment go behind it.
        plan = msgspec.structs.replace(
            plan, segments=[*plan.segments, *sorted(with_notes)],
            segment_bytes=plan.segment_bytes + self._handover.segment_size * len(with_notes),
        )  # fmt: skip
        for row in self._context.rows():
            self._context.check()
            with record_errors(note, row.name, StoreError, OSError):
                counted = self._search.in_archive(row, match, self._context.check)
                if counted.found:
                    plan = msgspec.structs.replace(
                        plan, messages=plan.messages + counted.found,
                        archives=[*plan.archives, row.name],
                        archive_bytes=plan.archive_bytes + row.size,
                    )  # fmt: skip
        retired = self._context.rows("retired")
        return msgspec.structs.replace(plan, removed=[row.name for row in retired])

    def erase(self, match: ErasurePredicate) -> ErasureReport:
        """Erases, and searches everything again. Errors are in the report."""
        report = ErasureReport(what=str(match))
        ended = self._handover.end_waits(match.rows)
        report.ended, report.schedules = ended.delayed + ended.prepared, ended.schedules
        self._store.seal()
        self._store.checkpoint()
        self._search.begin()
        ends = [segment.end_position for segment in self._handover.sealed()]
        ends += [row.last_position + 1 for row in self._context.rows()]
        match = msgspec.structs.replace(match, below=max(ends, default=0))
        self._erase_segments(match, report)
        self._erase_archives(match, report)
        self._handover.forget_keys()
        report.removed += self._remove_replaced(lambda _: True, report.failed)
        self._prove(match, report)
        return report

    def _remove_replaced(
        self, must_go: Callable[[ArchiveRow], bool], failed: dict[str, str]
    ) -> list[str]:
        """Removes files and objects in which messages may be that neither log nor catalog has any
        more: of retired archives those that must go. Returns their names.
        """
        note = _noted_in(failed)
        with record_errors(note, "files of segments", StoreError, OSError):
            self._handover.remove_left()
        removed = []
        for row in self._replacer.hasten_retired(must_go):
            with record_errors(note, row.name, StoreError, OSError):
                if self._context.remove_retired(row):
                    removed.append(row.name)
        leftovers, stay = self._replacer.erase_leftovers()
        failed.update(stay)
        return removed + leftovers

    def _erase_segments(self, match: ErasurePredicate, report: ErasureReport) -> None:
        def build(
            segment: Sealed, check: Callable[[], None]
        ) -> tuple[MatchCount, SegmentDue, EncodedSegment] | None:
            counted = self._search.in_segment(segment, match, check)
            if not counted.found and not counted.unreadable:
                return None
            # Only one thread at a time takes a snapshot of the store.
            with self._one_at_a_time:
                due = self._due_now(segment.number)
            if due is None:
                raise PolicyIllegal(
                    f"segment {segment.number} holds {counted.found} of the messages, and the "
                    "policy has no place for archives, as which what is left of a segment is kept; "
                    "give it one"
                )
            return counted, due, self._archiver.build(due, check, match)

        note = _noted_in(report.failed)
        with closing(self._context.pipelined(self._handover.sealed(), build)) as coming:
            for segment, built in coming:
                self._context.check()
                with record_errors(note, name_of(segment.number), StoreError, OSError):
                    found = built()
                    if found is not None:
                        counted, due, encoded = found
                        self._archiver.replace(due, encoded, match)
                        report.segments.append(segment.number)
                        report.messages += counted.found

    def _erase_archives(self, match: ErasurePredicate, report: ErasureReport) -> None:
        def build(row: ArchiveRow, check: Callable[[], None]) -> Replacement | None:
            if not self._search.in_archive(row, match, check).found:
                return None
            manifest = self._context.manifest_of(row)
            return self._replacer.rebuild(row, manifest, check, without=match)

        rows, note = self._context.rows(), _noted_in(report.failed)
        with closing(self._context.pipelined(rows, build, most=REWRITTEN_AT_ONCE)) as coming:
            for at, (row, built) in enumerate(coming):
                self._context.check()
                self._context.tell(f"erasing {match}", at, len(rows))
                with record_errors(note, row.name, StoreError, OSError):
                    replacement = built()
                    if replacement is not None:
                        self._replace(replacement, report)

    def _replace(self, replacement: Replacement, report: ErasureReport) -> None:
        replaced = self._replacer.replace(replacement)
        report.messages += replaced.merged.dropped.erased
        report.rewritten += [row.name for row in replaced.old]
        if replaced.row is not None:
            report.archives.append(replaced.row.name)

    def destroy_key(self, topic: str, keys: Destroyer) -> DestroyReport:
        """Destroys a topic's key, and reports which of its messages can be read all the same."""
        keys.destroy(topic)
        rows = self._context.rows()
        # Blocks that were decoded before are forgotten.
        self._handover.set_rows([(row.catalog_key, encode_row(row)) for row in rows])
        archives: list[str] = []
        readable: list[str] = []
        failed: dict[str, str] = {}
        for at, row in enumerate(rows):
            self._context.tell(f"looking for topic {topic}", at, len(rows))
            try:
                manifest = self._context.manifest_of(row)
            except (StoreError, OSError) as e:
                failed[row.name] = str(e)
                continue
            for one in manifest.topics:
                if one.name == topic:
                    known = keys_at_hand(keys, [], [(topic, one.key_id)] if one.key_id else [])
                    gone = one.key_id is not None and not (known is not None and known.reading)
                    (archives if gone else readable).append(row.name)
        # Objects that were replaced may be from before the topic had a key.
        self._search.begin()
        match = ErasurePredicate(topic=topic, copies_in=frozenset())
        removed = self._remove_replaced(lambda row: self._search.may_hold(row, match), failed)
        # The index has no figures of the active segment.
        self._store.seal()
        self._store.checkpoint()
        stats = self._store.segments()
        segments = [s.number for s in stats if any(t.topic == topic for t in s.topics)]
        return DestroyReport(
            topic=topic, archives=archives, readable=readable, segments=segments,
            removed=removed, failed=failed,
        )  # fmt: skip

    # --- the proof ---

    def _prove(self, match: ErasurePredicate, report: ErasureReport) -> None:
        def count(one: Sealed | ArchiveRow, check: Callable[[], None]) -> MatchCount:
            if isinstance(one, ArchiveRow):
                return self._search.in_archive(one, match, check)
            return self._search.in_segment(one, match, check)

        note = _noted_in(report.failed)
        everything: list[Sealed | ArchiveRow] = [*self._handover.sealed(), *self._context.rows()]
        with closing(self._context.pipelined(everything, count)) as coming:
            for at, (one, counting) in enumerate(coming):
                progress = f"proving that nothing is left: {match}"
                self._context.tell(progress, at, len(everything))
                name = one.name if isinstance(one, ArchiveRow) else name_of(one.number)
                with record_errors(note, name, StoreError, OSError):
                    counted = counting()
                    if isinstance(one, ArchiveRow):
                        _add(report, counted)
                        continue
                    _add(report, msgspec.structs.replace(counted, unreadable=0))
                    if counted.unreadable:
                        raise StoreError(
                            f"segment {one.number} is damaged in {counted.unreadable} places, "
                            "where anything may be"
                        )


def _add(report: ErasureReport, counted: MatchCount) -> None:
    report.checked += counted.messages
    report.found += counted.found
    report.unreadable += counted.unreadable


def _noted_in(failed: dict[str, str]) -> Callable[[str, Exception], None]:
    def note(step: str, error: Exception) -> None:
        failed[step] = str(error)

    return note
