"""Who claims: a group in a topic, with the checked arguments of a pop.

The idea: the same few arguments come again and again, so all that follows from them is found once,
and kept for the next pop. Mostly such a pop takes as many unread messages of one queue as it asks
for, and there is nothing else to do: then the core makes its whole change.

Invariant: a claimant knows no messages; it is valid until its group or topic is altered or deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.clock import cut_ms
from kvstore.core.popping.inflight import Change
from kvstore.errors import ArchiveUnavailable
from kvstore.index.archived import AtHand
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import prefetch
from kvstore.pop.popped import UNLIMITED, Wanted, lock_ms
from kvstore.read.cold import READ_ERRORS


class Claimant:
    """See the module. Threads share it."""

    __slots__ = (
        "_is_plain",
        "_lasts",
        "_nonces",
        "_now_ms",
        "_offsets",
        "_queues",
        "_reader",
        "_receipts",
        "_step",
        "_tables",
        "group",
        "table",
        "topic",
        "wanted",
    )

    def __init__(self, context: PopContext, group: GroupInfo, topic: Topic, wanted: Wanted) -> None:
        self._now_ms = context.clock.now_ms
        self._nonces = context.nonces
        self._offsets = context.offsets
        self._reader = context.reader
        self._receipts = context.receipts
        self._tables = context.tables
        self.group = group
        """While it is kept here, no other group has its `id()`, and no other topic has that of
        `topic`.
        """
        self.topic = topic
        self.wanted = wanted
        self.table = context.tables.get(group.id, topic.id)
        self._is_plain = (
            group.is_plain
            and not topic.is_priority
            and wanted.matches is None
            and wanted.max_bytes == UNLIMITED
            and not wanted.attempt_id
        )
        """Whether it takes any unread message, and looks at nothing else."""
        self._lasts = cut_ms(context.clock) + lock_ms(group, 1, wanted.invisible_ms)
        """How many ms from now, as the clock says it, a lock is due."""
        asked = wanted.queue
        self._queues: Sequence[int] = range(topic.read_queues) if asked is None else (asked,)
        self._step = 1 if asked is None else 0
        """By how much a pop advances its table's turn."""

    @property
    def limit(self) -> int:
        """How many messages it takes at most."""
        return self.wanted.limit

    @property
    def is_selective(self) -> bool:
        """Whether it wants only certain messages of its topic."""
        return self.wanted.queue is not None or self.wanted.matches is not None

    def may_find(self) -> bool:
        """Whether a claim may find anything: a look at counters, without the table's lock, for pops
        of many topics of which most have nothing.
        """
        table, base = self.table, self.topic.base
        if table.gone or table.dead or table.parked_count:
            return True
        if table.rows and table.soonest <= self._now_ms():
            return True
        next_of, end_of = table.next.get, self._reader.next_offset
        # A queue that never had a message ends at 0.
        return any(next_of(q, -1) < end for q in self._queues if (end := end_of(base + q)))

    def take(self) -> Change | None:
        """The change by which it takes as many messages as are wanted, of the queue whose turn it
        is; None if there is anything else to look at. The lock of its table is held.
        """
        table = self.table
        if not self._is_plain or table.gone or table.dead:
            return None
        now = self._now_ms()
        change = table.take(
            self._receipts, self._queues, self.wanted.limit, self._reader.mark(), now,
            now + self._lasts, self._offsets.recoveries, next(self._nonces), self._read,
        )  # fmt: skip
        if change is not None:
            table.turn += self._step
        return change

    def _read(
        self, table: InflightTable, queue: int, at: int, limit: int
    ) -> list[StoredMessage] | None:
        """Messages from an offset on, the next one last; None if they are not in memory."""
        reader = self._reader
        try:
            with reader.at_hand(AtHand()):
                low, high = reader.bounds(self.topic.base + queue)
                if at < low or high - at < limit:
                    return None
                ahead = prefetch(table, reader, self.topic, queue, at, limit)
        except (*READ_ERRORS, ArchiveUnavailable):
            return None
        self._tables.note_prefetch(table)
        # A claim goes on behind messages that are not held any more.
        return ahead if len(ahead) >= limit and ahead[-1].offset == at else None
