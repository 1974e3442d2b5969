"""Compression: bodies in the three codecs of RocketMQ's producers, with a bound on the output.

The idea: zlib streams, LZ4 frames and Zstandard frames, named by three bits of the system flags
(RocketMQ: CompressionType, CompressorFactory). A few bytes can claim to be gigabytes, so every
decompressor is asked for one byte more than the limit, and refused if it has it.

Invariants: RocketMQ can read the output of `compress` (its LZ4 reader knows no linked blocks);
`decompress` gives the body or RecordDamaged, and holds at most about twice `limit` bytes. Both may
be called from any thread: each thread has its own Zstandard objects, which may not be shared.
"""

from __future__ import annotations

import threading
from typing import Final, Literal, cast

import lz4.frame
import zstandard
from zlib_ng import zlib_ng

from kvstore.core.names import (
    CODEC_LEGACY_ZLIB,
    CODEC_LZ4,
    CODEC_MASK,
    CODEC_ZLIB,
    CODEC_ZSTD,
    COMPRESSED,
)
from kvstore.errors import ConfigError, RecordDamaged, shown
from kvstore.record.layout import DECOMPRESSED_MAX

Codec = Literal["zlib", "lz4", "zstd"]

# Typed as a variable in the binding's stubs.
_ZLIB_ERROR: Final = cast(type[Exception], zlib_ng.error)
_FLAGS: Final[dict[str, int]] = {
    "zlib": COMPRESSED | CODEC_ZLIB,
    "lz4": COMPRESSED | CODEC_LZ4,
    "zstd": COMPRESSED | CODEC_ZSTD,
}
_ZLIB_LEVEL: Final = 5
_ZSTD_LEVEL: Final = 3
"""zlib: RocketMQ's default; zstd, and lz4 below: their own."""


class _PerThread(threading.local):
    """Zstandard's objects of one thread."""

    def __init__(self) -> None:
        self.compressor: zstandard.ZstdCompressor | None = None
        self.decompressor: zstandard.ZstdDecompressor | None = None


_per_thread: Final = _PerThread()


def codec_flags(codec: str) -> int:
    """The system-flag bits of a body in this codec, COMPRESSED included. Raises ConfigError."""
    flags = _FLAGS.get(codec)
    if flags is None:
        raise ConfigError(f"compression {shown(codec)} is not one of zlib, lz4, zstd")
    return flags


def compress(body: bytes | bytearray | memoryview, codec: str) -> bytes:
    """`body` as a zlib stream, LZ4 frame or Zstandard frame: `codec` is one that `codec_flags`
    knows.
    """
    if codec == "zlib":
        return zlib_ng.compress(body, _ZLIB_LEVEL)
    if codec == "lz4":
        # RocketMQ's LZ4 reader refuses linked blocks, the binding's default.
        packed: bytes = lz4.frame.compress(body, block_linked=False)
        return packed
    assert codec == "zstd", codec
    compressor = _per_thread.compressor
    if compressor is None:
        compressor = _per_thread.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return compressor.compress(body)


def compressed(body: bytes, codec: str) -> tuple[bytes, int]:
    """`body` compressed, and the system flags that say so."""
    return compress(body, codec), codec_flags(codec)


def decompress(stored: bytes, system_flags: int, limit: int = DECOMPRESSED_MAX) -> bytes:
    """The body whose compressed form is `stored`, at most `limit` bytes long.

    The codec is taken from `system_flags`. Bytes behind the end of a zlib stream are ignored, as in
    Java. Raises RecordDamaged (without a position) if `stored` isn't whole, isn't of that codec, or
    grows beyond `limit`.
    """
    codec = system_flags & CODEC_MASK
    try:
        if codec in (CODEC_ZLIB, CODEC_LEGACY_ZLIB):
            return _zlib(stored, limit)
        if codec == CODEC_LZ4:
            return _lz4(stored, limit)
        if codec == CODEC_ZSTD:
            return _zstd(stored, limit)
    except (_ZLIB_ERROR, zstandard.ZstdError, RuntimeError, EOFError) as error:
        # The LZ4 binding raises RuntimeError for every fault of the data.
        raise RecordDamaged(f"the body can't be decompressed: {error}") from None
    raise RecordDamaged(f"the body's codec {codec >> 8} is not one of those known")


def _zlib(stored: bytes, limit: int) -> bytes:
    stream = zlib_ng.decompressobj()
    body = stream.decompress(stored, limit + 1)
    if len(body) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise RecordDamaged("the body can't be decompressed: its zlib stream ends early")
    return body


def _lz4(stored: bytes, limit: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    # The binding allocates its largest possible output at once, so it is asked for a likely size
    # first.
    step = _first_guess(stored, limit + 1)
    parts: list[bytes] = [frame.decompress(stored, step)]
    total = len(parts[0])
    while not frame.eof and not frame.needs_input and total <= limit:
        step = min(limit + 1 - total, 2 * step)
        parts.append(frame.decompress(b"", step))
        total += len(parts[-1])
    if total > limit:
        raise _too_large(limit)
    if not frame.eof or frame.unused_data:
        raise RecordDamaged("the body can't be decompressed: it is not one whole LZ4 frame")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd(stored: bytes, limit: int) -> bytes:
    decompressor = _per_thread.decompressor
    if decompressor is None:
        decompressor = _per_thread.decompressor = zstandard.ZstdDecompressor()
    stated = zstandard.frame_content_size(stored)
    if stated > limit:
        raise _too_large(limit)
    # RocketMQ's frames don't state the size of their content. The binding then allocates its
    # largest possible output, and raises the same error for a frame that isn't whole and for one
    # that is larger, so it is asked again.
    most = stated if stated >= 0 else limit + 1
    room = stated if stated >= 0 else _first_guess(stored, most)
    body: bytes | None = None
    while body is None:
        try:
            body = decompressor.decompress(stored, room, allow_extra_data=False)
        except zstandard.ZstdError:
            if room >= most:
                raise
            room = min(most, 4 * room)
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _first_guess(stored: bytes, most: int) -> int:
    return min(most, 4 * len(stored) + 4096)


def _too_large(limit: int) -> RecordDamaged:
    return RecordDamaged(f"the body grows beyond the limit of {limit} bytes when decompressed")
