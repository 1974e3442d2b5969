"""Scan and check: which bytes are whole records, and why a scan stops."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.core.records import check_record
from kvstore.core.scan import scan
from kvstore.errors import RecordDamaged
from kvstore.record import layout
from kvstore.record.ids import pack_host
from tests.record.strategies import stored_messages
from tests.reference.encode import blank, encode_record
from tests.support.property_crc import with_property_crc

BASE: Final = 5 << 30
HOST: Final = {0: pack_host("10.0.0.1", 1), 1: pack_host("::1", 1)}


def record(position: int, body: bytes = b"body", v6: int = 0, version: int = 1) -> bytes:
    host = HOST[v6]
    crc = crc32(body) & layout.CRC_MASK
    m = StoredMessage(
        "topic", 0, 0, position, 0, body, b"K\x01v\x02", 0, 0x30 if v6 else 0, 0, 0, host, host,
        0, 0, crc, version,
    )  # fmt: skip
    return encode_record(m)


def log_of(bodies: list[bytes], v6: int = 0) -> bytes:
    raw = b""
    for body in bodies:
        raw += record(BASE + len(raw), body, v6)
    return raw


def scan_all(
    raw: bytes | bytearray,
    at: int = 0,
    end: int | None = None,
    limit: int = 1000,
    property_crc: bool = False,
) -> tuple[list[tuple[int, int]], int, str]:
    stop = len(raw) if end is None else end
    found = scan(raw, at, stop, BASE, limit, property_crc=property_crc)
    records = zip(found.positions.tolist(), found.sizes.tolist(), strict=True)
    return list(records), found.end, found.stop


LOG: Final = log_of([b"one", b"", b"three"])
SECOND: Final = len(record(BASE, b"one"))


# -- scan


@pytest.mark.parametrize("v6", [0, 1])
def test_a_scan_finds_every_record_up_to_the_end(v6: int) -> None:
    bodies = [b"x" * size for size in (0, 1, 100, 1000, 65_535, 65_536, 65_537, 200_000, 3)]
    raw = log_of(bodies, v6)
    found, at, why = scan_all(raw)
    assert (at, why) == (len(raw), "end")
    assert [size for _, size in found] == [len(record(0, body, v6)) for body in bodies]
    assert [position - BASE for position, _ in found] == [
        sum(size for _, size in found[:i]) for i in range(len(found))
    ]


def test_a_scan_goes_on_where_hosts_or_versions_change() -> None:
    raw = b""
    for v6, version in ((0, 1), (1, 1), (1, 1), (0, 2), (0, 1), (1, 2), (0, 1)):
        raw += record(BASE + len(raw), b"b", v6, version)
    found, at, why = scan_all(raw)
    assert (len(found), at, why) == (7, len(raw), "end")


def test_a_scan_stops_at_the_limit_and_goes_on_from_there() -> None:
    first, at, why = scan_all(LOG, limit=2)
    assert (len(first), why) == (2, "limit")
    rest, at, why = scan_all(LOG, at=at, limit=2)
    assert (at, why) == (len(LOG), "end")
    assert first + rest == scan_all(LOG)[0]


def test_a_scan_for_no_records_looks_at_none() -> None:
    assert scan_all(LOG, limit=0) == ([], 0, "limit")
    assert scan_all(b"", limit=0) == ([], 0, "end")


def test_the_limit_reached_at_the_end_is_the_end() -> None:
    assert scan_all(LOG, limit=3)[2] == "end"


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (blank(8), "blank"),
        (blank(300) + bytes(292), "blank"),
        (blank(300) + b"\xee" * 292, "blank"),
        (blank(301) + bytes(292), "damaged"),
        (blank(8)[:7], "damaged"),
        ((7).to_bytes(4, "big") + bytes.fromhex("cbd43194"), "damaged"),
        (bytes(1000), "zeros"),
        (bytes(8), "zeros"),
        (bytes(7), "zeros"),
        (bytes(1), "zeros"),
        (bytes(8) + b"\xee" * 200, "zeros"),
        (b"\0\0\0\1", "damaged"),
        (b"\0\0\0\1" + bytes(100), "damaged"),
        (b"\xee" * 200, "damaged"),
        (bytes(4) + record(BASE + len(LOG))[4:], "damaged"),
        (record(BASE), "damaged"),
        (record(BASE + len(LOG))[:-1], "damaged"),
        (record(BASE + len(LOG))[:90], "damaged"),
        # A topic length, and a properties length, that lead beyond the record.
        (record(BASE + len(LOG), b"").replace(b"\5topic", b"\x7ftopic"), "damaged"),
        (record(BASE + len(LOG)).replace(b"\0\4K", b"\0\5K"), "damaged"),
    ],
)
def test_a_scan_says_what_it_stopped_at(tail: bytes, why: str) -> None:
    assert scan_all(LOG + tail) == (scan_all(LOG)[0], len(LOG), why)


def test_a_scan_is_not_misled_by_hosts_of_another_size() -> None:
    """The lengths of this record add up only if its flags are not believed."""
    raw = bytearray(LOG + record(BASE + len(LOG), b""))
    raw[len(LOG) + layout.SYSTEM_FLAGS_LOW_AT] = 0x30
    assert scan_all(raw)[1:] == (len(LOG), "damaged")


def test_a_scan_takes_no_v1_topic_above_127_bytes() -> None:
    raw = bytearray(record(BASE, b"").replace(b"topic", b"t" * 127))
    for size, expected in ((127, "end"), (128, "damaged")):
        topic = bytes([size]) + b"t" * size
        raw[layout.BODY_AT :] = topic + b"\0\4K\1v\2"
        raw[: layout.SIZE.size] = layout.SIZE.pack(len(raw))
        assert scan_all(raw)[2] is expected


def test_a_scan_takes_no_properties_above_32767_bytes() -> None:
    raw = bytearray(record(BASE))
    at = len(raw) - 6
    for size, expected in ((32_767, "end"), (32_768, "damaged")):
        raw[at:] = layout.PROPERTIES_SIZE.pack(size) + bytes(size)
        raw[: layout.SIZE.size] = layout.SIZE.pack(len(raw))
        assert scan_all(raw)[2] is expected


def test_a_scan_keeps_to_its_end_whatever_is_behind() -> None:
    found, at, why = scan_all(LOG, end=len(LOG) - 1)
    assert (len(found), why) == (2, "damaged")
    assert scan_all(LOG, end=at)[2] == "end"
    assert scan_all(LOG, end=len(LOG) + 1000)[2] == "end"
    assert scan_all(LOG, at=-5)[1:] == (-5, "damaged")


@given(st.lists(stored_messages(), max_size=6), st.data())
def test_a_scan_takes_exactly_the_records_that_a_check_takes(
    messages: list[StoredMessage], data: st.DataObject
) -> None:
    raw = bytearray()
    for m in messages:
        m.position = BASE + len(raw)
        raw += encode_record(m)
    for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    raw += data.draw(st.sampled_from((b"", b"\0", bytes(90), blank(9) + b"x", b"\1" * 9)))
    property_crc = data.draw(st.booleans())
    found, at, why = scan_all(raw, property_crc=property_crc)
    expected, end = [], 0
    while True:
        try:
            size = check_record(raw, end, len(raw), BASE + end, property_crc=property_crc)
        except RecordDamaged:
            assert why is ("end" if end == len(raw) else why)
            assert why in ("end", "damaged", "zeros")
            break
        if size <= 0:
            assert why is ("blank" if size else "zeros")
            break
        expected.append((BASE + end, size))
        end += size
    assert (found, at) == (expected, end)


@given(st.binary(max_size=300), st.integers(-5, 300), st.integers(-5, 400))
def test_any_bytes_can_be_scanned(raw: bytes, at: int, end: int) -> None:
    found, _, why = scan_all(raw, at=at, end=end)
    assert len(found) == 0
    assert why != "limit"


def test_a_scan_leaves_the_buffer_free_to_be_closed() -> None:
    raw = bytearray(log_of([b"x" * 100_000, b"y"]) + record(0))
    assert scan_all(raw)[2] == "damaged"
    raw += b"an exported view would make this a BufferError"


# -- check


def test_a_check_gives_a_size_nothing_or_a_blank() -> None:
    assert check_record(LOG, 0, len(LOG), BASE) == SECOND
    assert check_record(LOG, SECOND, len(LOG), BASE + SECOND) > 0
    assert check_record(bytes(8), 0, 8, 0) == 0
    assert check_record(blank(300) + bytes(292), 0, 300, 0) == -300


@pytest.mark.parametrize("left", range(8))
def test_fewer_bytes_than_a_blank_record_takes_are_no_record(left: int) -> None:
    with pytest.raises(RecordDamaged, match="too few"):
        check_record(bytes(left), 0, left, 0)


def test_a_check_says_what_is_wrong() -> None:
    with pytest.raises(RecordDamaged, match="position field should be 7, but is") as caught:
        check_record(LOG, 0, len(LOG), 7)
    assert caught.value.position == 7
    damaged = LOG.replace(b"one", b"two")
    with pytest.raises(RecordDamaged, match="body CRC"):
        check_record(damaged, 0, len(damaged), BASE)


def test_a_check_does_not_look_at_what_only_a_reader_needs() -> None:
    raw = record(BASE).replace(b"topic", b"\xff\xfe\xfd\xfc\xfb")
    assert check_record(raw, 0, len(raw), BASE) == len(raw)


# -- the CRC over the whole record


def protected(position: int = BASE, body: bytes = b"body") -> bytes:
    raw = bytearray(record(position, body))
    with_property_crc(raw)
    return bytes(raw)


def test_a_scan_can_hold_records_to_their_property_crc() -> None:
    raw = protected()
    raw += protected(BASE + len(raw), b"")
    assert scan_all(raw, property_crc=True)[1:] == (len(raw), "end")
    assert scan_all(LOG, property_crc=True) == ([], 0, "damaged")
    first = len(protected())
    raw = raw[:first] + raw[first:].replace(b"topic", b"tapic")
    assert scan_all(raw, property_crc=True)[1:] == (first, "damaged")


def test_the_property_crc_finds_what_the_body_crc_does_not() -> None:
    raw = protected().replace(b"topic", b"tapic")
    assert check_record(raw, 0, len(raw), BASE) == len(raw)
    with pytest.raises(RecordDamaged, match="CRC property"):
        check_record(raw, 0, len(raw), BASE, property_crc=True)


def test_the_property_crc_is_checked_in_place_of_the_body_crc() -> None:
    raw = bytearray(record(BASE))
    raw[layout.BODY_CRC_AT] ^= 1
    with_property_crc(raw)
    assert check_record(raw, 0, len(raw), BASE, property_crc=True) == len(raw)
    with pytest.raises(RecordDamaged, match="body CRC"):
        check_record(raw, 0, len(raw), BASE)


@pytest.mark.parametrize("properties", [b"", b"K\x01v\x02", b"X\x01" + b"y" * 40 + b"\x02"])
def test_a_record_without_the_property_is_damaged_where_it_is_asked_for(properties: bytes) -> None:
    raw = record(BASE)[:-6] + len(properties).to_bytes(2, "big") + properties
    raw = len(raw).to_bytes(4, "big") + raw[4:]
    assert check_record(raw, 0, len(raw), BASE) == len(raw)
    with pytest.raises(RecordDamaged, match="no CRC property"):
        check_record(raw, 0, len(raw), BASE, property_crc=True)


def test_every_bit_of_a_protected_record_counts() -> None:
    raw = bytearray(protected())
    for bit in range(8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordDamaged):
            check_record(raw, 0, len(raw), BASE, property_crc=True)
        raw[bit // 8] ^= 1 << bit % 8
