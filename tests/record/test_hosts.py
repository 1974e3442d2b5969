"""Hosts: address and port as 8 or 20 bytes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError, MessageIllegal
from kvstore.record.ids import pack_host, unpack_host


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
