"""Adoption: a RocketMQ store's log becomes the log of a new store, and the source stays as it is.

The idea: the formats are the same, so the files are taken as they are. Full files get a second name
(a hard link: no time, no space); the file with the log's end is copied, because it will be written
to. Files behind it are left out: RocketMQ deletes them when it recovers.

Everything is made in a staging folder, `NAME.importing` (`folder_staging`).

    staged = stage_log(source, target, files)   the log, whole, in staged.path
    ...                                         whatever else the store needs, in there too
    publish(staged.path, target, files)         from now on the target is there

The log's end is where RocketMQ, starting on this store, would have it: RocketMQ begins at a file
that it trusts and stops at the first bad record; a blank record leads to the next file. The file
that it trusts:

    stopped in order   the last one that begins with a good record
    after a crash      the last one that begins with a good record whose store time the checkpoint
                       vouches for (up to 3 s before what was on disk); else the first

RocketMQ does not look at files before that one, so damage there ends nothing: here it is skipped,
and reported. (RocketMQ: CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover.
In the first case it also asks that the consume queues reach the file; after a stop in order they
do.) One check is stricter here: a record must state its own position. RocketMQ does not compare
that.

Invariants: no byte and no time of a file of the source changes; a target is there whole or not at
all; every file of the target that may be written to is a copy. The end is found by one reading,
front to back, one file mapped at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kvstore.core.messages import decode
from kvstore.core.scan import Scan
from kvstore.errors import RecordDamaged
from kvstore.files import Files, MappedFile
from kvstore.record.walk import Extent, Kind, walk
from kvstore.rocketmq.file_layouts import (
    CHECKPOINT_FILE,
    CHECKPOINT_MARGIN_MS,
    COMMITLOG,
    CONSUMEQUEUE,
    ROCKSDB_CURRENT,
)
from kvstore.rocketmq.folder_staging import begin_staging, check_target
from kvstore.rocketmq.side_files import CheckpointPage, read_checkpoint
from kvstore.rocketmq.source import RocketMQSource

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a log, and the counts before it.

    `records` lie before `end`, and so does `damage`, in files that RocketMQ does not look at.
    `reason` names the fault at `end`; empty if nothing was written there. `lost_records` is the
    number of whole records behind the end: RocketMQ does not reach them either, and overwrites
    them.
    """

    end: int
    reason: str
    records: int
    damage: list[Extent]
    lost_records: int


def find_end(source: RocketMQSource, files: Files, progress: Progress | None = None) -> LogEnd:
    """Reads the whole log; returns its end."""
    scan = _Scan(source, files, progress)
    trusted = _trusted_segment(source, files)
    for number in range(len(source.segments)):
        if scan.end is None:
            scan.segment(number, may_end=number >= trusted)
        else:
            scan.behind_the_end(number)
    if scan.end is None:
        last, _ = source.segments[-1]
        scan.end = last + source.segment_size
    return LogEnd(scan.end, scan.reason, scan.records, scan.damage, scan.lost_records)


class _Scan:
    """The findings so far; `end` is None until the log's end was found."""

    def __init__(self, source: RocketMQSource, files: Files, progress: Progress | None) -> None:
        self.end: int | None = None
        self.reason = ""
        self.records = 0
        self.damage: list[Extent] = []
        self.lost_records = 0
        self._source = source
        self._files = files
        self._progress = progress

    def segment(self, number: int, *, may_end: bool) -> None:
        """Scans one file; the log may end in it if RocketMQ would read it."""
        is_last = number + 1 == len(self._source.segments)
        last = -1
        for found in self._walk(number):
            if isinstance(found, Scan):
                if self.end is not None:
                    self.lost_records += len(found)
                    continue
                self.records += len(found)
                last = int(found.positions[-1] + found.sizes[-1])
                continue
            last = -1
            if self.end is not None:
                continue
            if found.kind is Kind.BLANK:
                # No file follows the last file's blank record, so RocketMQ ends the log before the
                # blank and overwrites it.
                self.end = found.position if is_last else None
            elif may_end:
                self.end, self.reason = found.position, found.reason
            else:
                reason = found.reason or f"zeros at {found.position}, but the log goes on behind"
                self.damage.append(found._replace(kind=Kind.DAMAGE, reason=reason))
        if self.end is None and may_end and last >= 0:
            # RocketMQ writes no record up to the last byte, and does not go on behind one.
            self.end = last

    def behind_the_end(self, number: int) -> None:
        """Counts the records that RocketMQ would not reach."""
        walked = self._walk(number)
        self.lost_records += sum(len(found) for found in walked if isinstance(found, Scan))

    def _walk(self, number: int) -> Iterator[Scan | Extent]:
        start, path = self._source.segments[number]
        size = self._source.segment_size
        done, total = number * size, len(self._source.segments) * size
        with _mapped(path, self._files) as mapped:
            for found in walk(mapped.buffer, start, 0, mapped.size):
                yield found
                if self._progress is not None:
                    reached = found.end if isinstance(found, Scan) else found.stop - start
                    self._progress(done + reached, total)
        if self._progress is not None:
            self._progress(done + size, total)


def _trusted_segment(source: RocketMQSource, files: Files) -> int:
    """The number of the file at which RocketMQ begins."""
    newest = None if source.closed_cleanly else _safe_time(source, files)
    for number in reversed(range(1, len(source.segments))):
        stored_at = _first_store_time(*source.segments[number], files)
        if stored_at and (newest is None or stored_at <= newest):
            return number
    return 0


def _safe_time(source: RocketMQSource, files: Files) -> int:
    """The store time up to which the checkpoint vouches for log and queues."""
    checkpoint = read_checkpoint(source.path / CHECKPOINT_FILE, files)
    if checkpoint is None:
        return 0
    if files.size(source.path / CONSUMEQUEUE / ROCKSDB_CURRENT) is not None:
        return _log_time(checkpoint)
    return checkpoint.safe_time


def _log_time(checkpoint: CheckpointPage) -> int:
    """With its queues in RocksDB, RocketMQ writes no time for them; the log's time counts."""
    return max(0, checkpoint.log_time - CHECKPOINT_MARGIN_MS)


def _first_store_time(start: int, path: Path, files: Files) -> int:
    """The store time of the record that a file begins with; 0 if it begins with none."""
    with _mapped(path, files) as mapped:
        try:
            first = decode(mapped.buffer, 0, mapped.size, position=start)
        except RecordDamaged:
            return 0
    return first.stored_at


@contextmanager
def _mapped(path: Path, files: Files) -> Iterator[MappedFile]:
    mapped = files.map(path, writable=False)
    try:
        yield mapped
    finally:
        mapped.close()


STAGING: Final = ".importing"
"""Added to the target's name: the folder in which it is made."""


class TakenLog(msgspec.Struct, frozen=True):
    """A log that was taken over.

    `path` is the folder above `commitlog`. The log has `records` from `first_position` to `end`.
    `cut_reason` says why RocketMQ would end it there or before (empty: nothing was written behind),
    and `lost_records` how many whole records that leaves behind, in the source. `damage` lies
    before the end, and readers have to skip it. `linked` and `copied` name the files.
    """

    path: Path
    segment_size: int
    first_position: int
    end: int
    records: int
    cut_reason: str
    lost_records: int
    damage: list[Extent]
    linked: list[str]
    copied: list[str]


def stage_log(
    source: RocketMQSource, target: Path, files: Files, progress: Progress | None = None
) -> TakenLog:
    """Makes the log in a staging folder, which `publish` later renames to `target`.

    The files of an unfinished import are removed first. `progress` is called with bytes done and
    bytes in all. Raises CallerError, and changes nothing, if the target is there and not empty, or
    lies inside the source.
    """
    check_target(source.path, target, files)
    staging = begin_staging(target, files, STAGING, "import")
    end = find_end(source, files, progress)
    linked: list[str] = []
    copied: list[str] = []
    for start, path in source.segments:
        if start + source.segment_size <= end.end:
            is_linked = files.link_or_copy(path, staging / COMMITLOG / path.name)
            (linked if is_linked else copied).append(path.name)
        elif start <= end.end:
            files.copy(path, staging / COMMITLOG / path.name)
            copied.append(path.name)
    return TakenLog(
        path=staging,
        segment_size=source.segment_size,
        first_position=source.segments[0][0],
        end=end.end,
        records=end.records,
        cut_reason=end.reason,
        lost_records=end.lost_records,
        damage=end.damage,
        linked=linked,
        copied=copied,
    )
