"""Dead keys: removing the keys of erased segments from blocks that hold other keys as well.

The idea: a generation has the keys of several segments and stays until the last of them leaves the
log. Where a segment is erased, its keys may not wait so long. So the segment is marked, and later
its pairs are taken out of the parts, some pieces a step: blocks and filters are written anew.

Invariants: a mark is written with the batch that makes it true, and goes with the last one that
rewrites the blocks; a pair of a segment in the log is never dropped; the parts, the keys of their
blocks and the order in them stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.index.families import Batch, Families
from kvstore.index.handover import read_gone
from kvstore.index.keys import MESSAGE_KEYS, META, U32, filter_key
from kvstore.index.message_keys.key_blocks import pack_block, unpack_block
from kvstore.index.message_keys.key_lookup import MessageKeys
from kvstore.index.message_keys.key_parts import (
    Part,
    blocks_between,
    digests_of,
    filter_piece,
    piece_start,
)

_MARK: Final = b"dead_keys/"  # and the segment, u32
_END: Final = b"dead_keys0"
_PIECES_AT_ONCE: Final = 8
"""Pieces of a part that a step looks at: 131,072 pairs."""


def mark(batch: Batch, segment: int) -> None:
    """Put the mark into a batch that a segment has dead keys."""
    batch.put(META, _MARK + U32.pack(segment), b"")


def marked(families: Families) -> list[int]:
    """The segments whose keys are dead, in order."""
    return [U32.unpack(key[-4:])[0] for key, _ in families.rows(META, _MARK, _END)]


def drop_dead(
    families: Families, keys: MessageKeys, segment: int, segment_size: int
) -> Iterator[None]:
    """Remove a segment's dead keys, and its mark, in steps: the caller lets others write between
    two. Ends early if a part was merged meanwhile; the mark stays then.
    """
    # Stores of before marked segments of deleted topics too, which are still in the log.
    has_left = read_gone(families).has(segment, segment_size)
    parts = [part for part in keys.parts() if has_left and part.covers(segment)]
    for part in parts:
        begin = (segment - part.segment) * segment_size
        for first in range(0, part.pieces, _PIECES_AT_ONCE):
            if keys.is_merging or part not in keys.parts():
                return
            batch = families.batch()
            for piece in range(first, min(first + _PIECES_AT_ONCE, part.pieces)):
                _rewrite(families, batch, part, piece, begin, begin + segment_size)
            families.write(batch)
            keys.forget_filters()
            yield
    batch = families.batch()
    batch.delete(META, _MARK + U32.pack(segment))
    families.write(batch)


def _rewrite(
    families: Families, batch: Batch, part: Part, piece: int, begin: int, end: int
) -> None:
    """Put a piece of a part into a batch without its pairs of positions from `begin` to before
    `end`, if it has any.
    """
    low, high = piece_start(part, piece), piece_start(part, piece + 1)
    kept_hashes = [np.zeros(0, np.int64)]
    is_changed = False
    for key, first, value in blocks_between(families, families.iter(MESSAGE_KEYS), part, low, high):
        if first < low:
            continue  # of the piece before
        hashes, positions = unpack_block(first, value)
        kept: NDArray[np.bool_] = (positions < begin) | (positions >= end)
        kept_hashes.append(hashes[kept])
        if kept.all():
            continue
        is_changed = True
        if kept.any():
            # Its key stays, and with it its place among the others.
            batch.put(MESSAGE_KEYS, key, pack_block(first, hashes[kept], positions[kept]))
        else:
            batch.delete(MESSAGE_KEYS, key)
    if is_changed:
        held = filter_piece(part, piece, digests_of(np.concatenate(kept_hashes)))
        batch.put(MESSAGE_KEYS, filter_key(part.prefix, piece), held)
