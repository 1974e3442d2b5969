"""Reads a sealed segment: where its records are, and the topic, queue and offset of each.

The idea: one scan finds and checks every record. Its owner (topic, queue, offset) is then read for
tens of thousands of records at once with numpy (`segment_parts`). A reader of a whole segment that
takes it so needs no memory for each message; all at once (`read_segment`) take 40 bytes each.

Invariants: every byte of the segment is a record, the blank record at its end, or damage that is
listed; positions rise; nothing is copied but the topics' names. A message that a transaction
prepares or takes back is in no queue: its queue is `NO_QUEUE`, and its position is its offset.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.record.check import ScanStop, scan
from kvstore.record.layout import (
    BODY_SIZE_AT,
    MAGIC_AT,
    MAGIC_V2,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE,
    STORED_AT,
    SYSTEM_FLAGS_AT,
    V6_EXTRA,
)
from kvstore.record.names import (
    BORN_HOST_V6,
    PREPARED,
    ROLLBACK,
    STORE_HOST_V6,
    TRANSACTION_MASK,
)
from kvstore.record.walk import Kind, walk
from tiering.archive.columns.packed import I64
from tiering.archive.layout import NO_QUEUE

if TYPE_CHECKING:
    from kvstore.record.check import Buffer
_AT_ONCE: Final = 1 << 16
"""Records that are found, and whose owners are read, at once."""
_V2_LOW: Final = MAGIC_V2 & 0xFF
_MAGIC_LOW_AT: Final = MAGIC_AT + 3


class Damage(NamedTuple):
    """Bytes of a segment that should be a record, and are not."""

    position: int
    size: int
    reason: str


class SegmentRecords(NamedTuple):
    """The records of a segment, in the order of their positions; one row each."""

    starts: I64
    """The places in the segment where records begin."""
    sizes: I64
    topics: I64
    """Numbers of `names`."""
    queues: I64
    offsets: I64
    names: list[bytes]
    damage: list[Damage]


def read_segment(buffer: Buffer, base: int, end: int, begin: int = 0) -> SegmentRecords:
    """All records of the segment in `buffer`, which begins at `base` of the log and is used up to
    index `end`; or those from index `begin` on, where one begins.
    """
    parts = list(segment_parts(buffer, base, end, begin))
    return SegmentRecords(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.topics for part in parts]),
        np.concatenate([part.queues for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        parts[-1].names,
        [damage for part in parts for damage in part.damage],
    )


def segment_parts(buffer: Buffer, base: int, end: int, begin: int = 0) -> Iterator[SegmentRecords]:
    """The same, some records at a time, in at least one part. Topics have the same numbers in all
    parts; each part has the `names` of those so far.
    """
    data = np.frombuffer(buffer, np.uint8)
    numbers: dict[bytes, int] = {}
    for starts, sizes, damage in _find(buffer, base, begin, end):
        names, queues, offsets = _owners(buffer, data, starts, base)
        topics = [numbers.setdefault(name, len(numbers)) for name in names]
        yield SegmentRecords(
            starts, sizes, np.array(topics, np.int64), queues, offsets, list(numbers), damage
        )


def _owners(
    buffer: Buffer, data: NDArray[np.uint8], starts: I64, base: int
) -> tuple[list[bytes], I64, I64]:
    """The topics' names, the queues and the offsets of some records."""
    flags = _u32(data, starts + SYSTEM_FLAGS_AT)
    v6 = ((flags & BORN_HOST_V6) > 0).astype(np.int64) + ((flags & STORE_HOST_V6) > 0)
    body_size_at = starts + BODY_SIZE_AT + V6_EXTRA * v6
    topic_at = body_size_at + 4 + _u32(data, body_size_at)
    lengths = data[topic_at].astype(np.int64)
    second = data[starts + _MAGIC_LOW_AT] == _V2_LOW
    if second.any():
        behind = data[topic_at[second] + 1].astype(np.int64)
        lengths[second] = lengths[second] << 8 | behind
    topic_at += 1 + second
    ends = (topic_at + lengths).tolist()
    names = [bytes(buffer[a:b]) for a, b in zip(topic_at.tolist(), ends, strict=True)]
    queues = _u32(data, starts + QUEUE_ID_AT)
    offsets = _u32(data, starts + QUEUE_OFFSET_AT) << 32 | _u32(data, starts + QUEUE_OFFSET_AT + 4)
    kind = flags & TRANSACTION_MASK
    loose = (kind == PREPARED) | (kind == ROLLBACK)
    queues[loose] = NO_QUEUE
    offsets[loose] = starts[loose] + base
    return names, queues, offsets


def stored_times(buffer: Buffer, starts: I64) -> I64:
    """The store times of records that begin at some places."""
    data = np.frombuffer(buffer, np.uint8)
    flags = _u32(data, starts + SYSTEM_FLAGS_AT)
    at = starts + STORED_AT + V6_EXTRA * ((flags & BORN_HOST_V6) > 0)
    return _u32(data, at) << 32 | _u32(data, at + 4)


def boundary(buffer: Buffer, at: int, target: int, end: int) -> int | None:
    """The place where the first record at or behind index `target` begins; `end` if none does. The
    search begins with the record at `at`, and goes on by the size that each record states; None
    where a size can't be.
    """
    unpack = SIZE.unpack_from
    while at < target and at + SIZE.size <= end:
        (size,) = unpack(buffer, at)
        if size <= 0 or at + size > end:
            return None
        at += size
    return min(at, end)


def _find(buffer: Buffer, base: int, at: int, end: int) -> Iterator[tuple[I64, I64, list[Damage]]]:
    """Where records begin, and their sizes, some at a time; and damage."""
    stop = ScanStop.LIMIT
    while stop is ScanStop.LIMIT:
        positions, sizes = array("Q"), array("I")
        at, stop = scan(buffer, at, end, base, positions, sizes, limit=_AT_ONCE)
        yield *_columns(positions, sizes, base), []
    if stop in (ScanStop.END, ScanStop.BLANK):
        return
    # Behind damage one record at a time; this is rare.
    walked = walk(buffer, base, at, end)
    while many := list(islice(walked, _AT_ONCE)):
        records = [found for found in many if found.kind is Kind.RECORD]
        damage = [
            Damage(found.position, found.size, found.reason or "zeros where records should be")
            for found in many
            if found.kind not in (Kind.RECORD, Kind.BLANK)
        ]
        positions = array("Q", (found.position for found in records))
        sizes = array("I", (found.size for found in records))
        yield *_columns(positions, sizes, base), damage


def _columns(positions: array[int], sizes: array[int], base: int) -> tuple[I64, I64]:
    starts = np.frombuffer(positions, np.int64) - base
    return starts, np.frombuffer(sizes, np.uint32).astype(np.int64)


def _u32(data: NDArray[np.uint8], at: I64) -> I64:
    found = data[at].astype(np.int64)
    for i in range(1, 4):
        found = found << 8 | data[at + i]
    return found
