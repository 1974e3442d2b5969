"""Encode: a `StoredMessage` with its body as stored becomes the bytes of its record.

The idea: the plain inverse of `kvstore.core.messages.decode`, by which the core's encoding of puts
is judged, and which makes the records that tests and benchmarks read. This module also makes blank
records. (RocketMQ: MessageExtEncoder, CommitLog's DefaultAppendMessageCallback.)

Invariant: `encode_record(decode(raw, ...)) == raw` for every record.
"""

from __future__ import annotations

import struct

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.errors import MessageIllegal, PropertiesTooLarge, shown
from kvstore.record.ids import HOST_V4_SIZE, HOST_V6_SIZE
from kvstore.record.layout import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    TOPIC_MAX,
    TOPIC_MAX_V2,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
    record_size,
)


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
        raise PropertiesTooLarge(
            f"properties take {len(properties)} bytes, at most {PROPERTIES_MAX} fit",
            len(properties),
            PROPERTIES_MAX,
        )
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
