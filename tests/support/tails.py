"""The keys of a tail, for tests that look into it."""

from __future__ import annotations

from kvstore.core.tail import Tail

_TOPICS = bytes(range(256))


def keys_of(tail: Tail, segment_size: int = 1 << 40) -> list[tuple[int, int, int]]:
    """Topic, position and hash of each key, in the order of the log; topics are below 256."""
    return [
        (found & 0xFF, segment * segment_size + position, found >> 8)
        for segment, *columns in tail.key_pairs(segment_size, _TOPICS)
        for found, position in zip(*(column.tolist() for column in columns), strict=True)
    ]
