"""Keyed: which keys a message of an archive is found by.

The idea: the same as in a segment: what the topic's `key_index` took when the message was put.

Invariant: writer and verification ask here, so they can't disagree.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh32_intdigest

from kvstore.record.facts import names_of
from tiering.archive.manifest import ArchivedTopic

KEY_LEVELS: Final = {"off": 0, "unique": 1, "all": 2}
"""What a topic's `key_index` takes of a message: nothing, its unique id, its keys as well."""


def digests_of(properties: bytes, level: int) -> set[int]:
    """The digests (upper 32 bits of the key hashes) that a message is found by."""
    if not level:
        return set()
    unique, keys, _ = names_of(properties)
    names = keys if level > 1 else []
    return {xxh32_intdigest(name) for name in (unique, *names) if name}


class Levels:
    """Which keys of a topic's messages are indexed, by position; as `key_index` was at the put."""

    def __init__(self, topic: ArchivedTopic) -> None:
        history = topic.key_history or ((-(1 << 63), topic.key_index),)
        self._history = [(since, KEY_LEVELS.get(setting, 2)) for since, setting in history]
        self.only = self._history[0][1] if not topic.key_history else 0
        self.none = all(level == 0 for _, level in self._history)

    def at(self, position: int) -> int:
        """The level of a message at a position."""
        level = 0
        for since, setting in self._history:
            if since > position:
                break
            level = setting
        return level
