"""Overlaps: offsets of a queue that lie in the ranges of two archives.

The idea: a directory states the first and the last offset of a block, and disjoint ranges need no
look. A merge over the offsets of another class leaves blocks with overlapping ranges, and so does
an erasure. Only where two ranges overlap the offsets themselves are read. `split_overlaps` assigns
each offset to its archive; `first_duplicate` finds an offset that two archives both have.

Invariants: split ranges do not overlap, except where two archives have the same offset, and an
unreadable block keeps the range that its directory states. An offset that two archives have is
found as a duplicate; an unreadable block raises an error there, and is never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvstore.errors import ArchiveDamaged, ArchiveUnavailable
from kvstore.index.archived import ArchivedRange
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.packed import I64
from tiering.archive.layout import NO_QUEUE


def split_overlaps(
    held: Iterable[ArchivedRange], archive: Callable[[int], Archive]
) -> list[ArchivedRange]:
    """The ranges that are held, with blocks split where others overlap them. `archive` opens an
    archive by its number.
    """
    queues: dict[tuple[int, int], list[ArchivedRange]] = {}
    for one in held:
        queues.setdefault((one.topic, one.queue), []).append(one)
    out: list[ArchivedRange] = []
    for mine in queues.values():
        mine.sort(key=lambda one: (one.first, one.last))
        for cluster in _clusters(mine):
            is_tangled = len({one.archive for one in cluster}) > 1
            out += _split(cluster, archive) if is_tangled else cluster
    return out


def _clusters(held: Sequence[ArchivedRange]) -> Iterator[list[ArchivedRange]]:
    """Groups of overlapping ranges."""
    cluster: list[ArchivedRange] = []
    end = -1
    for one in held:
        if cluster and one.first > end:
            yield cluster
            cluster = []
        cluster.append(one)
        end = max(end, one.last)
    if cluster:
        yield cluster


def _split(cluster: list[ArchivedRange], archive: Callable[[int], Archive]) -> list[ArchivedRange]:
    whole: list[ArchivedRange] = []
    rows: list[tuple[int, int, ArchivedRange]] = []
    for one in cluster:
        try:
            rows += _rows(one, archive(one.archive))
        except (ArchiveDamaged, ArchiveUnavailable):
            whole.append(one)
    rows.sort(key=lambda row: row[0])
    out: list[ArchivedRange] = []
    before: ArchivedRange | None = None
    for offset, stored_at, one in rows:
        if before is one:
            out[-1] = out[-1]._replace(last=offset)
        else:
            out.append(one._replace(first=offset, last=offset, stored_at=stored_at))
        before = one
    return whole + out


def _rows(one: ArchivedRange, archive: Archive) -> Iterator[tuple[int, int, ArchivedRange]]:
    """The offsets of a block, and the store time of each."""
    number = archive.block_at(one.topic, one.queue, one.first)
    assert number is not None, "the directory that said so has it"
    block = archive.read_block(number)
    columns = (np.asarray(block.offsets).tolist(), np.asarray(block.stored_at).tolist())
    for offset, stored_at in zip(*columns, strict=True):
        yield offset, stored_at, one


class OffsetRange(NamedTuple):
    """Offsets of a queue in the archive of that name, from `first` to `last` but for gaps."""

    topic: str
    queue: int
    first: int
    last: int
    archive: str


class DuplicateOffsets(NamedTuple):
    """Offsets of a queue that two archives both have, from `first` to `last` but for gaps."""

    topic: str
    queue: int
    first: int
    last: int
    archives: tuple[str, str]


def ranges_of(archive: Archive, name: str) -> list[OffsetRange]:
    """The range of offsets that an archive has of each queue."""
    rows, topics = archive.rows(), archive.manifest.topics
    found: dict[tuple[int, int], tuple[int, int]] = {}
    columns = (rows.topics, rows.queues, rows.first_offset, rows.last_offset)
    for topic, queue, first, last in zip(*(c.tolist() for c in columns), strict=True):
        if queue != NO_QUEUE:
            low, high = found.get((topic, queue), (first, last))
            found[topic, queue] = min(low, first), max(high, last)
    return [
        OffsetRange(topics[t].name, q, low, high, name) for (t, q), (low, high) in found.items()
    ]


def offsets_of(archive: Archive, topic: str, queue: int, low: int, high: int) -> I64:
    """The offsets of a queue that an archive has from `low` to `high`, rising; bodies are not read.
    Raises ArchiveDamaged, PlaceError.
    """
    number = next((t.id for t in archive.manifest.topics if t.name == topic), None)
    if number is None:
        return np.empty(0, np.int64)
    found = [np.empty(0, np.int64)]
    for block in archive.blocks(number, queue):
        directory = archive.directory
        if directory.last_offset(block) < low or directory.first_offset(block) > high:
            continue
        group = archive.lazy_group(directory.group(block))
        found.append(group.columns.offset[group.rows_of(block)])
    every = np.concatenate(found)
    return every[(every >= low) & (every <= high)]


def first_duplicate(
    new: Iterable[OffsetRange], others: Iterable[OffsetRange], archive: Callable[[str], Archive]
) -> DuplicateOffsets | None:
    """The first offsets that both a new archive and another one, new or not, have; None if there
    are none. `archive` opens an archive by its name.
    """
    queues: dict[tuple[str, int], list[OffsetRange]] = {}
    mine: set[str] = set()
    for one in new:
        queues.setdefault((one.topic, one.queue), []).append(one)
        mine.add(one.archive)
    for one in others:
        if (one.topic, one.queue) in queues:
            queues[one.topic, one.queue].append(one)
    for found in queues.values():
        found.sort(key=lambda one: (one.first, one.last))
        for a, b in _pairs(found):
            if a.archive in mine or b.archive in mine:
                twice = _both(a, b, archive)
                if twice is not None:
                    return twice
    return None


def _pairs(ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, OffsetRange]]:
    """Pairs of overlapping ranges; `ranges` must be in the order of their first offsets."""
    around: list[OffsetRange] = []
    for one in ranges:
        around = [before for before in around if before.last >= one.first]
        for before in around:
            if before.archive != one.archive:
                yield before, one
        around.append(one)


def _both(
    a: OffsetRange, b: OffsetRange, archive: Callable[[str], Archive]
) -> DuplicateOffsets | None:
    low, high = max(a.first, b.first), min(a.last, b.last)
    both = np.intersect1d(
        offsets_of(archive(a.archive), a.topic, a.queue, low, high),
        offsets_of(archive(b.archive), a.topic, a.queue, low, high),
        assume_unique=True,
    )
    if not len(both):
        return None
    return DuplicateOffsets(a.topic, a.queue, int(both[0]), int(both[-1]), (a.archive, b.archive))
