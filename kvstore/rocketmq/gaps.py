"""Gaps: parts of a log that hold no record, filled so that RocketMQ reads on behind them.

The idea: RocketMQ reads its log from record to record, and for ever waits at a place with none.
Messages that were erased, or that an archive holds, and damaged bytes leave such places. Each gets
records of the topic `_`, which nobody reads, and the rest of a segment a blank record.

Invariants: good records stay as they are; afterwards each byte of the segment belongs to a record.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from kvstore.core.scan import Scan
from kvstore.files import MappedFile, SegmentBuffer
from kvstore.record.ids import pack_host
from kvstore.record.layout import (
    BLANK,
    BLANK_MAGIC,
    BODY_AT,
    CRC_MASK,
    FIXED_V1,
    HEAD_V4_V4,
    MAGIC_V1,
    PROPERTIES_SIZE,
    TOPIC_SIZE_V1,
)
from kvstore.record.walk import Extent, Kind, extents, walk

GAP_TOPIC: Final = "_"
"""One letter: the smallest record that can be missing has a topic of one."""
_TOPIC: Final = GAP_TOPIC.encode()
_END: Final = TOPIC_SIZE_V1.pack(len(_TOPIC)) + _TOPIC + PROPERTIES_SIZE.pack(0)
"""Behind the body: the topic, and no properties."""
_SMALLEST: Final = FIXED_V1 + len(_TOPIC)
_HOST: Final = pack_host("127.0.0.1", 0)
_LARGEST: Final = 1 << 20
"""RocketMQ copies each record that it reads, so none is larger than 1 MiB."""


def has_gap(buffer: SegmentBuffer, base: int) -> bool:
    """Whether a whole segment has bytes that belong to no record; `base` is its first position."""
    found = None
    for found in extents(walk(buffer, base, 0, len(buffer))):
        if found.kind in (Kind.DAMAGE, Kind.END):
            return True
    return found is None or found.kind is not Kind.BLANK


class GapFiller:
    """Fills the gaps of segments, which are given in the log's order."""

    def __init__(self, stored_at: int) -> None:
        self._stored_at = stored_at
        self.records = 0
        """The records that were made; the next one's offset in its queue."""

    def fill(self, segment: MappedFile, base: int) -> int:
        """Fills the gaps of a segment, whose first position is `base`, and returns their bytes."""
        filled, end = 0, base + segment.size
        for found in walk(segment.buffer, base, 0, segment.size):
            if isinstance(found, Scan):
                self._stored_at = int(found.stored_at[-1])
            elif found.kind in (Kind.DAMAGE, Kind.END):
                self._fill(segment, base, found, end)
                filled += found.size
        return filled

    def _fill(self, segment: MappedFile, base: int, gap: Extent, end: int) -> None:
        at, rest = gap.position - base, gap.size
        if gap.stop == end:
            segment.write(at, BLANK.pack(rest, BLANK_MAGIC))
            return
        while rest:
            size = rest if rest <= _LARGEST else min(_LARGEST, rest - _SMALLEST)
            self._put_record(segment, base, at, size)
            at, rest = at + size, rest - size

    def _put_record(self, segment: MappedFile, base: int, at: int, size: int) -> None:
        """A record of `size` bytes; its body is made of the bytes that are there."""
        body_size = size - _SMALLEST
        body = bytes(segment.buffer[at + BODY_AT : at + BODY_AT + body_size])
        head = HEAD_V4_V4.pack(
            size,
            MAGIC_V1,
            crc32(body) & CRC_MASK,
            0,
            0,
            self.records,
            base + at,
            0,
            self._stored_at,
            _HOST,
            self._stored_at,
            _HOST,
            0,
            0,
            body_size,
        )
        segment.write(at + BODY_AT + body_size, _END)
        segment.write(at, head)
        self.records += 1
