"""What a checkpoint writes: an index tail as rows of `runs`, `places` and `message_keys`.

The idea: everything at once, in numpy. Queues are put behind each other in key order, their positions lead to the
other columns (rows of the tail rise with position), runs end where the queue or the segment changes.

Invariant: pure: a tail goes in, rows come out; who writes them puts them in one batch with the new checkpoint.
"""

from __future__ import annotations

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


class RunRows(NamedTuple):
    """Rows of `runs`; where each queue's entries of a segment begin (where a place may have to); next offsets.

    Queues are named by their keys in memory, topic id << 32 | queue id. The lists of a pair go together.
    """

    keys: list[bytes]
    values: list[bytes]
    stretches: list[tuple[int, int, int, int]]
    """Queue, segment, first offset, first store time."""
    next_offsets: dict[int, int]


def run_rows(tail: Tail, segment_size: int) -> RunRows:
    """The runs of a tail that gets no more entries."""
    total = len(tail.positions)
    if not total:
        return RunRows([], [], [], {})
    queue_keys = np.fromiter(tail.queues, np.uint64, len(tail.queues))
    in_order = np.argsort(queue_keys)
    queue_keys = queue_keys[in_order]
    tails = list(tail.queues.values())
    tails = [tails[i] for i in in_order.tolist()]
    lists = [t.positions for t in tails]
    lengths = np.array(list(map(len, lists)), dtype=np.int64)
    firsts = np.array([t.first for t in tails], dtype=np.int64)
    positions = np.array(list(chain.from_iterable(lists)), dtype=np.int64)
    next_offsets = dict(zip(queue_keys.tolist(), (firsts + lengths).tolist(), strict=True))
    there = np.flatnonzero(lengths)  # a queue may be known to the tail without having an entry yet
    queue_keys, lengths, firsts = queue_keys[there], lengths[there], firsts[there]

    rows = np.searchsorted(np.frombuffer(tail.positions, np.uint64).view(np.int64), positions)
    starts = np.cumsum(lengths) - lengths
    begins, segments = starts, np.full(len(starts), positions[0] // segment_size)
    if tail.positions[0] // segment_size != tail.positions[-1] // segment_size:
        of_entry = positions // segment_size
        begins = np.union1d(starts, np.flatnonzero(np.diff(of_entry)) + 1)
        segments = of_entry[begins]
    columns = Columns(
        positions % segment_size,
        np.frombuffer(tail.sizes, np.uint32)[rows].astype(np.int64),
        np.frombuffer(tail.tag_hashes, np.int64)[rows],
        np.frombuffer(tail.stored_at, np.uint64)[rows].astype(np.int64),
    )
    owner = np.searchsorted(starts, begins, side="right") - 1
    offsets = firsts[owner] + begins - starts[owner]
    stretches = list(
        zip(
            queue_keys[owner].tolist(), segments.tolist(), offsets.tolist(), columns.stored_at[begins].tolist(),
            strict=True,
        )
    )  # fmt: skip
    split = split_long(begins, total)
    if len(split) != len(begins):
        owner = np.searchsorted(starts, split, side="right") - 1
        segments = segments[np.searchsorted(begins, split, side="right") - 1]
        offsets = firsts[owner] + split - starts[owner]
    keys, values = pack_rows(columns, split, segments, queue_keys[owner], offsets)
    return RunRows(keys, values, stretches, next_offsets)


def pack_rows(
    columns: Columns, starts: I64, segments: I64, queues: NDArray[np.uint64], firsts: I64
) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of `runs` for columns cut at `starts`; the other arguments have one value a run."""
    packed = pack_many(columns, starts)
    table = np.empty(len(starts), dtype=_RUN_KEY)
    table["segment"], table["first"] = segments, firsts
    table["topic"], table["queue"] = queues >> np.uint64(32), queues & np.uint64(QUEUE_MASK)
    raw, width, data = table.tobytes(), _RUN_KEY.itemsize, packed.data
    keys = [raw[at : at + width] for at in range(0, len(raw), width)]
    return keys, [data[a:b] for a, b in zip(packed.starts, packed.ends, strict=True)]


def key_pairs(tail: Tail, segment_size: int) -> dict[int, tuple[I64, I64]]:
    """A tail's keys by segment, sorted: hashes, and positions in the segment."""
    hashes = np.frombuffer(tail.key_digests, np.uint32).astype(np.int64) << 8
    hashes |= np.frombuffer(tail.key_bytes, np.uint8)
    positions = np.frombuffer(tail.key_positions, np.uint64).astype(np.int64)
    found: dict[int, tuple[I64, I64]] = {}
    if not len(positions):
        return found
    first, last = int(positions.min()) // segment_size, int(positions.max()) // segment_size
    for segment in range(first, last + 1):
        base = segment * segment_size
        mine = (
            slice(None)
            if first == last
            else (positions >= base) & (positions < base + segment_size)
        )
        if first == last or mine.any():  # type: ignore[union-attr]  # a mask, where it is not the whole
            found[segment] = sort_pairs(hashes[mine], positions[mine] - base)
    return found


def key_rows(
    segment: int, part: int, hashes: I64, positions: I64
) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of `message_keys` for sorted pairs of one part."""
    blocks = pack_blocks(hashes, positions)
    return [key_block_key(segment, part, first) for first, _ in blocks], [
        value for _, value in blocks
    ]
