"""Ids: made and parsed in RocketMQ's forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import MessageIllegal
from kvstore.record.hosts import pack_host
from kvstore.record.ids import (
    GRPC_EPOCH_MS,
    GrpcUniqueId,
    UniqueId,
    id_prefix,
    month_start_ms,
    parse_position_id,
    parse_unique_id,
    position_id,
)

DAY = 86_400_000
ADDRESSES = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@given(
    ADDRESSES,
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)
def test_a_unique_id_comes_apart_as_it_was_made(
    address: bytes, process: int, token: int, ms: int, counter: int
) -> None:
    text = id_prefix(address, process, token) + f"{ms:08X}{counter:04X}"
    assert len(text) == (32 if len(address) == 4 else 56)
    assert text == text.upper()
    assert parse_unique_id(text) == UniqueId(address, process, token, ms, counter)
    assert parse_unique_id(text.lower()) == parse_unique_id(text)


def test_a_prefix_is_address_process_and_token() -> None:
    assert id_prefix(bytes([10, 0, 0, 1]), 0x1_2345, 0x1_89AB_CDEF) == "0A000001234589ABCDEF"
    assert len(id_prefix(bytes(16), 1, 1)) == 44
    for size in (0, 5, 8, 20):
        with pytest.raises(MessageIllegal):
            id_prefix(bytes(size), 1, 1)


def test_the_id_of_a_grpc_client_is_understood() -> None:
    text = "01" + "A1B2C3D4E5F6" + "1234" + "00000E10" + "0000002A"
    expected = GrpcUniqueId(bytes.fromhex("A1B2C3D4E5F6"), 0x1234, GRPC_EPOCH_MS + 3_600_000, 42)
    assert parse_unique_id(text) == expected
    assert parse_unique_id("02" + text[2:]) is None
    assert GRPC_EPOCH_MS == 1_609_459_200_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order-7",
        "0" * 31,
        "0" * 33,
        "0" * 36,
        "g" * 32,
        " " * 32,
        "00 " * 16,
        "\u0660" * 32,
        None,
    ],
)
def test_another_text_is_no_unique_id(text: Any) -> None:
    assert parse_unique_id(text) is None


@pytest.mark.parametrize(
    ("now", "start"),
    [
        (0, 0),
        (31 * DAY - 1, 0),
        (31 * DAY, 31 * DAY),
        (1_700_000_000_123, 1_698_796_800_000),  # 2023-11-14 -> 2023-11-01
        (1_709_164_800_000, 1_706_745_600_000),  # 2024-02-29 -> 2024-02-01
        (-1, -31 * DAY),
    ],
)
def test_a_month_begins_on_its_first_day_in_utc(now: int, start: int) -> None:
    assert month_start_ms(now) == start


def test_a_time_beyond_the_calendar_is_refused() -> None:
    for now in (10**18, -(10**18), 2**200):
        with pytest.raises(MessageIllegal):
            month_start_ms(now)


def test_a_position_id_is_host_and_position_in_upper_case_hex() -> None:
    assert position_id(pack_host("127.0.0.1", 10911), 0) == "7F00000100002A9F0000000000000000"


@given(HOSTS, st.integers(0, 2**64 - 1))
def test_a_position_id_comes_apart_as_it_was_made(host: bytes, position: int) -> None:
    text = position_id(host, position)
    assert len(text) == (32 if len(host) == 8 else 56)
    assert parse_position_id(text) == (host, position)
    assert parse_position_id(text.lower()) == (host, position)


@pytest.mark.parametrize(
    "text", ["", "0" * 30, "0" * 34, "0" * 55, "g" * 32, "0" * 31 + " ", "0" * 10_000, None, 7]
)
def test_another_text_is_no_position_id(text: Any) -> None:
    with pytest.raises(MessageIllegal):
        parse_position_id(text)


def test_a_position_id_of_nothing_is_refused() -> None:
    with pytest.raises(MessageIllegal):
        position_id(bytes(7), 0)
    with pytest.raises(MessageIllegal):
        position_id(bytes(8), -1)
