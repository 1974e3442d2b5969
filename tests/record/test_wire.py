"""The client batch: messages as RocketMQ's clients send several at once."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import MessageIllegal, PropertiesTooLarge
from kvstore.record.wire import WireMessage, decode_batch, encode_batch

MESSAGES: Final = st.lists(
    st.builds(
        WireMessage, st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 2**32 - 1)
    ),
    max_size=5,
)
TWO: Final = encode_batch([WireMessage(b"one", b"K\x01v\x02", 7), WireMessage(b"")])


def test_a_batch_has_each_field_at_its_place() -> None:
    # size, magic, CRC, flags, body length; body; properties length, properties
    assert TWO[:29] == bytes.fromhex(
        "0000001d 00000000 00000000 00000007 00000003 6f6e65 0004 4b017602"
    )
    assert TWO[29:] == bytes.fromhex("00000016 00000000 00000000 00000000 00000000 0000")


@given(MESSAGES)
def test_a_batch_comes_back(messages: list[WireMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


def test_magic_and_crc_are_not_looked_at() -> None:
    raw = TWO[:4] + b"\xff" * 8 + TWO[12:]
    assert decode_batch(raw) == decode_batch(TWO)
    assert decode_batch(TWO)[0].properties == {"K": "v"}


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_refused(raw: bytes) -> None:
    decode_or_refuse(raw)


@given(MESSAGES.filter(bool), st.data())
def test_a_changed_batch_is_a_batch_or_refused(
    messages: list[WireMessage], data: st.DataObject
) -> None:
    raw = bytearray(encode_batch(messages))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(raw))


def decode_or_refuse(raw: bytes) -> None:
    try:
        found = decode_batch(raw)
    except MessageIllegal:
        return
    again = encode_batch(found)
    assert len(again) == len(raw)
    assert decode_batch(again) == found


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (TWO[:-1], "message 1: 21 bytes are left"),
        (TWO[:10], "message 0: 10 bytes are left"),
        (TWO + b"\0", "message 2: 1 bytes are left"),
        (b"\xff" * 4 + TWO[4:], "size is 4294967295"),
        (bytes(4) + TWO[4:], "size is 0"),
        (TWO[:16] + b"\xff" * 4 + TWO[20:], "body's length is 4294967295"),
        (TWO[:16] + b"\0\0\0\x08" + TWO[20:], "body's length is 8"),
        (TWO[:23] + b"\0\5" + TWO[25:], "properties length is 5, 4 bytes remain"),
        (TWO[:23] + b"\0\3" + TWO[25:], "properties length is 3, 4 bytes remain"),
    ],
)
def test_what_is_wrong_with_a_batch_is_said(raw: bytes, what: str) -> None:
    with pytest.raises(MessageIllegal, match=what):
        decode_batch(raw)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PropertiesTooLarge, match="message 1"):
        encode_batch([WireMessage(b""), WireMessage(b"", bytes(32_768))])
    for flags in (-1, 2**32):
        with pytest.raises(MessageIllegal, match="message 0"):
            encode_batch([WireMessage(b"", flags=flags)])
