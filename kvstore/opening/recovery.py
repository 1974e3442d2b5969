"""Recovers a log and its index after any crash.

The idea: go on from the checkpoint: check every record behind it, index it, find the end. Cut the
torn records behind the durable end, report the damage below it. Then the disk is made to agree, and
a checkpoint says so.

Invariants: never silent: all that was cut or passed over is in the report and in the program's log;
opening fails for damage only if that was asked for; a second crash in the middle of recovery
changes nothing about the outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvstore.config import QUEUES_MAX, StoreConfig
from kvstore.errors import IndexDamaged, LogDamaged, QueueNotFound, TopicNotFound, shown
from kvstore.index.checkpoint import log_time, put_pending_counts
from kvstore.index.handover import Gone, gone_now
from kvstore.index.index import Index
from kvstore.index.keys import Checkpoint
from kvstore.log.commitlog import CommitLog
from kvstore.log.recovery_scan import Damage, LogScan
from kvstore.meta.topics import Topic, Topics
from kvstore.opening.replay import Replay
from kvstore.record.layout import FIXED_V1

Progress = Callable[[str, int, int], None]
"""Called with the step's name, the amount done and the total (0: unknown)."""

_log = logging.getLogger("kvmq")


class RecoveryReport(msgspec.Struct):
    """The work of an opening. Positions and sizes are bytes of the log, `seconds` the time it
    took.
    """

    start: int = 0
    end: int = 0
    records: int = 0
    entries: int = 0
    keys: int = 0
    refused: int = 0
    torn: Damage | None = None
    cut_bytes: int = 0
    damage: list[Damage] = []
    problems: list[str] = []
    clean: bool = False
    seconds: float = 0.0


def recover(
    log: CommitLog, index: Index, topics: Topics, config: StoreConfig, progress: Progress | None
) -> tuple[RecoveryReport, int, int | None]:
    """Makes log and index agree; returns the report, the log's time, and the position of the last
    record that was not checkpointed, None if there was none.
    """
    return _Recovery(log, index, topics, config, progress).run()


class _Recovery:
    """One opening; its steps in the order of `run`."""

    def __init__(
        self,
        log: CommitLog,
        index: Index,
        topics: Topics,
        config: StoreConfig,
        progress: Progress | None,
    ) -> None:
        self._log = log
        self._index = index
        self._config = config
        self._progress = progress
        self._checkpoint = index.load()
        self._report = RecoveryReport(clean=self._checkpoint.clean)
        self._topics = topics
        self._replay = Replay(index, self._topic_of, topics.find, self._check_gap)
        self._saved = 0
        self._missing: list[Damage] = []
        self._gone: frozenset[int] = frozenset()

    def run(self) -> tuple[RecoveryReport, int, int | None]:
        """See `recover`."""
        clock, report, log = self._config.clock, self._report, self._log
        began = clock.monotonic()
        report.problems += self._mend_segments()
        self._read_log(self._start())
        for d in report.damage:
            _log.error("%s: damaged from %d to %d: %s", self._where, d.position, d.end, d.reason)
        for problem in report.problems:
            _log.warning("%s: %s", self._where, problem)
        if log.writable:
            self._cut()
        if report.torn is not None:
            _log.warning("%s: torn tail at %d: %s", self._where, report.end, report.torn.reason)
        log.start(report.end, self._checkpoint.durable)
        if log.writable:
            self._save(report.end)
            if self._replay.is_anew:
                self._count_pending()
            if self._replay.before_archives:
                self._index.change(lambda batch: None, ended=self._replay.before_archives)
        report.seconds = clock.monotonic() - began
        last_stored = max(
            self._checkpoint.stored_at, self._replay.last_stored, log_time(self._index.families)
        )
        return report, last_stored, self._replay.last

    def _count_pending(self) -> None:
        """Counts the messages that wait: the records of some that were delivered may have left the
        log, so the count of a replay can be too low.
        """
        batch = self._index.families.batch()
        put_pending_counts(self._index.families, batch)
        if len(batch):
            self._index.families.write(batch)

    @property
    def _where(self) -> Path:
        return self._log.folder.parent

    def _mend_segments(self) -> list[str]:
        """Reports what is wrong with segment files; a short one gets its size back, so that its
        records can be read.
        """
        log, segments = self._log, self._log.segments
        told = [f"{log.folder / n} is not a segment and is left alone" for n in segments.foreign]
        for number, problem in sorted(segments.problems.items()):
            path = segments.path(number)
            size = segments.files.size(path)
            short = size is not None and size < segments.size and path.is_file()
            if not (log.writable and short):
                told.append(problem)
                continue
            base = number * segments.size
            if base + (size or 0) < self._checkpoint.durable:
                # Before anything is changed: filled up, the file would be damaged all the same.
                self._fail_if_asked([Damage(base + (size or 0), base + segments.size, problem)])
            segments.extend(number)
            told.append(f"{problem}; it was filled up with zeros, `kvmq verify` lists what is lost")
        return told

    def _start(self) -> int:
        """Where reading begins: at the checkpoint, or behind segments that are missing there."""
        report = self._report
        report.start = max(self._checkpoint.position, self._log.first)
        gone = self._index.gone()
        missing = _missing(self._log, gone, report.start, self._checkpoint)
        if not self._log.writable and missing:
            # Retention or tiering may have come between the looks at the index and at the log.
            gone = gone_now(self._index.families.path)
            self._log.segments.retired_below = gone.below // self._log.segment_size
            missing = _missing(self._log, gone, report.start, self._checkpoint)
        self._gone = gone.segments
        report.damage += missing
        self._missing = missing
        return max([report.start, *(d.end for d in missing if d.position <= report.start)])

    def _read_log(self, start: int) -> None:
        """Checks and indexes every record from `start` on."""
        log, report, replay, config = self._log, self._report, self._replay, self._config
        self._saved = start
        # From its beginning the log tells its times itself; older records are gone.
        replay.last_stored = self._checkpoint.stored_at if start > log.first else 0
        replay.is_anew = start <= log.first
        left = sum(number * log.segment_size >= start for number in self._gone)
        replay.gone_records = left * log.segment_size // FIXED_V1
        scan = LogScan(
            log.segments,
            start,
            self._checkpoint.durable,
            property_crc=config.check_property_crc,
            gone=self._gone,
        )
        total = max(0, len(log.segments.numbers) * log.segment_size - (start - log.first))
        for chunk in scan.chunks():
            self._fail_if_asked(scan.damage)
            replay.gaps_expected = bool(scan.damage or report.damage)
            replay.add(chunk.buffer, chunk.base, chunk.found)
            if log.writable and chunk.end - self._saved >= config.checkpoint_bytes:
                replay.finish()
                # Records below a checkpoint are not looked at again, and the next opening must
                # fail, too.
                self._fail_if_asked(report.damage + self._refused())
                self._save(chunk.end)
            if self._progress is not None:
                self._progress("recovering", chunk.end - start, total)
        self._check_ours(start, scan)
        report.damage += scan.damage
        replay.finish()
        report.damage += self._refused()
        self._fail_if_asked(report.damage)
        report.end, report.torn, report.records = scan.end, scan.torn, scan.records
        # Where the last segments are missing the scan ends before them, and the log behind them.
        report.end = max([scan.end, *(d.end for d in self._missing if d.position == scan.end)])
        report.entries, report.keys = replay.entries, replay.keys
        report.refused = len(replay.refused)

    def _refused(self) -> list[Damage]:
        """Records that are whole and could not be indexed."""
        return [
            Damage(p, p + size, f"the record says offset {found}, {due} was due: it is not indexed")
            for p, size, found, due in self._replay.refused
        ]

    def _check_ours(self, start: int, scan: LogScan) -> None:
        """Refuses an index whose checkpoint lies inside a record: it is not this log's.

        To cut the log there, as a torn tail, would be the loss of what follows.
        """
        base = start - start % self._log.segment_size
        if scan.torn is None or scan.end != start or start == base:
            return
        before = LogScan(self._log.segments, base, base)
        crossing = next(
            (
                p
                for found in (chunk.found for chunk in before.chunks())
                for p in found.positions[
                    (found.positions < start) & (start < found.positions + found.sizes)
                ].tolist()
            ),
            None,
        )
        if crossing is not None:
            raise IndexDamaged(
                f"the index of {self._where} ends at {start}, inside the record at {crossing}: it "
                f"is not the index of this log; `kvmq rebuild {self._where}` makes it anew"
            )

    def _topic_of(self, raw: bytes, queue: int, position: int) -> Topic | None:
        """The topic of a record; a topic that had no row so far is reported."""
        before = self._topics.next_id
        try:
            if queue >= QUEUES_MAX:
                raise QueueNotFound(f"the record says queue {queue}")
            # A log that another program wrote, or whose index was lost, is all there is to learn
            # from.
            topic = self._topics.for_replay(raw, queue, position, make=not self._checkpoint.epoch)
        except (TopicNotFound, QueueNotFound) as e:
            self._report.damage.append(Damage(position, position, f"{e}: it is not indexed"))
            return None
        if self._topics.next_id != before:
            name = raw.decode("utf-8", "replace")
            told = f"topic {shown(name)} was not known; it was made for the record at {position}"
            self._report.problems.append(told)
        return topic

    def _fail_if_asked(self, damage: list[Damage]) -> None:
        if damage and self._config.on_corruption == "fail":
            d = damage[0]
            raise LogDamaged(
                f"the log of {self._where} is damaged from {d.position} to {d.end}: {d.reason}; "
                'open with on_corruption="report" to pass over it'
            )

    def _cut(self) -> None:
        """Makes the disk agree that the log ends where it ends."""
        log, report = self._log, self._report
        log.segments.writable_from = report.end // log.segment_size
        # After a clean close too: a power cut may have left a later record and not the one before.
        report.cut_bytes = log.truncate(report.end)
        if report.cut_bytes and report.torn is None:
            reason = f"{report.cut_bytes} bytes behind the end of the log"
            report.torn = Damage(report.end, report.end, reason)

    def _check_gap(self) -> None:
        """A tail that stays in memory can't have gaps: a reader leaves them to the next writer."""
        if not self._log.writable:
            raise IndexDamaged(
                f"{self._where} must be opened for writing once: its log has gaps that are not "
                "indexed"
            )

    def _save(self, position: int) -> None:
        """Writes a checkpoint at `position`, up to which everything was indexed."""
        log, before = self._log, self._checkpoint
        self._replay.finish()
        log.sync_segments(self._saved, position)
        self._saved = position
        self._index.freeze(position)
        durable = max(before.durable, position)
        stored_at = max(before.stored_at, self._replay.last_stored)
        self._index.write_checkpoint(
            Checkpoint(position, durable, before.epoch, stored_at, clean=False)
        )


def _missing(log: CommitLog, gone: Gone, start: int, checkpoint: Checkpoint) -> list[Damage]:
    """Stretches that should be in the log and have no segment, without those that the scan meets
    itself.
    """
    numbers = log.segments.numbers
    size = log.segment_size
    found = []
    due = gone.below // size
    # Segments that are only in archives are not missing.
    for number in sorted({*numbers, *(n for n in gone.segments if n >= due)}):
        stop = min(number, start // size)
        if stop > due:
            told = f"{log.segments.path(due)} is not there"
            if stop - due > 1:
                told += f", nor are the {stop - due - 1} behind it"
            found.append(Damage(due * size, stop * size, told))
        due = number + 1
    end = max([gone.below, *((n + 1) * size for n in (*numbers[-1:], *gone.segments))])
    known = max(checkpoint.position, checkpoint.durable)
    if known > end:
        # The index knows of more log than there is; positions must not be given twice, so the log
        # goes on behind.
        found.append(
            Damage(
                end,
                -(-known // size) * size,
                f"the log ends at {end}, but reached {known}: segments are missing",
            )
        )
    return found
