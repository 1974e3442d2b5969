"""The CRC property: how it is made, and put at the end of a record."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from zlib_ng.zlib_ng import crc32

from kvstore.errors import MessageIllegal, PropertiesTooLarge, RecordDamaged
from kvstore.record.decode import check_record, decode
from kvstore.record.encode import (
    PROPERTY_CRC_SIZE,
    encode_record,
    property_crc_suffix,
    with_property_crc,
)
from kvstore.record.names import PROPERTY_CRC
from kvstore.record.properties import decode_properties
from kvstore.record.values import StoredMessage
from tests.record.strategies import stored_messages

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


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b"K\x01v", b"K\x01v\x02"),
        (b"__CRC32#\x010000000000\x02", b""),
        (b"__CRC32#\x01x\x02K\x01v\x02", b"K\x01v\x02"),
        (b"K\x01v\x02__CRC32#\x01x", b"K\x01v\x02"),
        (b"K\x01__CRC32#\x01\x02", b"K\x01__CRC32#\x01\x02"),
    ],
)
def test_the_other_properties_stay_and_end_with_a_separator(before: bytes, kept: bytes) -> None:
    raw = record(before)
    with_property_crc(raw)
    assert properties_of(raw)[:-20] == kept


@given(stored_messages())
def test_making_it_twice_changes_nothing(m: StoredMessage) -> None:
    once = bytearray(encode_record(m))
    with_property_crc(once)
    again = bytearray(once)
    with_property_crc(again)
    assert again == once
    assert check_record(once, 0, len(once), m.position, property_crc=True) == len(once)


def test_a_record_without_room_for_it_is_left_as_it_was() -> None:
    raw = record(b"K\x01" + b"v" * (32_767 - 20 - 3) + b"\x02")
    with_property_crc(raw)
    raw = record(b"K\x01" + b"v" * (32_767 - 20 - 2) + b"\x02")
    before = bytes(raw)
    with pytest.raises(PropertiesTooLarge):
        with_property_crc(raw)
    assert raw == before


@pytest.mark.parametrize("raw", [b"", bytes(200), bytes(record(b""))[:-1]])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    with pytest.raises(RecordDamaged):
        with_property_crc(bytearray(raw))


def test_bytes_behind_the_record_are_refused() -> None:
    with pytest.raises(MessageIllegal, match="1 bytes"):
        with_property_crc(record(b"") + b"x")
