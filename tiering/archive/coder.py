"""Coder: a payload <-> one part of an archive: compressed, encrypted, checksummed.

The idea: one object for one archive, which knows codec, level and dictionary. Payloads that do not
get smaller are kept as they are.

Invariants: the crc32c is looked at before anything else; never is more allocated than a part says,
which is at most what the caller allows; the same payload and settings give the same bytes.
"""

from __future__ import annotations

from typing import Final, Literal

import google_crc32c
import zstandard

from kvstore.errors import ArchiveDamaged
from tiering.archive.layout import (
    CRC,
    DECODED_MAX,
    PART_EXTRA,
    PART_HEAD,
    RAW,
    ZSTD,
)

CodecName = Literal["zstd", "lz4"]
LEVEL_DEFAULT: Final = 3


class Coder:
    """See the module. `topic` in both methods is the archive-local topic number, `secret` the
    topic's key (None: not encrypted), `kind` what the part is (layout.PartKind; 0 for sections).
    """

    def __init__(
        self,
        codec: CodecName = "zstd",
        level: int = LEVEL_DEFAULT,
        dictionary: bytes | None = None,
    ) -> None:
        self.codec = codec
        self.level = level
        self.dictionary = dictionary

    def encode(
        self,
        payload: bytes,
        *,
        dictionary: bool = False,
        kind: int = 0,
        topic: int = 0,
        secret: bytes | None = None,
    ) -> bytes:
        """The part. `dictionary` False for what is read before the dictionary is there."""
        coded = zstandard.ZstdCompressor(level=self.level).compress(payload)
        codec = ZSTD
        if len(coded) >= len(payload):
            codec, coded = RAW, payload
        data = PART_HEAD.pack(codec, len(payload)) + coded
        return data + CRC.pack(google_crc32c.value(data))

    def decode(
        self,
        part: bytes | memoryview,
        limit: int = DECODED_MAX,
        *,
        kind: int = 0,
        topic: int = 0,
        secret: bytes | None = None,
    ) -> bytes:
        """The payload, at most `limit` bytes. Raises ArchiveDamaged."""
        part = bytes(part)
        if len(part) < PART_EXTRA or google_crc32c.value(part[:-4]) != CRC.unpack(part[-4:])[0]:
            raise ArchiveDamaged("a part is not what was written: its crc32c differs")
        codec, size = PART_HEAD.unpack_from(part)
        if size > limit:
            raise ArchiveDamaged(f"a part says it takes {size} bytes, at most {limit} are allowed")
        coded = part[PART_HEAD.size : -CRC.size]
        if codec == RAW:
            return coded
        try:
            return zstandard.ZstdDecompressor().decompress(coded, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ArchiveDamaged(f"a part can't be decompressed: {error}") from None
