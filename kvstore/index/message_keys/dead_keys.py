"""Dead keys: removing keys of deleted topics, and of erased segments, from blocks that hold other
keys as well.

The idea: pairs are sorted by hash, and a hash has only one byte of the topic, so nothing in a block
says to which topic a pair belongs. But a pair is alive as long as a run has its position, and runs
go with their topic, or segment. A segment without runs loses its keys at once, if no generation has
them. Any other segment is marked. Later its parts are compared with its runs, one segment at a time
and some pieces a step, and pieces with dead pairs are written anew, with their filters. In a store
that was adopted from RocketMQ keys go with their segments.

Invariants: a mark is written with the batch that makes it true, and goes with the last one that
rewrites the blocks; a pair of an existing message is never dropped; the parts, the keys of their
blocks and the order in them stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    ADOPTED,
    MESSAGE_KEYS,
    META,
    RUNS,
    U32,
    filter_key,
    read_run_key,
    segment_range,
    topic_prefix,
)
from kvstore.index.message_keys.key_blocks import pack_block, unpack_block
from kvstore.index.message_keys.key_lookup import MessageKeys, Parts
from kvstore.index.message_keys.key_parts import (
    Part,
    blocks_between,
    digests_of,
    filter_piece,
    piece_start,
)
from kvstore.index.runs import unpack_many

I64 = NDArray[np.int64]

_MARK: Final = b"dead_keys/"  # and the segment, u32
_END: Final = b"dead_keys0"
_RUNS_AT_ONCE: Final = 4096
_PIECES_AT_ONCE: Final = 8
"""Pieces of a part that a step looks at: 131,072 pairs."""


def forget_keys(
    families: Families,
    batch: Batch,
    keys: MessageKeys,
    segments: Iterable[int],
    topics: Collection[int],
) -> Parts:
    """Remove the keys of topics whose runs in these segments the batch removes: at once, or by a
    mark for later. Returns the parts that exist once the batch is written.
    """
    parts = keys.parts()
    if families.get(META, ADOPTED) is not None:
        # RocketMQ's transactions have records with keys and no place in a queue: no run has them.
        return parts
    for segment in segments:
        mine = [part for part in parts if part.covers(segment)]
        if keys.is_alone(segment) and not _has_others(families, segment, topics):
            keys.drop(batch, mine)
            parts = tuple(part for part in parts if part not in mine)
        else:
            mark(batch, segment)
    return parts


def mark(batch: Batch, segment: int) -> None:
    """Put the mark into a batch that a segment may have dead keys."""
    batch.put(META, _MARK + U32.pack(segment), b"")


def _has_others(families: Families, segment: int, topics: Collection[int]) -> bool:
    """Whether a segment has a run of another topic."""
    low, high = segment_range(segment, segment + 1)
    it, at = families.iter(RUNS), low
    while True:
        it.seek(at)
        if not families.valid(it) or it.key() >= high:
            return False
        topic = read_run_key(it.key()).topic
        if topic not in topics:
            return True
        at = low + topic_prefix(topic + 1)


def marked(families: Families) -> list[int]:
    """The segments whose keys may be dead, in order."""
    return [U32.unpack(key[-4:])[0] for key, _ in families.rows(META, _MARK, _END)]


def drop_dead(
    families: Families, keys: MessageKeys, segment: int, segment_size: int
) -> Iterator[None]:
    """Take a segment's dead keys out, and its mark, in steps: the caller lets others write between
    two. It ends early if a part was merged meanwhile; the mark stays then.
    """
    parts = [part for part in keys.parts() if part.covers(segment)]
    alive = _positions(families, segment) + segment * segment_size
    begin, end = segment * segment_size, (segment + 1) * segment_size

    def is_dead(positions: I64) -> NDArray[np.bool_]:
        dead: NDArray[np.bool_] = (positions >= begin) & (positions < end)
        if len(alive):
            at = np.minimum(np.searchsorted(alive, positions), len(alive) - 1)
            dead &= alive[at] != positions
        return dead

    for part in parts:
        for first in range(0, part.pieces, _PIECES_AT_ONCE):
            if keys.is_merging or part not in keys.parts():
                return
            batch = families.batch()
            for piece in range(first, min(first + _PIECES_AT_ONCE, part.pieces)):
                _rewrite(families, batch, part, piece, part.segment * segment_size, is_dead)
            families.write(batch)
            keys.forget_filters()
            yield
    batch = families.batch()
    batch.delete(META, _MARK + U32.pack(segment))
    families.write(batch)


def _rewrite(
    families: Families,
    batch: Batch,
    part: Part,
    piece: int,
    base: int,
    is_dead: Callable[[I64], NDArray[np.bool_]],
) -> None:
    """Put a piece of a part into a batch without its dead pairs, if it has any."""
    low, high = piece_start(part, piece), piece_start(part, piece + 1)
    kept_hashes = [np.zeros(0, np.int64)]
    is_changed = False
    for key, first, value in blocks_between(families, families.iter(MESSAGE_KEYS), part, low, high):
        if first < low:
            continue  # of the piece before
        hashes, positions = unpack_block(first, value)
        kept = ~is_dead(positions + base)
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


def _positions(families: Families, segment: int) -> NDArray[np.int64]:
    """The positions in a segment's runs, sorted."""
    rows = families.rows(RUNS, *segment_range(segment, segment + 1))
    found = [np.zeros(0, dtype=np.int64)]
    while values := [value for _, value in islice(rows, _RUNS_AT_ONCE)]:
        found.append(unpack_many(values)[0].positions)
    positions = np.concatenate(found)
    positions.sort()
    return positions
