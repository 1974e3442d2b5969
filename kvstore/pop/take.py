"""A claim: one look for messages to hand out, and the one change that locks them.

The idea: rows that are due come first, then unread messages, queue by queue, until there are
enough. The messages taken are collected with the change that will lock them. The caller writes the
change, and only then are the receipts made. (docs/pop.md)

Invariants: nothing is changed before the change is written, and nothing but by it; a message is in
one row at most; every message that is passed over (refused by the filter, lost to damage, deleted
by retention) is done by the same change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from kvstore.clock import Clock, cut_ms
from kvstore.errors import ArchiveMissing, ArchiveUnavailable
from kvstore.index.keys import LockKey, lock_key
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.pop.inflight.lock_rows import SPAN, Lock, bits_of, offsets_of, spans
from kvstore.pop.inflight.table import Change, InflightTable
from kvstore.pop.popped import UNLIMITED, Popped, Wanted, lock_ms
from kvstore.pop.prefetch import read_ahead
from kvstore.pop.receipts import Delivery, Receipts
from kvstore.read.at_offsets import Away, messages_at, passed_over
from kvstore.read.cold import AWAY_ERRORS, READ_ERRORS
from kvstore.read.pull import SCAN_MAX
from kvstore.read.reader import Reader

_DEAD_AT_ONCE: Final = 256
"""Messages that one claim sends to the dead letters, or passes over, before it goes on."""


class Taken(NamedTuple):
    """Messages of one row that are handed out."""

    key: LockKey
    lock: Lock
    messages: list[StoredMessage]


class Claim:
    """One look and its change, see the module. Used under the table's lock, once."""

    def __init__(
        self,
        flight: InflightTable,
        change: Change,
        reader: Reader,
        topic: Topic,
        group: GroupInfo,
        wanted: Wanted,
        clock: Clock,
        recoveries: int,
        nonces: Iterator[int],
    ) -> None:
        self.change = change
        self.taken: list[Taken] = []
        self.dead: list[tuple[LockKey, Lock]] = []
        """Rows that were handed out too often."""
        self.ended: list[tuple[int, int]] = []
        """Nonces of rows that go, with the bits that can't be acked any more."""
        self.dropped: list[tuple[int, int]] = []
        """Queue and offset of locked messages that are done by this: passed over, or dead."""
        self.unparked: list[tuple[int, int]] = []
        self.parking: list[tuple[int, int, int]] = []
        self.locking: list[tuple[int, int, int]] = []
        """Messages that an ordered group's `Order` has to learn: queue, offset and message
        group.
        """
        self._flight = flight
        self._reader = reader
        self.topic = topic
        self.group = group
        self._wanted = wanted
        self.now = clock.now_ms()
        self._begin = self.now + cut_ms(clock)
        """Time at which the locks begin: not before the present."""
        self._recoveries = recoveries
        self._nonces = nonces
        self._left = wanted.limit
        self.room = UNLIMITED
        """How many more messages the group may have under lock; below 0 if its cap was lowered."""
        self.made_way = False
        """Whether another claim may find messages that this one did not."""
        self.unavailable: ArchiveUnavailable | ArchiveMissing | None = None
        """Error that kept some messages from being read; they stay as they are."""
        self.stuck: dict[LockKey, ArchiveMissing] = {}
        """Rows that are known to have died and can't be copied to the dead letters now."""
        self._refused = 0
        """How many messages of the current queue the filter has refused."""
        self.looked = 0
        """How many messages were shown to the filter, if there is one."""
        self._dying = 0
        self._bytes = wanted.max_bytes
        self._is_limited = wanted.max_bytes < UNLIMITED
        self._simple = wanted.matches is None and not self._is_limited

    @property
    def left(self) -> int:
        """How many more messages are wanted."""
        return self._left if self._bytes > 0 else 0

    @property
    def is_tired(self) -> bool:
        """Whether the filter was shown as many messages as one claim may."""
        return self.looked >= SCAN_MAX

    # --- due rows ---

    def take_due(self) -> None:
        """Takes messages whose locks have run out, oldest first."""
        queue, flight = self._wanted.queue, self._flight
        self._take_rows(flight.due(self.now) if queue is None else flight.due_of(queue, self.now))

    def take_due_of(self, queue: int) -> None:
        """Takes due messages of one queue, where they are taken queue by queue."""
        self._take_rows(self._flight.due_of(queue, self.now))

    def _take_rows(self, rows: Iterator[tuple[LockKey, Lock]]) -> None:
        for key, lock in rows:
            if not self._take_row(key, lock):
                return

    def _take_row(self, key: LockKey, lock: Lock) -> bool:
        """Takes a row that is due, or lets it die; False if this claim takes no more of them."""
        if self._dying >= _DEAD_AT_ONCE or self.is_tired:
            self.made_way = True
            return False
        if not self.left:
            return False
        if key in self.stuck:
            self.unavailable = self.stuck[key]
        elif lock.attempts >= self.group.max_attempts:
            self.dead.append((key, lock))
            self._dying += lock.locked.bit_count()
        elif self.room > 0:
            self._take_again(key, lock)
        return True

    def _take_again(self, key: LockKey, lock: Lock) -> None:
        """Hands out a row once more; messages that don't fit, or have to wait, stay in it."""
        may = self._may_go(key, offsets_of(key.first, lock.locked))
        before = self._left
        read = self._read_again(key.queue, may)
        if read is None:
            return
        asked, messages, unfit = read
        self._note_refused(key.queue)
        end = asked[-1] + 1 if unfit is None else unfit
        if messages:
            self._lock(key.queue, messages, lock.attempts + 1, fresh=False)
        self.room -= before - self._left
        kept = {message.offset for message in messages}
        self._has_looked(len(asked))
        out = [offset for offset in asked if offset < end]
        self.dropped += [(key.queue, o) for o in out if o not in kept]
        rest = lock.locked & ~bits_of(key.first, out)
        # Receipts of messages that left the row are too late from now on.
        gone = lock.moved | lock.locked & ~rest
        # Some wanted messages are lost: there may be room for the rest.
        self.made_way = self.made_way or (unfit is None and asked[-1] < may[-1])
        self.change.shrink(key, lock, lock._replace(locked=rest, moved=gone))
        if not rest:
            self.ended.append((lock.nonce, gone))

    def _read_again(
        self, queue: int, may: list[int]
    ) -> tuple[list[int], list[StoredMessage], int | None] | None:
        """Reads messages that may go. Returns those of them that were asked for and can be read or
        are lost, and the result of `_fitting`; None if there is nothing to be had.
        """
        away, left, room = Away(), self._left, self._bytes
        while True:
            asked = may
            if self._wanted.matches is None:
                asked = may[: min(self._left, self.room)]
            if not asked:
                return None
            found = self._messages_at(queue, asked, away)
            self._refused = 0
            try:
                messages, unfit = self._fitting(found, self.room)
            except ArchiveUnavailable as e:
                self.unavailable, self._left, self._bytes, self._refused = e, left, room, 0
                return None
            self.unavailable = away.error or self.unavailable
            there = [offset for offset in asked if offset not in away]
            if len(there) == len(asked):
                return asked, messages, unfit
            # Others may go in the place of messages whose archive is missing.
            may = [offset for offset in may if offset not in away]
            self._left, self._bytes = left, room

    def _messages_at(self, queue: int, offsets: list[int], away: Away) -> Iterator[StoredMessage]:
        """The messages at these offsets, read as far as they are wanted."""
        room = max(self._bytes, 1) if self._is_limited else None
        group = self.group.name
        return messages_at(self._reader, self.topic, queue, offsets, group, away, room)

    def _note_refused(self, queue: int) -> None:
        """Counts the messages that the filter refused as passed over in this queue."""
        if self._refused:
            self.change.passed[queue] = self.change.passed.get(queue, 0) + self._refused
            self._refused = 0

    def _has_looked(self, count: int) -> None:
        if self._wanted.matches is not None:
            self.looked += count

    def _may_go(self, key: LockKey, offsets: list[int]) -> list[int]:
        """Those of a due row's messages that may be handed out now."""
        return offsets

    def _fitting(
        self, messages: Iterable[StoredMessage], most: int = UNLIMITED
    ) -> tuple[list[StoredMessage], int | None]:
        """The messages that match and fit, in order, and the offset of the first that doesn't fit,
        or None.
        """
        matches, out = self._wanted.matches, list[StoredMessage]()
        for message in messages:
            if not self.left or len(out) >= most:
                return out, message.offset
            if matches is None or matches(message):
                if message.size > self._bytes and self._left < self._wanted.limit:
                    self._bytes = 0
                    return out, message.offset
                out.append(message)
                self._left -= 1
                self._bytes -= message.size
            else:
                self._refused += 1
        return out, None

    def buried(self, stuck: dict[LockKey, ArchiveMissing]) -> None:
        """Marks dead messages as done whose copies are written: all rows but the stuck ones."""
        for key, error in stuck.items():
            self.stuck[key] = self.unavailable = error
        for key, lock in self.dead:
            if key in stuck:
                continue
            self.dropped += [(key.queue, o) for o in offsets_of(key.first, lock.locked)]

    # --- parked rows ---

    def take_parked(self, queue: int | None) -> None:
        """Takes messages that were parked while the group was an ordered one: nothing holds them up
        now.
        """
        for key, lock in self._flight.parked():
            if not self.left or self.room <= 0:
                return
            if self.is_tired:
                self.made_way = True
                return
            if queue in (None, key.queue):
                self._take_again(key, lock)

    def finish(self) -> None:
        """Complete the change; nothing is taken after that."""

    def settled(self) -> None:
        """Drops the order of the table once the change was written."""
        self._flight.order = None

    # --- unread messages ---

    def take_unread(self, queue: int, first: int) -> None:
        """Take unread messages of a queue, which begin at `first`."""
        low, high = self._reader.bounds(self.topic.base + queue)
        at = max(first, low)
        begun = at
        stop = min(high, at + SCAN_MAX - self.looked) if self._wanted.matches is not None else high
        messages: list[StoredMessage] = []
        before = self._left
        end = max(0, before - self.room)
        while at < stop and self.left > end:
            count = min(self._left - end, stop - at)
            found, following = self._read_on(at, high, partial(self._read, queue, at, count))
            if following == at:
                break
            ahead = self._flight.ahead.get(queue)
            # Offsets between them that are not held are behind the claim, too.
            at = ahead[-1].offset if ahead and found else following
            if not found:
                continue
            fits, unfit = self._fit_all(found) if self._simple else self._fitting(found)
            messages += fits
            if unfit is not None:
                at = unfit
                # The next pop begins with it.
                rest = [message for message in reversed(found) if message.offset >= unfit]
                self._flight.ahead.setdefault(queue, []).extend(rest)
                break
        self._note_refused(queue)
        if at != first:
            self.change.next[queue] = at
        # More messages for the filter may follow behind those that one claim reads.
        self.made_way = self.made_way or stop <= at < high
        self._has_looked(at - begun)
        self.room -= before - self._left
        if messages:
            self._lock(queue, messages, 1, fresh=True)

    def _read_on(
        self, at: int, high: int, read: Callable[[], list[StoredMessage]]
    ) -> tuple[list[StoredMessage], int]:
        """The messages that `read` reads from an offset on, and the offset to go on at behind them.
        No messages if they are lost. No messages, and the same offset, if that can't be told now.
        """
        try:
            found = read()
        except AWAY_ERRORS as e:
            self.unavailable = e
            return [], at
        except READ_ERRORS as e:
            return [], passed_over(e, at, self.group.name)
        return found, found[-1].offset + 1 if found else high

    def _read(self, queue: int, at: int, count: int) -> list[StoredMessage]:
        """Reads messages from an offset on, one at least if any is held; more are read ahead if
        they are small.
        """
        flight = self._flight
        ahead = flight.ahead.get(queue)
        if not ahead or ahead[-1].offset != at:
            room = max(self._bytes, 1) if self._is_limited else None
            ahead = read_ahead(flight, self._reader, self.topic, queue, at, count, room)
        found = ahead[: -count - 1 : -1]
        del ahead[-count:]
        if not ahead:
            flight.ahead.pop(queue, None)
        return found

    def _fit_all(self, messages: list[StoredMessage]) -> tuple[list[StoredMessage], None]:
        """`_fitting`, where everything matches and nothing is too large."""
        self._left -= len(messages)
        return messages, None

    # --- locking ---

    def _lock(
        self, queue: int, messages: list[StoredMessage], attempts: int, *, fresh: bool
    ) -> None:
        """Locks messages of a queue, in order, for as long as is wanted."""
        wanted, group = self._wanted, self.group
        due = self._begin + lock_ms(group, attempts, wanted.invisible_ms)
        for part, locked in _rows(messages):
            first = part[0].offset
            nonce = next(self._nonces)
            if fresh:
                key = LockKey(group.id, self.topic.id, due, queue, first)
            else:
                key = self._flight.free_key(self.change, queue, first, due)
            lock = Lock(attempts, self._recoveries, nonce, locked, 0, wanted.attempt_id)
            self.change.add(key, lock)
            self.taken.append(Taken(key, lock, part))

    def popped(self, receipts: Receipts) -> list[Popped]:
        """The messages taken, with receipts; after the change was written."""
        out: list[Popped] = []
        for key, lock, messages in self.taken:
            delivery = Delivery(key, lock.nonce, raw_key=lock_key(*key))
            if not lock.attempt_id:  # its attempt id has to be forgotten with the row
                delivery.flight, delivery.epoch = self._flight, self._flight.epoch
            made = receipts.make(delivery, lock.locked)
            out += map(Popped, messages, made, repeat(lock.attempts), repeat(key.due))
        return out


def _rows(messages: list[StoredMessage]) -> Iterator[tuple[list[StoredMessage], int]]:
    """Messages of a queue, in order, as pieces that fit a row, with the bitmap of each."""
    first, count = messages[0].offset, len(messages)
    if count <= SPAN and messages[-1].offset - first == count - 1:
        yield messages, (1 << count) - 1
        return
    offsets = [message.offset for message in messages]
    for start, stop in spans(offsets):
        yield messages[start:stop], bits_of(offsets[start], offsets[start:stop])
