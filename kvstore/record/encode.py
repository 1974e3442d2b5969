"""Encode: a `StoredMessage` with its body as stored becomes the bytes of its record.

The idea: the exact inverse of `decode(..., raw_body=True)`, for archives that take records apart
and put them together again, and as the reference for the put path, which has a faster loop of its
own. This module also makes blank records and the CRC property. (RocketMQ: MessageExtEncoder,
CommitLog's DefaultAppendMessageCallback.)

Invariant: `encode_record(decode(raw, ..., raw_body=True)) == raw` for every record.
"""

from __future__ import annotations

import struct
from typing import Final

from kvstore.errors import (
    MessageIllegal,
    PropertiesTooLarge,
    shown,
)
from kvstore.record.check import measure
from kvstore.record.hosts import HOST_V4_SIZE, HOST_V6_SIZE
from kvstore.record.layout import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    POSITION,
    POSITION_AT,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    SIZE,
    SIZE_AT,
    TOPIC_MAX,
    TOPIC_MAX_V2,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
    record_size,
)
from kvstore.record.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.record.properties import PROPERTY_CRC_HEAD, PROPERTY_CRC_SIZE, property_crc_suffix
from kvstore.record.values import StoredMessage

__all__ = [
    "PROPERTY_CRC_SIZE",
    "blank",
    "encode_record",
    "property_crc_suffix",
    "with_property_crc",
]

_VALUE_END: Final = b"\x02"


def encode_record(m: StoredMessage) -> bytes:
    """The record's bytes, V1 or V2 as `m.version` says.

    `m.body` and `m.body_crc` are taken as they are: the body as stored, compressed if the system
    flags say so. The size is counted anew. Raises MessageIllegal (PropertiesTooLarge) for a value
    that doesn't fit its field, or hosts that are not of the kind in the system flags.
    """
    try:
        topic = m.topic.encode()
    except UnicodeEncodeError:
        raise MessageIllegal(f"topic {m.topic[:300]!r} can't be stored as UTF-8") from None
    if m.version == 1:
        magic, topic_length, topic_max = MAGIC_V1, TOPIC_SIZE_V1, TOPIC_MAX
    elif m.version == 2:
        magic, topic_length, topic_max = MAGIC_V2, TOPIC_SIZE_V2, TOPIC_MAX_V2
    else:
        raise MessageIllegal(f"there is no record version {shown(m.version)}, only 1 and 2")
    if len(topic) > topic_max:
        raise MessageIllegal(
            f"topic has {len(topic)} bytes, in a V{m.version} record at most {topic_max} fit"
        )
    _check_hosts(m)
    properties = m.raw_properties
    if len(properties) > PROPERTIES_MAX:
        raise _properties_too_large(len(properties))
    size = record_size(len(m.body), len(topic), len(properties), m.system_flags, m.version)
    try:
        head = HEADS[m.system_flags & HOSTS_V6].pack(
            size, magic, m.body_crc, m.queue, m.flags, m.offset, m.position, m.system_flags,
            m.born_at, m.raw_born_host, m.stored_at, m.raw_store_host, m.reconsume_times,
            m.prepared_position, len(m.body),
        )  # fmt: skip
    except struct.error as error:
        raise MessageIllegal(f"a number doesn't fit its field: {error}") from None
    return b"".join(
        (
            head,
            m.body,
            topic_length.pack(len(topic)),
            topic,
            PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    )


def blank(size: int) -> bytes:
    """The first 8 bytes of a blank record that takes `size` bytes, to the end of its segment.

    The bytes behind these 8 don't matter. Raises MessageIllegal below 8 or above 32 bits.
    """
    if not BLANK_SIZE <= size < 1 << 32:
        raise MessageIllegal(f"a blank record takes {BLANK_SIZE} bytes or more, not {size}")
    return BLANK.pack(size, BLANK_MAGIC)


def with_property_crc(record: bytearray) -> None:
    """Give a whole record its CRC property, in place; the record then ends with it and is larger.

    Size and properties length are put right, properties without a last 0x02 get it, and a CRC
    property that is there already is made anew. Raises RecordDamaged if no record begins `record`,
    MessageIllegal if bytes stand behind it, PropertiesTooLarge if there is no room for the
    property; `record` is unchanged then.
    """
    (position,) = (
        POSITION.unpack_from(record, POSITION_AT) if len(record) > POSITION_AT + 8 else (0,)
    )
    parts = measure(record, 0, len(record), position)
    if parts.size != len(record):
        raise MessageIllegal(f"{len(record) - parts.size} bytes stand behind the record")
    properties = _without_crc(bytes(record[parts.properties_at :]))
    if properties and not properties.endswith(_VALUE_END):
        properties += _VALUE_END
    length = len(properties) + PROPERTY_CRC_SIZE
    if length > PROPERTIES_MAX:
        raise _properties_too_large(length)
    record[parts.properties_at :] = properties
    PROPERTIES_SIZE.pack_into(record, parts.properties_at - PROPERTIES_SIZE.size, length)
    SIZE.pack_into(record, SIZE_AT, parts.properties_at + length)
    record += property_crc_suffix(record)


def _without_crc(properties: bytes) -> bytes:
    """The properties without any that is called `__CRC32#`."""
    if PROPERTY_CRC_HEAD not in properties:
        return properties
    pairs = properties.split(_VALUE_END)
    return _VALUE_END.join([pair for pair in pairs if not pair.startswith(PROPERTY_CRC_HEAD)])


def _check_hosts(m: StoredMessage) -> None:
    for what, raw, bit in (
        ("born", m.raw_born_host, BORN_HOST_V6),
        ("store", m.raw_store_host, STORE_HOST_V6),
    ):
        expected = HOST_V6_SIZE if m.system_flags & bit else HOST_V4_SIZE
        if len(raw) != expected:
            raise MessageIllegal(
                f"{what} host takes {len(raw)} bytes, by the system flags it should take {expected}"
            )


def _properties_too_large(size: int) -> PropertiesTooLarge:
    return PropertiesTooLarge(
        f"properties take {size} bytes, at most {PROPERTIES_MAX} fit", size, PROPERTIES_MAX
    )
