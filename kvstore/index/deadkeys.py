"""Keys of deleted topics: taking them out of blocks that other topics' keys are in as well.

The idea: pairs are sorted by hash, and of the topic a hash has one byte only, so nothing in a block
says whose a pair is. But a pair is alive as long as a run has its position, and runs go with their
topic. A segment that no run is left in loses its keys at once; any other is marked, and later its
blocks are held against its runs, one segment at a time, and those with dead pairs are written anew.
In a store that was adopted from RocketMQ keys go with their segments.

Invariants: a mark is written with the batch that makes it true, and goes with the one that rewrites
the blocks; a pair of a message that is there is never dropped; which parts there are, and the order
in them, stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.index.families import Batch, Families
from kvstore.index.keyblocks import pack_blocks, unpack_block
from kvstore.index.keys import (
    ADOPTED,
    MESSAGE_KEYS,
    META,
    RUNS,
    U32,
    key_block_key,
    read_key_block_key,
    read_run_key,
    segment_range,
    topic_prefix,
)
from kvstore.index.runs import unpack_many

_MARK: Final = b"dead_keys/"  # and the segment, u32
_END: Final = b"dead_keys0"
_RUNS_AT_ONCE: Final = 4096


def forget_keys(
    families: Families, batch: Batch, segments: Iterable[int], topics: Collection[int]
) -> list[int]:
    """Have the keys of topics, whose runs in these segments the batch removes, go: at once, or
    marked to go. Returns the segments that have no keys any more.
    """
    if families.get(META, ADOPTED) is not None:
        # RocketMQ's transactions have records with keys and no place in a queue: no run has them.
        return []
    emptied = []
    for segment in segments:
        if _has_others(families, segment, topics):
            batch.put(META, _MARK + U32.pack(segment), b"")
        else:
            batch.delete_range(MESSAGE_KEYS, *segment_range(segment, segment + 1))
            emptied.append(segment)
    return emptied


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
    """The segments that have keys which may be dead, in order."""
    return [U32.unpack(key[-4:])[0] for key, _ in families.rows(META, _MARK, _END)]


def drop_dead(families: Families, batch: Batch, segment: int) -> None:
    """Put into a batch what takes a segment's dead keys out, and its mark."""
    low, high = segment_range(segment, segment + 1)
    alive = _positions(families, segment)
    for key, value in families.rows(MESSAGE_KEYS, low, high):
        _, part, first = read_key_block_key(key)
        hashes, positions = unpack_block(first, value)
        at = np.minimum(np.searchsorted(alive, positions), len(alive) - 1)
        kept = alive[at] == positions if len(alive) else np.zeros(len(positions), dtype=bool)
        if kept.all():
            continue
        batch.delete(MESSAGE_KEYS, key)
        for new, packed in pack_blocks(hashes[kept], positions[kept]):
            batch.put(MESSAGE_KEYS, key_block_key(segment, part, new), packed)
    batch.delete(META, _MARK + U32.pack(segment))


def _positions(families: Families, segment: int) -> NDArray[np.int64]:
    """Where the records stand that a segment's runs have, sorted."""
    rows = families.rows(RUNS, *segment_range(segment, segment + 1))
    found = [np.zeros(0, dtype=np.int64)]
    while values := [value for _, value in islice(rows, _RUNS_AT_ONCE)]:
        found.append(unpack_many(values)[0].positions)
    positions = np.concatenate(found)
    positions.sort()
    return positions
