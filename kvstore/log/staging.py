"""Staging: records wait in one of two memory buffers while the other is written to the segment.

The idea: on disks on which stores into a map stall, a put should touch memory only. Appends go to
the active buffer; when it reaches its limit of bytes, messages or age, the buffers swap, and the
flusher puts the full one into its segments with large writes. Readers are served from the buffers,
as immutable chunks.

Invariants:

- A position is always in the file (below `written`), the buffer under way or the active buffer.
- A buffer goes when the file has all its bytes, not before.
- Chunks of one buffer are contiguous except where a segment ends.
- At most two buffers exist, so an append behind a disk that stalls fails with `StoreBusy` instead
  of filling the memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager

from kvstore.clock import Clock
from kvstore.errors import StoreBusy
from kvstore.log.segments import Segments


class _Buffer:
    """Chunks of whole records, by position."""

    __slots__ = ("born", "bytes", "chunks", "count", "end", "starts")

    def __init__(self, born: float, end: int) -> None:
        self.starts: list[int] = []
        self.chunks: list[bytes] = []
        self.bytes = 0
        self.count = 0
        self.born = born
        self.end = end

    def find(self, position: int) -> tuple[bytes, int] | None:
        """The chunk that holds `position`, and where in it."""
        i = bisect_right(self.starts, position) - 1
        if i < 0:
            return None
        at = position - self.starts[i]
        chunk = self.chunks[i]
        return (chunk, at) if at < len(chunk) else None


class Staging:
    """The two buffers of a log. The log's lock is held for `append`, `count` and `drop_from`."""

    def __init__(
        self,
        segments: Segments,
        clock: Clock,
        end: int,
        *,
        bytes_max: int,
        count_max: int,
        interval: float,
    ) -> None:
        self._segments = segments
        self._clock = clock
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._interval = interval
        self._active = _Buffer(clock.monotonic(), end)
        self._under_way: _Buffer | None = None
        self._write_lock = threading.Lock()
        self.written = end
        """Everything below this position is in the files."""

    def check_room(self, size: int) -> None:
        """Raises `StoreBusy` if neither buffer can take `size` bytes more."""
        if self._under_way is not None and self._active.bytes + size > 2 * max(
            self._bytes_max, size
        ):
            raise StoreBusy(
                f"both write buffers are full ({self._active.bytes} bytes wait for the disk); try "
                "again, or raise stage_bytes"
            )

    def append(self, position: int, data: bytes, count: int) -> None:
        """Adds whole records that stand at `position`."""
        b = self._active
        if not b.chunks:
            b.born = self._clock.monotonic()
        b.chunks.append(data)
        b.starts.append(position)
        b.bytes += len(data)
        b.count += count
        b.end = position + len(data)

    def count(self, records: int) -> None:
        """Counts so many more records as appended."""
        self._active.count += records

    def drop_from(self, position: int) -> None:
        """Drops the chunks from `position` on, whose append failed. The append still holds the
        log's lock, so no drain has begun since. Their messages stay counted: the count only says
        when to drain.
        """
        b = self._active
        kept = bisect_left(b.starts, position)
        del b.starts[kept:], b.chunks[kept:]
        b.bytes = sum(map(len, b.chunks))

    def due(self) -> bool:
        """Whether the active buffer has reached one of its limits."""
        b = self._active
        return bool(b.chunks) and (
            b.bytes >= self._bytes_max
            or b.count >= self._count_max
            or self._clock.monotonic() - b.born >= self._interval
        )

    def full(self) -> bool:
        """Whether the active buffer has reached its limit of bytes or messages; cheap, asked at
        every put.
        """
        return self._active.bytes >= self._bytes_max or self._active.count >= self._count_max

    def drain(self, log_lock: AbstractContextManager[object], log_end: Callable[[], int]) -> int:
        """Writes everything appended so far into the files; returns the position up to which they
        have it.
        """
        with self._write_lock:
            if self._under_way is not None:
                # An earlier write was interrupted: the same bytes are written once more.
                self._write(self._under_way)
            with log_lock:
                full = self._active
                full.end = log_end()
                if not full.chunks:
                    self.written = full.end
                    return full.end
                fresh = _Buffer(self._clock.monotonic(), full.end)
                self._under_way, self._active = full, fresh
            self._write(full)
            return full.end

    def _write(self, full: _Buffer) -> None:
        """Puts a buffer into the files, and drops it; under the lock of writing."""
        size = self._segments.size
        first, last = full.starts[0] // size, full.starts[-1] // size
        for number in range(first, last + 1):
            chunks = [
                c for p, c in zip(full.starts, full.chunks, strict=True) if p // size == number
            ]
            at = next(p for p in full.starts if p // size == number)
            self._segments.map(number).write(at - number * size, b"".join(chunks))
        # Order matters to readers without a lock: the file has it before the buffer goes.
        self.written = full.end
        self._under_way = None

    def find(self, position: int) -> tuple[bytes, int] | None:
        """The chunk that holds `position`, and where in it; None if the file has it."""
        for b in (self._active, self._under_way):
            found = b.find(position) if b is not None else None
            if found is not None:
                return found
        return None
