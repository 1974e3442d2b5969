"""A claim: one look for messages to hand out, and the one change that locks them.

The idea: a `Look` goes in, a `Claimed` comes out. Rows that are due come first, then unread
messages, queue by queue, until there are enough. The messages taken are collected with the change
that will lock them. Once the change is written the receipts are made. (docs/pop.md)

Invariants: a claim changes nothing except by its one write; a message is in one row at most; every
message that is passed over (refused by the filter, expired, lost to damage, deleted by retention)
is done by the same change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from kvstore.clock import cut_ms
from kvstore.core.messages import any_expired
from kvstore.core.popping.inflight import Change
from kvstore.core.popping.receipts import Popped
from kvstore.errors import ArchiveMissing, ArchiveUnavailable, PutRefused
from kvstore.index.archived import AtHand
from kvstore.index.keys import LockKey
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.pop.context import PopContext
from kvstore.pop.dead_letters import DeadLetters
from kvstore.pop.expired import UNREAD, ExpiredMessages, has_expired
from kvstore.pop.inflight.lock_rows import SPAN, Lock, bits_of, offsets_of, spans
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import prefetch
from kvstore.pop.popped import UNLIMITED, Wanted, lock_ms
from kvstore.read.cold import UNAVAILABLE_ERRORS
from kvstore.read.pull import SCAN_MAX, ReadResult

_DEAD_AT_ONCE: Final = 256
"""Messages that one claim sends to the dead letters, or passes over, before it goes on."""


SHARE: Final = 4
"""One pop in so many begins with a lower priority."""
_NONE_STUCK: Final[Mapping[LockKey, ArchiveMissing]] = MappingProxyType({})
_log = logging.getLogger("kvmq")


def order(queues: int, turn: int, *, priority: bool) -> Iterable[int]:
    """The queues from 0 to `queues` - 1 in the order of this turn (0, 1, 2, ...)."""
    if not priority:
        first = turn % queues
        return chain(range(first, queues), range(first))
    highest_first = range(queues - 1, -1, -1)
    if queues == 1 or turn % SHARE != SHARE - 1:
        return highest_first
    favoured = turn // SHARE % (queues - 1)
    return (favoured, *(q for q in highest_first if q != favoured))


class Look(NamedTuple):
    """The arguments of a claim: for whom and where it looks, and with which archive reads. `stuck`
    has the rows that are known to have died and can't be copied to the dead letters now; with
    `keeps_expired` the same holds for all messages that have expired.
    """

    table: InflightTable
    topic: Topic
    group: GroupInfo
    wanted: Wanted
    reads: AtHand
    stuck: Mapping[LockKey, ArchiveMissing]
    keeps_expired: bool = False


class Claimed(NamedTuple):
    """The result of a claim. `left` more messages are wanted; `more_may_come` if another claim may
    find some that this one did not; `looked` were shown to the filter, or had expired.
    `unavailable` is the error that kept some messages from being read; these stay as they are.
    """

    popped: list[Popped]
    left: int = 0
    more_may_come: bool = False
    looked: int = 0
    unavailable: ArchiveUnavailable | ArchiveMissing | None = None
    stuck: Mapping[LockKey, ArchiveMissing] = _NONE_STUCK


class Claim:
    """One look and its change, see the module. Used under the table's lock, once."""

    def __init__(self, context: PopContext, dead_letters: DeadLetters, look: Look) -> None:
        self.topic = look.topic
        self.group = look.group
        self._context = context
        self._dead_letters = dead_letters
        self._table = look.table
        self._wanted = look.wanted
        self._reads = look.reads
        self._stuck = dict(look.stuck)
        self._change = Change()
        self._dead: list[tuple[LockKey, Lock]] = []
        """Rows that were handed out too often."""
        self._dropped: list[tuple[int, int]] = []
        """Queue and offset of locked messages that are done by this: passed over, or dead."""
        self._now = context.clock.now_ms()
        self._begin = self._now + cut_ms(context.clock)
        """Time at which the locks begin: not before the present."""
        self._left = look.wanted.limit
        self._room = UNLIMITED
        """How many more messages the group may have under lock; below 0 if its cap was lowered."""
        self._more_may_come = False
        self._unavailable: ArchiveUnavailable | ArchiveMissing | None = None
        self._refused = 0
        """How many messages of the current queue the filter has refused."""
        self._expired = ExpiredMessages(
            self._now, buried=look.group.dead_letter_expired, stay=look.keeps_expired
        )
        self._looked = 0
        self._again = 0
        """How many messages it hands out once more."""
        self._dying = 0
        self._bytes = look.wanted.max_bytes
        self._is_limited = look.wanted.max_bytes < UNLIMITED
        self._simple = look.wanted.matches is None and not self._is_limited

    def run(self) -> Claimed | None:
        """Looks, writes the change, and returns what it hands out. None, with nothing changed, if
        the dead letters of expired messages can't be put now; `ArchiveUnavailable`, likewise, if it
        takes a read of an archive.
        """
        context, table, group, wanted = self._context, self._table, self.group, self._wanted
        table.capped = group.max_in_flight is not None
        if group.max_in_flight is not None:
            # Before the count: an ack from now on wakes the pops that found no room.
            context.waiting.short.add(group.id)
            # Locks that have run out count no more: nobody may ever ask for their messages again.
            self._room = group.max_in_flight - context.tables.live_at(group.id, self._now)
        if self.topic.is_priority and wanted.queue is None:
            self._take_by_priority()
        else:
            self._take_due()
            self._bury()
            if table.parked_count:
                self._take_parked(wanted.queue)
            queues = (wanted.queue,) if wanted.queue is not None else self._order(priority=False)
            for queue in queues:
                if not self._wants_more or self._room <= 0:
                    break
                self._take_queue(queue)
        if self._unavailable is not None and self._reads.misses:
            raise ArchiveUnavailable(str(self._unavailable))
        if not self._has_buried_expired():
            return None
        self._write()
        if table.prefetched:
            context.tables.note_prefetch(table)
        return Claimed(
            self._change.popped(),
            self._wants_more,
            self._more_may_come,
            self._shown,
            self._unavailable,
            self._stuck,
        )

    def bury_row(self, key: LockKey, lock: Lock) -> None:
        """Sends one row to the dead letters; it stays due if that can't be done now."""
        self._dead.append((key, lock))
        self._bury()
        self._write()

    # --- the order of queues ---

    def _order(self, *, priority: bool) -> Iterable[int]:
        """The queues in the order of this pop's turn. A pop keeps its turn when it has to look
        again, and other pops have the next.
        """
        if self._reads.turn is None:
            self._reads.turn = self._table.turn
            self._table.turn += 1
        return order(self.topic.read_queues, self._reads.turn, priority=priority)

    def _take_by_priority(self) -> None:
        """Takes each queue's due rows, then its unread messages, before those of the next queue."""
        table, ordered = self._table, self.group.ordered
        if table.parked_count and not ordered:
            self._take_parked(None)
        for queue in self._order(priority=True):
            if not self._wants_more:
                break
            self._take_rows(table.due_of(queue, self._now))
            if table.parked_count and ordered:
                self._take_parked(queue)
            if self._wants_more and self._room > 0:
                self._take_queue(queue)
        self._bury()

    def _take_queue(self, queue: int) -> None:
        """Takes unread messages of a queue."""
        end = self._context.reader.next_offset(self.topic.base + queue)
        # A queue that never had a message has no offset to begin with.
        if not end:
            return
        try:
            at = self._context.next_offset(self._table, self.group, self.topic, queue)
        except UNAVAILABLE_ERRORS as e:
            self._unavailable = e
            return
        if at < end:
            if self._is_tired:
                self._more_may_come = True
            else:
                self._take_unread(queue, at)

    @property
    def _wants_more(self) -> int:
        """How many more messages are wanted."""
        return self._left if self._bytes > 0 else 0

    @property
    def _is_tired(self) -> bool:
        """Whether the filter was shown as many messages as one claim may, or as many had
        expired.
        """
        return self._shown >= SCAN_MAX or len(self._expired.letters) >= _DEAD_AT_ONCE

    @property
    def _shown(self) -> int:
        """How many messages the filter was shown, those that had expired included."""
        return self._looked if self._wanted.matches is not None else self._expired.count

    # --- due rows ---

    def _take_due(self) -> None:
        """Takes messages whose locks have run out, oldest first."""
        queue, table = self._wanted.queue, self._table
        self._take_rows(table.due(self._now) if queue is None else table.due_of(queue, self._now))

    def _take_rows(self, rows: Iterator[tuple[LockKey, Lock]]) -> None:
        for key, lock in rows:
            if not self._take_row(key, lock):
                return

    def _take_row(self, key: LockKey, lock: Lock) -> bool:
        """Takes a row that is due, or lets it die; False if this claim takes no more of them."""
        if self._dying >= _DEAD_AT_ONCE or self._is_tired:
            self._more_may_come = True
            return False
        if not self._wants_more:
            return False
        if key in self._stuck:
            self._unavailable = self._stuck[key]
        elif lock.attempts >= self.group.max_attempts:
            self._dead.append((key, lock))
            self._dying += lock.locked.bit_count()
        elif self._room > 0:
            self._take_again(key, lock)
        return True

    def _take_again(self, key: LockKey, lock: Lock) -> None:
        """Hands out a row once more; messages that don't fit, or have to wait, stay in it."""
        may = self._may_go(key, offsets_of(key.first, lock.locked))
        before = self._left
        read = self._read_again(key.queue, may, lock)
        if read is None:
            return
        asked, messages, unfit = read
        self._note_refused(key.queue)
        end = asked[-1] + 1 if unfit is None else unfit
        if messages:
            self._lock(key.queue, messages, lock.attempts + 1, lock.reason, fresh=False)
            self._again += len(messages)
        self._room -= before - self._left
        kept = {message.offset for message in messages}
        self._has_looked(len(asked))
        out = [offset for offset in asked if offset < end]
        self._dropped += [(key.queue, o) for o in out if o not in kept]
        rest = lock.locked & ~bits_of(key.first, out)
        # Receipts of messages that left the row are too late from now on.
        gone = lock.moved | lock.locked & ~rest
        # Some wanted messages are lost: there may be room for the rest.
        self._more_may_come = self._more_may_come or (unfit is None and asked[-1] < may[-1])
        self._change.shrink(key, lock, lock._replace(locked=rest, moved=gone))

    def _read_again(
        self, queue: int, may: list[int], lock: Lock
    ) -> tuple[list[int], list[StoredMessage], int | None] | None:
        """Reads messages of a row that may go. Returns those of them that were asked for and can be
        read or are lost, and the result of `_fitting`; None if there is nothing to be had.
        """
        left, room = self._left, self._bytes
        while True:
            asked = may
            if self._wanted.matches is None:
                asked = may[: min(self._left, self._room)]
            if not asked:
                return None
            found = self._read_offsets(queue, asked)
            self._forget_refused()
            try:
                messages, unfit = self._fitting(found, self._room, lock)
            except ArchiveUnavailable as e:
                self._unavailable, self._left, self._bytes = e, left, room
                self._forget_refused()
                return None
            if found.unavailable is None:
                return asked, messages, unfit
            self._unavailable = found.unavailable
            there = [offset for offset in asked if not found.is_missing(offset)]
            if len(there) == len(asked):
                return asked, messages, unfit
            # Others may go in the place of messages whose archive is missing.
            may = [offset for offset in may if not found.is_missing(offset)]
            self._left, self._bytes = left, room

    def _read_offsets(self, queue: int, offsets: list[int]) -> ReadResult:
        """The messages at these offsets, read as far as they are wanted."""
        room = max(self._bytes, 1) if self._is_limited else None
        return ReadResult.at_offsets(
            self._context.reader, self.topic, queue, offsets, self.group.name, room
        )

    def _note_refused(self, queue: int) -> None:
        """Counts the messages that the filter refused, or that had expired, as passed over in this
        queue.
        """
        if self._refused:
            self._change.passed[queue] = self._change.passed.get(queue, 0) + self._refused
            self._refused = 0
        self._expired.note(self._change, queue)

    def _forget_refused(self) -> None:
        """Takes back what the last read of a queue passed over: it is read again."""
        self._refused = 0
        self._expired.take_back()

    def _has_looked(self, count: int) -> None:
        if self._wanted.matches is not None:
            self._looked += count

    def _may_go(self, key: LockKey, offsets: list[int]) -> list[int]:
        """Those of a due row's messages that may be handed out now."""
        return offsets

    def _fitting(
        self, messages: Iterable[StoredMessage], most: int = UNLIMITED, lock: Lock = UNREAD
    ) -> tuple[list[StoredMessage], int | None]:
        """The messages that match, have not expired and fit, in order, and the offset of the first
        that doesn't fit, or has to stay; or None. They are or were under `lock`.
        """
        matches, out = self._wanted.matches, list[StoredMessage]()
        for message in messages:
            if not self._wants_more or len(out) >= most:
                return out, message.offset
            if has_expired(message, self._now):
                if not self._expired.take(message, lock):
                    return out, message.offset
            elif matches is None or matches(message):
                if message.size > self._bytes and self._left < self._wanted.limit:
                    self._bytes = 0
                    return out, message.offset
                out.append(message)
                self._left -= 1
                self._bytes -= message.size
            else:
                self._refused += 1
        return out, None

    def _bury(self) -> None:
        """Copies dead rows to the dead letters; their messages are done, but for stuck rows."""
        if not self._dead:
            return
        try:
            stuck = self._dead_letters.bury(self._change, self.topic, self.group, self._dead)
        except PutRefused as e:
            # The rows stay due; other messages don't have to wait for a disk with room.
            self._more_may_come = False
            _log.error("kvmq can't copy the dead letters of group %r: %s", self.group.name, str(e))
            return
        except ArchiveUnavailable as e:
            self._more_may_come, self._unavailable = False, e
            return
        for key, error in stuck.items():
            self._stuck[key] = self._unavailable = error
        for key, lock in self._dead:
            if key not in stuck:
                self._dropped += [(key.queue, o) for o in offsets_of(key.first, lock.locked)]

    def _has_buried_expired(self) -> bool:
        """Copies the expired messages that this claim passes over, if the group wants that, to the
        dead letters; False if the disk refuses the copies.
        """
        if self._expired.letters:
            try:
                self._dead_letters.bury_expired(self.topic, self.group, self._expired.letters)
            except PutRefused as e:
                # Other messages don't have to wait for a disk with room.
                _log.error("kvmq can't copy what expired for group %r: %s", self.group.name, str(e))
                return False
        return True

    # --- parked rows ---

    def _take_parked(self, queue: int | None) -> None:
        """Takes messages that were parked while the group was an ordered one: nothing holds them up
        now.
        """
        for key, lock in self._table.parked():
            if not self._wants_more or self._room <= 0:
                return
            if self._is_tired:
                self._more_may_come = True
                return
            if queue in (None, key.queue):
                self._take_again(key, lock)

    # --- the change ---

    def _write(self) -> None:
        """Writes the change, and brings the table up to date."""
        self._finish()
        context, change, table = self._context, self._change, self._table
        if change.rows or change.next:
            for queue in (change.passed.keys() | change.expired.keys()) - change.next.keys():
                change.next[queue] = context.next_offset(table, self.group, self.topic, queue)
            context.tables.write(table, change)
            if self._again:
                context.tables.note_again(self._again)
            self._update_order()

    def _finish(self) -> None:
        """Completes the change; nothing is taken after that."""

    def _update_order(self) -> None:
        """Drops the order of the table once the change was written."""
        self._table.order = None

    # --- unread messages ---

    def _take_unread(self, queue: int, first: int) -> None:
        """Takes unread messages of a queue, which begin at `first`."""
        bounds = partial(self._context.reader.bounds, self.topic.base + queue)
        low, high = bounds()
        at = max(first, low)
        begun = at
        stop = min(high, at + SCAN_MAX - self._looked) if self._wanted.matches is not None else high
        messages: list[StoredMessage] = []
        before = self._left
        end = max(0, before - self._room)
        while at < stop and self._wants_more > end and not self._is_tired:
            count = min(self._left - end, stop - at)
            read = partial(self._read, queue, at, count)
            result = ReadResult.of_queue(read, at, high, self.group.name, bounds)
            self._unavailable = result.unavailable or self._unavailable
            if result.end == at:
                break
            found = list(result)
            ahead = self._table.prefetched.get(queue)
            # Offsets between them that are not held are behind the claim, too.
            at = ahead[-1].offset if ahead and found else result.end
            if not found:
                continue
            is_simple = self._simple and not any_expired(found, self._now)
            fits, unfit = self._fit_all(found) if is_simple else self._fitting(found)
            messages += fits
            if unfit is not None:
                at = unfit
                # The next pop begins with it.
                rest = [message for message in reversed(found) if message.offset >= unfit]
                self._table.prefetched.setdefault(queue, []).extend(rest)
                break
        self._note_refused(queue)
        if at != first:
            self._change.next[queue] = at
        self._has_looked(at - begun)
        # More messages may follow behind those that one claim reads.
        self._more_may_come = self._more_may_come or stop <= at < high
        self._more_may_come = self._more_may_come or (self._is_tired and at < high)
        self._room -= before - self._left
        if messages:
            self._lock(queue, messages, 1, b"", fresh=True)

    def _read(self, queue: int, at: int, count: int) -> list[StoredMessage]:
        """Reads messages from an offset on, one at least if any is held; more are read ahead if
        they are small.
        """
        table = self._table
        ahead = table.ahead(queue, self._context.reader.mark())
        if not ahead or ahead[-1].offset != at:
            room = max(self._bytes, 1) if self._is_limited else None
            ahead = prefetch(table, self._context.reader, self.topic, queue, at, count, room)
        found = ahead[: -count - 1 : -1]
        del ahead[-count:]
        if not ahead:
            table.prefetched.pop(queue, None)
        return found

    def _fit_all(self, messages: list[StoredMessage]) -> tuple[list[StoredMessage], None]:
        """`_fitting`, where everything matches and nothing is too large or has expired."""
        self._left -= len(messages)
        return messages, None

    # --- locking ---

    def _lock(
        self,
        queue: int,
        messages: list[StoredMessage],
        attempts: int,
        reason: bytes,
        *,
        fresh: bool,
    ) -> None:
        """Locks messages of a queue, in order, for as long as is wanted."""
        wanted, group = self._wanted, self.group
        due = self._begin + lock_ms(group, attempts, wanted.invisible_ms)
        for part, locked in _rows(messages):
            first = part[0].offset
            nonce = next(self._context.nonces)
            if fresh:
                key = LockKey(group.id, self.topic.id, due, queue, first)
            else:
                key = self._table.free_key(self._change, queue, first, due)
            recoveries = self._context.offsets.recoveries
            lock = Lock(attempts, recoveries, nonce, locked, 0, wanted.attempt_id, reason)
            self._change.take(self._context.receipts, key, lock, part)


def _rows(messages: list[StoredMessage]) -> Iterator[tuple[list[StoredMessage], int]]:
    """Messages of a queue, in order, as pieces that fit a row, with the bitmap of each."""
    first, count = messages[0].offset, len(messages)
    if count <= SPAN and messages[-1].offset - first == count - 1:
        yield messages, (1 << count) - 1
        return
    offsets = [message.offset for message in messages]
    for start, stop in spans(offsets):
        yield messages[start:stop], bits_of(offsets[start], offsets[start:stop])
