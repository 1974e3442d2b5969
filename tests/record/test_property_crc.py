"""The CRC property: how it is made, and put at the end of a record."""

from __future__ import annotations

from typing import Final

from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.core.names import PROPERTY_CRC
from kvstore.core.records import check_record, decode_properties, property_crc_suffix
from kvstore.record.layout import PROPERTY_CRC_SIZE
from tests.reference.encode import encode_record
from tests.support.decoding import decode
from tests.support.property_crc import with_property_crc

HOST: Final = bytes(8)


def record(properties: bytes) -> bytearray:
    m = StoredMessage("t", 0, 0, 0, 0, b"", properties, 0, 0, 0, 0, HOST, HOST, 0, 0, 0)
    return bytearray(encode_record(m))


def properties_of(raw: bytes | bytearray) -> bytes:
    return decode(raw, 0, len(raw), position=0).raw_properties


def test_the_digits_are_decimal_padded_and_the_least_significant_first() -> None:
    # The well-known check value of CRC-32 is cbf43926; without its top bit that is 1274296614.
    assert crc32(b"123456789") == 0xCBF43926
    assert property_crc_suffix(b"123456789") == b"__CRC32#\x014166924721\x02"
    assert property_crc_suffix(b"") == b"__CRC32#\x010000000000\x02"


def test_a_small_crc_has_its_zeros_last() -> None:
    data = next(d for i in range(10**6) if crc32(d := b"%d" % i) & 0x7FFFFFFF < 10**6)
    digits = property_crc_suffix(data)[9:19]
    assert int(digits[::-1]) == crc32(data) & 0x7FFFFFFF
    assert digits.endswith(b"0000")


def test_a_record_gets_the_property_as_its_last_20_bytes() -> None:
    raw = record(b"K\x01v\x02")
    before = len(raw)
    with_property_crc(raw)
    assert len(raw) == before + PROPERTY_CRC_SIZE
    assert raw[-20:] == property_crc_suffix(raw[:-20])
    assert check_record(raw, 0, len(raw), 0, property_crc=True) == len(raw)
    found = decode_properties(properties_of(raw))
    assert list(found) == ["K", PROPERTY_CRC]
    assert int(found[PROPERTY_CRC][::-1]) == crc32(raw[:-20]) & 0x7FFFFFFF
