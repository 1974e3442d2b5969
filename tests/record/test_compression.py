"""Compression: the three codecs, whole or refused, never more than the limit."""

from __future__ import annotations

import threading
import zlib
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ConfigError, RecordDamaged
from kvstore.record.compression import codec_flags, compress, decompress

CODECS: Final = ("zlib", "lz4", "zstd")
FLAGS: Final = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
PLAIN: Final = b"".join(b"%d is not %d, " % (i, i + 1) for i in range(5000))


def unsized_zstd(plain: bytes) -> bytes:
    """A frame that doesn't state what it holds, as RocketMQ's stream writes it."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(plain) + stream.flush()


@pytest.mark.parametrize("codec", CODECS)
def test_the_flags_are_rocketmqs(codec: str) -> None:
    assert codec_flags(codec) == FLAGS[codec]


@given(st.sampled_from(CODECS), st.binary(max_size=2000))
def test_a_body_comes_back(codec: str, plain: bytes) -> None:
    stored = compress(plain, codec)
    assert decompress(stored, FLAGS[codec]) == plain
    assert decompress(stored, FLAGS[codec], len(plain)) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_other_buffers_can_be_compressed_as_well(codec: str) -> None:
    for body in (bytearray(PLAIN), memoryview(PLAIN)):
        assert decompress(compress(body, codec), FLAGS[codec]) == PLAIN


def test_the_flags_from_before_there_were_codecs_mean_zlib() -> None:
    assert decompress(zlib.compress(PLAIN), 0x001) == PLAIN


def test_lz4_blocks_are_independent_since_rocketmqs_reader_knows_no_others() -> None:
    frame = compress(PLAIN, "lz4")
    assert frame[:4] == (0x184D2204).to_bytes(4, "little")
    assert frame[4] & 0x20, "the block-independence bit of the frame's flags"


def test_frames_of_unknown_size_are_read_however_large_they_turn_out() -> None:
    for plain in (b"", b"x", PLAIN, bytes(3_000_000)):
        stored = unsized_zstd(plain)
        assert zstandard.frame_content_size(stored) == -1
        assert decompress(stored, 0x201) == plain
        assert decompress(stored, 0x201, len(plain)) == plain


@pytest.mark.parametrize(
    ("stored", "flags"),
    [*((compress(PLAIN, codec), FLAGS[codec]) for codec in CODECS), (unsized_zstd(PLAIN), 0x201)],
)
def test_a_body_that_is_not_whole_or_too_large_is_refused(stored: bytes, flags: int) -> None:
    assert decompress(stored, flags, len(PLAIN)) == PLAIN
    for limit in (0, 1, len(PLAIN) - 1):
        with pytest.raises(RecordDamaged, match=f"beyond the limit of {limit}|decompressed"):
            decompress(stored, flags, limit)
    for cut in (0, 1, 3, 10, len(stored) // 2, len(stored) - 1):
        with pytest.raises(RecordDamaged):
            decompress(stored[:cut], flags)


@given(st.sampled_from((0x001, 0x101, 0x201, 0x301, 0x401, 0x701)), st.binary(max_size=200))
def test_any_bytes_are_a_body_or_refused(flags: int, stored: bytes) -> None:
    with suppress(RecordDamaged):
        assert len(decompress(stored, flags, 10_000)) <= 10_000


@given(st.sampled_from(CODECS), st.data())
def test_a_changed_body_is_a_body_or_refused(codec: str, data: st.DataObject) -> None:
    stored = bytearray(compress(PLAIN, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordDamaged):
        assert len(decompress(bytes(stored), FLAGS[codec], 100_000)) <= 100_000


def test_bytes_behind_a_frame_are_refused_but_passed_over_behind_a_zlib_stream() -> None:
    assert decompress(compress(PLAIN, "zlib") + b"rest", 0x301) == PLAIN
    for codec in ("lz4", "zstd"):
        with pytest.raises(RecordDamaged):
            decompress(compress(PLAIN, codec) + b"rest", FLAGS[codec])


@pytest.mark.parametrize("codec", ["snappy", None])
def test_an_unknown_codec_is_refused(codec: Any) -> None:
    with pytest.raises(ConfigError):
        codec_flags(codec)


def test_what_zstandard_does_not_let_threads_share_is_made_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def make(level: int) -> zstandard.ZstdCompressor:
        made.append(threading.get_ident())
        return zstandard.ZstdCompressor(level=level)

    monkeypatch.setattr(
        "kvstore.record.compression.zstandard", SimpleNamespace(ZstdCompressor=make)
    )
    both_run = threading.Barrier(2)

    def work() -> None:
        for _ in range(3):
            compress(PLAIN, "zstd")
        both_run.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(set(made)) == 2


def test_threads_do_not_get_into_each_others_way() -> None:
    right: list[bool] = []

    def work(seed: int) -> None:
        plain = b"%d " % seed * 30_000
        for _ in range(20):
            right.extend(
                decompress(compress(plain, codec), FLAGS[codec]) == plain for codec in CODECS
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 6 * 20 * len(CODECS)
