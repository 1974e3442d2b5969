"""Hashes: the Java ones that RocketMQ's files carry, and the 40-bit ones of the key index.

The idea: RocketMQ filters by the Java hash of the tag and finds keys by the Java hash of
`topic#key`, so this module rebuilds those hashes to the bit. The key index of this store uses XXH32
instead: it is wide enough that collisions are rare, and computed in C.

`xxh32_many` hashes hundreds of thousands of short texts at once. Texts of one length are a matrix,
and each step of XXH32 is one numpy call over a column. The call holds the GIL only at its
beginning. So puts leave the hashing of keys to the checkpoint, which runs beside them.

Invariants: the same input gives the same number, on every machine and in every version: they are on
disk; `xxh32_many` gives the numbers of `xxhash.xxh32_intdigest`.
"""

from __future__ import annotations

import re
import sys
from array import array
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_intdigest

from kvstore.record.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC

_LEVEL: Final = re.compile(r"\+?[0-9]{1,10}")
_INT_SIGN: Final = 0x8000_0000
_INT_MASK: Final = 0xFFFF_FFFF
_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: 31-polynomial over UTF-16 code units, as a signed 32-bit number."""
    units: bytes | array[int]
    if text.isascii():
        units = text.encode()
    else:
        units = array("H")
        units.frombytes(text.encode("utf-16-be", "surrogatepass"))
        if _LITTLE_ENDIAN:
            units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & _INT_MASK
    return value - ((value & _INT_SIGN) << 1)


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """The number a queue entry carries for a tag: its Java hash, 0 for no tag."""
    return java_hash(tag)


def tags_code(topic: str, tag: str | None, delay_level: str | None, stored_at: int) -> int:
    """The 8-byte tags code RocketMQ dispatches for a record (CommitLog.checkMessageAndReturnSize).

    Usually `tag_hash`. For a record in SCHEDULE_TOPIC_XXXX with a delay level (the text of its
    DELAY property) it is the time of delivery, in ms since the epoch: `stored_at` plus the level's
    delay, with levels above the highest taken as the highest.
    """
    if delay_level is not None and topic == SCHEDULE_TOPIC:
        # RocketMQ takes a record whose level is not a number for a bad record; its tag is the
        # better answer.
        level = int(delay_level) if _LEVEL.fullmatch(delay_level) else 0
        if level > 0:
            level = min(level, len(DELAY_LEVELS_MS))
            return stored_at + DELAY_LEVELS_MS[level - 1]
    return tag_hash(tag) if tag else 0


def topic_byte(topic: bytes) -> int:
    """The byte that a topic puts under the hashes of its keys: the low byte of XXH32 of its
    name.
    """
    return xxh32_intdigest(topic) & 0xFF


def key_hash(topic: bytes, key: bytes) -> int:
    """The key index's 40-bit hash: XXH32 of the key, then the topic's byte.

    So one key's hashes in all topics are neighbours (`key_hash_range`), and the same key in many
    topics seldom meets.
    """
    return xxh32_intdigest(key) << 8 | topic_byte(topic)


def key_hash_range(key: bytes) -> tuple[int, int]:
    """The lowest and highest hash of a key, whatever its topic."""
    low = xxh32_intdigest(key) << 8
    return low, low | 0xFF


__all__ = ["SEPARATOR", "xxh32_many"]

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

SEPARATOR: Final = "\x01"
"""Between two texts; no key and no id may contain it."""
_FEW: Final = 256
"""Texts of a length below which hashing them one by one is faster."""
_BYTES: Final = 1 << 19
"""Bytes hashed at a time: what is between two steps stays in the processor's cache."""
_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393
_BEGIN: Final = (_P1 + _P2 & 0xFFFFFFFF, _P2, 0, -_P1 & 0xFFFFFFFF)
"""The four sums' first values."""
_STRIPE: Final = 16


def xxh32_many(joined: str) -> U32:
    """The hash of each of the texts in `joined`, which are separated by `SEPARATOR`."""
    raw = (joined + SEPARATOR).encode()
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data == ord(SEPARATOR))
    lengths = np.diff(ends, prepend=-1) - 1
    starts = ends - lengths
    out = np.empty(len(ends), dtype=np.uint32)
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        mine = np.flatnonzero(lengths == length)
        if len(mine) < _FEW or not length:
            texts = [raw[at : at + length] for at in starts[mine].tolist()]
            out[mine] = list(map(xxh32_intdigest, texts))
            continue
        windows = np.lib.stride_tricks.sliding_window_view(data, length)
        together = max(_BYTES // (length + 1), 1)
        for at in range(0, len(mine), together):
            some = mine[at : at + together]
            out[some] = _of_one_length(windows[starts[some]])
    return out


def _of_one_length(texts: U8) -> U32:
    """The hashes of the rows of a matrix."""
    count, length = texts.shape
    striped, whole = length // _STRIPE * 4, length // 4
    words = texts[:, : 4 * whole].view("<u4")
    found: U32 = np.full(1, _P5, dtype=np.uint32)
    if striped:
        sums = [np.array([p], dtype=np.uint32) for p in _BEGIN]
        for at in range(striped):
            sums[at % 4] = _rotated(sums[at % 4] + _column(words, at) * _P2, 13) * _P1
        a, b, c, d = sums
        found = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
    found = found + np.uint32(length)
    for at in range(striped, whole):
        found = _rotated(found + _column(words, at) * _P3, 17) * _P4
    for at in range(4 * whole, length):
        found = _rotated(found + _column(texts, at) * _P5, 11) * _P1
    found ^= found >> np.uint32(15)
    found *= _P2
    found ^= found >> np.uint32(13)
    found *= _P3
    found ^= found >> np.uint32(16)
    return np.broadcast_to(found, count)


def _column(matrix: NDArray[np.unsignedinteger[Any]], at: int) -> U32:
    """A column; a single number where all rows have the same one, as ids have nearly everywhere,
    which halves the time.
    """
    column = matrix[:, at]
    first = column[:1]
    return (first if (column == first).all() else column).astype(np.uint32)


def _rotated(numbers: U32, bits: int) -> U32:
    return numbers << np.uint32(bits) | numbers >> np.uint32(32 - bits)
