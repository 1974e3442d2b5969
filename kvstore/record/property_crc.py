"""The CRC over a whole record, kept as its last property.

The idea: the body CRC says nothing about topic, properties and head. RocketMQ
(`enabledAppendPropCRC`; MessageDecoder.createCrc32, CommitLog) therefore can end a record with a
reserved property

    `__CRC32#` \\x01 ten decimal digits, the least significant first \\x02     -- 20 bytes

whose number is the CRC-32 (without its top bit) of all bytes of the record before it. The 20 bytes
count in the record's size and in the length of its properties.

Invariant: a record has the property at most once, as its last 20 bytes.
"""

from __future__ import annotations

from typing import Final

from zlib_ng.zlib_ng import crc32

from kvstore.record.layout import CRC_MASK
from kvstore.record.names import PROPERTY_CRC

DIGITS: Final = 10
PROPERTY_CRC_HEAD: Final = PROPERTY_CRC.encode() + b"\x01"
PROPERTY_CRC_SIZE: Final = len(PROPERTY_CRC_HEAD) + DIGITS + 1

# The format, not some input: records written elsewhere have these 20 bytes.
assert PROPERTY_CRC_SIZE == 20


def property_crc_suffix(record: bytes | bytearray | memoryview) -> bytes:
    """The 20 bytes that end a record, made from all the bytes before them.

    Size and properties length in `record` must count them already, its properties must be empty or
    end with 0x02, and nothing may change afterwards, the position included.
    """
    digits = f"{crc32(record) & CRC_MASK:0{DIGITS}d}"[::-1]
    return PROPERTY_CRC_HEAD + digits.encode() + b"\x02"
