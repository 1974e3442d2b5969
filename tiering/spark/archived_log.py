"""Archived log: reads from archives a part of the log that was handed over after the plan.

The idea: between plan and read a worker may hand a segment over, and its file goes at once. The
archives that came in its place have its messages, under the positions that they had. So a task that
was to read a part of the log reads the messages of that part from them.

Invariant: the result is the messages that the part had of existing topics and that no retention
has deleted since; if no archive has any of the part, it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.config import StoreConfig
from kvstore.errors import ArchiveMissing
from kvstore.opening.viewing import view_store
from tiering.archive.directory import DirectoryRows
from tiering.archive.layout import NO_QUEUE
from tiering.spark.listing import ListedArchive, LogPart, Opener, live_rows
from tiering.spark.options import ReadOptions
from tiering.spark.splits import BlockRange, Ranges, Split, runs_of

I64 = NDArray[np.int64]


def archived_log(
    options: ReadOptions, opener: Opener, log_part: LogPart, split: Split
) -> Iterator[BlockRange]:
    """The messages of a part of the log that archives have. Raises ArchiveMissing if none has any
    of it: it went by retention.
    """
    folder = Path(options.path)
    view = view_store(folder, StoreConfig())
    ids = {topic.name: topic.id for topic in view.topics}
    held = [
        one
        for row, one in live_rows(folder, view)
        if any(first < log_part.end and log_part.begin < end for first, end in row.segments)
    ]
    if not held:
        raise ArchiveMissing(
            f"segment {log_part.path} left the log after the query was planned; run it again",
            log_part.path,
        )
    for one in held:
        yield from _piece(opener, one, log_part, split, ids)


def _piece(
    opener: Opener, held: ListedArchive, log_part: LogPart, split: Split, ids: dict[str, int]
) -> Iterator[BlockRange]:
    archive = opener.archive(held)
    rows = archive.rows()
    names = [topic.name for topic in archive.manifest.topics]
    mine = np.array(
        [
            topic.name in split.topics and ids.get(topic.name) == topic.id
            for topic in archive.manifest.topics
        ],
        np.bool_,
    )
    may = mine[rows.topics] & (rows.queues != NO_QUEUE)
    may &= (rows.first_position < log_part.end) & (rows.last_position >= log_part.begin)
    low, end = _offsets(split.ranges, names, rows)
    may &= (rows.first_offset < end) & (rows.last_offset >= low)
    blocks = np.flatnonzero(may)
    if len(blocks):
        parts = blocks[(rows.first_offset < low)[blocks] | (rows.last_offset >= end)[blocks]]
        cuts = {block: (int(low[block]), int(end[block])) for block in parts.tolist()}
        yield BlockRange(held, list(runs_of(blocks)), cuts, (log_part.begin, log_part.end))


class _Asked(NamedTuple):
    """The offsets that are asked for in each block's queue."""

    low: I64
    end: I64


def _offsets(ranges: Ranges | None, names: list[str], rows: DirectoryRows) -> _Asked:
    count = len(rows.queues)
    if ranges is None:
        return _Asked(np.zeros(count, np.int64), np.full(count, 1 << 62))
    numbers = {name: i for i, name in enumerate(ranges.names)}
    topics = np.array([numbers.get(name, -1) for name in names], np.int64)
    at, is_asked = ranges.find(topics[rows.topics], rows.queues)
    return _Asked(
        np.where(is_asked, ranges.low[at], 0).astype(np.int64),
        np.where(is_asked, ranges.end[at], 0).astype(np.int64),
    )
