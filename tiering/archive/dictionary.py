"""Dictionary: bytes that compression begins with, made from a sample of an archive's bodies.

The idea: a block of a few messages repeats little by itself; what the messages of all blocks have
in common is given to the codec beforehand. The sample is bounded, so training is as well.

Invariant: the same sample gives the same dictionary.
"""

from __future__ import annotations

from tiering.archive.coder import LEVEL_DEFAULT, CodecName
from tiering.archive.records import Fields


def train(
    fields: Fields, raw_bytes: int, codec: CodecName = "zstd", level: int = LEVEL_DEFAULT
) -> bytes | None:
    """A dictionary for an archive of `raw_bytes` bytes of records, from `fields`, which hold a
    sample of them that is spread evenly (or all: few are looked at, at even steps); None where none
    would pay. Leave out records of topics that are encrypted.
    """
    return None
