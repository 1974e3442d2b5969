"""Verifies a store: every record against its CRCs, and the index against the log.

The idea: a segment at a time. Its records are walked, past damage, and those that carry a CRC over
the whole record are checked against that as well. The entries that the index should have are noted
in columns and compared with the columns of its own entries: every entry with its queue, offset,
size, tag and time, every key's hash, a location for every queue. At last every location is compared
with the run, or the archive, that has to stand behind it, and every archive with the catalog; and
the rows of messages that wait with the log (`verify_waits`).

A store goes on while it is verified: topics are deleted, segments and archives go and come. So a
problem is looked at again before it is listed, as far as one of these may be the reason.

Invariants: changes nothing; a problem is listed with its place, and the rest is still looked at; a
change that others make meanwhile is no problem.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.core.names import PREPARED, ROLLBACK, SCHEDULE_TOPIC, TRANSACTION_MASK
from kvstore.core.records import facts, property_crc_faults, property_crc_problem
from kvstore.core.scan import Scan
from kvstore.engine.engine_context import EngineContext
from kvstore.engine.verification.verify_waits import (
    WaitsCheck,
    are_among,
    verify_schedules,
    verify_sets,
)
from kvstore.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    FormatError,
    FormatTooNew,
    FormatTooOld,
    SegmentDamaged,
)
from kvstore.files import SegmentBuffer
from kvstore.index.index import Index
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    ARCHIVES,
    NO_ARCHIVE,
    NOWHERE,
    PLACES,
    QUEUE_MASK,
    RUNS,
    Location,
    RunKey,
    location_key,
    read_archive_key,
    read_location,
    read_run_key,
    run_key,
    segment_range,
)
from kvstore.index.runs import unpack
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topics import Topics
from kvstore.opening.recovery import Progress
from kvstore.read.cold import Cold
from kvstore.read.reader import Reader
from kvstore.record.hashes import scheduled_code, topic_byte
from kvstore.record.walk import Kind, walk

I64 = NDArray[np.int64]
_PROBLEMS_MAX = 1000
_FIELDS = 6
"""The compared fields of an entry: position, queue, offset, size, tag hash, store time."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong; a field that says nothing is -1 or ""."""

    kind: str
    message: str
    position: int = -1
    topic: str = ""
    queue: int = -1
    offset: int = -1


class VerifyReport(msgspec.Struct):
    """The figures of a check, and its problems (the first 1,000; `problems_found` counts all)."""

    records: int = 0
    bytes: int = 0
    entries: int = 0
    keys: int = 0
    segments: int = 0
    seconds: float = 0.0
    problems_found: int = 0
    problems: list[Problem] = []

    def add(self, problem: Problem) -> None:
        """Notes a problem."""
        self.problems_found += 1
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)

    def forget(self, count: int) -> None:
        """Drops all problems but the first `count`."""
        self.problems_found = count
        del self.problems[count:]


def verify(context: EngineContext, progress: Progress | None, *, archives: bool) -> VerifyReport:
    """See `Store.verify`; with `archives` every byte of every archive is read."""
    log, index, reader = context.log, context.index, context.reader
    began = log.clock.monotonic()
    report = VerifyReport()
    end = reader.visible_end()
    names = {t.id: t.name for t in context.topics.all()}
    newest = 0

    def tell_wait(what: str, position: int, topic: str) -> None:
        report.add(Problem("index", what, position, topic))

    waits = WaitsCheck(context, end, tell_wait)
    for number in _there(log, index, report, end):
        known = report.problems_found
        segment = _Segment(context, names, report, number, end, newest, waits)
        segment.verify()
        newest = segment.newest
        if report.problems_found > known:
            reader.look_again()
            if reader.first_segment() > number or index.gone().has(number, log.segment_size):
                report.forget(known)  # the segment went meanwhile
                continue
        report.segments += 1
        if progress is not None:
            done = min((number + 1) * log.segment_size, end) - log.first
            progress("verifying", done, end - log.first)
    waits.compare()
    verify_sets(context, tell_wait)
    verify_schedules(context, tell_wait)
    _check_places(index, names, reader.cold, report)
    told = partial(progress, "verifying archives") if progress is not None else _untold
    _check_archives(reader, archives, report, told)
    if archives and reader.cold is not None:
        _check_held(context, names, reader.cold, report)
    report.seconds = log.clock.monotonic() - began
    return report


def _there(log: CommitLog, index: Index, report: VerifyReport, end: int) -> list[int]:
    """The segments there are; one missing between them, or before the first, is a problem."""
    size = log.segment_size
    stop = -(-end // size)
    log.segments.rescan()
    found = [n for n in log.segments.numbers if n < stop]
    # After the look at the segments: one that goes meanwhile is no problem.
    gone = index.gone()
    due = max(gone.below // size, log.segments.retired_below)
    left = gone.segments | log.segments.left
    for number in sorted({*found, stop, *left}):
        if number > due:
            which = str(log.segments.path(due))
            if number - due > 1:
                which += f" and {number - due - 1} behind it"
            report.add(Problem("segment", f"{which} can't be read: not there", due * size))
        due = max(due, number + 1)
    return [n for n in found if n not in left]


def _check_places(
    index: Index, names: dict[int, str], cold: Cold | None, report: VerifyReport
) -> None:
    """Every location has a run of its queue that begins with its offset, in the segment it names,
    or names an archive of the catalog and has a location behind it.
    """
    get = index.families.get
    numbers = _numbers(cold)
    before: tuple[int, int, Location] | None = None
    for key, value in index.families.rows(PLACES, b""):
        found = read_location(key, value)
        if before is not None and before[2].is_archived and before[:2] != found[:2]:
            _tell_location(names, before, "the queue's last location is an archive's", report)
        before = found
        if found[2].is_archived and found[2].archive != NO_ARCHIVE:
            if found[2].archive not in numbers:
                numbers = _numbers(cold)  # it may have come since
            # To a reader the catalog may be newer than the rows that it walks through.
            newest = index.locations.newest
            if found[2].archive not in numbers and newest.get(PLACES, key) == value:
                what = f"location says archive {found[2].archive}, which the catalog does not have"
                _tell_location(names, found, what, report)
    if before is not None and before[2].is_archived:
        _tell_location(names, before, "the queue's last location is an archive's", report)
    for key, value in index.families.rows(PLACES, b""):
        topic, queue, location = read_location(key, value)
        if location.segment >= ARCHIVE_FIRST or topic not in names:
            continue
        behind = run_key(location.segment, topic, queue, location.first)
        # Asked again: retention may have taken both since the walk began.
        if get(RUNS, behind) is None and get(PLACES, key) == value:
            what = f"location says segment {location.segment}, where no run begins with its offset"
            report.add(Problem("index", what, -1, names[topic], queue, location.first))


def _numbers(cold: Cold | None) -> frozenset[int]:
    """The archives that locations may name."""
    return frozenset() if cold is None else frozenset(cold.archived.numbers())


def _tell_location(
    names: dict[int, str], found: tuple[int, int, Location], what: str, report: VerifyReport
) -> None:
    topic, queue, location = found
    report.add(Problem("index", what, -1, names.get(topic, ""), queue, location.first))


def _untold(done: int, total: int) -> None:
    """Progress that nobody asked for."""


def _check_archives(
    reader: Reader, thorough: bool, report: VerifyReport, tell: Callable[[int, int], None]
) -> None:
    if reader.cold is not None:
        look_again = partial(reader.look_again, is_missing=True)
        found = reader.cold.archived.verify(thorough=thorough, look_again=look_again, tell=tell)
        for problem in found:
            report.add(Problem("archive", f"{problem.archive}: {problem.message}"))


def _check_held(
    context: EngineContext, names: dict[int, str], cold: Cold, report: VerifyReport
) -> None:
    """Every block of an archive is found by a location of its queue that names the archive."""
    families = context.index.families
    rows = families.rows(ARCHIVES, b"")
    # An archive that comes is among the others before the catalog, and a location, names it.
    known = {read_archive_key(key)[1] for key, _ in rows} & _numbers(cold)
    locations: dict[tuple[int, int], list[Location]] = {}
    for key, value in families.rows(PLACES, b""):
        topic, queue, location = read_location(key, value)
        there = locations.setdefault((topic, queue), [])
        if there and there[-1].segment == NOWHERE:
            there.pop()  # says nothing where something came behind it
        there.append(location)
    for number in sorted(known):
        try:
            held = cold.archived.contents(number).held
        except (ArchiveDamaged, ArchiveUnavailable, FormatTooNew, FormatTooOld):
            continue  # reported already
        for one in held:
            there = locations.get((one.topic, one.queue), [])
            at = bisect_right(there, one.first, key=lambda location: location.first) - 1
            is_named = at >= 0 and there[at].is_archived and there[at].archive == number
            if one.topic not in names or is_named:
                continue
            # The archive may have been replaced meanwhile, or the topic deleted.
            if number in _numbers(cold) and _is_there(context.topics, one.topic):
                what = f"archive {number} has messages from here on, where no location names it"
                report.add(Problem("index", what, -1, names[one.topic], one.queue, one.first))


def _is_there(topics: Topics, number: int) -> bool:
    """Whether a topic is in use; one that is just being deleted is not."""
    with topics.lock:
        return topics.name_of(number) is not None


class _Segment:
    """One segment's records, and the entries that the index should have of them."""

    def __init__(
        self,
        context: EngineContext,
        names: dict[int, str],
        report: VerifyReport,
        number: int,
        end: int,
        newest: int,
        waits: WaitsCheck,
    ) -> None:
        self._property_crc = context.config.check_property_crc
        """Whether a record without that CRC is damaged."""
        self.newest = newest
        """The newest store time so far: the index has it for a record whose clock was stepped
        back.
        """
        self._log = context.log
        self._index = context.index
        self._topics = context.topics
        self._names = names
        self._report = report
        self._number = number
        self._base = number * context.log.segment_size
        self._end = end
        self._waits = waits
        self._covered = min(context.index.checkpoint.position, end)
        self._entries = [np.empty((0, _FIELDS), np.int64)]
        self._key_hashes = [np.empty(0, np.int64)]
        self._key_positions = [np.empty(0, np.int64)]

    def verify(self) -> None:
        """Checks the records, then the index."""
        try:
            self._walk()
        except SegmentDamaged as e:
            self._report.add(Problem("segment", str(e), self._base))
            return
        self._compare_entries()
        self._compare_keys()

    def _walk(self) -> None:
        report, base = self._report, self._base
        self._log.drain()
        buffer = self._log.segments.buffer(self._number)
        size = self._log.segment_size
        if len(buffer) < size:
            path = self._log.segments.path(self._number)
            report.add(Problem("segment", f"{path} has {len(buffer)} bytes, not {size}", base))
        end = min(size, self._end - base)
        for found in walk(buffer, base, 0, end, with_names=True):
            if isinstance(found, Scan):
                report.records += len(found)
                report.bytes += int(found.sizes.sum())
                self._check_property_crcs(buffer, found)
                self._expect(buffer, found)
                topics = [topic for topic, _ in found.owner_names(buffer)]
                self._waits.add(buffer, base, found, topics)
            elif found.kind is Kind.DAMAGE:
                what = f"{found.size} bytes are damaged: {found.reason}"
                report.add(Problem("record", what, found.position))
            elif found.kind is Kind.END:
                what = f"{found.size} bytes are zero where records should be"
                report.add(Problem("record", what, found.position))

    def _check_property_crcs(self, buffer: SegmentBuffer, found: Scan) -> None:
        required, starts = self._property_crc, found.positions - self._base
        for row in property_crc_faults(buffer, starts, found.sizes, required=required):
            at, size, position = int(starts[row]), int(found.sizes[row]), int(found.positions[row])
            wrong = property_crc_problem(buffer, at, size, position, required=required)
            self._report.add(Problem("record", wrong, position))

    def _expect(self, buffer: SegmentBuffer, found: Scan) -> None:
        """Notes the entries and keys that the index should have of some records."""
        covered = int(np.searchsorted(found.positions, self._covered))
        if not covered:
            return
        owners, positions = found.owners[:covered], found.positions[:covered]
        stored_at, flags = found.stored_at[:covered], found.flags[:covered]
        rows = np.zeros((covered, _FIELDS), np.int64)
        rows[:, 0] = positions
        rows[:, 2] = found.offsets[:covered]
        rows[:, 3] = found.sizes[:covered]
        rows[:, 4] = found.tag_hashes[:covered]
        rows[:, 5] = np.maximum(np.maximum.accumulate(stored_at), self.newest)
        self.newest = int(rows[-1, 5])
        is_live, levels, bytes_ = (np.zeros(covered, np.int64) for _ in range(3))
        names = found.owner_names(buffer)
        order = np.argsort(owners, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            raw, queue = names[int(owners[mine[0]])]
            name = raw.decode("utf-8", "replace")
            topic = self._topics.find(name)
            if topic is None:
                continue
            live = mine[positions[mine] >= topic.since]
            is_live[live] = True
            bytes_[live] = topic_byte(raw)
            rows[live, 1] = topic.base + queue
            levels[live] = topic.certain_key_levels(positions[live])
            for row in live.tolist() if name == SCHEDULE_TOPIC else ():
                properties = facts(buffer, int(rows[row, 0]) - self._base, int(rows[row, 3]))[5]
                rows[row, 4] = scheduled_code(properties, int(stored_at[row]))
        kind = flags & TRANSACTION_MASK
        self._entries.append(rows[(is_live > 0) & (kind != PREPARED) & (kind != ROLLBACK)])
        levels[(is_live == 0) | (kind == ROLLBACK)] = -1
        key_rows, digests, least = found.keys
        there = key_rows < covered
        key_rows, digests, least = key_rows[there], digests[there], least[there]
        taken = levels[key_rows] >= least
        key_rows = key_rows[taken]
        self._key_hashes.append(digests[taken].astype(np.int64) << 8 | bytes_[key_rows])
        self._key_positions.append(positions[key_rows])

    def _compare_entries(self) -> None:
        should = np.concatenate(self._entries)
        says = self._index_entries()
        # A checkpoint that is being written, or was meanwhile, has added others.
        added = self._index.reach
        says = says[(says[:, 0] < self._covered) | (says[:, 0] >= added)]
        self._report.entries += len(says)
        says = says[np.argsort(says[:, 0], kind="stable")]
        if len(says) == len(should) and (says == should).all():
            return
        rows = {row[0]: tuple(row) for row in should.tolist()}
        for row in says.tolist():
            wanted = rows.pop(row[0], None)
            if wanted != tuple(row):
                has = "no such record" if wanted is None else str(wanted[1:])
                self._tell(f"entry says {tuple(row[1:])}, the log has {has}", row)
        for wanted in rows.values():
            self._tell("record has no entry in the index", wanted)

    def _tell(self, what: str, row: tuple[int, ...] | list[int]) -> None:
        position, queue, offset = row[:3]
        if not _is_there(self._topics, queue >> 32):
            return
        name = self._names.get(queue >> 32, "")
        self._report.add(Problem("index", what, position, name, queue & QUEUE_MASK, offset))

    def _index_entries(self) -> I64:
        """The index's own entries, from the runs, as rows of `_FIELDS`."""
        low, high = segment_range(self._number, self._number + 1)
        found = [np.zeros((0, _FIELDS), dtype=np.int64)]
        before: RunKey | None = None
        for key, value in self._index.families.rows(RUNS, low, high):
            run = read_run_key(key)
            if run.topic not in self._names:
                continue
            is_first = before is None or (before.topic, before.queue) != (run.topic, run.queue)
            before = run
            try:
                columns = unpack(value)
                tags = self._index.tags.hashes(columns.tag_hashes)
            except FormatError as e:
                row = (-1, run.topic << 32 | run.queue, run.first)
                self._tell(f"run can't be read: {e}", row)
                continue
            if is_first:
                self._check_place(run, int(columns.stored_at[0]))
            rows = np.empty((len(columns.positions), _FIELDS), dtype=np.int64)
            rows[:, 0] = columns.positions + self._base
            rows[:, 1] = run.topic << 32 | run.queue
            rows[:, 2] = np.arange(run.first, run.first + len(rows))
            rows[:, 3] = columns.sizes
            rows[:, 4] = tags
            rows[:, 5] = columns.stored_at
            found.append(rows)
        return np.concatenate(found)

    def _check_place(self, run: RunKey, stored_at: int) -> None:
        key = location_key(run.topic, run.queue, run.first)
        value = self._index.families.get(PLACES, key)
        row = (-1, run.topic << 32 | run.queue, run.first)
        if value is None:
            self._tell("the queue's first run in a segment has no location", row)
            return
        location = read_location(key, value)[2]
        if (location.segment, location.stored_at) != (run.segment, stored_at):
            what = (
                f"location says segment {location.segment}, first store time {location.stored_at}; "
            )
            what += f"the run is in segment {run.segment} and begins with {stored_at}"
            self._tell(what, row)

    def _compare_keys(self) -> None:
        wanted, positions = map(np.concatenate, (self._key_hashes, self._key_positions))
        self._report.keys += len(wanted)
        try:
            hashes, there = self._index.keys.pairs(self._number)
        except FormatError as e:
            what = f"keys of segment {self._number} can't be read: {e}"
            self._report.add(Problem("index", what, self._base))
            return
        # A pair as one number: 40 bits of hash do not fit beside 32 of position, 31 and 32 do.
        mixed = (hashes & 0x7FFFFFFF) << 32 | there
        missing = ~are_among((wanted & 0x7FFFFFFF) << 32 | positions - self._base, mixed)
        for position in positions[missing].tolist():
            what = "a key of the record is not in the index"
            self._report.add(Problem("index", what, position))
