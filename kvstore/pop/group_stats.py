"""A group's figures in a topic, for `Store.group_stats`, `kvmq top` and `kvmq work`.

The idea: `todo` alone works out how far a group is in a queue, from the row of its offset and from
an in-flight table. All figures come from the counters of that table. A store that is opened
read-only makes it from the rows that there were then, at the first look, so it has the same
figures.

Invariants: nothing is changed; a message counts once, as unread, in flight or done; a message that
retention deleted is done; the cost of a look does not grow with the messages under lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kvstore.errors import TopicNotFound
from kvstore.message import Bounds
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic, Topics
from kvstore.pop.inflight.tables import InflightTables
from kvstore.read.at_offsets import first_at
from kvstore.read.reader import Reader


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic, counted in messages over all queues.

    `end`: put so far. `taken`: handed out, or passed over by a filter, once at least. `unread`: not
    yet handed out. `in_flight`: handed out and not done; of these the lock of `due` has run out,
    and `redelivered` were handed out more than once. `lag`: what is still to be done, unread and in
    flight together, as in `Store.lag`. `oldest_due`: when the first lock runs out, or did, ms since
    the epoch; None if there is none. `dead_letters`: of this group, from all topics, that were
    neither taken nor put back. `passed_over`: refused by the group's filters, and so done, since
    its offset was last set.
    """

    group: str
    topic: str
    end: int
    taken: int
    unread: int
    in_flight: int
    due: int
    redelivered: int
    lag: int
    oldest_due: int | None
    dead_letters: int
    passed_over: int = 0


class Todo(NamedTuple):
    """How far a group is in a queue, and how many messages it has still to do there. `next_offset`
    is where its unread messages begin; `unread` includes parked ones.
    """

    committed: int | None
    next_offset: int
    bounds: Bounds
    unread: int
    parked: int
    in_flight: int
    redelivered: int
    passed_over: int

    @property
    def lag(self) -> int:
        """Messages that are still to be done."""
        return self.unread + self.in_flight


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The parts of a store that tell how far its groups are."""

    reader: Reader
    topics: Topics
    offsets: Offsets
    tables: InflightTables

    def todo(self, group: GroupInfo, topic: Topic, queue: int) -> Todo:
        """A group's remaining work in a queue. Every figure of its progress comes from here."""
        with self.tables.locked(group.id, topic.id) as table:
            # Inside, so that nothing is popped between the looks.
            bounds = self.reader.bounds(topic.base + queue)
            row = self.offsets.committed(group.id, topic.id, queue, bounds)
            committed = None if row is None else _done_below(row.offset, table.lowest(queue))
            locked, redelivered, parked = table.held_from(queue, bounds.min_offset)
        following = (
            start_of(self.reader, self.offsets, group, topic, queue) if row is None else row.offset
        )
        # Messages that retention deleted before the group came to them are not owed to it.
        unread = bounds.next_offset - max(following, bounds.min_offset) + parked
        passed = 0 if row is None else row.passed_over
        return Todo(committed, following, bounds, unread, parked, locked, redelivered, passed)

    def committed(self, group: GroupInfo, topic: Topic, queue: int) -> int | None:
        """The first offset of a queue that a group is not done with; None if it never began
        there.
        """
        with self.tables.locked(group.id, topic.id) as table:
            bounds = self.reader.bounds(topic.base + queue)
            found = self.offsets.get(group.id, topic.id, queue, bounds)
            return None if found is None else _done_below(found, table.lowest(queue))

    def stats(self, group: GroupInfo, topic: Topic, now: int) -> GroupStats:
        """A group's figures in a topic."""
        todo = [self.todo(group, topic, queue) for queue in range(topic.read_queues)]
        with self.tables.locked(group.id, topic.id) as table:
            due, oldest_due = table.due_figures(
                now, lambda queue: self.reader.bounds(topic.base + queue).min_offset
            )
        taken = sum(one.next_offset for one in todo if one.committed is not None)
        return GroupStats(
            group=group.name,
            topic=topic.name,
            end=sum(one.bounds.next_offset for one in todo),
            taken=taken - sum(one.parked for one in todo),
            unread=sum(one.unread for one in todo),
            in_flight=sum(one.in_flight for one in todo),
            due=due,
            redelivered=sum(one.redelivered for one in todo),
            lag=sum(one.lag for one in todo),
            oldest_due=oldest_due,
            dead_letters=self._dead_letters(group),
            passed_over=sum(one.passed_over for one in todo),
        )

    def _dead_letters(self, group: GroupInfo) -> int:
        try:
            letters = self.topics.get(group.dead_letters)
        except TopicNotFound:
            return 0
        count = 0
        for queue in range(letters.read_queues):
            bounds = self.reader.bounds(letters.base + queue)
            taken = self.offsets.get(group.id, letters.id, queue, bounds)
            count += bounds.next_offset - max(taken or 0, bounds.min_offset)
        return count


def _done_below(offset: int, lowest: int | None) -> int:
    """The offset below which all is done: the given one, or the lowest that is held below it."""
    return offset if lowest is None else min(offset, lowest)


def start_of(reader: Reader, offsets: Offsets, group: GroupInfo, topic: Topic, queue: int) -> int:
    """Where a group begins in a queue in which it never committed."""
    bounds = reader.bounds(topic.base + queue)
    if group.start == "begin":
        return bounds.min_offset
    if group.start == "end":
        return offsets.first_at(topic.base + queue, group.since, bounds)
    return first_at(reader, topic, queue, group.start, group.name)
