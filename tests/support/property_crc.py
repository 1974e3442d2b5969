"""Records with the CRC property, as a store with `property_crc` writes them."""

from __future__ import annotations

from kvstore.record.check import measure
from kvstore.record.layout import POSITION, POSITION_AT, PROPERTIES_SIZE, SIZE, SIZE_AT
from kvstore.record.properties import PROPERTY_CRC_SIZE, property_crc_suffix


def with_property_crc(record: bytearray) -> None:
    """Give a record the CRC property, in place. Its properties are empty, or end with 0x02."""
    parts = measure(record, 0, len(record), POSITION.unpack_from(record, POSITION_AT)[0])
    length = parts.properties_size + PROPERTY_CRC_SIZE
    PROPERTIES_SIZE.pack_into(record, parts.properties_at - PROPERTIES_SIZE.size, length)
    SIZE.pack_into(record, SIZE_AT, parts.size + PROPERTY_CRC_SIZE)
    record += property_crc_suffix(record)
