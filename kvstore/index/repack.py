"""Repack: a segment's many small runs become one run a queue, of at most `RUN_MAX` entries.

The idea: checkpoints write a run for each queue at each checkpoint. Read together again, the runs
are sorted by queue and offset, so a group of queues is one decode, one cut, one encode. The whole
segment is one batch.

Invariant: the entries in the runs don't change, so readers that keep a decoded run keep a true one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.index.checkpoint import pack_rows
from kvstore.index.families import Batch, Families
from kvstore.index.keys import RUNS, segment_range
from kvstore.index.runs import count_of, split_long, unpack_many

I64 = NDArray[np.int64]
WORTH_IT = 1.5
"""Repacking is done from this many runs for each resulting run on."""
STRETCH = 1 << 18
"""Entries decoded at a time: bounds the memory, whatever the segment holds."""

RUN_KEY = np.dtype([("segment", ">u4"), ("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")])


class _Cut(NamedTuple):
    """Rows of a segment, and how their entries are cut into runs: queue, first offset and first
    entry of each row, first entry of each run, and how many entries there are.
    """

    rows: list[tuple[bytes, bytes]]
    queues: NDArray[np.uint64]
    firsts: I64
    starts: I64
    begins: I64
    total: int


def repack(families: Families, batch: Batch, segment: int) -> bool:
    """Put the repacked runs of a segment into a batch; False if that would gain little, which keys
    and counts tell without decoding a run.
    """
    low, high = segment_range(segment, segment + 1)
    cuts = [_cut(rows) for rows in stretches(families.rows(RUNS, low, high))]
    before = sum(len(cut.rows) for cut in cuts)
    after = sum(len(cut.begins) for cut in cuts)
    if before < WORTH_IT * after or before < 2:
        return False
    batch.delete_range(RUNS, low, high)
    for cut in cuts:
        batch.put_many(RUNS, *_repacked(cut, segment))
        cut.rows.clear()
    return True


def stretches(
    rows: Iterator[tuple[bytes, bytes]],
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows in lists of about `STRETCH` entries, cut between queues where that is possible."""
    found: list[tuple[bytes, bytes]] = []
    entries = 0
    for key, value in rows:
        if entries >= STRETCH and (key[4:12] != found[-1][0][4:12] or entries >= 2 * STRETCH):
            yield found
            found, entries = [], 0
        found.append((key, value))
        entries += count_of(value)
    if found:
        yield found


def _cut(rows: list[tuple[bytes, bytes]]) -> _Cut:
    keys = np.frombuffer(b"".join([key for key, _ in rows]), dtype=RUN_KEY)
    queues = keys["topic"].astype(np.uint64) << np.uint64(32) | keys["queue"].astype(np.uint64)
    firsts = keys["first"].astype(np.int64)
    counts = np.array([count_of(value) for _, value in rows], np.int64)
    ends = np.cumsum(counts)
    starts, total = ends - counts, int(ends[-1])
    begin = np.ones(len(rows), dtype=bool)
    # A gap in a queue's offsets (damage that recovery skipped) stays the border of a run.
    begin[1:] = (queues[1:] != queues[:-1]) | (firsts[1:] != firsts[:-1] + counts[:-1])
    return _Cut(rows, queues, firsts, starts, split_long(starts[begin], total), total)


def _repacked(cut: _Cut, segment: int) -> tuple[list[bytes], list[bytes]]:
    begins = cut.begins
    columns, _ = unpack_many([value for _, value in cut.rows])
    owner = np.searchsorted(cut.starts, begins, side="right") - 1
    offsets = cut.firsts[owner] + begins - cut.starts[owner]
    return pack_rows(columns, begins, np.full(len(begins), segment), cut.queues[owner], offsets)
