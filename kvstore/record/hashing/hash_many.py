"""Hash many: XXH32 of hundreds of thousands of short texts at once.

The idea: texts of one length are a matrix, and each step of XXH32 is one numpy call over a column.
The call holds the GIL only at its beginning. So puts leave the hashing of keys to the checkpoint,
which runs beside them.

Invariant: the same numbers as `xxhash.xxh32_intdigest` gives one by one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_intdigest

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
