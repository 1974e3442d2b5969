"""The rows of a checkpoint: an index tail as rows of `runs` and `places`, and sorted keys.

The idea: numpy handles the whole tail at once. Rows are sorted by queue; a run ends where the queue
or the segment changes.

Invariant: these functions are pure: a tail goes in, rows come out. The caller writes the rows in
one batch with the new checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.index.keys import QUEUE_MASK
from kvstore.index.message_keys.key_blocks import sort_pairs
from kvstore.index.runs import Columns, pack_many, split_long
from kvstore.index.tail import Tail

I64 = NDArray[np.int64]
_ROW_BITS: Final = 24
_RUN_KEY = np.dtype([("segment", ">u4"), ("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")])


class RunRows(NamedTuple):
    """Rows of `runs`, the stretches of queues that may need a place, and next offsets.

    Queues are named by their keys in memory, topic id << 32 | queue id. `keys` and `values` have
    one item for each row."""

    keys: list[bytes]
    values: list[bytes]
    stretches: list[tuple[int, int, int, int]]
    """Queue, segment, first offset, first store time."""
    next_offsets: dict[int, int]


def run_rows(tail: Tail, segment_size: int, coded: Callable[[I64], I64]) -> RunRows:
    """The runs of a tail that gets no more entries; `coded` puts codes for tag hashes."""
    total = len(tail)
    if not total:
        return RunRows([], [], [], {})
    queue_keys = np.frombuffer(tail.queue_keys, np.uint64)
    # Rows are in log order: sorted by queue, stably, each queue's are in the order of its offsets.
    order = _by_queue(queue_keys)
    queue_keys = queue_keys[order]
    positions = np.frombuffer(tail.positions, np.int64)[order]
    border = np.ones(total, dtype=bool)
    offsets = np.frombuffer(tail.offsets, np.int64)[order]
    # A gap in a queue's offsets, which only recovery makes, ends a run too.
    border[1:] = (queue_keys[1:] != queue_keys[:-1]) | (offsets[1:] != offsets[:-1] + 1)
    base = 0
    first_segment = int(positions.min()) // segment_size
    if first_segment == int(positions.max()) // segment_size:
        base = first_segment * segment_size
        begins = np.flatnonzero(border)
        segments = np.full(len(begins), first_segment, dtype=np.int64)
        relative = positions - base
    else:
        of_entry = positions // segment_size
        border[1:] |= of_entry[1:] != of_entry[:-1]
        begins = np.flatnonzero(border)
        segments = of_entry[begins]
        relative = positions - of_entry * segment_size
    columns = Columns(
        relative,
        np.frombuffer(tail.sizes, np.uint32)[order].astype(np.int64),
        coded(np.frombuffer(tail.tag_hashes, np.int64))[order],
        np.frombuffer(tail.stored_at, np.int64)[order],
    )
    queues = queue_keys[begins].tolist()
    lasts = np.append(begins[1:], total) - 1
    next_offsets = dict(zip(queues, (offsets[lasts] + 1).tolist(), strict=True))
    stretches = list(
        zip(
            queues, segments.tolist(), offsets[begins].tolist(), columns.stored_at[begins].tolist(),
            strict=True,
        )
    )  # fmt: skip
    split = split_long(begins, total)
    if len(split) != len(begins):
        segments = segments[np.searchsorted(begins, split, side="right") - 1]
    keys, values = pack_rows(columns, split, segments, queue_keys[split], offsets[split])
    return RunRows(keys, values, stretches, next_offsets)


def _by_queue(queue_keys: NDArray[np.uint64]) -> I64:
    """The order that sorts rows by queue, stably."""
    rows = len(queue_keys)
    topics, queues = queue_keys >> np.uint64(32), queue_keys & np.uint64(QUEUE_MASK)
    low, width = topics.min(), int(queues.max()) + 1
    if rows >= 1 << _ROW_BITS or (int(topics.max() - low) + 1) * width >= 1 << 64 - _ROW_BITS:
        return np.argsort(queue_keys, kind="stable")
    # One sort of one number (queue, then row): a fifth of what argsort takes.
    joint: NDArray[np.uint64] = (topics - low) * np.uint64(width) + queues
    joint <<= np.uint64(_ROW_BITS)
    joint |= np.arange(rows, dtype=np.uint64)
    joint.sort()
    joint &= np.uint64((1 << _ROW_BITS) - 1)
    return joint.view(np.int64)


def pack_rows(
    columns: Columns, starts: I64, segments: I64, queues: NDArray[np.uint64], firsts: I64
) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of `runs` for columns cut at `starts`; the other arguments have one value a
    run.
    """
    packed = pack_many(columns, starts)
    table = np.empty(len(starts), dtype=_RUN_KEY)
    table["segment"], table["first"] = segments, firsts
    table["topic"], table["queue"] = queues >> np.uint64(32), queues & np.uint64(QUEUE_MASK)
    raw, width, data = table.tobytes(), _RUN_KEY.itemsize, packed.data
    keys = [raw[at : at + width] for at in range(0, len(raw), width)]
    return keys, [data[a:b] for a, b in zip(packed.starts, packed.ends, strict=True)]


def key_pairs(tail: Tail, segment_size: int, topic_bytes: bytes) -> dict[int, tuple[I64, I64]]:
    """A tail's keys by segment, sorted: hashes, and positions in the segment.

    `topic_bytes[topic id]` is what the topic puts under its keys' hashes.
    """
    digests, positions, queues = tail.key_columns()
    hashes = digests.astype(np.int64) << 8
    hashes |= np.frombuffer(topic_bytes, np.uint8)[queues >> 32]
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
