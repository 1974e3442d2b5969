"""Batches of a stream: where the next one ends, and its parts.

The idea: archives and parts of the log are gone through in the order of the log until a batch is
full. Archives are cut between blocks, by their directories. The log is cut between records, which
are looked at up to there. Either gives next offsets of queues, and these alone make up a batch.
Messages of a queue are never taken before those in front of them. Where the messages are by now, in
archives or in the log, is looked up whenever the batch is planned. So a batch that is read again
after segments became archives, or archives were merged, has the same messages.

Invariants:

- A batch has at most the limit of messages, and one message at least.
- Of a block that is taken in part the bytes are estimated by the block's mean.
- All messages are taken in the end.
- A message is in a batch if its queue's offset says so, and once.
- Nothing of a block is read here.
- A task is given only what its part needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import SegmentDamaged
from kvstore.files import Files
from tiering.catalog.bucket import DAMAGE
from tiering.executor.segment import SegmentRecords, boundary, read_segment
from tiering.spark.listing import ListedArchive, LogPart, Opener, mapped, segment_damaged
from tiering.spark.options import ReadOptions
from tiering.spark.splits import (
    Packing,
    Ranges,
    Split,
    Topics,
    cuts_of,
    live_records,
    queue_of,
    wanted_blocks,
)
from tiering.spark.stream.offsets import Frontier, StreamOffset
from tiering.spark.stream.stream_view import DirectoryTables, StreamView, Table, ViewedArchive
from tiering.spark.wanted import QueryFilter

I64 = NDArray[np.int64]
_CHUNK: Final = 4 << 20
"""Bytes of the log that are looked at together."""
_NEVER: Final = 1 << 62
_log = logging.getLogger("kvmq")


class Limits(NamedTuple):
    """The most that a batch may have; bytes are of records."""

    messages: float = inf
    bytes: float = inf


class Cut(NamedTuple):
    """Where a batch ends, and the queues of which the first message taken is not the one that was
    due.
    """

    end: Frontier
    gaps: Collection[int]


class Cutter:
    """Cuts one batch."""

    def __init__(
        self,
        view: StreamView,
        start: Frontier,
        limits: Limits,
        options: ReadOptions,
        is_wanted: Callable[[str], bool],
        cap: Frontier | None = None,
    ) -> None:
        """`cap` is an end of the stream that the batch does not go beyond."""
        self._view = view
        self._start = start
        self._cap = cap
        self._options = options
        self._topics = {name: topic for name, topic in view.topics.items() if is_wanted(name)}
        self._ids = np.array(sorted(topic.id for topic in self._topics.values()), np.int64)
        self._ends = dict(start.ends)
        self._position = start.position
        self._last = view.position if cap is None else cap.position
        self._messages, self._bytes = limits
        self._has_any = False
        self._gaps: set[int] = set()

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
        return Cut(Frontier(self._ends, self._position, archives_end), self._gaps)

    def _failed(self, what: str, error: Exception) -> None:
        if not isinstance(error, (*DAMAGE, SegmentDamaged)):
            raise error
        self._options.leave_out(what, error)

    # --- archives ---

    def _archive(self, held: ListedArchive, table: Table, done: set[ListedArchive]) -> bool:
        """Takes from an archive; returns whether there is room for more."""
        table = table.take(np.isin(queue_of(table.codes)[0], self._ids))
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
        some, low, end = table.take(order), low[order], end[order]
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
                self._gaps.add(code)
            self._ends[code] = max(at, stop)

    # --- the log ---

    def _log_part(self, log_part: LogPart, files: Files) -> bool:
        """Takes from a part of the log; returns whether there is room for more."""
        last = min(log_part.end, self._last)
        if self._position >= last:
            return True
        self._position = max(self._position, log_part.begin)
        base = log_part.base
        with mapped(files, log_part) as buffer:
            while self._position < last:
                at = self._position - base
                used = last - base
                stop = boundary(buffer, at, min(at + _CHUNK, used), used)
                found = read_segment(buffer, base, used if stop is None else stop, at)
                for damage in found.damage:
                    self._failed(log_part.path, segment_damaged(log_part, damage))
                full_at = self._records(found, base)
                if full_at is not None:
                    self._position = full_at
                    return False
                self._position = base + (used if stop is None else stop)
        return True

    def _records(self, found: SegmentRecords, base: int) -> int | None:
        """Takes records; returns the position of the first that there is no room for."""
        topics = {name: topic[:2] for name, topic in self._topics.items()}
        mine, codes = live_records(found, base, topics)
        mine &= found.offsets >= _looked_up(self._ends, codes)
        if self._cap is not None:
            mine &= found.offsets < _looked_up(self._cap.ends, codes)
        rows = np.flatnonzero(mine)
        codes, offsets = codes[rows], found.offsets[rows]
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


# --- the parts of a batch -------------------------------------------------------------------------


class QueueSpan(NamedTuple):
    """The range of a batch: the offsets of queues, and their topics; the log from a position to
    before another; archives from a number on.
    """

    ranges: Ranges
    topics: Topics
    begin: int
    stop: int
    archives: int


def span_of(start: StreamOffset, end: StreamOffset, view: StreamView) -> QueueSpan:
    """The range between two offsets, of existing topics."""
    before = start.frontier(end.of)
    live = {topic.id for topic in view.topics.values()}
    rows = []
    gone = set()
    for code, stop in sorted(end.ends().items()):
        low = before.ends.get(code, 0)
        topic = queue_of(code)[0]
        if stop <= low:
            continue
        if topic in live:
            rows.append((code, low, stop))
        else:
            gone.add(topic)
    for name, one in end.topics.items():
        if one.id in gone:
            _log.warning("topic %s was deleted while it was read", name)
    codes, lows, stops = np.array(rows, np.int64).reshape(-1, 3).T
    asked = {queue_of(code)[0] for code, _, _ in rows}
    topics = {name: topic[:2] for name, topic in view.topics.items() if topic.id in asked}
    ranges = Ranges(codes, lows, stops)
    return QueueSpan(ranges, topics, before.position, end.position, before.archives)


def candidates(
    span: QueueSpan, view: StreamView, done: Collection[ListedArchive]
) -> list[ViewedArchive]:
    """The archives that may have something of a batch; `done` are some that have not."""
    if not len(span.ranges.codes):
        return []
    return [one for one in view.archives if one.held not in done and one.is_from(span.archives)]


class Planned(NamedTuple):
    """The parts of a batch; and for each queue the first offset that archives have, in the order of
    the span: a large number if they have none.
    """

    splits: list[Split]
    first: I64


def plan(
    span: QueueSpan,
    view: StreamView,
    options: ReadOptions,
    opener: Opener,
    tables: DirectoryTables,
    archives: Sequence[ListedArchive],
) -> Planned:
    """The parts of a batch; `archives` are those that may have messages of the batch. Raises
    ArchiveDamaged, PlaceError.
    """
    packing = Packing(options.split_bytes)
    first = np.full(len(span.ranges.codes), _NEVER)
    wanted = None if options.keys is None else QueryFilter(keys=frozenset(options.keys))
    ids = {name: topic.id for name, topic in view.topics.items()}
    for held, table in tables.each(archives):
        try:
            if isinstance(table, Exception):
                raise table
            at, low, end = span.ranges.find(table.codes)
            mine = (table.first < end) & (table.last >= low)
            np.minimum.at(first, at[mine], table.first[mine])
            if wanted is not None and mine.any():
                mine &= wanted_blocks(opener.archive(held), wanted, ids)[0][table.blocks]
        except (*DAMAGE, SegmentDamaged) as e:
            options.leave_out(held.name, e)
            continue
        some = table.take(mine)
        cuts = cuts_of(some.blocks, some.first, some.last, low[mine], end[mine])
        packing.add(held, some.blocks, some.raw_bytes, cuts)
    for log_part in view.log if span.topics else ():
        begin, stop = max(log_part.begin, span.begin), min(log_part.end, span.stop)
        if begin < stop:
            part = msgspec.structs.replace(log_part, begin=begin, end=stop, known=begin)
            packing.add_log(part, span.topics, span.ranges)
    return Planned(packing.splits, first)


def lost(
    ends: Mapping[int, int], firsts: Mapping[int, int], view: StreamView
) -> dict[int, tuple[int, int]]:
    """The queues whose first held offset is behind the one at which they are to go on: they have
    lost the messages between the two. In compacted topics some are missing by design.
    """
    compacted = {topic.id for topic in view.topics.values() if topic.is_compacted}
    return {
        code: (due, firsts[code])
        for code, due in ends.items()
        if firsts.get(code, due) > due and queue_of(code)[0] not in compacted
    }
