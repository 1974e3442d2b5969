"""Decode: the bytes of one record, or of the records of one queue, become `StoredMessage`s.

The idea: one `unpack_from` on the mapped segment for the whole head, then four slices. A record is
trusted only after these checks: its magic, its size against the bytes there are, its own position,
the sum of the lengths inside against its size, and (unless the caller waives it) the CRC of its
body. `kvstore.core.records` finds the fault of a bad record afterwards, so a good record pays only
for the comparisons. (RocketMQ: MessageDecoder.decode, CommitLog.checkMessageAndReturnSize.)

The reader of a queue knows topic, queue and offsets beforehand. So `decode_run` compares each
record with the expected values, the topic and both lengths around it in one comparison of a few
bytes, which is nearly twice as fast as `decode` record by record. A record that differs in anything
goes to `decode` alone, which finds out the difference.

Invariants: any bytes give a record or RecordDamaged, nothing else; a length field is compared with
the bytes there are before anything is read or allocated by it; a message keeps no reference to the
buffer; the messages of `decode_run` are exactly those of `decode`.
"""

from __future__ import annotations

from struct import error as struct_error
from typing import TYPE_CHECKING

from zlib_ng.zlib_ng import crc32

from kvstore.core.records import parts_of
from kvstore.errors import RecordDamaged
from kvstore.record.compression import decompress
from kvstore.record.layout import (
    BODY_AT,
    CRC_MASK,
    DECOMPRESSED_MAX,
    HEAD_V4_V4,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    NOT_ORDINARY,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    PROPERTIES_SIZE_SIGNED,
    SYSTEM_FLAGS_LOW_AT,
    TOPIC_MAX,
)
from kvstore.record.names import COMPRESSED
from kvstore.record.values import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore.core.buffers import Buffer


_unpack_v4 = HEAD_V4_V4.unpack_from
_unpack_length = PROPERTIES_SIZE_SIGNED.unpack_from


def decode(
    buffer: Buffer,
    at: int,
    end: int,
    position: int,
    check_crc: bool = True,
    raw_body: bool = False,
    max_body: int = DECOMPRESSED_MAX,
) -> StoredMessage:
    """The record that begins at index `at` of `buffer` and ends at or before `end`.

    `position` is the log position that the record must state. `check_crc` False leaves out the
    body's CRC, for bytes that were checked before. A compressed body is decompressed, to at most
    `max_body` bytes, or left as stored with `raw_body`. Raises RecordDamaged, with the position and
    what was expected and found; a blank record and unwritten zeros are no records either.
    """
    # The ordinary record (V1, IPv4, nothing compressed) in a mapped segment or `bytes` takes no
    # further call. `_decode_any` gets all others, and the faulty ones.
    try:
        (
            size, magic, body_crc, queue, flags, offset, stated, system_flags, born_at, born_host,
            stored_at, store_host, reconsume_times, prepared, body_size,
        ) = _unpack_v4(buffer, at)  # fmt: skip
        body_at = at + BODY_AT
        body_end = body_at + body_size
        stop = at + size
        if (
            magic == MAGIC_V1
            and stated == position
            and body_end < stop <= end <= len(buffer)
            and not system_flags & NOT_ORDINARY
            and at >= 0
        ):
            topic_at = body_end + 1
            topic_size = buffer[body_end]
            topic_end = topic_at + topic_size
            properties_at = topic_end + 2
            if (
                topic_size <= TOPIC_MAX
                and properties_at <= stop
                # A signed length: above 32,767 it can't be the number of bytes left.
                and _unpack_length(buffer, topic_end)[0] == stop - properties_at
                and type(body := buffer[body_at:body_end]) is bytes
                and (not check_crc or crc32(body) & CRC_MASK == body_crc)
            ):
                topic = buffer[topic_at:topic_end].decode()  # type: ignore[union-attr]
                return StoredMessage(
                    topic, queue, offset, position, size, body,
                    buffer[properties_at:stop],  # type: ignore[arg-type]  # bytes, as the body is
                    flags, system_flags, born_at, stored_at, born_host, store_host,
                    reconsume_times, prepared, body_crc,
                )  # fmt: skip
    except (struct_error, UnicodeDecodeError):
        pass  # too few bytes for a head, or a topic that isn't text: reported below
    return _decode_any(buffer, at, end, position, check_crc, raw_body, max_body)


def _decode_any(
    buffer: Buffer,
    at: int,
    end: int,
    position: int,
    check_crc: bool,
    raw_body: bool,
    max_body: int,
) -> StoredMessage:
    """As `decode`, for every kind of record; the error of bad bytes names their fault."""
    size, properties_at = parts_of(buffer, at, end, position, check_crc)
    raw = bytes(buffer[at : at + size])
    head = HEADS[raw[SYSTEM_FLAGS_LOW_AT] & HOSTS_V6]
    (
        size, magic, body_crc, queue, flags, offset, position, system_flags, born_at, born_host,
        stored_at, store_host, reconsume_times, prepared, body_size,
    ) = head.unpack_from(raw)  # fmt: skip
    body_end = head.size + body_size
    body = raw[head.size : body_end]
    version = 1 if magic == MAGIC_V1 else 2
    # The topic stands between its length, of 1 or 2 bytes, and the properties' length.
    topic_at = body_end + version
    topic_end = properties_at - PROPERTIES_SIZE.size
    try:
        topic = raw[topic_at:topic_end].decode()
        # An empty body stays one, whatever the flags say, as in RocketMQ.
        if system_flags & COMPRESSED and body and not raw_body:
            body = decompress(body, system_flags, max_body)
    except (RecordDamaged, UnicodeDecodeError) as error:
        raise RecordDamaged(f"record at {position} is damaged: {error}", position) from None
    return StoredMessage(
        topic, queue, offset, position, size, body, raw[topic_end + PROPERTIES_SIZE.size :], flags,
        system_flags, born_at, stored_at, born_host, store_host, reconsume_times, prepared,
        body_crc, version,
    )  # fmt: skip


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
