"""Ids and hosts: made and parsed in RocketMQ's forms."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.messages import unpack_host
from kvstore.errors import FormatError, MessageIllegal
from kvstore.record.ids import (
    pack_host,
    parse_position_id,
    position_id,
)

HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


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


def test_a_host_is_its_address_and_a_port_of_4_bytes() -> None:
    assert pack_host("127.0.0.1", 10911).hex() == "7f00000100002a9f"
    assert pack_host("fe80::1", 80).hex() == "fe80" + "00" * 13 + "01" + "00000050"


@given(st.ip_addresses(), st.integers(0, 65535))
def test_a_host_comes_back(address: IPv4Address | IPv6Address, port: int) -> None:
    packed = pack_host(str(address), port)
    assert len(packed) == (8 if address.version == 4 else 20)
    assert packed[:-4] == address.packed
    back, back_port = unpack_host(packed)
    assert type(address)(back) == address
    assert back_port == port


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("", 1),
        ("localhost", 1),
        ("1.2.3", 1),
        ("1.2.3.256", 1),
        ("1.2.3.4:5", 1),
        (":", 1),
        ("fe80::1%lo", 1),
        ("1.2.3.4\0", 1),
        (None, 1),
        (b"1.2.3.4", 1),
        (7, 1),
        ("1.2.3.4", -1),
        ("1.2.3.4", 65536),
        ("1.2.3.4", "80"),
        ("1.2.3.4", None),
        ("1.2.3.4", True),
        ("1.2.3.4", 1.0),
        (["1.2.3.4"], 1),
    ],
)
def test_nonsense_is_refused(address: Any, port: Any) -> None:
    with pytest.raises(MessageIllegal):
        pack_host(address, port)


@given(st.binary(max_size=30))
def test_any_8_or_20_bytes_are_a_host(raw: bytes) -> None:
    if len(raw) in (8, 20):
        address, port = unpack_host(raw)
        assert "." in address or ":" in address
        assert port == int.from_bytes(raw[-4:], "big")
    else:
        with pytest.raises(FormatError):
            unpack_host(raw)
