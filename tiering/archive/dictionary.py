"""Dictionary: bytes that compression begins with, made from a sample of an archive's messages.

The idea: a block of a few messages repeats little by itself; what the messages of all blocks have
in common is given to the codec beforehand. Most of it is trained on bodies; behind that, where it
is cheapest to refer to, stand some blocks' columns, of which small blocks consist to a good part.

Invariants: the same sample gives the same dictionary; a sample is bounded in messages and bytes, so
training is bounded in time and memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import zstandard

from tiering.archive.coder import LEVEL_DEFAULT, CodecName
from tiering.archive.digits import apart
from tiering.archive.encoding import BlockSpan, payloads_of
from tiering.archive.records import Fields

SAMPLES_MAX: Final = 4_000
"""Messages that are looked at."""
_SAMPLE_BYTES: Final = 4 * 1024 * 1024
_BODY_BYTES: Final = 16 * 1024
"""Of one body."""
_SIZE_MAX: Final = 256 * 1024
_SIZE_MIN: Final = 4 * 1024
_SHARE: Final = 256
"""Bytes of records a byte of the dictionary."""
_LZ4_SIZE: Final = 64 * 1024
"""All that lz4 looks back."""
_SEGMENT: Final = 500
"""Bytes that training takes from a sample at a time, found best for messages of about 1 KB; it
scores them by what strings of `_STRING` bytes they share with others."""
_STRING: Final = 8
_BETWEEN: Final = b"\x00"
_HEADS: Final = 24
"""Messages whose columns go in."""


def train(
    fields: Fields, raw_bytes: int, codec: CodecName = "zstd", level: int = LEVEL_DEFAULT
) -> bytes | None:
    """A dictionary for an archive of `raw_bytes` bytes of records, from `fields`, which hold a
    sample of them that is spread evenly (or all: few are looked at, at even steps); None where none
    would pay. Leave out records of topics that are encrypted.
    """
    size = min(_SIZE_MAX if codec == "zstd" else _LZ4_SIZE, raw_bytes // _SHARE)
    if size < _SIZE_MIN or not fields.count:
        return None
    bodies = _bodies(fields)
    if len(bodies) < 8 or sum(map(len, bodies)) < 2 * size:
        trained = b"".join(bodies)[-size:]
    else:
        try:
            trained = zstandard.train_dictionary(
                size, bodies, k=_SEGMENT, d=_STRING, level=level
            ).as_bytes()
        except zstandard.ZstdError:  # too few, too short or too much alike
            trained = b"".join(bodies)[-size:]
    return (trained + (_heads(fields) if codec == "zstd" else b"")) or None


def _rows(count: int, most: int) -> list[int]:
    """At most `most` of `count` rows, at even steps."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    return rows


def _bodies(fields: Fields) -> list[bytes | bytearray | memoryview]:
    out: list[bytes] = []
    size = 0
    rows = _rows(fields.count, SAMPLES_MAX)
    share = max(_SAMPLE_BYTES // len(rows), 64)
    bodies = fields.body_list
    for row in rows:
        body = bodies[row][: min(_BODY_BYTES, 4 * share)]
        size += len(body)
        if body and size <= 2 * _SAMPLE_BYTES:
            out.append(body)
    return _without_digits(out)


def _without_digits(bodies: list[bytes]) -> list[bytes | bytearray | memoryview]:
    """Bodies as they come to be compressed; those without ids as they are."""
    # All at once, if they come apart again; seldom one by one.
    found = apart(_BETWEEN.join(bodies))
    if found is not None and found.text.count(_BETWEEN) == len(bodies) - 1:
        return list(found.text.split(_BETWEEN))
    each = [(apart(body), body) for body in bodies]
    return [taken.text if taken is not None else body for taken, body in each]


def _heads(fields: Fields) -> bytes:
    """Columns of blocks that have one message each: what does not change is the same in larger."""
    found: dict[bytes, None] = {}
    for row in _rows(fields.count, _HEADS):
        if fields.regular[row]:
            topic = fields.part(row, row + 1).topics()[0].decode("utf-8", "replace")
            span = BlockSpan(topic, int(fields.queue[row]), row, row + 1)
            payloads = payloads_of(fields, [span], [0, 1], [False])[0]
            found[payloads.properties] = None
            found[payloads.fixed] = None
    return b"".join(found)
