"""Layout: the numbers and Structs of the archive format, which docs/archive.md describes.

The idea: header, trailer, part and footer row are Structs here and nowhere else. The room `columns`
defines the contents of columns, from a part's format byte on.

Invariants: all integers are big-endian; no other number of the format stands anywhere else.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

FORMAT_VERSION: Final = 4

# --- the two ends of the file ------------------------------------------------------------------

HEADER_MAGIC: Final = b"KVMQARCH"
HEADER: Final = struct.Struct(">8sHHI")
"""Magic, format version, 0, crc32c of the 12 bytes before."""
HEADER_SIZE: Final = HEADER.size
HEADER_COVERED: Final = 12
"""The bytes of the header that its crc32c covers."""

TRAILER_MAGIC: Final = b"QMVK"
TRAILER: Final = struct.Struct(">IQHHI4s")
"""Size of the footer part; size of the footer and all sections that are not chunked; format
version; 0; crc32c of the 16 bytes before; magic.
"""
TRAILER_SIZE: Final = TRAILER.size
TRAILER_COVERED: Final = 16

OPENING_READ: Final = 64 * 1024
"""Bytes from the end that are read first when an archive is opened."""

# --- a part ------------------------------------------------------------------------------------

PART_HEAD: Final = struct.Struct(">BI")
"""Codec, size of the payload when decoded."""
CRC: Final = struct.Struct(">I")
PART_EXTRA: Final = PART_HEAD.size + CRC.size
"""Bytes of a part beside the coded payload."""
PART_ASSOCIATED: Final = struct.Struct(">IB")
"""Authenticated with an encrypted part, beside its head: topic number, kind of part."""
DECODED_MAX: Final = 1 << 30
"""The largest decoded size that a part may state: 1 GiB."""

RAW: Final = 0
ZSTD: Final = 1
LZ4: Final = 2
DIGITS_APART: Final = 0x40
"""Added to the codec of a part whose ids were taken out (kvstore.core.columns.hex_ids)."""
DIGITS_HEAD: Final = struct.Struct(">III")
"""The head of such a part: size of the text, of the digits, of the digits as coded."""
ENCRYPTED: Final = 0x80
"""Added to the codec of a part that is encrypted."""


class PartKind(IntEnum):
    """The contents of a block's part; the kind is authenticated with an encrypted part."""

    FIXED = 1
    PROPERTIES = 2
    BODIES = 3


# --- blocks ------------------------------------------------------------------------------------

BLOCK_BYTES_DEFAULT: Final = 256 * 1024
"""Raw bytes of the records of one block, at most 256 KiB; a larger record has a block to itself.
Small blocks share a group of up to twice as many bytes.
"""
PARTS: Final = 3
Sizes = tuple[int, int, int]
"""One number a part."""
BLOCK_ROWS_MAX: Final = 1 << 16
"""The most records of one block, and of one group."""
NO_QUEUE: Final = 0xFFFF_FFFF
"""The queue number, which no topic has, of records that are in no queue: those that a transaction
prepares or takes back. Such records have no offsets of their own; their positions serve as offsets.
"""

# --- sections and footer -------------------------------------------------------------------------


class Section(IntEnum):
    """The kinds of sections."""

    MANIFEST = 1
    DIRECTORY = 2
    FILTER = 3
    KEY_INDEX = 4
    KEY_FENCES = 5
    POSITION_INDEX = 6
    POSITION_FENCES = 7


CHUNKED: Final = frozenset({Section.KEY_INDEX, Section.POSITION_INDEX})
"""Sections of several parts, of which a reader needs few."""

FOOTER_ROW: Final = struct.Struct(">BQQI")
"""Section, place, size, chunks."""

assert (HEADER_SIZE, TRAILER_SIZE, PART_EXTRA) == (16, 24, 9)
