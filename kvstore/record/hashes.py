"""Hashes: the Java ones that RocketMQ's files carry, and the 40-bit ones of the key index.

The idea: RocketMQ filters by the Java hash of the tag and finds keys by the Java hash of
`topic#key`, so this module rebuilds those hashes to the bit. The key index of this store uses XXH32
instead (`kvstore.core.hashing`): it is wide enough that collisions are rare.

Invariant: the same input gives the same number, on every machine and in every version: they are on
disk.
"""

from __future__ import annotations

import re
from typing import Final

from kvstore.core.hashing import java_hash, xxh32
from kvstore.core.names import DELAY_LEVEL, DELAY_LEVELS_MS, SCHEDULE_TOPIC, TAGS
from kvstore.core.records import find_property

_TAGS: Final = TAGS.encode()
_DELAY_LEVEL: Final = DELAY_LEVEL.encode()
_LEVEL: Final = re.compile(r"\+?[0-9]{1,10}")


def tags_code(topic: str, tag: str | None, delay_level: str | None, stored_at: int) -> int:
    """The 8-byte tags code RocketMQ dispatches for a record (CommitLog.checkMessageAndReturnSize).

    Usually the Java hash of the tag, 0 for no tag. For a record in SCHEDULE_TOPIC_XXXX with a delay
    level (the text of its DELAY property) it is the time of delivery, in ms since the epoch:
    `stored_at` plus the level's delay, with levels above the highest taken as the highest.
    """
    if delay_level is not None and topic == SCHEDULE_TOPIC:
        # RocketMQ takes a record whose level is not a number for a bad record; its tag is the
        # better answer.
        level = int(delay_level) if _LEVEL.fullmatch(delay_level) else 0
        if level > 0:
            level = min(level, len(DELAY_LEVELS_MS))
            return stored_at + DELAY_LEVELS_MS[level - 1]
    return java_hash(tag) if tag else 0


def scheduled_code(properties: bytes, stored_at: int) -> int:
    """The tags code of a record in SCHEDULE_TOPIC_XXXX, given its properties field."""
    tag, level = (
        None if found is None else found.decode("utf-8", "replace")
        for found in (find_property(properties, _TAGS), find_property(properties, _DELAY_LEVEL))
    )
    return tags_code(SCHEDULE_TOPIC, tag, level, stored_at)


def topic_byte(topic: bytes) -> int:
    """The byte that a topic puts under the hashes of its keys: the low byte of XXH32 of its
    name.
    """
    return xxh32(topic) & 0xFF


def key_hash(topic: bytes, key: bytes) -> int:
    """The key index's 40-bit hash: XXH32 of the key, then the topic's byte.

    So one key's hashes in all topics are neighbours (`key_hash_range`), and the same key in many
    topics seldom meets.
    """
    return xxh32(key) << 8 | topic_byte(topic)


def key_hash_range(key: bytes) -> tuple[int, int]:
    """The lowest and highest hash of a key, whatever its topic."""
    low = xxh32(key) << 8
    return low, low | 0xFF
