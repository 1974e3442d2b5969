"""The compiled reader of queues, over one buffer; and the positions that a packed run says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstore.core.messages import QueueReader, StoredMessage
from kvstore.core.packed_runs import DecodedRuns
from kvstore.core.tail import Tail
from kvstore.errors import SegmentDamaged

if TYPE_CHECKING:
    from kvstore.core.messages import Collector, ExpiryCheck, Unpack
    from kvstore.core.records import Buffer

NO_BOUND = 1 << 62
_COUNT_MAX = 0xFFFF
_HALF = 1 << 63


def read_queue(
    buffer: Buffer,
    base: int,
    end: int,
    positions: list[int],
    topic: str,
    queue: int,
    offset: int,
    check_crc: bool = True,
    unpack: Unpack | None = None,
    property_crc: bool = False,
    max_bytes: int = NO_BOUND,
    out: Collector | None = None,
    expiry: ExpiryCheck | None = None,
) -> list[StoredMessage]:
    """The messages of the records at `positions`, which must be `offset` and on of a queue
    of topic 1. They begin at index position - `base` of `buffer`, and end at `end` or before.
    With `out` they go there instead. The first one is read by itself, too, unless `expiry` may pass
    it over.
    """
    if not 0 <= queue < 1 << 32:
        raise OverflowError
    key = 1 << 32 | queue
    tail = Tail(0)
    # The reader's offsets go on behind the highest number as those of a record would.
    offsets = [(offset + i + _HALF) % (2 * _HALF) - _HALF for i in range(len(positions))]
    rows = [(key, *place, 0, 0, 0) for place in zip(offsets, positions, strict=True)]
    tail.add_found(np.array(rows, np.int64).reshape(-1), np.zeros(0, np.int64))
    listed: list[StoredMessage] = []

    def span(position: int) -> tuple[Buffer, int, int]:
        if not base <= position < base + end:
            raise SegmentDamaged("there is no such segment", "")
        return buffer, position - base, end

    reader = QueueReader(DecodedRuns(), {}, 1, span, check_crc, unpack, property_crc)
    reader.read(
        tail,
        None,
        topic,
        key,
        offset,
        len(positions),
        _HALF - 1,
        max_bytes,
        listed if out is None else out,
        expiry,
    )
    if out is None and expiry is None:
        alone = reader.get(tail, None, topic, 1 << 32, queue + 1, queue, offset, _HALF - 1)
        assert alone == (listed[0] if listed else None)
    return listed


def run_positions(value: bytes) -> list[int]:
    """The positions that a run of a segment at position 0 says."""
    runs = DecodedRuns()
    runs.add(7, 5, 0, value)
    return runs.positions(7, 5, _COUNT_MAX)
