"""Decode a run: the records of one queue in one buffer become its messages.

The idea: the reader of a queue knows topic, queue and offsets beforehand. So each record is
compared with the expected values, the topic and both lengths around it in one comparison of a few
bytes. A record that differs in anything goes to `decode` alone, which finds out the difference.
This is nearly twice as fast as `decode` record by record.

Invariant: the messages are exactly those that `decode` would have returned for these records.
"""

from __future__ import annotations

from struct import error as struct_error
from typing import TYPE_CHECKING

from zlib_ng.zlib_ng import crc32

from kvstore.record.layout import (
    BODY_AT,
    CRC_MASK,
    HEAD_V4_V4,
    MAGIC_V1,
    NOT_ORDINARY,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    TOPIC_MAX,
)
from kvstore.record.values import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore.record.check import Buffer

_unpack = HEAD_V4_V4.unpack_from


class TopicBytes(dict[int, bytes | None]):
    """Properties length -> the bytes between body and properties, for one topic; None, which no
    bytes equal, for a number that can't be a length.
    """

    def __init__(self, topic: str) -> None:
        super().__init__()
        name = topic.encode()
        self.topic = topic
        self._is_v1 = len(name) <= TOPIC_MAX
        self.size = 1 + len(name) + PROPERTIES_SIZE.size
        self._wire = bytes((len(name) & 0xFF,)) + name

    def __missing__(self, length: int) -> bytes | None:
        if not 0 <= length <= PROPERTIES_MAX or not self._is_v1:
            return None
        found = self[length] = self._wire + PROPERTIES_SIZE.pack(length)
        return found


def decode_run(
    buffer: Buffer,
    base: int,
    end: int,
    positions: Sequence[int],
    topic_bytes: TopicBytes,
    queue: int,
    offset: int,
    check_crc: bool,
) -> list[StoredMessage]:
    """The messages at `positions` (one at least), which begin at index position - `base` of
    `buffer`, end at or before `end`, and must be `offset` and on of `queue`.

    Ends before the first record that is not ordinary (V1, IPv4, not compressed), not whole, or not
    the expected one.
    """
    out: list[StoredMessage] = []
    topic, topic_size = topic_bytes.topic, topic_bytes.size
    end = min(end, len(buffer))
    if type(buffer) is bytearray or type(buffer) is memoryview or positions[0] < base:
        return out  # slices of these would not be bytes
    try:
        for position in positions:
            at = position - base
            (
                size, magic, body_crc, its_queue, flags, its_offset, stated, system_flags, born_at,
                born_host, stored_at, store_host, reconsume_times, prepared, body_size,
            ) = _unpack(buffer, at)  # fmt: skip
            body_at = at + BODY_AT
            body_end = body_at + body_size
            properties_at = body_end + topic_size
            stop = at + size
            if (
                its_offset != offset
                or stated != position
                or stop > end
                or magic != MAGIC_V1
                or its_queue != queue
                or system_flags & NOT_ORDINARY
                or buffer[body_end:properties_at] != topic_bytes[stop - properties_at]
            ):
                break
            body = buffer[body_at:body_end]
            if check_crc and crc32(body) & CRC_MASK != body_crc:
                break
            out += (
                StoredMessage(
                    topic, queue, offset, position, size,
                    body,  # type: ignore[arg-type]  # bytes, by the check above
                    buffer[properties_at:stop],  # type: ignore[arg-type]  # as the body
                    flags, system_flags, born_at, stored_at, born_host, store_host, reconsume_times,
                    prepared, body_crc,
                ),
            )  # fmt: skip
            offset += 1
    except struct_error:
        pass  # too few bytes for a head: `decode` says so
    return out
