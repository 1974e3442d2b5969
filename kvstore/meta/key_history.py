"""The history of a topic's `key_index` setting: the log position from which each setting held.

The idea: a crash or a rebuild puts older records into the index again, and they have to be found by
the keys they were put with, not by those that today's setting takes. So a change of the setting is
kept with the position from which it holds. Most topics are never changed and keep nothing.

Invariants: positions rise; the last setting is the one that holds; a history has at most `KEPT`
settings, and the first of a full one may say more than was taken, never less.
"""

from __future__ import annotations

from typing import Final

from kvstore.config import KeyIndex

History = tuple[tuple[int, KeyIndex], ...]
"""Settings, each with the log position from which it holds; empty for one that never changed."""

KEPT: Final = 32
LEVELS: Final[dict[KeyIndex, int]] = {"off": 0, "unique": 1, "all": 2}
"""The keys that each setting takes of a message: none, the unique id, its KEYS tokens as well."""


def begun(key_index: KeyIndex, since: int, keys_since: tuple[int, int]) -> History:
    """The history of a topic whose row has none, from the positions where its keys begin."""
    unique, tokens = keys_since
    found: dict[int, KeyIndex] = {since: "off"}
    if key_index != "off":
        found[max(unique, since)] = "unique"
    if key_index == "all":
        found[max(tokens, since)] = "all"
    return tuple(sorted(found.items()))


def changed(history: History, key_index: KeyIndex, end: int, log_start: int) -> History:
    """The history with a setting that holds from `end` on, without settings of which no record is
    left.

    `history` has one setting at least.
    """
    found = [entry for entry in history if entry[0] < end] + [(end, key_index)]
    while len(found) > 1 and found[1][0] <= log_start:
        del found[0]
    while len(found) > KEPT:
        (first, one), (_, other) = found[:2]
        found[:2] = [(first, max(one, other, key=LEVELS.__getitem__))]
    return tuple(found)


def within(history: History, end: int) -> History:
    """The history for a log that ends at `end`: a setting that was to hold behind it holds from
    there.
    """
    return tuple(sorted({min(position, end): setting for position, setting in history}.items()))


def level_at(history: History, position: int) -> int:
    """The level that held at a position; 0 before the first."""
    level = 0
    for since, setting in history:
        if since > position:
            break
        level = LEVELS[setting]
    return level


def exact_from(history: History) -> int:
    """The position from which on the history says exactly what was taken."""
    return history[1][0] if len(history) >= KEPT else 0
