"""A group's figures in a topic, for `Store.group_stats`, `kvmq top` and `kvmq work`.

The idea: `todo_of` alone works out how far a group is in a queue, from the row of its offset and
from an in-flight table. `Store.lag` gives it the table that the store has in memory. The figures of
a group come from the rows alone, by a table that is read for them: so a store that is opened
read-only beside a writer has the same figures.

Invariant: nothing is changed; a message counts once, as unread, in flight or done; a message that
retention deleted is done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import msgspec

from kvstore.errors import TopicNotFound
from kvstore.index.keys import PARKED, LockKey
from kvstore.message import Bounds
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic, Topics
from kvstore.pop.inflight.lock_rows import Lock
from kvstore.pop.inflight.table import InflightTable
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
    passed_over: int

    @property
    def lag(self) -> int:
        """Messages that are still to be done."""
        return self.unread + self.in_flight


LockedTable = Callable[[], AbstractContextManager[InflightTable]]
"""Gives a group's in-flight table in a topic, which nobody changes meanwhile."""


def todo_of(
    reader: Reader,
    offsets: Offsets,
    group: GroupInfo,
    topic: Topic,
    queue: int,
    locked_table: LockedTable,
) -> Todo:
    """A group's remaining work in a queue. Every figure of a group's progress comes from here."""
    with locked_table() as table:
        # Inside, so that nothing is popped between the looks.
        bounds = reader.bounds(topic.base + queue)
        row = offsets.committed(group.id, topic.id, queue, bounds)
        committed = None if row is None else _done_below(row.offset, table.lowest(queue))
        locked, parked = table.held_from(queue, bounds.min_offset)
    following = start_of(reader, offsets, group, topic, queue) if row is None else row.offset
    # Messages that retention deleted before the group came to them are not owed to it.
    unread = bounds.next_offset - max(following, bounds.min_offset) + parked
    passed = 0 if row is None else row.passed_over
    return Todo(committed, following, bounds, unread, parked, locked, passed)


def committed_of(
    reader: Reader,
    offsets: Offsets,
    group: GroupInfo,
    topic: Topic,
    queue: int,
    locked_table: LockedTable,
) -> int | None:
    """The first offset of a queue that a group is not done with; None if it never began there."""
    with locked_table() as table:
        found = offsets.get(group.id, topic.id, queue, reader.bounds(topic.base + queue))
        return None if found is None else _done_below(found, table.lowest(queue))


def _done_below(offset: int, lowest: int | None) -> int:
    """The offset below which all is done: the given one, or the lowest that is held below it."""
    return offset if lowest is None else min(offset, lowest)


class _Locked:
    """The figures that only lock rows give: when rows are due, and how often they were handed
    out.
    """

    def __init__(self, reader: Reader, topic: Topic, now: int) -> None:
        self.due = self.redelivered = 0
        self.oldest_due: int | None = None
        self._reader = reader
        self._topic = topic
        self._now = now
        self._lowest: dict[int, int] = {}

    def add(self, key: LockKey, lock: Lock) -> None:
        """Adds a row; rows come in the order of due times."""
        lowest = self._lowest.get(key.queue)
        if lowest is None:
            lowest = self._reader.bounds(self._topic.base + key.queue).min_offset
            self._lowest[key.queue] = lowest
        # Messages before that offset count no more.
        count = (lock.locked >> max(0, lowest - key.first)).bit_count()
        if not count or key.due == PARKED:
            return
        if self.oldest_due is None:
            self.oldest_due = key.due
        self.due += count if key.due <= self._now else 0
        self.redelivered += count if lock.attempts > 1 else 0


def collect_group(
    tables: InflightTables,
    reader: Reader,
    topics: Topics,
    offsets: Offsets,
    group: GroupInfo,
    topic: Topic,
    now: int,
) -> GroupStats:
    """Reads a group's figures in a topic once."""
    locked = _Locked(reader, topic, now)
    table = tables.look(group.id, topic.id, locked.add)
    todo = [
        todo_of(reader, offsets, group, topic, queue, lambda: nullcontext(table))
        for queue in range(topic.read_queues)
    ]
    taken = sum(one.next_offset for one in todo if one.committed is not None)
    return GroupStats(
        group=group.name,
        topic=topic.name,
        end=sum(one.bounds.next_offset for one in todo),
        taken=taken - sum(one.parked for one in todo),
        unread=sum(one.unread for one in todo),
        in_flight=sum(one.in_flight for one in todo),
        due=locked.due,
        redelivered=locked.redelivered,
        lag=sum(one.lag for one in todo),
        oldest_due=locked.oldest_due,
        dead_letters=_dead_letters(reader, topics, offsets, group),
        passed_over=sum(one.passed_over for one in todo),
    )


def start_of(reader: Reader, offsets: Offsets, group: GroupInfo, topic: Topic, queue: int) -> int:
    """Where a group begins in a queue in which it never committed."""
    bounds = reader.bounds(topic.base + queue)
    if group.start == "begin":
        return bounds.min_offset
    if group.start == "end":
        return offsets.first_at(topic.base + queue, group.since, bounds)
    return first_at(reader, topic, queue, group.start, group.name)


def _dead_letters(reader: Reader, topics: Topics, offsets: Offsets, group: GroupInfo) -> int:
    try:
        letters = topics.get(group.dead_letters)
    except TopicNotFound:
        return 0
    count = 0
    for queue in range(letters.read_queues):
        bounds = reader.bounds(letters.base + queue)
        taken = offsets.get(group.id, letters.id, queue, bounds)
        count += bounds.next_offset - max(taken or 0, bounds.min_offset)
    return count
