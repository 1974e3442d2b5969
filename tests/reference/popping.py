"""Receipts and lock rows, made and read in the plainest way.

The idea: docs/pop.md, written down once more with SHAKE-128 of the standard library and whole
numbers of Python. A set of offsets is a set.
"""

from __future__ import annotations

from hashlib import shake_128
from typing import Final

from kvstore.errors import ReceiptIllegal

Key = tuple[int, int, int, int, int]
WIDTHS: Final = (4, 4, 8, 4, 8, 8)
"""Bytes of group, topic, due time, queue, first offset and nonce."""
PLACES: Final = 256
_TAG: Final = 6
_HEAD_CHARS: Final = 2 * sum(WIDTHS)
_CHARS: Final = _HEAD_CHARS + 2 + 2 * _TAG


def head(*fields: int) -> bytes:
    """The first part of a row's receipts."""
    pairs = zip(fields, WIDTHS, strict=True)
    return b"".join(field.to_bytes(width, "big") for field, width in pairs)


def receipt(secret: bytes, row: bytes, place: int) -> str:
    """The receipt of a message: the row's head, its place, its tag."""
    tag = shake_128(secret + row).digest((place + 1) * _TAG)[-_TAG:]
    return (row + bytes([place]) + tag).hex()


def places(bits: int) -> list[int]:
    """The places that a bitmap names."""
    return [place for place in range(bits.bit_length()) if bits >> place & 1]


def read(secret: bytes, text: str) -> tuple[Key, int, int]:
    """A receipt's key, nonce and place."""
    if len(text) != _CHARS:
        raise ReceiptIllegal(
            f"the receipt has {len(text)} characters, not {_CHARS}; pass it on as pop gave it"
        )
    if set(text) <= set("0123456789abcdef"):
        row, place = bytes.fromhex(text[:_HEAD_CHARS]), int(text[_HEAD_CHARS:][:2], 16)
        if receipt(secret, row, place) == text:
            fields, at = [], 0
            for width in WIDTHS:
                fields.append(int.from_bytes(row[at : at + width], "big"))
                at += width
            group, topic, due, queue, first, nonce = fields
            return (group, topic, due, queue, first), nonce, place
    raise ReceiptIllegal(
        f"the receipt {text[:16]}... was not made by this store, or was changed; pass it on as "
        "pop gave it"
    )


def pack_lock(
    attempts: int,
    recoveries: int,
    nonce: int,
    locked: int,
    moved: int = 0,
    attempt_id: bytes = b"",
    reason: bytes = b"",
) -> bytes:
    """A row's value."""
    flags = (1 if attempt_id else 0) | (2 if moved else 0) | (4 if reason else 0)
    size = ((locked | moved).bit_length() + 7) // 8
    bitmaps = locked.to_bytes(size, "little") + (moved.to_bytes(size, "little") if moved else b"")
    numbers = attempts.to_bytes(4, "big") + recoveries.to_bytes(4, "big") + nonce.to_bytes(8, "big")
    text = len(reason).to_bytes(2, "big") + reason if reason else b""
    return bytes([flags]) + numbers + attempt_id + text + bitmaps


def offsets(first: int, bits: int) -> set[int]:
    """The offsets that a bitmap names from `first` on."""
    return {first + place for place in places(bits)}
