"""Keyed: the keys by which a message of an archive is found.

The idea: an archive has the same keys as the segment had: those that the topic's `key_index` chose
when the message was put.

Invariants: writer and verification both ask here, so they can't disagree; a message that a
transaction rolled back is found by no key, as in a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_intdigest

from kvstore.record.facts import names_of
from kvstore.record.names import KEYS, ROLLBACK, TRANSACTION_MASK, UNIQUE_ID
from tiering.archive.columns.packed import I64
from tiering.archive.manifest import ArchivedTopic

_UNIQUE: Final = UNIQUE_ID.encode()
_KEYS: Final = KEYS.encode()

KEY_LEVELS: Final = {"off": 0, "unique": 1, "all": 2}
"""The keys of a message that a topic's `key_index` takes: none, its unique id, its other keys as
well.
"""


def digests_of(properties: bytes, level: int) -> set[int]:
    """The digests (upper 32 bits of the key hashes) by which a message is found."""
    if not level:
        return set()
    unique, keys, _ = names_of(properties)
    names = keys if level > 1 else []
    return {xxh32_intdigest(name) for name in (unique, *names) if name}


def digests_in_columns(columns: Mapping[bytes, list[bytes]], levels: I64) -> tuple[I64, I64]:
    """The same for many messages with the same property names, from their values and levels: the
    digests, and the row of each.
    """
    digests: list[int] = []
    rows: list[int] = []
    unique, keys = columns.get(_UNIQUE), columns.get(_KEYS)
    for column, least in ((unique, 1), (keys, 2)):
        if column is None:
            continue
        some = np.flatnonzero(levels >= least).tolist()
        found = [column[row] for row in some] if len(some) < len(column) else column
        if not all(found) or (least == 2 and any(b" " in value for value in found)):
            for row, value in zip(some, found, strict=True):
                names = [name for name in (value.split(b" ") if least == 2 else (value,)) if name]
                digests += map(xxh32_intdigest, names)
                rows += [row] * len(names)
        else:
            digests += map(xxh32_intdigest, found)
            rows += some
    return np.array(digests, np.int64), np.array(rows, np.int64)


def is_rolled_back(system_flags: I64) -> NDArray[np.bool_]:
    """The messages, by their system flags, that a transaction rolled back."""
    found: NDArray[np.bool_] = (system_flags & TRANSACTION_MASK) == ROLLBACK
    return found


class KeyLevels:
    """The `key_index` levels of a topic's messages, by position, as they were at the put."""

    def __init__(self, topic: ArchivedTopic) -> None:
        history = topic.key_history or ((-(1 << 63), topic.key_index),)
        self._history = [(since, KEY_LEVELS.get(setting, 2)) for since, setting in history]
        self.changes = bool(topic.key_history)
        self.only = self._history[0][1] if not topic.key_history else 0
        self.none = all(level == 0 for _, level in self._history)

    def of(self, positions: I64) -> I64:
        """The levels of messages at some positions."""
        if not self.changes:
            return np.full(len(positions), self.only, np.int64)
        return np.array([self.at(position) for position in positions.tolist()], np.int64)

    def at(self, position: int) -> int:
        """The level of a message at a position."""
        level = 0
        for since, setting in self._history:
            if since > position:
                break
            level = setting
        return level
