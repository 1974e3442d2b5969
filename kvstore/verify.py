"""Verify: every record against its CRC, and the index against the log.

The idea: a segment at a time. Its records are walked, past damage; what the index should say of
them is worked out as columns and held against what it says: every entry at its place with size, tag
and time, every key's hash, a place for every queue.

Invariant: changes nothing; what is wrong is listed with where it is, the rest is still looked at.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.consume.reader import Reader
from kvstore.errors import FormatError, SegmentDamaged
from kvstore.index.index import Index
from kvstore.index.keys import PLACES, QUEUE_MASK, RUNS, place_key, read_run_key, segment_range
from kvstore.index.runs import unpack
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topics import Topics
from kvstore.record.facts import Facts, delay_level_of, facts, keys_of, tag_of, unique_id_of
from kvstore.record.hashes import key_hash, tags_code
from kvstore.record.names import PREPARED, ROLLBACK, SCHEDULE_TOPIC, TRANSACTION_MASK
from kvstore.record.walk import Kind, walk
from kvstore.recovery import Progress

I64 = NDArray[np.int64]
_PROBLEMS_MAX = 1000


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it should be; -1 and "" where a field says nothing."""

    kind: str
    message: str
    position: int = -1
    topic: str = ""
    queue: int = -1
    offset: int = -1


class VerifyReport(msgspec.Struct):
    """What was looked at, and what was wrong with it (the first 1,000 problems; `problems_found`
    counts all).
    """

    records: int = 0
    bytes: int = 0
    entries: int = 0
    keys: int = 0
    segments: int = 0
    seconds: float = 0.0
    problems_found: int = 0
    problems: list[Problem] = []

    def add(self, problem: Problem) -> None:
        """Note a problem."""
        self.problems_found += 1
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)


class _Expected:
    """What the index should say of one segment."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int, int, int, int]] = {}
        """By position: queue key, offset, size, tag hash, store time."""
        self.keys: list[tuple[int, int]] = []


def verify(
    log: CommitLog, index: Index, topics: Topics, reader: Reader, progress: Progress | None
) -> VerifyReport:
    """See `Store.verify`."""
    clock_start = log.clock.monotonic()
    report = VerifyReport()
    end = reader.visible_end()
    names: dict[int, str] = {t.id: t.name for t in topics.all()}
    for number in range(log.first // log.segment_size, -(-end // log.segment_size)):
        expected = _Expected()
        try:
            _walk_segment(log, topics, number, end, expected, report)
        except SegmentDamaged as e:
            report.add(Problem("segment", str(e), number * log.segment_size))
            continue
        covered = index.checkpoint.position
        _check_entries(index, names, number, log.segment_size, covered, expected, report)
        _check_keys(index, number, log.segment_size, covered, expected, report)
        report.segments += 1
        if progress is not None:
            progress(
                "verifying", min((number + 1) * log.segment_size, end) - log.first, end - log.first
            )
    report.seconds = log.clock.monotonic() - clock_start
    return report


def _walk_segment(
    log: CommitLog, topics: Topics, number: int, end: int, expected: _Expected, report: VerifyReport
) -> None:
    base = number * log.segment_size
    log.drain_for_reading()
    buffer = log.segments.buffer(number)
    stop = min(log.segment_size, len(buffer), end - base)
    if len(buffer) < log.segment_size:
        report.add(Problem("segment", f"{log.segments.path(number)} has {len(buffer)} bytes", base))
    for found in walk(buffer, base, 0, stop):
        if found.kind is Kind.RECORD:
            report.records += 1
            report.bytes += found.size
            _expect(
                topics,
                facts(buffer, found.position - base, found.size),
                found.position,
                found.size,
                expected,
            )
        elif found.kind is Kind.DAMAGE:
            report.add(
                Problem("record", f"{found.size} bytes are damaged: {found.reason}", found.position)
            )
        elif found.kind is Kind.END:
            report.add(
                Problem(
                    "record", f"{found.size} bytes are zero where records should be", found.position
                )
            )


def _expect(topics: Topics, f: Facts, position: int, size: int, expected: _Expected) -> None:
    name = f.topic.decode("utf-8", "replace")
    if not topics.is_live(name, position):
        return
    topic = topics.get(name)
    kind = f.system_flags & TRANSACTION_MASK
    if kind not in (PREPARED, ROLLBACK):
        level = delay_level_of(f.properties) if name == SCHEDULE_TOPIC else None
        code = tags_code(name, tag_of(f.properties), level, f.stored_at)
        expected.entries[position] = topic.base + f.queue, f.offset, size, code, f.stored_at
    if kind != ROLLBACK and topic.keys_unique:
        unique = unique_id_of(f.properties)
        found = [unique] if unique else []
        if topic.keys_all:
            found += keys_of(f.properties)
        expected.keys += [(key_hash(f.topic, k), position) for k in found]


def _check_entries(
    index: Index,
    names: dict[int, str],
    number: int,
    segment_size: int,
    covered: int,
    expected: _Expected,
    report: VerifyReport,
) -> None:
    base = number * segment_size
    low, high = segment_range(number, number + 1)
    left = {p: e for p, e in expected.entries.items() if p < covered}
    placed: set[int] = set()
    for key, value in index.families.rows(RUNS, low, high):
        run = read_run_key(key)
        topic = names.get(run.topic)
        if topic is None:
            continue
        queue = run.topic << 32 | run.queue
        try:
            columns = unpack(value)
        except FormatError as e:
            report.add(Problem("index", f"run can't be read: {e}", -1, topic, run.queue, run.first))
            continue
        if queue not in placed:
            placed.add(queue)
            if index.families.get(PLACES, place_key(run.topic, run.queue, run.first)) is None:
                report.add(
                    Problem(
                        "index",
                        "the queue's first run in a segment has no place",
                        -1,
                        topic,
                        run.queue,
                        run.first,
                    )
                )
        rows = zip(*(c.tolist() for c in columns), strict=True)
        for offset, (position, size, code, stored_at) in enumerate(rows, run.first):
            report.entries += 1
            says = (queue, offset, size, code, stored_at)
            should = left.pop(base + position, None)
            if should != says:
                has = should[1:] if should else "no such record"
                what = f"entry says {says[1:]}, the log has {has}"
                report.add(Problem("index", what, base + position, topic, run.queue, offset))
    for position, (queue, offset, *_) in left.items():
        message = "record has no entry in the index"
        report.add(
            Problem(
                "index", message, position, names.get(queue >> 32, "?"), queue & QUEUE_MASK, offset
            )
        )


def _check_keys(
    index: Index,
    number: int,
    segment_size: int,
    covered: int,
    expected: _Expected,
    report: VerifyReport,
) -> None:
    base = number * segment_size
    wanted = [(h, p - base) for h, p in expected.keys if p < covered]
    report.keys += len(wanted)
    try:
        hashes, positions = index.keys.pairs(number)
    except FormatError as e:
        report.add(Problem("index", f"keys of segment {number} can't be read: {e}", base))
        return
    there = set(zip(hashes.tolist(), positions.tolist(), strict=True))
    for h, p in wanted:
        if (h, p) not in there:
            report.add(Problem("index", "a key of the record is not in the index", base + p))
