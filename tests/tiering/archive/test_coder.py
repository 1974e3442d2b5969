"""Parts and the ids taken out of them: what is encoded comes back, bad bytes are damage."""

from __future__ import annotations

import contextlib
import uuid
from random import Random

import google_crc32c
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.core.columns.hex_ids import extract_ids, restore_ids
from kvstore.errors import ArchiveDamaged, ConfigError
from tiering.archive.coder import LEVEL_DEFAULTS, LEVELS, CodecName, Coder
from tiering.archive.layout import CRC, DIGITS_APART, LZ4, PART_HEAD, RAW, ZSTD

CODECS: tuple[CodecName, ...] = ("zstd", "lz4")
TEXT = b"the quick brown fox jumps over the lazy dog, and over another"


def part(codec: int, size: int, coded: bytes) -> bytes:
    data = PART_HEAD.pack(codec, size) + coded
    return data + CRC.pack(google_crc32c.value(data))


@given(st.binary(max_size=2000), st.sampled_from(CODECS), st.integers(1, 12))
def test_any_payload_comes_back(payload: bytes, codec: CodecName, level: int) -> None:
    coder = Coder(codec, level)
    data = coder.encode(payload)
    assert coder.decode(data, len(payload)) == payload
    assert Coder(codec, level).encode(payload) == data


def test_what_does_not_get_smaller_is_kept() -> None:
    assert Coder().encode(b"abc")[0] == RAW


def test_a_payload_above_the_limit_is_damage() -> None:
    coder = Coder()
    with pytest.raises(ArchiveDamaged, match="at most 9"):
        coder.decode(coder.encode(bytes(10)), 9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"12345678",
        part(9, 3, b"abc"),
        part(RAW, 4, b"abc"),
        part(ZSTD, 5, b""),
        part(ZSTD, 5, b"garbage"),
        part(ZSTD, 0, b"\0\0"),
        part(LZ4, 5, b"garbage"),
        part(3, 5, b"of an older version"),
        part(0x81, 5, b"garbage"),
        part(ZSTD, 1 << 31, b"\0\0"),
        # Frames that state how large they are: with the usual magic, and without.
        part(ZSTD, 50, zstandard.ZstdCompressor().compress(bytes(50))),
        part(ZSTD, 50, zstandard.ZstdCompressor().compress(bytes(50))[4:]),
        part(ZSTD, 50, b"\xe0" + b"\xff" * 9),
    ],
)
def test_what_is_no_part_is_damage(data: bytes) -> None:
    with pytest.raises(ArchiveDamaged):
        Coder().decode(data)


@given(st.binary(max_size=60), st.integers(0, 5), st.integers(0, 3000))
def test_any_coded_bytes_are_a_payload_or_damage(coded: bytes, codec: int, size: int) -> None:
    with contextlib.suppress(ArchiveDamaged):
        assert len(Coder().decode(part(codec, size, coded))) == size


def test_every_flipped_bit_of_a_part_is_found() -> None:
    coder = Coder()
    data = coder.encode(TEXT * 3)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArchiveDamaged):
            coder.decode(bytes(damaged))


@pytest.mark.parametrize("level", [0, 23, 3.0, True])
def test_a_level_that_is_none_is_refused(level: int) -> None:
    with pytest.raises(ConfigError):
        Coder(level=level)


def test_a_codec_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="only zstd and lz4"):
        Coder("zip")  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_every_level_that_a_codec_has_compresses(codec: CodecName) -> None:
    low, high = LEVELS[codec]
    data = b"some text that comes again and again, " * 40
    for level in (low, high):
        assert Coder().decode(Coder(codec, level).encode(data), len(data)) == data
    for level in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"{low} to {high}"):
            Coder(codec, level)


def test_a_higher_level_makes_parts_smaller_with_every_codec() -> None:
    draw = Random(5)
    words = [f"{draw.getrandbits(40):x}" for _ in range(300)]
    text = " ".join(draw.choices(words, k=8000)).encode()
    for codec in CODECS:
        low, high = LEVELS[codec]
        assert len(Coder(codec, high).encode(text)) < len(Coder(codec, low).encode(text)), codec
        assert Coder(codec).level == LEVEL_DEFAULTS[codec]


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
        assert restore_ids(*found, len(text)) == text
        assert sum(map(len, found)) < len(text)


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
    assert len(found[1]) == digits
    assert restore_ids(*found, len(text)) == text


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
