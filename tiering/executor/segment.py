"""Reads a sealed segment: where its records are, and the topic, queue and offset of each.

The idea: scans find and check the records, and read whose they are, thousands at a time
(`segment_parts`). A reader of a whole segment that takes it so needs no memory for each message;
all at once (`read_segment`) take 40 bytes each.

Invariants: every byte of the segment is a record, the blank record at its end, or damage that is
listed; positions rise; nothing is copied but the topics' names. A message that a transaction
prepares or takes back is in no queue: its queue is `NO_QUEUE`, and its position is its offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.names import BORN_HOST_V6, PREPARED, ROLLBACK, TRANSACTION_MASK
from kvstore.core.scan import Scan
from kvstore.record.layout import SIZE, STORED_AT, SYSTEM_FLAGS_AT, V6_EXTRA
from kvstore.record.walk import Extent, Kind, walk
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import different_texts
from tiering.archive.layout import NO_QUEUE

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_NONE: Final = np.empty(0, np.int64)


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
    """The records of a segment as `read_segment` takes it, some at a time, in at least one part.
    Topics have the same numbers in all parts; each part has the `names` of those so far.
    """
    numbers: dict[bytes, int] = {}
    yield SegmentRecords(_NONE, _NONE, _NONE, _NONE, _NONE, [], [])
    for found in walk(buffer, base, begin, end):
        if isinstance(found, Scan):
            yield _part(buffer, found, base, numbers)
        elif found.kind is not Kind.BLANK:
            damage = Damage(found.position, found.size, _fault(found))
            yield SegmentRecords(_NONE, _NONE, _NONE, _NONE, _NONE, list(numbers), [damage])


def _fault(found: Extent) -> str:
    return found.reason or "zeros where records should be"


def _part(buffer: Buffer, found: Scan, base: int, numbers: dict[bytes, int]) -> SegmentRecords:
    """The records of a scan; gives numbers to topics that have none."""
    owners = found.owners
    names, number_of = different_texts(buffer, *found.topic_places)
    topics = [numbers.setdefault(name, len(numbers)) for name in names]
    queues = found.queue_ids[owners]
    kind = found.flags & TRANSACTION_MASK
    is_loose = (kind == PREPARED) | (kind == ROLLBACK)
    return SegmentRecords(
        found.positions - base,
        found.sizes.copy(),
        np.array(topics, np.int64)[number_of][owners],
        np.where(is_loose, NO_QUEUE, queues),
        np.where(is_loose, found.positions, found.offsets),
        list(numbers),
        [],
    )


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


def _u32(data: NDArray[np.uint8], at: I64) -> I64:
    found = data[at].astype(np.int64)
    for i in range(1, 4):
        found = found << 8 | data[at + i]
    return found
