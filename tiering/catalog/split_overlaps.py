"""Split overlaps: assigns each offset of a queue to its archive where the ranges of blocks overlap.

The idea: a directory states the first and the last offset of a block. That is enough to find
messages as long as no other archive has offsets in between. A merge over the offsets of another
class leaves such blocks, and so does an erasure. Of these blocks alone the offsets themselves are
read.

Invariants: the resulting ranges do not overlap, except where two archives have the same offset; an
unreadable block keeps the range that its directory states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from kvstore.errors import ArchiveDamaged, ArchiveUnavailable
from kvstore.index.archived import ArchivedRange
from tiering.archive.archive_reader import Archive


def split_overlaps(
    held: Iterable[ArchivedRange], archive: Callable[[int], Archive]
) -> list[ArchivedRange]:
    """The same ranges, with blocks split where others overlap them. `archive` opens an archive by
    its number.
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
