"""Repacking a segment's runs: many small ones become one run per queue (of up to `RUN_MAX`
entries).

The idea: checkpoints write a run per queue and checkpoint; read together again they are sorted by
queue and offset, so the whole segment is one decode, one cut, one encode, and one batch.

Invariant: what the runs say doesn't change, so readers that keep a decoded run keep a true one.
"""

from __future__ import annotations

import numpy as np

from kvstore.index.checkpoint import pack_rows
from kvstore.index.families import Batch, Families
from kvstore.index.keys import RUNS, segment_range
from kvstore.index.runs import split_long, unpack_many

WORTH_IT = 1.5
"""Runs per resulting run from which repacking is done."""

_KEY = np.dtype([("segment", ">u4"), ("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")])


def repack(families: Families, batch: Batch, segment: int) -> bool:
    """Put the repacked runs of a segment into a batch; False if they are as good as they get."""
    low, high = segment_range(segment, segment + 1)
    rows = list(families.rows(RUNS, low, high))
    if len(rows) < 2:
        return False
    keys = np.frombuffer(b"".join(key for key, _ in rows), dtype=_KEY)
    queues = keys["topic"].astype(np.uint64) << np.uint64(32) | keys["queue"].astype(np.uint64)
    firsts = keys["first"].astype(np.int64)
    columns, starts = unpack_many([value for _, value in rows])
    total = len(columns.positions)
    counts = np.diff(starts, append=total)
    joined = np.ones(len(rows), dtype=bool)
    # A gap in a queue's offsets (passed-over damage) stays the border of a run.
    joined[1:] = (queues[1:] != queues[:-1]) | (firsts[1:] != firsts[:-1] + counts[:-1])
    begins = split_long(starts[joined], total)
    if len(rows) < WORTH_IT * len(begins):
        return False
    owner = np.searchsorted(starts, begins, side="right") - 1
    batch.delete_range(RUNS, low, high)
    offsets = firsts[owner] + begins - starts[owner]
    batch.put_many(
        RUNS, *pack_rows(columns, begins, np.full(len(begins), segment), queues[owner], offsets)
    )
    return True
