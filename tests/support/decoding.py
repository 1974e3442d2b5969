"""Decoding a record whose body may be compressed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvstore.core import messages
from kvstore.core.messages import StoredMessage
from kvstore.record.compression import decompress
from kvstore.record.layout import DECOMPRESSED_MAX

if TYPE_CHECKING:
    from kvstore.core.records import Buffer


def decode(
    buffer: Buffer,
    at: int,
    end: int,
    position: int,
    check_crc: bool = True,
    raw_body: bool = False,
    max_body: int = DECOMPRESSED_MAX,
) -> StoredMessage:
    """The record at index `at` of `buffer`; its body as it was put, or as stored."""
    unpack = None if raw_body else partial(decompress, limit=max_body)
    return messages.decode(buffer, at, end, position, check_crc, unpack)
