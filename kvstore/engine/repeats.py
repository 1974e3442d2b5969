"""Repeats: the results of messages that were put before, by their dedup ids.

The idea: memory has the positions of the ids that were put since the opening (`core.dedup`). An
id that was put before it, or that memory had to forget, is in the key index, as long as its window
reaches back so far. The record at the position says whether it has this id and topic, and when it
was stored, and gives the first result. So nothing is written beside the record, and an id is known
exactly as long as its message is.

A put looks for its ids under the log's lock, and reads records without the lock. Another put may
have added an id meanwhile, so the first one looks again before it appends (`core.dedup`).

Invariants: of two puts with one id within its topic's window one puts a message, and the other has
that one's place; an id that two records share a hash with is told apart by the records; an id whose
put failed is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvstore.core.dedup.known_ids import KnownIds, drop_rows
from kvstore.core.encoding import PreparedBatch
from kvstore.engine.engine_context import EngineContext
from kvstore.message import Firsts, StoredMessage
from kvstore.read.find import Finder

if TYPE_CHECKING:
    from kvstore.core.dedup.known_ids import Found

IDS_MAX: Final = 1 << 20
"""Ids of a generation in memory, 32 to 64 bytes each; two generations are kept."""


class Repeats:
    """The dedup ids of a store; see the module. `last_stored` is the newest store time in it."""

    def __init__(self, context: EngineContext, finder: Finder, last_stored: int) -> None:
        self._finder = finder
        self._topics = context.topics
        self.ids = KnownIds(last_stored + 1, context.log.end, IDS_MAX)

    def take_out(self, batch: PreparedBatch, found: list[Found], now: int) -> Firsts:
        """Takes the messages that repeat an id out of a batch, of those that `ids.find` found;
        gives the first message of each by its row, as it was given.
        """
        firsts: Firsts = {}
        for one in found:
            row, before = one[:2]
            first = before if before >= 0 else self._first(one, now)
            if first is not None:
                firsts[row] = first
        drop_rows(batch, firsts)
        return firsts

    def _first(self, found: Found, now: int) -> StoredMessage | None:
        """The first message of a row's dedup id, if it was stored within the window."""
        _, _, position, name, dedup_id = found
        topic = self._topics.get(name)
        window, ids = topic.route.dedup_window, self.ids
        if position < 0 and now - window >= ids.since:
            return None
        return self._finder.first_put(topic, dedup_id, position, now - window, ids.first_position)


def end_of(firsts: Firsts) -> int:
    """The position behind all first messages that were there before."""
    stored = [first for first in firsts.values() if not isinstance(first, int)]
    return max((first.position + first.size for first in stored), default=0)
