"""The in-flight tables of a store: each is made when its group is first used, from its lock rows.

The idea: opening reads nothing; the first use of a group reads its rows once, for the counters.
Rows from before an unclean opening are cut to the messages that the log still had then. When there
are many tables, each new one looks at some of the others, in turn, and lets go those without rows.

Reading many messages at once costs a third of reading each when it is wanted. So a table keeps, per
queue, a list of the next messages, the next one last (`prefetch`): taking a message takes the end
of the list.

Invariants: there is one table for a group and topic at a time, and none is let go that has a row or
a user; a row that names messages the log lost is cut before anybody sees it. A list of messages has
consecutive offsets; nothing that left the log or its place since it was read is handed out, because
it may be erased. Each pop checks that the list begins at the queue's next offset. So a reset may
set that offset and need not clear the list.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Final

from kvstore.core.messages import record_bytes
from kvstore.core.popping.inflight import Change, pack_lock
from kvstore.errors import ArchiveUnavailable, IndexDamaged
from kvstore.index.families import Families, Row
from kvstore.index.keys import LOCKS, OFFSETS, U32, LockKey, behind, lock_prefix, read_lock_key
from kvstore.message import Bounds, StoredMessage
from kvstore.meta.id_set import IdSet
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic
from kvstore.pop.inflight.counters import Tally
from kvstore.pop.inflight.lock_rows import SPAN, Lock, unpack_lock
from kvstore.pop.inflight.table import InflightTable
from kvstore.process.locks import is_mine
from kvstore.read.cold import READ_ERRORS
from kvstore.read.pull import fetch
from kvstore.read.reader import Reader

AHEAD: Final = 1024
_AHEAD_BYTES: Final = 512 << 10
"""Behind the messages that a pop wants, a table reads at most `AHEAD` messages ahead, and this many
bytes, in all its queues.
"""
_ALL: Final = (1 << SPAN) - 1
_KEPT_MAX: Final = 1 << 16
LOOKED_AT: Final = 4
"""Tables that are looked at for each new one, where there are too many. More than one, so that
there are fewer again after many could not be let go.
"""
ENDED_MAX: Final = 1 << 16
_PREFETCHED_MAX: Final = 64
"""Tables that may have read ahead, half a megabyte each."""


def prefetch(
    table: InflightTable,
    reader: Reader,
    topic: Topic,
    queue: int,
    at: int,
    count: int,
    max_bytes: int | None = None,
) -> list[StoredMessage]:
    """A table's list for a queue that goes on at `at`. Both `at` and `at` + `count` - 1 are inside
    the bounds. The list has `count` messages, and more if they are small. It has fewer only where
    damage or messages that are not held any more follow, or where `count` messages exceed
    `max_bytes`. It begins behind `at` if that message is not held. Raises every error of reading.
    """
    kept = table.ahead(queue, reader.mark())
    if not kept or kept[-1].offset != at:
        kept = []
    wanted = count - len(kept)
    most = min(AHEAD, _AHEAD_BYTES // table.message_bytes) // topic.read_queues
    first = kept[0].offset + 1 if kept else at
    # The caller wants `wanted` of them whatever their size; only what comes behind them is bounded.
    is_bounded = max_bytes is not None or most > wanted
    room = max(max_bytes or 0, _AHEAD_BYTES // topic.read_queues) if is_bounded else None
    found = fetch(reader, topic, queue, first, max(wanted, most), room)
    if not found or (kept and found[0].offset != first):
        return kept
    reaches = found[-1].offset + 1
    if is_bounded and max_bytes is None and reaches == first + len(found) < first + wanted:
        found += _rest(reader, topic, queue, reaches, first + wanted - reaches)
    if found[-1].offset - found[0].offset != len(found) - 1:
        del found[_before_gap(found) :]
    table.message_bytes = max(1, record_bytes(found) // len(found))
    found.reverse()
    found += kept
    table.prefetched[queue] = found
    return found


def _rest(reader: Reader, topic: Topic, queue: int, at: int, count: int) -> list[StoredMessage]:
    """Up to `count` messages from `at` on, to damage; none if the first of them can't be read."""
    try:
        return fetch(reader, topic, queue, at, count, None)
    except (*READ_ERRORS, ArchiveUnavailable):
        return []


def _before_gap(messages: list[StoredMessage]) -> int:
    """How many messages come before the first gap."""
    first = messages[0].offset
    return next(i for i, m in enumerate(messages) if m.offset != first + i)


class InflightTables:
    """The tables of a store, by group and topic; see the module."""

    def __init__(
        self, families: Families, offsets: Offsets, bounds: Callable[[int], Bounds]
    ) -> None:
        self._families = families
        self._bounds = bounds
        self._offsets = offsets
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[int, int], InflightTable] = OrderedDict()
        """First the one that was made, or looked at, longest ago."""
        self._ahead: OrderedDict[tuple[int, int], InflightTable] = OrderedDict()
        self._by_group: dict[int, dict[int, InflightTable]] = {}
        self._by_topic: dict[int, dict[int, InflightTable]] = {}
        self._dead_groups = IdSet()
        self._dead_topics = IdSet()
        """Deleted ids; none is given again."""
        self._groups = IdSet()
        """The groups whose rows were read."""
        self._tallies: dict[int, Tally] = {}
        """The tallies of the groups that are counted."""
        self.ended: OrderedDict[int, int] = OrderedDict()
        """Nonce -> the bits that can't be acked any more, for the rows that ended last; above them
        how many times a group had been set back by then.
        """
        self.renewed: OrderedDict[int, int] = OrderedDict()
        """Nonce -> the due time of its row now, for rows that were renewed, as far as it is known.
        """
        self.expired = 0
        """How many messages pops passed over because they had expired."""
        self.again = 0
        """How many messages pops handed out for a second attempt or a later one."""
        self.known: dict[LockKey, Lock] = {}
        """See `InflightTable.known`."""
        self._ages = 0
        self._set_back: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        """Group, topic and queue -> when it was set back and to which offset, oldest first, without
        those that a later one covers: so offsets rise.
        """
        self._settings = 0
        """How many set-backs there are in all."""

    def get(self, group: int, topic: int) -> InflightTable:
        """A group's table in a topic; made if there is none."""
        table = self._tables.get((group, topic))
        if table is None or not table.is_read:
            if group in self._dead_groups:
                return self._dead(group, topic)
            self._ensure(group)
            with self._lock:
                table = self._tables.get((group, topic))
                if group in self._dead_groups or topic in self._dead_topics:
                    return self._dead(group, topic)
                if table is None:
                    table = self._make(group, topic)
        return table

    def known_table(self, group: int, topic: int) -> InflightTable | None:
        """A table that is in memory, with its group's rows; None if that takes a look at them."""
        table = self._tables.get((group, topic))
        return table if table is not None and table.is_read else None

    def _dead(self, group: int, topic: int) -> InflightTable:
        return InflightTable(self._families, group, topic, {}, dead=True)

    def _ensure(self, group: int) -> None:
        """Reads a group's rows if that was not done."""
        if group not in self._groups:
            with self._lock:
                if group not in self._groups:
                    self._load(group)
                    self._groups.update((group,))
                    for table in self._by_group.get(group, {}).values():
                        table.is_read = True

    def find(self, group: int, topic: int) -> InflightTable | None:
        """A table, if there is one; there is one wherever messages are locked."""
        self._ensure(group)
        return self._tables.get((group, topic))

    @contextmanager
    def locked(self, group: int, topic: int) -> Iterator[InflightTable]:
        """A table, with its lock held."""
        while True:
            table = self.get(group, topic)
            with table.lock:
                if table.gone:
                    continue
                yield table
                return

    def _make(self, group: int, topic: int) -> InflightTable:
        if len(self._tables) >= _KEPT_MAX:
            self._evict()
        table = self._tables[group, topic] = InflightTable(self._families, group, topic, self.known)
        table.tally = self._tallies.get(group)
        table.is_read = group in self._groups
        self._by_group.setdefault(group, {})[topic] = table
        self._by_topic.setdefault(topic, {})[group] = table
        return table

    def _evict(self) -> None:
        for key in list(islice(self._tables, LOOKED_AT)):
            table = self._tables[key]
            self._tables.move_to_end(key)
            if is_mine(table.lock):
                continue
            try:
                if table.lock.acquire(blocking=False) and not (
                    table.rows or table.parked_count or table.waiters
                ):
                    self._remove(table)
            finally:
                try:  # noqa: SIM105  # see kvstore.process.locks
                    table.lock.release()
                except RuntimeError:
                    pass  # it was not taken

    def busy_tables(self, group: int) -> list[InflightTable]:
        """A group's tables that have locked messages."""
        self._ensure(group)
        with self._lock:
            return [f for f in self._by_group.get(group, {}).values() if f.messages]

    def count(self, group: int) -> None:
        """Counts a group's live locks from now on. No table's lock is held."""
        found = self._tallies.get(group)
        if found is not None and not found.is_stale:
            return
        self._ensure(group)
        with self._lock:
            tally = self._tallies[group] = Tally()
            tables = list(self._by_group.get(group, {}).values())
        for table in tables:
            with table.lock:
                if not table.gone and table.tally is not tally:
                    for key, lock in table.all():
                        tally.add(key.due, lock.locked.bit_count())
                    table.tally = tally

    def live_at(self, group: int, now: int) -> int:
        """How many of a group's messages are under live locks, in all topics; the group is
        counted.
        """
        return self._tallies[group].live_at(now)

    def next_due(self, table: InflightTable) -> int | None:
        """The next time at which a waiter of a table may find something, ms since the epoch: a lock
        of the table runs out, or any lock of its group if that makes room. None if there is no such
        time.
        """
        tables = self.busy_tables(table.group) if table.capped else [table]
        found = []
        for one in tables:
            with one.lock:
                found.append(one.next_due())
        return min((due for due in found if due is not None), default=None)

    @contextmanager
    def deleting(self, groups: Collection[int], topics: Collection[int]) -> Iterator[None]:
        """Around deleting groups and topics, by their ids: meanwhile and ever after, none of their
        messages is handed out and none of their rows is written.
        """
        with self._lock:
            self._dead_groups.update(groups)
            self._dead_topics.update(topics)
            found = {
                (table.group, table.topic): table
                for kept, ids in ((self._by_group, groups), (self._by_topic, topics))
                for number in ids
                for table in kept.get(number, {}).values()
            }
        with ExitStack() as held:
            # In the order in which every thread takes several locks.
            for at in sorted(found):
                held.enter_context(found[at].lock)
            try:
                yield
            except BaseException:
                with self._lock:
                    self._dead_groups.difference_update(groups)
                    self._dead_topics.difference_update(topics)
                raise

    def forget_group(self, group: int) -> list[InflightTable]:
        """Forgets a deleted group; returns its tables."""
        tables = self._forget(self._by_group, group)
        self._forget_set_back(0, group)
        with self._lock:
            self._groups.difference_update((group,))
            self._tallies.pop(group, None)
        return tables

    def forget_topic(self, topic: int) -> list[InflightTable]:
        """Forgets a deleted topic; returns its tables."""
        self._forget_set_back(1, topic)
        return self._forget(self._by_topic, topic)

    def _forget_set_back(self, part: int, number: int) -> None:
        with self._lock:
            for kept in [kept for kept in list(self._set_back) if kept[part] == number]:
                self._settings -= len(self._set_back.pop(kept, ()))

    def _forget(
        self, kept: dict[int, dict[int, InflightTable]], number: int
    ) -> list[InflightTable]:
        with self._lock:
            tables = list(kept.get(number, {}).values())
            for table in tables:
                self._remove(table)
                if table.tally is not None:
                    table.tally.is_stale = True
        return tables

    def _remove(self, table: InflightTable) -> None:
        table.gone = True
        group, topic = table.group, table.topic
        del self._tables[group, topic]
        self._ahead.pop((group, topic), None)
        for kept, one, other in ((self._by_group, group, topic), (self._by_topic, topic, group)):
            del kept[one][other]
            if not kept[one]:
                del kept[one]

    def note_prefetch(self, table: InflightTable) -> None:
        """Marks that a table has read ahead. If there are many such tables, the one that did so
        longest ago drops its messages.
        """
        ahead = self._ahead
        ahead[table.group, table.topic] = table
        ahead.move_to_end((table.group, table.topic))
        if len(ahead) > _PREFETCHED_MAX:
            # A reader that is at it right now goes on with the list it has.
            ahead.popitem(last=False)[1].prefetched = {}

    # --- changes ---

    def write(self, table: InflightTable, change: Change) -> None:
        """Writes a change as one batch, and only then takes it into its table, whose lock is held.
        A write that raised has changed nothing.
        """
        if change.next:
            offsets = self._offsets.pop_rows(table.group, table.topic, table.positions(change))
            self._families.write_rows((LOCKS, change.rows), (OFFSETS, offsets))
        else:
            self._families.write_rows((LOCKS, change.rows))
        table.apply(change)
        for _, lock, bad in change.removed:
            self.end(lock[2], bad)
        if change.has_expired:
            with self._lock:
                self.expired += sum(change.expired.values())

    def note_again(self, count: int) -> None:
        """Counts messages that were handed out once more."""
        with self._lock:
            self.again += count

    # --- what is remembered of rows ---

    def end(self, nonce: int, bad: int) -> None:
        """Remembers that a row ended: its `bad` bits can't be acked any more, its others were
        acked.
        """
        if len(self.ended) >= ENDED_MAX:
            self.ended.popitem(last=False)
        self.ended[nonce] = bad | self._ages
        if self.renewed:
            self.renewed.pop(nonce, None)

    def present(self, table: InflightTable, key: LockKey, nonce: int) -> LockKey:
        """Where the row is now that a receipt names by its first key. After the store was opened
        again, renewed rows are found only if they were popped with an attempt id. The table's lock
        is held.
        """
        due = self.renewed.get(nonce)
        if due is not None:
            return key._replace(due=due)
        if nonce in self.ended or not table.attempts or table.has(key, nonce):
            return key
        for found in table.rows_with_attempts(key.queue, key.first):
            if table.has(found, nonce):
                self.note_renewed(nonce, found.due)
                return found
        return key

    def note_renewed(self, nonce: int, due: int) -> None:
        """Remembers that a row was moved as it is, and so has not ended."""
        if len(self.renewed) >= ENDED_MAX:
            self.renewed.popitem(last=False)
        self.renewed[nonce] = due
        self.ended.pop(nonce, None)

    def set_back(self, group: int, topic: int, queue: int, offset: int) -> None:
        """Remembers that a queue's messages from an offset on are unread again for a group: earlier
        acks of them are void.
        """
        if not self.ended:
            return
        with self._lock:
            if self._settings >= ENDED_MAX:
                # Then it is as after a restart.
                self.ended.clear()
                self._set_back.clear()
                self._settings = 0
            self._ages += 1 << SPAN
            settings = self._set_back.setdefault((group, topic, queue), [])
            while settings and settings[-1][1] >= offset:
                settings.pop()
                self._settings -= 1
            settings.append((self._ages, offset))
            self._settings += 1

    def bad_of(self, key: LockKey, nonce: int) -> int | None:
        """The bits of an ended row that can't be acked any more; None if they are forgotten."""
        found = self.ended.get(nonce)
        if found is None:
            return None
        bad = found & _ALL
        for age, offset in self._set_back.get((key.group, key.topic, key.queue), ()):
            if found - bad < age:
                return bad | _ALL & ~((1 << min(SPAN, max(0, offset - key.first))) - 1)
        return bad

    # --- loading ---

    def reload(self, table: InflightTable) -> None:
        """Makes a table forget rows and offsets that were changed otherwise. Its lock is held."""
        table.clear()
        self._read(lock_prefix(table.group, table.topic))

    def next_of(self, table: InflightTable, queue: int) -> int | None:
        """A queue's next offset; None where the group has none yet."""
        found = table.next.get(queue)
        if found is None:
            bounds = self._bounds(table.topic << 32 | queue)
            found = self._offsets.get(table.group, table.topic, queue, bounds)
        return found

    def _load(self, group: int) -> None:
        self._read(U32.pack(group))

    def _read(self, prefix: bytes) -> None:
        group = U32.unpack_from(prefix)[0]
        # Cutting may have to be tried again, and nothing may be counted twice then.
        for key, lock in list(self._rows(prefix)):
            table = self._tables.get((group, key.topic)) or self._make(group, key.topic)
            table.count(key, lock)
            self._offsets.may_move(group, key.topic)
            if lock.attempt_id:
                table.note_attempt(lock.attempt_id, key)

    def _rows(self, prefix: bytes) -> Iterator[tuple[LockKey, Lock]]:
        """The rows whose keys begin with a prefix, as they hold for the log there is."""
        for raw, value in self._families.rows(LOCKS, prefix, behind(prefix)):
            key, lock = read_lock_key(raw), unpack_lock(value)
            if lock.recoveries < self._offsets.recoveries:
                lock = self._cut(key, lock)
            if lock.locked:
                yield key, lock

    def cut_rows(self) -> Iterator[Row]:
        """The rows of all groups that name messages which the log lost, as they hold for the log
        there is. No row is in use.
        """
        for raw, value in self._families.rows(LOCKS, b""):
            try:
                key, lock = read_lock_key(raw), unpack_lock(value)
            except IndexDamaged:
                continue  # the first use of its group tells
            cut = self._held(key, lock)
            if cut.locked != lock.locked:
                yield LOCKS, raw, pack_lock(cut) if cut.locked else None

    def _cut(self, key: LockKey, lock: Lock) -> Lock:
        """A row as it holds for the log there is; it is written so, where that may be."""
        cut = self._held(key, lock)
        if not self._families.read_only:
            change = Change()
            change.shrink(key, lock, cut)
            self._families.write_rows((LOCKS, change.rows))
        return cut

    def _held(self, key: LockKey, lock: Lock) -> Lock:
        """A row without the messages that the log lost."""
        queue = key.topic << 32 | key.queue
        last = key.first + lock.locked.bit_length()
        held = self._offsets.clamped(queue, last, lock.recoveries, self._bounds(queue))
        kept = lock.locked & ((1 << max(0, held - key.first)) - 1)
        return lock._replace(locked=kept, recoveries=self._offsets.recoveries)
