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

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kvstore.core.popping.inflight import Change, InflightRows
from kvstore.core.popping.offset_sets import QueueLocks, Shelf, below
from kvstore.index.keys import LOCKS, PARKED, LockKey, behind, lock_key, lock_prefix, read_lock_key
from kvstore.pop.inflight.lock_rows import Lock, unpack_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore.index.families import Families
    from kvstore.meta.groups import GroupInfo

_BUCKET: Final = 7
"""Due times are counted by 1 << 7 ms."""
_DUE_MAX: Final = PARKED - 1
_QUEUE_AT: Final = 16
"""Where the queue, and behind it the first offset, stand in a row's key."""
_DUE: Final = LockKey._fields.index("due")


class Waiter:
    """One pop that waits. `limit`: it takes so many messages at most. `selective`: it wants only
    certain messages of the topic.
    """

    __slots__ = ("limit", "selective", "wake")

    def __init__(self, wake: Callable[[], None], limit: int, *, selective: bool) -> None:
        self.wake = wake
        self.limit = limit
        self.selective = selective


class InflightTable(InflightRows):
    """A group's locks in one topic, see the module. Its user holds `lock`; a table that is `gone`
    is to be asked for anew from `InflightTables`.
    """

    def __init__(
        self,
        families: Families,
        group: int,
        topic: int,
        known: dict[LockKey, Lock],
        *,
        dead: bool = False,
    ) -> None:
        """`dead`: its group or topic is deleted, so it has nothing and takes nothing."""
        super().__init__(group, topic, known)
        self.dead = dead
        self.lock = threading.RLock()
        self.gone = False
        self.is_read = False
        """Whether the group's rows were read, so that all of them are counted."""
        self.starts: dict[int, tuple[GroupInfo, tuple[int, int], int]] = {}
        """Queue without a next offset -> where its group would begin; before it the group as it was
        then, the queue's end, and the reader's mark. It holds for these.
        """
        self.message_bytes = 1 << 30
        """About the size of the record read last, in bytes; much before any was read."""
        self.capped = False
        """Whether the group's cap on locked messages applied, as of the last claim."""
        self.waiters: set[Waiter] = set()
        self.asleep: OrderedDict[Waiter, None] = OrderedDict()
        """The waiters that were not woken since they looked last."""
        self.selective = 0
        """How many waiters are selective."""
        self._families = families
        self._prefix = lock_prefix(group, topic)
        self._end = behind(self._prefix)

    # --- counters ---

    def count(self, key: LockKey, lock: Lock) -> None:
        """Counts a row that was there before; parked rows are not locks."""
        if key.due == PARKED:
            self.park(key, lock.locked)
            return
        self.added(key, lock.locked)
        if lock.attempts > 1:
            self.redeliver(key, lock.locked)

    def forget_next(self, queue: int) -> None:
        """Forgets a queue's next offset, which was set otherwise."""
        self.next.pop(queue, None)
        self.passed.pop(queue, None)
        self.expired.pop(queue, None)

    def rows_of(self, attempt_id: bytes) -> list[LockKey]:
        """The rows that pops with an attempt id made, as far as they are still there."""
        return [read_lock_key(raw) for raw in self.attempts.get(attempt_id, ())]

    def rows_with_attempts(self, queue: int, first: int) -> list[LockKey]:
        """The rows, of those made with an attempt id, that begin at an offset of a queue."""
        end = lock_key(0, 0, 0, queue, first)[_QUEUE_AT:]
        raw = (one for rows in self.attempts.values() for one in rows)
        return [read_lock_key(one) for one in raw if one.endswith(end)]

    def clear(self) -> None:
        """Forgets rows and next offsets, which were changed otherwise; they are read anew."""
        self.forget_rows()
        self.next.clear()
        self.passed.clear()
        self.expired.clear()
        self.starts.clear()
        self.attempts.clear()
        if self.tally is not None:
            self.tally.is_stale = True

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
                    known = below(self._queues[key.queue].gone_below, key.first, bits)
                    count = below(low, key.first, bits) - known
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
            self._first = next((key for key, _ in self._from(self.first_due(), _DUE_MAX)), None)
        return None if self._first is None else self._first[_DUE]

    def due(self, now: int) -> Iterator[tuple[LockKey, Lock]]:
        """The rows that are due, oldest first, as they were when this began."""
        if not self.rows or self.first_due() > now:
            return
        if self._first is not None:
            if self._first[_DUE] > now:
                return
            start = lock_key(*self._first)
        else:
            start = lock_key(self.group, self.topic, self.first_due(), 0, 0)
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

    def rows_from(self, due: int, queue: int, first: int) -> Iterator[tuple[LockKey, Lock]]:
        """As `all`, from a row on, whether it is there or not."""
        return self._from(due, _DUE_MAX, queue, first)

    def parked(self) -> Iterator[tuple[LockKey, Lock]]:
        """The rows of parked messages."""
        return self._from(PARKED, None)

    def _from(
        self, first_due: int, end_due: int | None, queue: int = 0, first: int = 0
    ) -> Iterator[tuple[LockKey, Lock]]:
        start = lock_key(self.group, self.topic, first_due, queue, first)
        end = self._end if end_due is None else lock_key(self.group, self.topic, end_due, 0, 0)
        for key, value in self._families.rows(LOCKS, start, end):
            yield read_lock_key(key), unpack_lock(value)

    def get(self, key: LockKey) -> Lock | None:
        """A row's value, or None."""
        found = self.known.get(key)
        if found is not None:
            return Lock._make(found)
        value = self._families.get(LOCKS, lock_key(*key))
        return None if value is None else unpack_lock(value)

    def has(self, key: LockKey, nonce: int) -> bool:
        """Whether a row is there, and of the delivery with a nonce."""
        lock = self.get(key)
        return lock is not None and lock.nonce == nonce

    def free_key(self, change: Change, queue: int, first: int, due: int) -> LockKey:
        """A key for a new row, `due` then or a little later: never that of another row."""
        key = LockKey(self.group, self.topic, due, queue, first)
        while key in change.added or self.get(key) is not None:
            key = key._replace(due=key.due + 1)
        return key
