"""Plans a batch of a stream, from one offset to another.

The idea: next offsets say exactly which messages a batch has. Where these are by now, in archives
or in the log, is looked up whenever the batch is planned. So a batch that is read again after
segments became archives, or archives were merged, has the same messages.

Invariants: a message is in the batch if its queue's offset says so, and once; blocks and parts of
the log that can have none are not read; a task is given only what its part needs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import SegmentDamaged
from tiering.catalog.bucket import DAMAGE
from tiering.spark.listing import ListedArchive, Opener
from tiering.spark.options import ReadOptions
from tiering.spark.splits import Packing, Ranges, Split, wanted_blocks
from tiering.spark.stream.directory_tables import DirectoryTables, Table
from tiering.spark.stream.offsets import StreamOffset, code_of, queue_of
from tiering.spark.stream.stream_view import StreamView, ViewedArchive
from tiering.spark.wanted import QueryFilter

I64 = NDArray[np.int64]
_log = logging.getLogger("kvmq")


class QueueSpan(NamedTuple):
    """The range of a batch: of each queue, by rising codes, the first offset and the one behind the
    last; the log from a position to before another; archives from a number on.
    """

    codes: I64
    low: I64
    end: I64
    begin: int
    stop: int
    archives: int


def span_of(start: StreamOffset, end: StreamOffset, view: StreamView) -> QueueSpan:
    """The range between two offsets, of existing topics."""
    rows = []
    for name, topic in end.topics.items():
        live = view.topics.get(name)
        before = start.topics.get(name)
        queues = before.queues if before is not None and before.id == topic.id else {}
        changed = [
            (code_of(topic.id, int(queue)), queues.get(queue, 0), stop)
            for queue, stop in topic.queues.items()
            if stop > queues.get(queue, 0)
        ]
        if changed and (live is None or live.id != topic.id):
            _log.warning("topic %s was deleted while it was read", name)
            continue
        rows += changed
    rows.sort()
    codes, low, stops = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    # An offset of other topics says nothing of these.
    is_same = start.of == end.of
    return QueueSpan(
        codes, low, stops,
        start.position if is_same else 0, end.position, start.archives if is_same else 0,
    )  # fmt: skip


def candidates(
    span: QueueSpan, view: StreamView, done: Collection[ListedArchive]
) -> list[ViewedArchive]:
    """The archives that may have something of a batch; `done` are some that have not."""
    return [
        one
        for one in view.archives
        if one.held not in done and one.is_from(span.archives)
    ] if len(span.codes) else []  # fmt: skip


class Planned(NamedTuple):
    """The parts of a batch; and of each queue the first offset that archives have of it, in the
    order of the span: a large number if they have none.
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
    """The parts of a batch; `archives` are those that may have something of it. Raises
    ArchiveDamaged, PlaceError.
    """
    packing = Packing(options.split_bytes)
    first = np.full(len(span.codes), 1 << 62)
    for held, table in tables.each(archives):
        try:
            if isinstance(table, Exception):
                raise table
            _add(packing, held, table, span, options, opener, view, first)
        except (*DAMAGE, SegmentDamaged) as e:
            if options.damaged == "fail":
                raise
            _log.warning("left out: %s: %s", held.name, str(e))
    _add_log(packing, span, view)
    return Planned(packing.splits, first)


def _add(
    packing: Packing,
    held: ListedArchive,
    table: Table,
    span: QueueSpan,
    options: ReadOptions,
    opener: Opener,
    view: StreamView,
    first: I64,
) -> None:
    at = np.minimum(np.searchsorted(span.codes, table.codes), len(span.codes) - 1)
    low, end = span.low[at], span.end[at]
    mine = (span.codes[at] == table.codes) & (table.first < end) & (table.last >= low)
    if not mine.any():
        return
    table, at, low, end = table.where(mine), at[mine], low[mine], end[mine]
    np.minimum.at(first, at, table.first)
    is_part = (table.first < low) | (table.last >= end)
    cuts = {
        block: (a, b)
        for block, a, b in zip(
            table.blocks[is_part].tolist(), low[is_part].tolist(), end[is_part].tolist(),
            strict=True,
        )
    }  # fmt: skip
    blocks = table.blocks
    if options.keys is not None:
        wanted = msgspec.structs.replace(QueryFilter.of(options), topics=None)
        ids = {name: topic.id for name, topic in view.topics.items()}
        blocks = blocks[wanted_blocks(opener.archive(held), wanted, ids)[0][blocks]]
    sizes = table.raw_bytes[np.searchsorted(table.blocks, blocks)]
    packing.add(held, blocks, sizes, cuts)


def _add_log(packing: Packing, span: QueueSpan, view: StreamView) -> None:
    if not len(span.codes) or span.begin >= span.stop:
        return
    names = {topic.id: name for name, topic in view.topics.items()}
    topics: dict[str, int] = {}
    for code in span.codes.tolist():
        name = names[queue_of(code)[0]]
        topics[name] = view.topics[name].since
    numbers = {view.topics[name].id: i for i, name in enumerate(topics)}
    ranges = Ranges(
        list(topics),
        np.array([numbers[code >> 32] for code in span.codes.tolist()], np.int64),
        span.codes & 0xFFFFFFFF,
        span.low,
        span.end,
    )
    for log_part in view.log:
        begin, end = max(log_part.begin, span.begin), min(log_part.end, span.stop)
        if begin < end:
            part = msgspec.structs.replace(log_part, begin=begin, end=end, known=begin)
            packing.add_log(part, topics, ranges)


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
