"""What a checkpoint writes: an index tail as rows of `runs`, `places` and `message_keys`.

The idea: everything at once, in numpy. Queues are put behind each other in key order, their positions lead to the
other columns (rows of the tail rise with position), runs end where the queue or the segment changes.

Invariant: pure: a tail goes in, rows come out; who writes them puts them in one batch with the new checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.index.keyblocks import pack_blocks, sort_pairs
from kvstore.index.keys import QUEUE_MASK, key_block_key
from kvstore.index.runs import Columns, pack_many, split_long
from kvstore.index.tail import Tail

I64 = NDArray[np.int64]
_RUN_KEY = np.dtype([("segment", ">u4"), ("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")])


class Stretch(NamedTuple):
    """A queue's entries of one tail in one segment: where a place may have to begin."""

    queue: int
    """The queue's key in memory, topic id << 32 | queue id."""
    segment: int
    first: int
    stored_at: int


class RunRows(NamedTuple):
    """Rows of `runs`, what `places` may need, and the queues' next offsets."""

    rows: list[tuple[bytes, bytes]]
    stretches: list[Stretch]
    next_offsets: dict[int, int]


def run_rows(tail: Tail, segment_size: int) -> RunRows:
    """The runs of a tail that gets no more entries."""
    queues = sorted((key, t) for key, t in tail.queues.items() if t.positions)
    if not queues:
        return RunRows([], [], {})
    lengths = np.fromiter((len(t.positions) for _, t in queues), np.int64, len(queues))
    total = int(lengths.sum())
    positions = np.fromiter(chain.from_iterable(t.positions for _, t in queues), np.int64, total)
    rows = np.searchsorted(np.frombuffer(tail.positions, np.uint64).astype(np.int64), positions)
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(queues)), lengths)
    segments = positions // segment_size
    changes = np.flatnonzero(np.diff(segments)) + 1
    begins = np.union1d(starts, changes) if len(changes) else starts
    firsts = np.fromiter((t.first for _, t in queues), np.int64, len(queues))
    offsets = firsts[owner] + np.arange(total) - starts[owner]
    keys = np.fromiter((key for key, _ in queues), np.uint64, len(queues))
    stored_at = np.frombuffer(tail.stored_at, np.uint64).astype(np.int64)[rows]
    columns = Columns(
        positions - segments * segment_size,
        np.frombuffer(tail.sizes, np.uint32).astype(np.int64)[rows],
        np.frombuffer(tail.tag_hashes, np.int64)[rows],
        stored_at,
    )
    stretches = list(
        map(
            Stretch,
            keys[owner[begins]].tolist(), segments[begins].tolist(), offsets[begins].tolist(), stored_at[begins].tolist(),
        )
    )  # fmt: skip
    begins = split_long(begins, total)
    return RunRows(
        list(pack_rows(columns, begins, segments[begins], keys[owner[begins]], offsets[begins])),
        stretches,
        dict(zip(keys.tolist(), (firsts + lengths).tolist(), strict=True)),
    )


def pack_rows(
    columns: Columns, starts: I64, segments: I64, keys: NDArray[np.uint64], firsts: I64
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of `runs` for columns cut at `starts`; the other arguments have one value a run."""
    packed = pack_many(columns, starts)
    table = np.empty(len(starts), dtype=_RUN_KEY)
    table["segment"], table["first"] = segments, firsts
    table["topic"], table["queue"] = keys >> np.uint64(32), keys & np.uint64(QUEUE_MASK)
    raw = table.tobytes()
    width = _RUN_KEY.itemsize
    data = packed.data
    for i, (a, b) in enumerate(zip(packed.starts, packed.ends, strict=True)):
        yield raw[i * width : (i + 1) * width], data[a:b]


def key_pairs(tail: Tail, segment_size: int) -> dict[int, tuple[I64, I64]]:
    """A tail's keys by segment, sorted: hashes, and positions in the segment."""
    hashes = np.frombuffer(tail.key_hashes, np.uint64).astype(np.int64)
    positions = np.frombuffer(tail.key_positions, np.uint64).astype(np.int64)
    found = {}
    segments = positions // segment_size
    for segment in np.unique(segments).tolist():
        mine = segments == segment
        found[segment] = sort_pairs(hashes[mine], positions[mine] - segment * segment_size)
    return found


def key_rows(segment: int, part: int, hashes: I64, positions: I64) -> Iterator[tuple[bytes, bytes]]:
    """Rows of `message_keys` for sorted pairs of one part."""
    for first, value in pack_blocks(hashes, positions):
        yield key_block_key(segment, part, first), value
