"""The in-flight table: the messages of one topic that a group has under lock or parked.

The idea: rows of `locks` are the state. The table has only counters over them: messages by 1/8 s of
their due time, and by queue the offsets that the rows have (`QueueLocks`). It also has the key of
the first row as long as it is known, and the queues' next offsets. So RocksDB is not asked whether
anything is due, nor up to which offset all is done; and a search never begins among the tombstones
of rows that went before. A change is collected in a `Change`, written as one WriteBatch, and only
then taken into the counters.

Invariants:

- A message costs a bit, not an object.
- A row costs an object only if it was made with an attempt id.
- The counters agree with the rows between changes.
- A row is found by its key, or by being due, never by a search through all.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kvstore.index.keys import LOCKS, PARKED, LockKey, behind, lock_key, lock_prefix, read_lock_key
from kvstore.pop.inflight.counters import QueueLocks, Shelf
from kvstore.pop.inflight.lock_rows import Lock, pack_lock, unpack_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore.index.families import Batch, Families
    from kvstore.message import StoredMessage
    from kvstore.meta.groups import GroupInfo
    from kvstore.pop.inflight.counters import Tally
    from kvstore.pop.inflight.queue_order import Order

_BUCKET: Final = 7
"""Due times are counted by 1 << 7 ms."""
_births: Final = itertools.count()
_DUE_MAX: Final = PARKED - 1


class Waiter:
    """One pop that waits. `selective`: it wants only certain messages of the topic."""

    __slots__ = ("selective", "wake")

    def __init__(self, wake: Callable[[], None], *, selective: bool) -> None:
        self.wake = wake
        self.selective = selective


class Change:
    """The effect of one WriteBatch on an in-flight table."""

    __slots__ = (
        "added",
        "batch",
        "ended_of",
        "made_by",
        "next",
        "parked",
        "passed",
        "redelivered",
        "removed",
        "shrunk",
        "touched",
    )

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.added: dict[LockKey, int] = {}
        """Rows and the bitmaps of their messages."""
        self.redelivered: list[tuple[LockKey, int]] = []
        """Those of them whose messages were handed out before."""
        self.removed: list[tuple[LockKey, int]] = []
        self.shrunk: list[tuple[LockKey, int]] = []
        """Rows and the bitmaps of the messages that go from them."""
        self.parked: list[tuple[LockKey, int]] = []
        """Rows of parked messages and the bitmaps they have from now on."""
        self.touched = False
        """Whether rows that were there are shrunk or removed."""
        self.next: dict[int, int] = {}
        """Queue -> its new next offset."""
        self.passed: dict[int, int] = {}
        """Queue -> how many of its messages a filter has refused."""
        self.made_by: list[tuple[bytes, LockKey]] = []
        """Attempt ids and new rows that have one."""
        self.ended_of: list[tuple[bytes, LockKey]] = []
        """Attempt ids and rows that go."""

    def park(self, key: LockKey, lock: Lock) -> None:
        """Sets a row of parked messages as it is from now on; it goes if it has none."""
        self.parked.append((key, lock.locked))
        if lock.locked:
            self.batch.put(LOCKS, lock_key(*key), pack_lock(lock))
        else:
            self.batch.delete(LOCKS, lock_key(*key))

    def add(self, key: LockKey, lock: Lock) -> None:
        """Adds a new row."""
        self.batch.put(LOCKS, lock_key(*key), pack_lock(lock))
        self.added[key] = lock.locked
        if lock.attempts > 1:
            self.redelivered.append((key, lock.locked))
        if lock.attempt_id:
            self.made_by.append((lock.attempt_id, key))

    def shrink(self, key: LockKey, old: Lock, new: Lock) -> None:
        """Shrinks a row, which keeps only some of its messages; it goes if it keeps none."""
        if key.due == PARKED:
            self.park(key, new)
            return
        self.touched = True
        gone = old.locked & ~new.locked
        if new.locked:
            self.batch.put(LOCKS, lock_key(*key), pack_lock(new))
            self.shrunk.append((key, gone))
        else:
            self.batch.delete(LOCKS, lock_key(*key))
            self.removed.append((key, gone))
            if old.attempt_id:
                self.ended_of.append((old.attempt_id, key))

    def remove(self, key: LockKey, old: Lock) -> None:
        """Removes a row."""
        self.shrink(key, old, old._replace(locked=0))

    def __bool__(self) -> bool:
        return len(self.batch) > 0


class InflightTable:
    """A group's locks in one topic, see the module. Its user holds `lock`; a table that is `gone`
    is to be asked for anew from `InflightTables`.
    """

    def __init__(self, families: Families, group: int, topic: int, *, dead: bool = False) -> None:
        """`dead`: its group or topic is deleted, so it has nothing and takes nothing."""
        self.dead = dead
        self.group = group
        self.topic = topic
        self.lock = threading.RLock()
        self.gone = False
        self.rows = 0
        self.messages = 0
        """How many messages are locked."""
        self.next: dict[int, int] = {}
        """Queue -> its next offset, for the queues that were used and have one stored."""
        self.passed: dict[int, int] = {}
        """Queue -> how many of its messages filters have refused, where its next offset is known
        and there are any.
        """
        self.starts: dict[int, tuple[GroupInfo, tuple[int, int], int]] = {}
        """Queue without a next offset -> where its group would begin; before it the group as it was
        then, the queue's end, and the reader's mark. It holds for these.
        """
        self.turn = 0
        self.prefetched: dict[int, list[StoredMessage]] = {}
        """Queue -> messages that were read ahead of any pop, the next one last; see `ahead`."""
        self._read_mark = -1
        self.message_bytes = 1 << 30
        """About the size of the record read last, in bytes; much before any was read."""
        self.capped = False
        """Whether the group's cap on locked messages applied, as of the last claim."""
        self.waiters: set[Waiter] = set()
        self.asleep: OrderedDict[Waiter, None] = OrderedDict()
        """The waiters that were not woken since they looked last."""
        self.selective = 0
        """How many waiters are selective."""
        self.epoch = next(_births) << 32
        """Counts all changes to rows but adding new ones and removing whole ones. No two tables
        have the same epoch, not even one after the other.
        """
        self.order: Order | None = None
        """The message groups of an ordered group; None: not made yet."""
        self.parked_count = 0
        """How many messages are parked."""
        self.users = 0
        """How many hold the lock by `InflightTables.locked`: meanwhile the table is not let go."""
        self.tally: Tally | None = None
        """The group's tally, if it has one."""
        self.soonest = 0
        """No row is due before this time, ms since the epoch."""
        self.attempts: dict[bytes, list[bytes]] = {}
        """Attempt id -> the keys of its rows, for all rows that have one."""
        self._families = families
        self._prefix = lock_prefix(group, topic)
        self._end = behind(self._prefix)
        self._first: LockKey | None = None
        self._buckets = Shelf()
        """1/8 s -> how many messages are due in it: 0 only where no row is."""
        self._gone: dict[int, int] = {}
        """1/8 s -> how many of the messages that are due in it the store no longer had at the last
        look at figures.
        """
        self._queues: dict[int, QueueLocks] = {}
        self._knows_dues = False
        """Whether rows are also counted by the time they are due in each queue."""

    # --- counters ---

    def count(self, key: LockKey, lock: Lock) -> None:
        """Counts a row that was there before; parked rows are not locks."""
        if key.due == PARKED:
            self._park(key, lock.locked)
            return
        self.added(key, lock.locked)
        if lock.attempts > 1:
            self._queues[key.queue].redelivered.add(key.first, lock.locked)

    def may_be_due(self, now: int) -> bool:
        """Whether a row can be due; mostly without a look at RocksDB."""
        return self.rows > 0 and self.soonest <= now and self._earliest() <= now

    def added(self, key: LockKey, locked: int) -> None:
        """Counts a row that was written, with the bitmap of its messages."""
        _, _, due, queue, first = key
        messages = locked.bit_count()
        bucket, buckets = due >> _BUCKET, self._buckets.values
        there = buckets.get(bucket)
        if there:
            buckets[bucket] = there + messages
        else:
            self._buckets.put(bucket, messages)
        if not self.rows or bucket << _BUCKET < self.soonest:
            self.soonest = bucket << _BUCKET
        held = self._queues.get(queue) or self._held(queue)
        held.rows += 1
        if held.dues is not None:
            held.dues.add(bucket, 1)
        held.locked.add(first, locked)
        if first < held.gone_below:
            self._count_gone(bucket, _below(held.gone_below, first, locked))
        if not self.rows or (self._first is not None and key < self._first):
            self._first = key
        self.rows += 1
        self.messages += messages
        if self.tally is not None:
            self.tally.add(due, messages)

    def removed(self, key: LockKey, locked: int) -> None:
        """Uncounts a row that was removed, with the bitmap of its messages."""
        held = self._queues[key[3]]
        held.rows -= 1
        if held.dues is not None:
            held.dues.add(key[2] >> _BUCKET, -1)
        if key == self._first:
            self._first = None
        self.rows -= 1
        self._unlocked(key, locked)

    def _unlocked(self, key: LockKey, locked: int) -> None:
        """Uncounts messages that left a row."""
        _, _, due, queue, first = key
        held = self._queues[queue]
        held.locked.remove(first, locked)
        if held.redelivered.count:
            # The messages of a row were handed out equally often: all are in the set, or none is.
            again = held.redelivered.within(first, locked.bit_length()) & locked
            held.redelivered.remove(first, again)
        messages = locked.bit_count()
        bucket, buckets = due >> _BUCKET, self._buckets.values
        if first < held.gone_below:
            self._count_gone(bucket, -_below(held.gone_below, first, locked))
        left = buckets[bucket] - messages
        if left:
            buckets[bucket] = left
        else:
            self._buckets.put(bucket, 0)
        self.messages -= messages
        if self.tally is not None:
            self.tally.remove(due, messages)

    def _count_gone(self, bucket: int, count: int) -> None:
        left = self._gone.get(bucket, 0) + count
        if left:
            self._gone[bucket] = left
        else:
            self._gone.pop(bucket, None)

    def _park(self, key: LockKey, parked: int) -> None:
        held = self._queues.get(key.queue) or self._held(key.queue)
        before = held.parked.count
        held.parked.replace(key.first, parked)
        self.parked_count += held.parked.count - before

    def _held(self, queue: int) -> QueueLocks:
        found = self._queues[queue] = QueueLocks()
        if self._knows_dues:
            found.dues = Shelf()
        return found

    def apply(self, change: Change) -> None:
        """Counts a change that was written."""
        if change.touched:
            self.epoch += 1
        for key, locked in change.removed:
            self.removed(key, locked)
        for key, locked in change.shrunk:
            self._unlocked(key, locked)
        for key, locked in change.added.items():
            self.added(key, locked)
        for key, locked in change.redelivered:
            self._queues[key.queue].redelivered.add(key.first, locked)
        for key, parked in change.parked:
            self._park(key, parked)
        for attempt_id, key in change.ended_of:
            self._forget_attempt(attempt_id, lock_key(*key))
        for attempt_id, key in change.made_by:
            self.note_attempt(attempt_id, key)
        self.next.update(change.next)
        for queue, count in change.passed.items():
            self.passed[queue] = self.passed.get(queue, 0) + count

    def forget_next(self, queue: int) -> None:
        """Forgets a queue's next offset, which was set otherwise."""
        self.next.pop(queue, None)
        self.passed.pop(queue, None)

    def note_attempt(self, attempt_id: bytes, key: LockKey) -> None:
        """Remembers that a row was made by an attempt."""
        self.attempts.setdefault(attempt_id, []).append(lock_key(*key))

    def _forget_attempt(self, attempt_id: bytes, raw_key: bytes) -> None:
        rows = self.attempts.get(attempt_id, [])
        if raw_key in rows:
            rows.remove(raw_key)
        if not rows:
            self.attempts.pop(attempt_id, None)

    def rows_of(self, attempt_id: bytes) -> list[LockKey]:
        """The rows that pops with an attempt id made, as far as they are still there."""
        return [read_lock_key(raw) for raw in self.attempts.get(attempt_id, ())]

    def ahead(self, queue: int, mark: int) -> list[StoredMessage] | None:
        """The messages of a queue that were read ahead, the next one last. `mark` is the reader's:
        once anything left the log or its place, all are dropped, because they may be erased.
        """
        if mark != self._read_mark:
            self.prefetched = {}
            self._read_mark = mark
        return self.prefetched.get(queue)

    def clear(self) -> None:
        """Forgets rows and next offsets, which were changed otherwise; they are read anew."""
        self.rows = self.messages = 0
        self.epoch += 1
        self.next.clear()
        self.passed.clear()
        self.starts.clear()
        self.attempts.clear()
        self.prefetched = {}
        self.order = None
        self.parked_count = 0
        self._first = None
        self._buckets = Shelf()
        self._gone.clear()
        self._queues.clear()
        self._knows_dues = False
        if self.tally is not None:
            self.tally.is_stale = True

    def _earliest(self) -> int:
        """The beginning of the first 1/8 s that has rows; there is one."""
        first = self._buckets.first()
        assert first is not None
        self.soonest = first << _BUCKET
        return self.soonest

    def lowest(self, queue: int) -> int | None:
        """A queue's lowest offset that is locked or parked; None if there is none."""
        held = self._queues.get(queue)
        return None if held is None else held.lowest()

    def held_from(self, queue: int, offset: int) -> tuple[int, int, int]:
        """How many of a queue's messages from an offset on are locked, how many of these were
        handed out before, and how many are parked.
        """
        held = self._queues.get(queue)
        if held is None:
            return 0, 0, 0
        sets = held.locked, held.redelivered, held.parked
        locked, redelivered, parked = (offsets.count_from(offset) for offsets in sets)
        return locked, redelivered, parked

    def held(self, queue: int, first: int, size: int) -> int:
        """Which of a queue's messages from `first` to before `first` + `size` are locked or parked,
        as a bitmap.
        """
        held = self._queues.get(queue)
        if held is None:
            return 0
        return held.locked.within(first, size) | held.parked.within(first, size)

    # --- rows ---

    def due_figures(self, now: int, min_offset: Callable[[int], int]) -> tuple[int, int | None]:
        """How many messages are in rows that are due, and when the first row is or was due.
        `min_offset` says which messages of a queue count: those from that offset on.

        Rows that are due in the same 1/8 s as `now`, or as the first that counts, are read. All are
        at the first look after retention took locked messages.
        """
        last = now >> _BUCKET
        lowest = {queue: min_offset(queue) for queue, held in self._queues.items() if held.rows}
        self._note_gone(lowest)
        gone = sum(n for bucket, n in self._gone.items() if bucket < last)
        whole = sum(n for bucket, n in self._buckets.values.items() if bucket < last)
        part = self._from(last << _BUCKET, min(now + 1, _DUE_MAX))
        due = whole - gone + sum(self._counting(*row, lowest) for row in part)
        return due, self._first_counting(lowest)

    def _note_gone(self, lowest: dict[int, int]) -> None:
        """Counts the locked messages below queues' lowest offsets, where these have changed."""
        moved = {q: low for q, low in lowest.items() if low != self._queues[q].gone_below}
        if any(low < self._queues[queue].gone_below for queue, low in moved.items()):
            # Older messages were attached.
            self._gone.clear()
            for held in self._queues.values():
                held.gone_below = 0
            moved = lowest
        if any(self._queues[q].has_gone(low) for q, low in moved.items()):
            for key, lock in self.all():
                low = moved.get(key.queue)
                if low is not None and key.first < low:
                    bits = lock.locked & self.held(key.queue, key.first, lock.locked.bit_length())
                    known = _below(self._queues[key.queue].gone_below, key.first, bits)
                    count = _below(low, key.first, bits) - known
                    if count:
                        self._count_gone(key.due >> _BUCKET, count)
        for queue, low in moved.items():
            self._queues[queue].gone_below = low

    def _first_counting(self, lowest: dict[int, int]) -> int | None:
        """When the first row with a message that counts is due."""
        if not self._gone:
            return self.next_due()
        gone = self._gone
        counting = (b for b, n in self._buckets.values.items() if n > gone.get(b, 0))
        first = min(counting, default=None)
        if first is None:
            return None
        rows = self._from(first << _BUCKET, min((first + 1) << _BUCKET, _DUE_MAX))
        return next((key.due for key, lock in rows if self._counting(key, lock, lowest)), None)

    def _counting(self, key: LockKey, lock: Lock, lowest: dict[int, int]) -> int:
        """How many of a row's messages are from a queue's lowest offset on. A read-only store's row
        may name messages that the log lost: they are not counted.
        """
        held = lock.locked & self.held(key.queue, key.first, lock.locked.bit_length())
        return (held >> max(0, lowest.get(key.queue, 0) - key.first)).bit_count()

    def next_due(self) -> int | None:
        """When the first row is due, ms since the epoch; None if there is none."""
        if not self.rows:
            return None
        if self._first is None:
            self._first = next((key for key, _ in self._from(self._earliest(), _DUE_MAX)), None)
        return None if self._first is None else self._first.due

    def due(self, now: int) -> Iterator[tuple[LockKey, Lock]]:
        """The rows that are due, oldest first, as they were when this began."""
        if not self.rows or self._earliest() > now:
            return
        if self._first is not None:
            if self._first.due > now:
                return
            start = lock_key(*self._first)
        else:
            start = lock_key(self.group, self.topic, self._earliest(), 0, 0)
        end = lock_key(self.group, self.topic, min(now, _DUE_MAX) + 1, 0, 0)
        for key, value in self._families.rows(LOCKS, start, end):
            yield read_lock_key(key), unpack_lock(value)

    def due_of(self, queue: int, now: int) -> Iterator[tuple[LockKey, Lock]]:
        """The due rows of one queue: rows of other queues are looked at only if they are due in the
        same 1/8 s.
        """
        held = self._queues.get(queue)
        if held is None or not held.rows or not self.may_be_due(now):
            return
        for bucket in self._due_buckets(held, now):
            end = min((bucket + 1) << _BUCKET, min(now, _DUE_MAX) + 1)
            for key, lock in self._from(bucket << _BUCKET, end):
                if key.queue == queue:
                    yield key, lock

    def _due_buckets(self, held: QueueLocks, now: int) -> Iterator[int]:
        if not self._knows_dues:
            self._learn_dues()
        dues = held.dues
        assert dues is not None
        first = dues.first()
        if first is None or first << _BUCKET > now:
            return
        yield first  # mostly no more is asked for
        yield from sorted(
            number
            for number, rows in dues.values.items()
            if rows and first < number and number << _BUCKET <= now
        )

    def _learn_dues(self) -> None:
        for held in self._queues.values():
            held.dues = Shelf()
        for key, _ in self.all():
            dues = self._queues[key.queue].dues
            assert dues is not None
            dues.add(key.due >> _BUCKET, 1)
        self._knows_dues = True

    def all(self) -> Iterator[tuple[LockKey, Lock]]:
        """Every row that locks something, in the order of due times."""
        return self._from(0, _DUE_MAX)

    def parked(self) -> Iterator[tuple[LockKey, Lock]]:
        """The rows of parked messages."""
        return self._from(PARKED, None)

    def _from(self, first_due: int, end_due: int | None) -> Iterator[tuple[LockKey, Lock]]:
        start = lock_key(self.group, self.topic, first_due, 0, 0)
        end = self._end if end_due is None else lock_key(self.group, self.topic, end_due, 0, 0)
        for key, value in self._families.rows(LOCKS, start, end):
            yield read_lock_key(key), unpack_lock(value)

    def get(self, key: LockKey) -> Lock | None:
        """A row's value, or None."""
        value = self._families.get(LOCKS, lock_key(*key))
        return None if value is None else unpack_lock(value)

    def free_key(self, change: Change, queue: int, first: int, due: int) -> LockKey:
        """A key for a new row, `due` then or a little later: never that of another row."""
        key = LockKey(self.group, self.topic, due, queue, first)
        while key in change.added or self.get(key) is not None:
            key = key._replace(due=key.due + 1)
        return key


def _below(offset: int, first: int, bits: int) -> int:
    """How many of the offsets that a row's bitmap names are below one."""
    return (bits & ((1 << min(max(0, offset - first), bits.bit_length())) - 1)).bit_count()
