"""Opening a log that may have been left in the middle of anything.

The idea: go on from the checkpoint: check every record behind it, index it, find the end; cut what
is torn behind the durable end, report what is damaged below it. Then the disk is made to agree, and
a checkpoint says so.

Invariants: never silent: what was cut or passed over is in the report and in the program's log;
opening fails for damage only if that was asked for; a second crash in the middle of recovery
changes nothing about the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import IndexDamaged, LogDamaged
from kvstore.index.index import Index
from kvstore.index.keys import Checkpoint
from kvstore.index.replay import Replay
from kvstore.log.commitlog import CommitLog
from kvstore.log.recovery import Damage, LogScan
from kvstore.meta.topics import Topics

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and the whole (0: not known)."""

_log = logging.getLogger("kvmq")


class RecoveryReport(msgspec.Struct):
    """What opening did. Positions and sizes are bytes of the log, `seconds` the time it took."""

    start: int = 0
    end: int = 0
    records: int = 0
    entries: int = 0
    keys: int = 0
    repeated: int = 0
    torn: Damage | None = None
    cut_bytes: int = 0
    damage: list[Damage] = []
    problems: list[str] = []
    clean: bool = False
    seconds: float = 0.0


def recover(
    log: CommitLog, index: Index, topics: Topics, config: StoreConfig, progress: Progress | None
) -> tuple[RecoveryReport, int]:
    """Bring log and index together; returns the report and the last store time."""
    clock = config.clock
    began = clock.monotonic()
    checkpoint = index.load()
    report = RecoveryReport(clean=checkpoint.clean)
    report.problems += _mend_segments(log)
    report.start = max(checkpoint.position, log.first)
    gone = _missing(log, report.start, checkpoint)
    report.damage += gone
    start = max([report.start, *(d.end for d in gone if d.position <= report.start)])
    scan = LogScan(log.segments, start, checkpoint.durable, property_crc=config.check_property_crc)
    writable = log.writable

    saved = start

    def save(position: int) -> None:
        if not writable:
            raise IndexDamaged(
                f"{log.folder.parent} must be opened for writing once: its log has gaps that are "
                "not indexed"
            )
        nonlocal saved
        log.sync_segments(saved, position)
        saved = position
        index.freeze(position)
        index.write_checkpoint(
            Checkpoint(
                position,
                max(checkpoint.durable, position),
                checkpoint.epoch,
                replay.last_stored,
                clean=False,
            )
        )

    replay = Replay(index, topics.for_replay, save)
    # From the beginning the log tells its times itself; what it held before that is gone.
    replay.last_stored = checkpoint.stored_at if start > log.first else 0
    total = max(0, len(log.segments.numbers) * log.segment_size - (start - log.first))
    for chunk in scan.chunks():
        replay.add(chunk.buffer, chunk.base, chunk.positions, chunk.sizes)
        if writable and chunk.end - saved >= config.checkpoint_bytes:
            save(chunk.end)
        if progress is not None:
            progress("recovering", chunk.end - start, total)
    report.end = scan.end
    report.records, report.entries, report.keys = scan.records, replay.entries, replay.keys
    report.repeated = replay.repeated
    report.damage += scan.damage
    report.torn = scan.torn
    _tell_damage(log, report)
    if report.damage and config.on_corruption == "fail":
        d = report.damage[0]
        raise LogDamaged(
            f"the log of {log.folder.parent} is damaged in {len(report.damage)} places, first from "
            f"{d.position} to {d.end}: "
            f'{d.reason}; open with on_corruption="report" to pass over it'
        )
    if writable:
        log.segments.writable_from = report.end // log.segment_size
        # Also after a clean close: a power cut may have left a later record without the ones before it.
        report.cut_bytes = log.cut(report.end)
        if report.cut_bytes and report.torn is None:
            reason = f"{report.cut_bytes} bytes behind the end of the log"
            report.torn = Damage(report.end, report.end, reason)
        log.sync_segments(saved, report.end)
    if report.torn is not None:
        _log.warning(
            "%s: torn tail cut at %d: %s", log.folder.parent, report.end, report.torn.reason
        )
    log.start(report.end)
    if writable:
        save(report.end)
    report.seconds = clock.monotonic() - began
    return report, max(checkpoint.stored_at, replay.last_stored)


def _mend_segments(log: CommitLog) -> list[str]:
    """Say what is wrong with segment files; a short one gets its size back, so that what it holds
    can be read.
    """
    segments = log.segments
    told = [f"{log.folder / name} is not a segment and is left alone" for name in segments.foreign]
    for number, problem in sorted(segments.problems.items()):
        size = segments.files.size(segments.path(number))
        if (
            log.writable
            and size is not None
            and size < segments.size
            and segments.path(number).is_file()
        ):
            segments.extend(number)
            told.append(
                f"{problem}; it was filled up with zeros, what is lost is reported as damage"
            )
        else:
            told.append(problem)
    return told


def _missing(log: CommitLog, start: int, checkpoint: Checkpoint) -> list[Damage]:
    """Stretches whose segments are not there, but for those that the scan comes by."""
    numbers = log.segments.numbers
    size = log.segment_size
    found = []
    if numbers:
        there = set(numbers)
        found += [
            Damage(n * size, (n + 1) * size, f"{log.segments.path(n)} is not there")
            for n in range(numbers[0], numbers[-1])
            if n not in there and (n + 1) * size <= start
        ]
    end = (numbers[-1] + 1) * size if numbers else 0
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


def _tell_damage(log: CommitLog, report: RecoveryReport) -> None:
    where = log.folder.parent
    for problem in report.problems:
        _log.warning("%s: %s", where, problem)
    for d in report.damage:
        _log.error("%s: the log is damaged from %d to %d: %s", where, d.position, d.end, d.reason)
