"""Lock rows as values: the messages of a queue that a group has under lock.

The idea: the messages of one pop and queue share a row. A bitmap over the offsets, from the row's
first one on, says which of them are still locked; a Python int is the bitmap. docs/pop.md has the
layout.

Invariants: pure functions; a row spans at most `SPAN` offsets; any bytes give a row or
`IndexDamaged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from kvstore.errors import IndexDamaged

SPAN: Final = 256
"""Offsets a row can name: receipts give a message's bit in its row one byte."""

_HEAD: Final = Struct(">BIIQ")  # flags, attempts, recoveries, nonce
_HAS_ATTEMPT_ID: Final = 1
_HAS_MOVED: Final = 2
_HAS_REASON: Final = 4
_ATTEMPT_ID_SIZE: Final = 16
REASON_MAX: Final = 512
"""Bytes of the longest reason that a row keeps."""
_LENGTH_SIZE: Final = 2


class Lock(NamedTuple):
    """A row's value. `locked` and `moved` have bit i for the row's first offset + i. `reason`, as
    UTF-8, is why the messages were given back last.
    """

    attempts: int
    recoveries: int
    nonce: int
    locked: int
    moved: int = 0
    attempt_id: bytes = b""
    reason: bytes = b""


def unpack_lock(value: bytes) -> Lock:
    """The inverse of `pack_lock` in the core."""
    if len(value) < _HEAD.size:
        raise _damaged(value)
    flags, attempts, recoveries, nonce = _HEAD.unpack_from(value)
    rest = value[_HEAD.size :]
    if not flags:
        if len(rest) > SPAN // 8:
            raise _damaged(value)
        return Lock(attempts, recoveries, nonce, int.from_bytes(rest, "little"))
    attempt_id = b""
    if flags & _HAS_ATTEMPT_ID:
        attempt_id, rest = rest[:_ATTEMPT_ID_SIZE], rest[_ATTEMPT_ID_SIZE:]
    reason = b""
    if flags & _HAS_REASON:
        # Without the length, or shorter than that, it is cut.
        end = _LENGTH_SIZE + int.from_bytes(rest[:_LENGTH_SIZE], "big")
        if len(rest) < end:
            raise _damaged(value)
        reason, rest = rest[_LENGTH_SIZE:end], rest[end:]
    size, odd = divmod(len(rest), 2) if flags & _HAS_MOVED else (len(rest), 0)
    if odd or size > SPAN // 8 or flags > (_HAS_ATTEMPT_ID | _HAS_MOVED | _HAS_REASON):
        raise _damaged(value)
    locked, moved = rest[:size], rest[size:]
    return Lock(
        attempts,
        recoveries,
        nonce,
        int.from_bytes(locked, "little"),
        int.from_bytes(moved, "little"),
        attempt_id,
        reason,
    )


def _damaged(value: bytes) -> IndexDamaged:
    return IndexDamaged(
        f"a lock row of {len(value)} bytes can't be read; reset the group's offset in its topic"
    )


def offsets_of(first: int, bits: int) -> list[int]:
    """The offsets a bitmap names, in order."""
    if not bits & (bits + 1):
        return list(range(first, first + bits.bit_length()))
    return [first + i for i in range(bits.bit_length()) if bits >> i & 1]


def bits_of(first: int, offsets: Iterable[int]) -> int:
    """The bitmap that names these offsets."""
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - first
    return bits


def spans(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as pieces (from, to) of the list, each of which fits a row."""
    start = 0
    while start < len(offsets):
        first = offsets[start]
        stop = min(start + SPAN, len(offsets))
        while offsets[stop - 1] - first >= SPAN:
            stop -= 1
        yield start, stop
        start = stop
