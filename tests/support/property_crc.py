"""Records with the CRC property, as a store with `property_crc` writes them."""

from __future__ import annotations

from kvstore.core.records import facts, property_crc_suffix
from kvstore.record.layout import PROPERTIES_SIZE, PROPERTY_CRC_SIZE, SIZE, SIZE_AT


def with_property_crc(record: bytearray) -> None:
    """Give a record the CRC property, in place. Its properties are empty, or end with 0x02."""
    properties = facts(record, 0, len(record))[5]
    length_at = len(record) - len(properties) - PROPERTIES_SIZE.size
    PROPERTIES_SIZE.pack_into(record, length_at, len(properties) + PROPERTY_CRC_SIZE)
    SIZE.pack_into(record, SIZE_AT, len(record) + PROPERTY_CRC_SIZE)
    record += property_crc_suffix(record)
