"""Cuts the next batch of a stream: how far it goes.

The idea: archives and parts of the log are gone through in the order of the log until a batch is
full. Archives are cut between blocks, by their directories. The log is cut between records, which
are looked at up to there. Either gives next offsets of queues, and these alone make up a batch.
Messages of a queue are never taken before those in front of them.

Invariants: a batch has at most the limit of messages, and one message at least; of a block that is
taken in part the bytes are estimated by the block's mean; all messages are taken in the end;
nothing of a block is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveMissing, SegmentDamaged
from kvstore.files import Files
from tiering.archive.layout import NO_QUEUE
from tiering.catalog.bucket import DAMAGE
from tiering.executor.segment import SegmentRecords, boundary, read_segment
from tiering.spark.listing import ListedArchive, LogPart
from tiering.spark.stream.directory_tables import DirectoryTables, Table
from tiering.spark.stream.stream_view import StreamView, ViewedArchive

I64 = NDArray[np.int64]
_CHUNK: Final = 4 << 20
"""Bytes of the log that are looked at together."""
_NEVER: Final = 1 << 62
_log = logging.getLogger("kvmq")


class Limits(NamedTuple):
    """The most that a batch may have; bytes are of records."""

    messages: float = inf
    bytes: float = inf


class BatchStart(NamedTuple):
    """Where a batch begins: next offsets by the queue's code, and a position and a number of
    archives below which there is nothing more.
    """

    ends: Mapping[int, int]
    position: int = 0
    archives: int = 0


class StreamEnd(NamedTuple):
    """Where a stream has to end: offsets that it doesn't reach, a position, and the number of the
    first archive that may have later messages.
    """

    ends: Mapping[int, int]
    position: int
    archives: int


class Cut(NamedTuple):
    """Where a batch ends. `position` and `archives` as in BatchStart; `gaps` are queues of which
    the first message taken is not the one that was due, and its offset.
    """

    ends: dict[int, int]
    position: int
    archives: int
    gaps: dict[int, int]


class Cutter:
    """Cuts one batch."""

    def __init__(
        self,
        view: StreamView,
        start: BatchStart,
        limits: Limits,
        is_wanted: Callable[[str], bool],
        *,
        cap: StreamEnd | None = None,
        skips_damage: bool = False,
    ) -> None:
        self._view = view
        self._start = start
        self._cap = cap
        self._skips_damage = skips_damage
        self._topics = {name: topic for name, topic in view.topics.items() if is_wanted(name)}
        self._ids = np.array(sorted(topic.id for topic in self._topics.values()), np.int64)
        self._ends = dict(start.ends)
        self._position = start.position
        self._messages, self._bytes = limits
        self._has_any = False
        self._gaps: dict[int, int] = {}

    def cut(self, tables: DirectoryTables, files: Files, done: set[ListedArchive]) -> Cut:
        """The batch. `done` are archives that have nothing more; more of them are added."""
        every = [
            one
            for one in self._view.archives
            if one.held not in done and one.is_from(self._start.archives)
        ]
        is_full = False
        for archives, log in _regions(every, self._view.log):
            for held, table in tables.each([one.held for one in archives]):
                if isinstance(table, Exception):
                    self._failed(held.name, table)
                    done.add(held)
                elif not self._archive(held, table, done):
                    is_full = True
                    break
            is_full = is_full or not all(self._log_part(one, files) for one in log)
            if is_full:
                break
        archives_end = self._start.archives
        if not is_full:
            # Messages that a cap leaves for later are in archives that came after it.
            known = self._view.next_archive if self._cap is None else self._cap.archives
            archives_end = max(archives_end, known)
            # The end is also behind messages that are not in the log any more.
            self._position = max(self._position, min(self._view.position, self._last))
        return Cut(self._ends, self._position, archives_end, self._gaps)

    @property
    def _last(self) -> int:
        return self._view.position if self._cap is None else self._cap.position

    def _failed(self, what: str, error: Exception) -> None:
        if not self._skips_damage or not isinstance(error, (*DAMAGE, SegmentDamaged)):
            raise error
        _log.warning("left out: %s: %s", what, str(error))

    # --- archives ---

    def _archive(self, held: ListedArchive, table: Table, done: set[ListedArchive]) -> bool:
        """Takes from an archive; returns whether there is room for more."""
        table = table.where(np.isin(table.codes >> 32, self._ids))
        if not (table.last >= _looked_up(self._start.ends, table.codes)).any():
            done.add(held)
            return True
        due = _looked_up(self._ends, table.codes)
        low, end = np.maximum(table.first, due), table.last + 1
        if self._cap is not None:
            end = np.minimum(end, _looked_up(self._cap.ends, table.codes))
        mask = low < end
        if not mask.any():
            return True
        order = np.flatnonzero(mask)[np.argsort(table.position[mask], kind="stable")]
        some, low, end = table.at(order), low[order], end[order]
        # Only the number of offsets is known of a part of a block.
        messages = np.minimum(some.messages, end - low)
        size = -(-some.raw_bytes * messages // some.messages)
        count = self._fitting(messages, size)
        if count == 0 and not self._has_any:
            room = min(self._messages, self._bytes * some.messages[0] / some.raw_bytes[0])
            end[0] = min(int(end[0]), int(low[0]) + max(int(room), 1))
            self._note(some.codes[:1], low[:1], end[:1])
            return False
        self._note(some.codes[:count], low[:count], end[:count])
        self._taken(messages[:count], size[:count])
        return count == len(order)

    def _note(self, codes: I64, low: I64, end: I64) -> None:
        """Records the offsets that were taken of each queue: from `low` to before `end`."""
        if not len(codes):
            return
        order = np.argsort(codes, kind="stable")
        sorted_ = codes[order]
        begins = np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1]))
        firsts = np.minimum.reduceat(low[order], begins)
        stops = np.maximum.reduceat(end[order], begins)
        rows = zip(sorted_[begins].tolist(), firsts.tolist(), stops.tolist(), strict=True)
        for code, first, stop in rows:
            due, at = self._start.ends.get(code), self._ends.get(code, 0)
            if due is not None and at == due < first:
                self._gaps[code] = first
            self._ends[code] = max(at, stop)

    # --- the log ---

    def _log_part(self, log_part: LogPart, files: Files) -> bool:
        """Takes from a part of the log; returns whether there is room for more."""
        last = min(log_part.end, self._last)
        if self._position >= last:
            return True
        self._position = max(self._position, log_part.begin)
        path = Path(log_part.path)
        if files.size(path) is None:
            raise ArchiveMissing(
                f"segment {path} left the log while it was looked at; run the stream again",
                log_part.path,
            )
        mapped = files.map(path, writable=False)
        try:
            base = log_part.base
            while self._position < last:
                at = self._position - base
                used = last - base
                stop = boundary(mapped.buffer, at, min(at + _CHUNK, used), used)
                found = read_segment(mapped.buffer, base, used if stop is None else stop, at)
                for damage in found.damage:
                    told = f"{path} is damaged at {damage.position}: {damage.reason}"
                    self._failed(log_part.path, SegmentDamaged(told, log_part.path))
                full_at = self._records(found, base)
                if full_at is not None:
                    self._position = full_at
                    return False
                self._position = base + (used if stop is None else stop)
        finally:
            mapped.close()
        return True

    def _records(self, found: SegmentRecords, base: int) -> int | None:
        """Takes records; returns the position of the first that there is no room for."""
        names = [name.decode("utf-8", "surrogateescape") for name in found.names]
        topics = [self._topics.get(name) for name in names]
        ids = np.array([-1 if one is None else one.id for one in topics] or [-1], np.int64)
        since = np.array([_NEVER if one is None else one.since for one in topics] or [0], np.int64)
        mine = (found.queues != NO_QUEUE) & (found.starts + base >= since[found.topics])
        rows = np.flatnonzero(mine)
        codes = ids[found.topics[rows]] << 32 | found.queues[rows]
        offsets = found.offsets[rows]
        is_due = offsets >= _looked_up(self._ends, codes)
        if self._cap is not None:
            is_due &= offsets < _looked_up(self._cap.ends, codes)
        rows, codes, offsets = rows[is_due], codes[is_due], offsets[is_due]
        sizes = found.sizes[rows]
        count = self._fitting(np.ones(len(rows), np.int64), sizes)
        if count == 0 and len(rows) and not self._has_any:
            count = 1
        self._note(codes[:count], offsets[:count], offsets[:count] + 1)
        self._taken(np.ones(count, np.int64), sizes[:count])
        return int(found.starts[rows[count]]) + base if count < len(rows) else None

    # --- room ---

    def _fitting(self, messages: I64, sizes: I64) -> int:
        """How many of some rows there is room for."""
        return min(
            int(np.searchsorted(np.cumsum(messages), self._messages, side="right")),
            int(np.searchsorted(np.cumsum(sizes), self._bytes, side="right")),
        )

    def _taken(self, messages: I64, sizes: I64) -> None:
        self._messages -= int(messages.sum())
        self._bytes -= int(sizes.sum())
        self._has_any = self._has_any or len(messages) > 0


def _regions(
    archives: Sequence[ViewedArchive], log: Sequence[LogPart]
) -> Iterator[tuple[list[ViewedArchive], list[LogPart]]]:
    """Archives and parts of the log in the order of positions, neighbours of a kind together."""
    places: list[ViewedArchive | LogPart] = [*archives, *log]
    places.sort(key=lambda one: one.first_position if isinstance(one, ViewedArchive) else one.begin)
    for is_archive, some in groupby(places, key=lambda one: isinstance(one, ViewedArchive)):
        every = list(some)
        if is_archive:
            yield [one for one in every if isinstance(one, ViewedArchive)], []
        else:
            yield [], [one for one in every if isinstance(one, LogPart)]


def _looked_up(ends: Mapping[int, int], codes: I64) -> I64:
    """The end of each queue; 0 for those that have none."""
    each, at = np.unique(codes, return_inverse=True)
    found = np.fromiter((ends.get(code, 0) for code in each.tolist()), np.int64, len(each))
    return found[at]
