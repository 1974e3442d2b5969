"""Ids in hexadecimal are taken out of text, and come back."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import ArchiveDamaged
from tiering.archive.coder import Coder
from tiering.archive.columns.hex_ids import extract_ids, restore_ids
from tiering.archive.layout import DIGITS_APART

_HEX = st.text("0123456789abcdef", min_size=12, max_size=140).map(str.encode)
_PIECES = st.one_of(
    _HEX,
    st.uuids().map(lambda one: str(one).encode()),
    st.sampled_from([b"-", b"--", b'"id":"', b'",', b"0", b"F", b"\xff", b"a-b", b"{}\n"]),
    st.binary(max_size=6),
)
_TEXTS = st.lists(_PIECES, max_size=20).map(b"".join)
_ID = b"0123456789abcdef" * 2


@given(_TEXTS)
@settings(max_examples=300)
def test_any_text_comes_back(text: bytes) -> None:
    found = extract_ids(text)
    if found is not None:
        assert restore_ids(found.text, found.digits, len(text)) == text
        assert len(found.text) + len(found.digits) < len(text)


@given(st.binary(max_size=80), st.binary(max_size=80), st.integers(0, 400))
def test_any_bytes_give_the_size_that_is_expected_or_damage(
    text: bytes, digits: bytes, size: int
) -> None:
    with contextlib.suppress(ArchiveDamaged):
        assert len(restore_ids(text, digits, size)) == size


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        (b'{"trace":"' + _ID + b'","n":1}', 16),
        (b"00-" + _ID + b"-" + _ID[:16] + b"-01", 24),
        (str(uuid.UUID(int=7)).encode(), 16),
        (b"x" * 13 + str(uuid.UUID(int=1 << 77)).encode() + b"/" + _ID, 32),
    ],
)
def test_ids_take_half_a_byte_a_digit(text: bytes, digits: int) -> None:
    found = extract_ids(text)
    assert found is not None
    assert len(found.digits) == digits
    assert restore_ids(found.text, found.digits, len(text)) == text


@pytest.mark.parametrize(
    "text", [b"", b"no ids here", _ID.upper(), _ID[:15], _ID[:17], _ID + b"\x0e"]
)
def test_what_has_no_ids_or_looks_like_a_mark_is_left(text: bytes) -> None:
    assert extract_ids(text) is None


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_part_with_digits_apart(codec: str) -> None:
    coder = Coder("zstd" if codec == "zstd" else "lz4")
    text = b"".join(b'{"id":"%032x","kind":"order"}' % (i * 0x1234567 << 60) for i in range(99))
    part = coder.encode(text, digits=True)
    assert part[0] & DIGITS_APART
    assert coder.decode(part) == text
    assert len(part) < len(coder.encode(text))
    for at in range(len(part)):
        wrong = bytearray(part)
        wrong[at] ^= 1
        with pytest.raises(ArchiveDamaged):
            coder.decode(bytes(wrong))
