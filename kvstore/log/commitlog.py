"""The commit log: one endless run of records, appended under one lock.

The idea: positions only grow. An append copies whole records into the active segment (or the
staging buffer) and then moves `end`, which is the moment at which they are in the log; where the
rest of a segment is too small a blank record closes it. The next segment is made before it is
needed. The disk has the log up to `durable`, which a sync that succeeded moves.

Invariants:

- first <= durable <= end.
- Everything below `end` is whole records and blanks.
- Bytes behind `end` are zero, also after an append that failed.
- No byte is written for which the disk has no block yet.
- After a failed sync nothing is appended any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvstore.clock import Clock
from kvstore.config import StoreConfig
from kvstore.errors import (
    DiskFull,
    FlushFailed,
    SegmentDamaged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreReadOnly,
)
from kvstore.files import Files, MappedFile
from kvstore.log.segments import Segments, disk_errors
from kvstore.log.staging import Staging
from kvstore.process.durations import Durations
from kvstore.process.locks import Signal, is_mine
from kvstore.record.layout import BLANK, BLANK_MAGIC, BLANK_SIZE

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_log = logging.getLogger("kvmq")

_WRITTEN_FROM: Final = 16 << 10
"""Bytes from which on a batch is written instead of copied into the map: the kernel fills fresh
pages without a fault for each. 32 messages of 1 KiB: 168 k/s -> 205 k/s; below it the call, and
waiting for the GIL behind it, cost more than they save (0.1 us a message of 128 B).
"""


Piece = tuple[int, bytes]
"""Bytes of the log, and the position at which they stand; they don't cross a segment's end."""


class CommitLog:
    """An open commit log. `lock` guards appends; `end` may be read without it."""

    def __init__(
        self, folder: Path, config: StoreConfig, *, writable: bool, gone: Collection[int] = ()
    ) -> None:
        self.files: Files = config.files
        self.clock: Clock = config.clock
        self._config = config
        self.folder = folder
        self.lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self.syncs = 0
        self.sync_durations = Durations()
        """How long it took to put everything on the disk, each time that something was to be."""
        self.segments = Segments(
            folder, config.files, config.segment_size, writable=writable, gone=gone
        )
        self.segment_size = config.segment_size
        self.writable = writable
        self.failure: FlushFailed | None = None
        self.closed = False
        self.is_ending = False
        """Whether the store is about to be closed: calls of many steps give up at the next one."""
        self.staging: Staging | None = None
        self.end = self.first
        self.durable = self.first
        self.prepare_wanted = Signal()
        """Set when the next segment, or a checkpoint, should be made; the housekeeper waits for it.
        """
        self._is_full = False
        """Whether puts are refused for want of room, which is logged once."""

    @property
    def first(self) -> int:
        """Position of the oldest segment."""
        return self.segments.oldest * self.segment_size

    def start(self, end: int, durable: int) -> None:
        """Begins appending at `end`, which recovery found, after `truncate`; the disk has
        everything below it. Of a log that is only read the disk is known to have the part below
        `durable`: its writer may not have synced the rest.
        """
        self.end = self.durable = end
        if not self.writable:
            self.durable = min(end, durable)
            return
        number = end // self.segment_size
        self.segments.create(number)
        # The holes of a sparse copy get blocks, too: a store into a hole on a full disk ends the
        # process.
        self.segments.reserve(number, end % self.segment_size)
        if self._config.write_mode == "staged":
            c = self._config
            self.staging = Staging(
                self.segments,
                self.clock,
                end,
                bytes_max=c.stage_bytes,
                count_max=c.stage_count,
                interval=c.stage_interval,
            )

    def truncate(self, end: int) -> int:
        """Makes `end` the end of the log, before `start`: zeroes the rest of its segment, and
        removes the segments behind it. Returns the number of non-zero bytes that this removed.
        """
        number, at = divmod(end, self.segment_size)
        gone = 0
        for later in [n for n in self.segments.numbers if n > number]:
            gone += self._remove_empty_or_torn(later)
        if self.segments.is_usable(number):
            self.segments.unshare(number)
            self.segments.remap(number)
            gone += self.segments.zero_from(number, at)
        return gone

    def _remove_empty_or_torn(self, number: int) -> int:
        gone = 0
        if (
            number not in self.segments.problems
            and self.files.links(self.segments.path(number)) == 1
        ):
            self.segments.remap(number)
            gone = self.segments.zero_from(number, 0)
        self.segments.remove(number)
        return gone

    def sync_segments(self, first: int, end: int) -> None:
        """Puts a stretch of the log on the disk; for recovery, which has no flusher."""
        for number in range(
            first // self.segment_size, (max(end, first + 1) - 1) // self.segment_size + 1
        ):
            if self.segments.is_usable(number):
                self.segments.sync(number)

    # --- appending; under `lock` ---

    def check_turn(self) -> None:
        """Raises `StoreBusy` if this thread has the lock: a put in a signal's handler waits for the
        put that it has interrupted.
        """
        if is_mine(self.lock):
            raise self._busy()

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"the log was busy for {self._config.busy_timeout * 1000:.0f} ms; try again, or "
            "put larger batches"
        )

    def wait_turn(self) -> None:
        """Takes the lock, which another thread has; `StoreBusy` if it is not free in time. Called
        inside the `try` that lets the lock go, behind `check_turn`.
        """
        self.check_writable()
        if not self.lock.acquire(timeout=self._config.busy_timeout):
            raise self._busy()

    def check_writable(self) -> None:
        """Raises the reason why nothing can be written, if there is one."""
        if self.closed:
            raise StoreClosed(f"{self.folder.parent} was closed; open it again")
        if not self.writable:
            raise StoreReadOnly(
                f"{self.folder.parent} was opened read-only; open it without read_only=True to "
                "write"
            )
        self.check_failure()

    def check_going_on(self) -> None:
        """`StoreClosed` for a call of many steps, between two of them, if the store is closed or
        about to be.
        """
        if self.closed or self.is_ending:
            raise StoreClosed(
                f"{self.folder.parent} is being closed; the call was given up between two steps"
            )

    def check_failure(self) -> None:
        """Raises `FlushFailed` if a flush failed."""
        if self.failure is not None:
            raise FlushFailed(*self.failure.args) from self.failure

    def check_disk(self) -> None:
        """Raises `DiskFull` if the disk is above the write watermark."""
        why = self._too_full()
        if why is not None:
            if not self._is_full:
                self._is_full = True
                _log.error("%s; nothing is deleted that no retention allows", why)
            raise DiskFull(f"{why}; free space or raise watermarks")
        if self._is_full:
            self._is_full = False
            _log.warning("puts into %s are taken again: its disk has room", self.folder.parent)

    def _too_full(self) -> str | None:
        limit = self._config.watermarks[2]
        used = self.disk_used()
        if used < limit:
            return None
        return f"the disk of {self.folder} is {used:.1%} full, puts stop at {limit:.0%}"

    def refusal(self) -> str | None:
        """Why puts are refused now, if they are."""
        try:
            self.check_writable()
        except StoreError as e:
            return str(e)
        return self._too_full()

    def disk_used(self) -> float:
        """The share of the log's disk in use; `SegmentDamaged` if the disk doesn't say."""
        with disk_errors(self.folder, "asked how full its disk is"):
            return self.files.disk_used(self.folder)

    def _segment_behind(self, position: int) -> int:
        """The first position of the segment that follows the one with `position`."""
        return (position // self.segment_size + 1) * self.segment_size

    def has_room(self, length: int) -> bool:
        """Whether the active segment has room for so many bytes, with blocks on the disk."""
        number, at = divmod(self.end, self.segment_size)
        return at > 0 and at + length + BLANK_SIZE <= self.segments.map(number).reserved

    def append(self, pieces: Sequence[Piece], count: int) -> None:
        """Writes `count` whole records, and moves `end` behind all of them. The first piece stands
        at `end`; behind each but the last the segment is closed, and the next piece begins the
        next.
        """
        if len(pieces) > 1:
            self._append_over_segments(pieces, count)
            return
        [(end, data)] = pieces
        number, at = divmod(end, self.segment_size)
        behind = at + len(data)
        segments = self.segments
        segment = segments.map(number)
        if behind > segment.reserved:
            segments.reserve(number, behind)
        try:
            self._write(segment, end, data, count)
            self.end = end + len(data)
        except BaseException:
            self._undo(pieces, end)
            raise

    def _append_over_segments(self, pieces: Sequence[Piece], count: int) -> None:
        # All segments are there, with room on the disk, before the first byte is written.
        closed = [(at, data + self._blank_behind(at + len(data))) for at, data in pieces[:-1]]
        pieces = [*closed, pieces[-1]]
        before = self.end
        segments = [self._ready(position, len(data)) for position, data in pieces]
        try:
            for segment, (position, data) in zip(segments, pieces, strict=True):
                if data:
                    self._write(segment, position, data, 0)
            if self.staging is not None:
                self.staging.count(count)
            position, data = pieces[-1]
            self.end = position + len(data)
        except BaseException:
            self._undo(pieces, before)
            raise

    def _blank_behind(self, position: int) -> bytes:
        """The bytes that close a segment at `position`; those behind them don't matter."""
        return BLANK.pack(self._segment_behind(position) - position, BLANK_MAGIC)

    def roll(self) -> None:
        """Closes the active segment with a blank record and goes on in the next."""
        end = self.end
        self.append([(end, b""), (self._segment_behind(end), b"")], 0)

    def _ready(self, position: int, length: int) -> MappedFile:
        """The segment of a piece: there, mapped, and with disk blocks for the piece."""
        number, at = divmod(position, self.segment_size)
        self.segments.create(number)
        segment = self.segments.map(number)
        if at + length > segment.reserved:
            self.segments.reserve(number, at + length)
        return segment

    def _write(self, segment: MappedFile, position: int, data: bytes, count: int) -> None:
        """Puts bytes where they belong, behind `end`."""
        if self.staging is not None:
            self.staging.append(position, data, count)
            return
        at = position % self.segment_size
        if len(data) < _WRITTEN_FROM:
            segment.buffer[at : at + len(data)] = data
            return
        try:
            segment.write(at, data)
        except OSError as e:
            raise SegmentDamaged(
                f"{segment.path} can't be written: {e.strerror}; nothing was put; see to the disk",
                str(segment.path),
            ) from e

    def _undo(self, pieces: Sequence[Piece], before: int) -> None:
        """Undoes a write that failed: the bytes behind `end` become zero again, on the disk too.

        Otherwise a later, smaller put may end where a record of the failed write begins, and
        recovery would take that for a record of the log. Raises `FlushFailed` if the disk refuses.
        """
        if self.end != before:
            return  # interrupted behind the write: the records are in the log
        if self.staging is not None:
            self.staging.drop_from(before)
            return
        size = self.segment_size
        for position, data in pieces:
            number, at = divmod(position, size)
            self.segments.map(number).buffer[at : at + len(data)] = bytes(len(data))
        try:
            for position, _ in pieces:
                self.segments.sync(position // size)
        except SegmentDamaged as e:
            raise self.fail(e) from e

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this block nothing is appended, and nothing is put on the disk."""
        with self._sync_lock, self.lock:
            yield

    def seal(self) -> None:
        """Closes the active segment, and puts all of the log on the disk; within `paused`."""
        if self.end % self.segment_size:
            self.roll()
        self._sync(nullcontext())

    def skip(self, count: int) -> None:
        """Skips `count` segments: the log goes on in a later segment, which exists already; within
        `paused`, after `seal`.
        """
        end = self.end + count * self.segment_size
        self.segments.map(end // self.segment_size)
        if self.staging is not None:
            self.staging.written = end
        self.durable = end
        self.end = end

    def half_behind(self, position: int) -> int:
        """The first position behind this one at which a segment is more than half full."""
        half = self.segment_size // 2 + 1
        return self._segment_behind(position - half) + half

    def needs_next(self) -> bool:
        """Whether the segment behind the active one should be made now."""
        number, at = divmod(self.end, self.segment_size)
        return at > self.segment_size // 2 and not self.segments.has(number + 1)

    def prepare_next(self) -> None:
        """Makes the segment behind the active one; the housekeeper's work."""
        if self.writable and not self.closed:
            self.segments.create(self.end // self.segment_size + 1)

    # --- reading; without `lock` ---

    def span(self, position: int) -> tuple[Buffer, int, int]:
        """The buffer that holds `position`, the index in it, and the index behind its last byte."""
        staging, size = self.staging, self.segment_size
        number, at = divmod(position, size)
        stop = size
        if staging is not None:
            written = staging.written
            if position >= written:
                found = staging.find(position)
                if found is not None:
                    return found[0], found[1], len(found[0])
                written = staging.written  # it was written meanwhile
            if at < written - number * size < size:
                stop = written - number * size  # the rest of the file is zero yet
        return self.segments.map(number).buffer, at, stop

    # --- to the disk ---

    def sync_to_end(self) -> int:
        """Puts everything appended so far on the disk; returns the position reached. Raises
        `FlushFailed`.
        """
        with self._sync_lock:
            return self._sync()

    def drain(self) -> None:
        """Writes a staging buffer into the files, not yet to the disk. Raises `FlushFailed`."""
        with self._sync_lock:
            try:
                if self.staging is not None:
                    self.staging.drain(self.lock, lambda: self.end)
            except (OSError, SegmentDamaged, DiskFull) as e:
                raise self.fail(e) from e

    def _sync(self, lock: AbstractContextManager[object] | None = None) -> int:
        self.check_failure()
        try:
            end = (
                self.end
                if self.staging is None
                else self.staging.drain(lock or self.lock, lambda: self.end)
            )
            began = self.clock.monotonic()
            if end > self.durable:
                size = self.segment_size
                for number in range(self.durable // size, (end - 1) // size + 1):
                    self.segments.sync(number)
                    self.syncs += 1
                self.sync_durations.add(self.clock.monotonic() - began)
                self.durable = end
                self.segments.writable_from = max(self.segments.writable_from, end // size)
        except (OSError, SegmentDamaged, DiskFull) as e:
            raise self.fail(e) from e
        return end

    def fail(self, why: BaseException) -> FlushFailed:
        """Refuses all writes from now on; returns the error that gives this reason."""
        what = (
            f"the disk refused to take written data of {self.folder}: {why}"
            if isinstance(why, OSError | SegmentDamaged | DiskFull)
            else f"putting {self.folder} on the disk was cut short by {why!r}"
        )
        self.failure = FlushFailed(
            f"{what}; nothing is written any more, everything below position {self.durable} is "
            "safe; mend the cause and open the store again"
        )
        return self.failure

    def close(self) -> None:
        """Closes the files; the caller has flushed."""
        self.closed = True
        self.segments.close()
