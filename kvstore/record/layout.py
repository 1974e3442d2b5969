"""Layout: where each field of a record is, and how large fields may be.

The idea: a record is a fixed head, then body, topic and properties, each with its length before it.
All integers are big-endian. The head comes in four sizes, because each of its two hosts takes 8
bytes (IPv4) or 20 (IPv6); two bits of the system flags say which. The formats are RocketMQ's
(MessageExtEncoder, CommitLog, MessageVersion).

    size 4 | magic 4 | body CRC 4 | queue id 4 | flags 4 | queue offset 8 | position 8
    | system flags 4 | born time 8 | born host 8 or 20 | store time 8 | store host 8 or 20
    | reconsume times 4 | prepared transaction position 8 | body length 4              -- the head
    | body | topic length 1 (V1) or 2 (V2) | topic | properties length 2 | properties  -- the rest

Invariants: no number of the record format stands anywhere else; the Structs and the offsets agree
(checked at import).
"""

from __future__ import annotations

import struct
from typing import Final

from kvstore.core.names import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

# --- magic numbers ---------------------------------------------------------------------------

MAGIC_V1: Final = 0xDAA320A7
"""A record whose topic length takes 1 byte."""
MAGIC_V2: Final = 0xDAA320AB
"""A record whose topic length takes 2 bytes; written only for topics above 127 bytes."""
BLANK_MAGIC: Final = 0xCBD43194
"""A blank record, which fills the end of a segment without room for the next record."""

# --- limits ----------------------------------------------------------------------------------

TOPIC_MAX: Final = 127
"""Bytes of an ordinary topic's name, and of any topic's in a V1 record (its length is a signed
byte)."""
RETRY_TOPIC_MAX: Final = 255
"""Bytes of a retry or dead-letter topic's name."""
TOPIC_MAX_V2: Final = 32_767
"""The limit of the signed 2-byte length of a V2 record; nothing that long is ever written."""
GROUP_MAX: Final = 120
DEDUP_ID_MAX: Final = 255
"""Bytes of a dedup id."""
PROPERTIES_MAX: Final = 32_767
"""Bytes of the properties field: its length is a signed 2-byte number."""
DECOMPRESSED_MAX: Final = 64 * 1024 * 1024
"""The largest size of a decompressed body, unless the caller gives another."""

# --- CRC -------------------------------------------------------------------------------------

CRC_MASK: Final = 0x7FFF_FFFF
"""CRC-32 is stored without its top bit, so that it is never negative in Java."""

PROPERTY_CRC_SIZE: Final = 20
"""Bytes of the CRC property at the end of a record."""

# --- offsets in the head, the same in all four sizes up to the born host -----------------------

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
POSITION_AT: Final = 28
SYSTEM_FLAGS_AT: Final = 36
SYSTEM_FLAGS_LOW_AT: Final = 39
"""Their lowest byte, which has the two bits that say how large the hosts are."""
BORN_AT: Final = 40
BORN_HOST_AT: Final = 48
# The rest with two IPv4 hosts; with IPv6 hosts they shift, see `head_size`.
STORED_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_POSITION_AT: Final = 76
BODY_SIZE_AT: Final = 84
BODY_AT: Final = 88

V6_EXTRA: Final = 12
"""How many bytes an IPv6 host takes more than an IPv4 one."""
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
NOT_ORDINARY: Final = HOSTS_V6 | COMPRESSED
"""System flags of the records that are read by a way of their own."""


# --- the head, whole ---------------------------------------------------------------------------
# size I, magic I, body CRC I, queue id I, flags I, queue offset q, position q, system flags I, born
# time q, born host s, store time q, store host s, reconsume times i, prepared position q, body
# length I. Unsigned where a sign would mean nothing: a "negative" size is then simply larger than
# any buffer. The caller's flags are any 32 bits; Java shows the upper half of them as negative
# numbers.

HEAD_V4_V4: Final = struct.Struct(">IIIIIqqIq8sq8siqI")
HEAD_V6_V4: Final = struct.Struct(">IIIIIqqIq20sq8siqI")
HEAD_V4_V6: Final = struct.Struct(">IIIIIqqIq8sq20siqI")
HEAD_V6_V6: Final = struct.Struct(">IIIIIqqIq20sq20siqI")

HEADS: Final[dict[int, struct.Struct]] = {
    0: HEAD_V4_V4,
    BORN_HOST_V6: HEAD_V6_V4,
    STORE_HOST_V6: HEAD_V4_V6,
    BORN_HOST_V6 | STORE_HOST_V6: HEAD_V6_V6,
}
"""The head's Struct by `system flags & HOSTS_V6`."""

# --- parts of a record -------------------------------------------------------------------------

SIZE: Final = struct.Struct(">I")
BODY_SIZE: Final = struct.Struct(">I")
TOPIC_SIZE_V1: Final = struct.Struct(">B")
TOPIC_SIZE_V2: Final = struct.Struct(">H")
PROPERTIES_SIZE: Final = struct.Struct(">H")
POSITION: Final = struct.Struct(">q")

BLANK: Final = struct.Struct(">II")
"""Size of the whole rest of the segment, BLANK_MAGIC. Readers ignore the bytes behind it."""
BLANK_SIZE: Final = BLANK.size

FIXED_V1: Final = HEAD_V4_V4.size + TOPIC_SIZE_V1.size + PROPERTIES_SIZE.size
"""Bytes of a V1 record with IPv4 hosts beside body, topic and properties."""
FIXED_V2: Final = HEAD_V4_V4.size + TOPIC_SIZE_V2.size + PROPERTIES_SIZE.size

# These say that the tables above agree with each other, not that some input is right.
assert BODY_AT == HEAD_V4_V4.size == BODY_SIZE_AT + BODY_SIZE.size
assert (FIXED_V1, FIXED_V2, BLANK_SIZE) == (91, 92, 8)
assert HEAD_V6_V4.size == HEAD_V4_V6.size == BODY_AT + V6_EXTRA
assert HEAD_V6_V6.size == BODY_AT + 2 * V6_EXTRA


def head_size(system_flags: int) -> int:
    """Bytes before the body: 88, 100 or 112."""
    return HEADS[system_flags & HOSTS_V6].size


def record_size(
    body_size: int, topic_size: int, properties_size: int, system_flags: int = 0, version: int = 1
) -> int:
    """Bytes of a whole record; the sizes are those of the parts as stored."""
    fixed = FIXED_V1 if version == 1 else FIXED_V2
    if system_flags & HOSTS_V6:
        fixed += head_size(system_flags) - BODY_AT
    return fixed + body_size + topic_size + properties_size
