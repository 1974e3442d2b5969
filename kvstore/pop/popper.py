"""Wires the parts of popping together for one open store.

The idea: pop, ack and the dead letters share the in-flight tables, the receipts and the waiters.
Other changes to offsets, topics and groups have to take the locks along: they do so by the hooks
that this module sets.

Invariant: the rows of `locks` go with their group or topic, and with a reset, in the same
WriteBatch.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from kvstore.errors import InFlight
from kvstore.index.families import Batch
from kvstore.index.keys import (
    LOCKS,
    U32,
    behind,
    lock_key,
    lock_prefix,
    read_lock_key,
)
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Commit
from kvstore.meta.topics import Topic, TopicInfo
from kvstore.pop.ack import Acks
from kvstore.pop.context import PopContext
from kvstore.pop.dead_letters import Redrive
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import ENDED_MAX
from kvstore.pop.pop import Pop
from kvstore.pop.renewed_rows import RenewedRows

Tables = dict[tuple[int, int], InflightTable]
"""By group and topic."""


class Popper:
    """The parts of popping in an open store; see the module."""

    def __init__(self, context: PopContext) -> None:
        self.waiting = context.waiting
        self.tables = context.tables
        self._families = context.families
        self.pop = Pop(context)
        self.acks = Acks(context, self.pop.counted, self.pop.bury)
        self.renewed_rows = RenewedRows(context, self.pop.counted)
        self.redrive = Redrive(context)
        groups, topics, offsets = context.groups, context.topics, context.offsets
        groups.removing.append(self._removing_group)
        groups.removed.append(lambda info: self._end(self.tables.forget_group(info.id)))
        topics.created = self.waiting.topics_made
        topics.removing.append(self._removing_topic)
        topics.removed.append(lambda info: self._end(self.tables.forget_topic(info.id)))
        offsets.resetting.append(self._resetting)

    def _end(self, tables: list[InflightTable]) -> None:
        """Wakes the waiters of tables that are gone: they learn that the group or topic is."""
        for table in tables:
            self.waiting.changed(table)
        for group in {table.group for table in tables}:
            self.waiting.made_room(group)

    # --- other changes that take locks along ---

    def _removing_group(self, batch: Batch, group: GroupInfo) -> None:
        batch.delete_range(LOCKS, U32.pack(group.id), U32.pack(group.id + 1))

    def _removing_topic(self, batch: Batch, topic: TopicInfo) -> None:
        # One seek for each group that has any locks.
        it, families, group = self._families.iter(LOCKS), self._families, 0
        while True:
            it.seek(lock_prefix(group, topic.id))
            if not families.valid(it):
                return
            key = read_lock_key(it.key())
            if key.topic == topic.id:
                prefix = lock_prefix(key.group, topic.id)
                batch.delete_range(LOCKS, prefix, behind(prefix))
            elif key.topic < topic.id:
                group = key.group
                continue
            group = key.group + 1

    @contextmanager
    def _resetting(
        self, batch: Batch, group: GroupInfo, topic: Topic, offsets: Mapping[int, int]
    ) -> Iterator[None]:
        with (
            self.pop.counted(group),
            self.tables.locked(group.id, topic.id) as table,
        ):
            ended: dict[int, int] = {}
            read = {queue: self.tables.next_of(table, queue) or 0 for queue in offsets}
            for key, lock in itertools.chain(table.all(), table.parked()):
                if key.queue in offsets:
                    batch.delete(LOCKS, lock_key(*key))
                    if len(ended) < ENDED_MAX:
                        ended[lock.nonce] = lock.locked | lock.moved
            try:
                yield
            finally:
                self.tables.reload(table)
            for nonce, bad in ended.items():
                self.tables.end(nonce, bad)
            for queue, offset in offsets.items():
                if offset < read[queue]:
                    self.tables.set_back(group.id, topic.id, queue, offset)
            self.waiting.made_room(group.id)
            self.waiting.changed(table)

    @contextmanager
    def committing(self, commits: Collection[Commit]) -> Iterator[None]:
        """Around committing offsets, which `InFlight` refuses where messages are locked."""
        with self.setting(commits) as tables:
            for group, topic, queue, offset in commits:
                if tables[group, topic].lowest(queue) is not None:
                    raise InFlight(
                        f"offset {offset} can't be committed: messages of queue {queue} are locked "
                        "by this group; ack them, or use reset_offset"
                    )
            back = [
                c
                for c in commits
                if self.tables.ended and c.offset < (self._next_of(tables, c) or 0)
            ]
            yield
            for commit in back:
                self.tables.set_back(*commit)

    @contextmanager
    def setting(self, commits: Collection[Commit]) -> Iterator[Tables]:
        """Around writing offsets: nothing is popped meanwhile from these topics by these groups. An
        offset that goes back, or is the first, may bring messages for which a pop waits; one that
        goes forward brings none, so it wakes nobody. Gives the tables by group and topic.
        """
        with ExitStack() as held:
            tables: Tables = {}
            for group, topic in sorted({(c.group, c.topic) for c in commits}):
                # Also where there is no table yet: a first pop must not come in between.
                tables[group, topic] = held.enter_context(self.tables.locked(group, topic))
            # A pop that begins to wait from here on looks after the offsets were written.
            back = {tables[c.group, c.topic] for c in commits if self._may_bring(tables, c)}
            yield tables
            for group, topic, queue, _ in commits:
                tables[group, topic].forget_next(queue)
            for table in back:
                self.waiting.changed(table)

    def _may_bring(self, tables: Tables, commit: Commit) -> bool:
        """Whether a pop may wait for messages that a commit makes unread."""
        if not tables[commit.group, commit.topic].waiters:
            return False
        before = self._next_of(tables, commit)
        return before is None or commit.offset < before

    def _next_of(self, tables: Tables, commit: Commit) -> int | None:
        return self.tables.next_of(tables[commit.group, commit.topic], commit.queue)
