"""The parts of an open store that popping works with, and what follows from them alone.

The idea: one frozen value is made when the store opens, and each module of this room is given it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.core.popping.receipts import Receipts
from kvstore.index.families import Families
from kvstore.message import Message
from kvstore.meta.groups import GroupInfo, Groups
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic, Topics
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.progress import start_of
from kvstore.read.find import Finder
from kvstore.read.reader import Reader


@dataclass(frozen=True, slots=True)
class PopContext:
    """See the module. `put` returns when messages are on the disk; `nonces` gives each lock its
    own.
    """

    families: Families
    reader: Reader
    finder: Finder
    topics: Topics
    groups: Groups
    offsets: Offsets
    tables: InflightTables
    receipts: Receipts
    waiting: Waiting
    clock: Clock
    nonces: Iterator[int]
    put: Callable[[Sequence[Message]], object]

    def next_offset(self, table: InflightTable, group: GroupInfo, topic: Topic, queue: int) -> int:
        """The first unread offset of a queue for a group. An offset that is not stored is not kept
        either: it follows the group's settings until a message is taken.
        """
        at = table.next.get(queue)
        if at is not None:
            return at
        bounds = self.reader.bounds(topic.base + queue)
        found = self.offsets.committed(group.id, topic.id, queue, bounds)
        if found is not None:
            table.next[queue] = found.offset
            if found.passed_over:
                table.passed[queue] = found.passed_over
            if found.expired:
                table.expired[queue] = found.expired
            table.starts.pop(queue, None)
            return found.offset
        kept = table.starts.get(queue)
        # Attached messages may stand before the start without moving the queue's end.
        end = bounds.next_offset, self.reader.mark()
        if kept is None or kept[0] is not group or kept[1] != end:
            start = start_of(self.reader, self.offsets, group, topic, queue)
            kept = table.starts[queue] = group, end, start
        return kept[2]
