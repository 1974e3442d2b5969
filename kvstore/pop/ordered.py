"""A claim for an ordered group: at most one message of a message group at a time, in order.

The idea: it works as `Claim` does, and parks a message whose message group has an earlier one that
is not done: the queue's next offset passes it, but a row keeps it until its turn has come. So one
slow message group holds up no other message group of its queue. (docs/pop.md)

Invariants: a message is handed out only when all earlier ones of its message group are done or
dead. If messages of one message group were locked together while the group was not an ordered one,
the next comes when the one before is done. At most `PARKED_MAX` messages of a queue are parked, so
the messages that are read and kept are bounded.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Final

from kvstore.errors import ArchiveUnavailable
from kvstore.index.keys import PARKED, LockKey
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.pop.claim import Claim
from kvstore.pop.expired import has_expired
from kvstore.pop.inflight.lock_rows import SPAN, Lock, bits_of, offsets_of
from kvstore.pop.inflight.queue_order import Order, group_hash
from kvstore.pop.inflight.table import InflightTable
from kvstore.read.pull import SCAN_MAX, ReadResult, fetch
from kvstore.read.reader import Reader

PARKED_MAX: Final = 4096
"""Messages of a queue that may be parked."""
_READ_AT_ONCE: Final = 64
_READ_BYTES: Final = 64 << 10
"""Bytes read at a time at most, of unread messages of which many may be too large to be taken."""


def order_of(table: InflightTable, reader: Reader, topic: Topic, group: str) -> Order:
    """A table's order; made if it is not there."""
    found: Order | None = table.order
    if found is None:
        found = table.order = Order.of(
            table.all(),
            table.parked(),
            lambda queue, offsets: ReadResult.at_offsets(
                reader, topic, queue, offsets, group
            ).raise_if_missing(),
        )
    return found


class OrderedClaim(Claim):
    """A claim that keeps message groups in order; see the module."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._unparked: list[tuple[int, int]] = []
        self._parking: list[tuple[int, int, int]] = []
        self._locking: list[tuple[int, int, int]] = []
        """Messages that `Order` has to learn: queue, offset and message group."""
        self._met: set[int] = set()
        """Message groups of the messages this claim took or parked, which `Order` does not know
        yet.
        """
        self._places = 0
        self._due_now: set[tuple[int, int]] | None = None

    def _may_go(self, key: LockKey, offsets: list[int]) -> list[int]:
        """The messages that are the first of their message group, of which none is under a live
        lock.
        """
        order = order_of(self._table, self._context.reader, self.topic, self.group.name)
        out = []
        for offset in offsets:
            rivals = order.rivals(key.queue, offset)
            if len(rivals) < 2 or (
                rivals[0] == (key.queue, offset) and self._all_due().issuperset(rivals)
            ):
                out.append(offset)
        return out

    def _all_due(self) -> set[tuple[int, int]]:
        """Queue and offset of all due messages, as this claim found them."""
        if self._due_now is None:
            self._due_now = {
                (key.queue, offset)
                for key, lock in self._table.due(self._now)
                for offset in offsets_of(key.first, lock.locked)
            }
        return self._due_now

    def _take_parked(self, queue: int | None) -> None:
        """Takes parked messages whose turn has come."""
        order = order_of(self._table, self._context.reader, self.topic, self.group.name)
        most = min(self._wants_more, self._room)
        if self._wanted.matches is not None:
            most = min(most, SCAN_MAX - self._looked)
        heads = order.heads(queue)
        while most > 0:
            found: dict[int, list[int]] = {}
            for number, offset, _ in islice(heads, most):
                found.setdefault(number, []).append(offset)
            # Messages in a missing archive are skipped: others take their turn.
            most = sum(self._take_heads(number, sorted(found[number])) for number in found)

    def _take_heads(self, queue: int, offsets: list[int]) -> int:
        """Takes parked messages of a queue; returns how many are in archives that are missing."""
        before, room = self._left, self._bytes
        found = self._read_offsets(queue, offsets)
        try:
            messages, unfit = self._fitting(found)
        except ArchiveUnavailable as e:
            self._unavailable, self._left, self._bytes = e, before, room
            self._forget_refused()
            return 0
        self._note_refused(queue)
        self._unavailable = found.unavailable or self._unavailable
        there = [offset for offset in offsets if not found.is_missing(offset)]
        self._has_looked(len(there))
        # Refused, expired and lost messages are done; those that did not fit stay.
        self._unparked += [(queue, o) for o in there if unfit is None or o < unfit]
        self._room -= before - self._left
        self._lock_in_order(queue, messages)
        return len(offsets) - len(there)

    def _take_unread(self, queue: int, first: int) -> None:
        """Takes unread messages of a queue whose turn it is; parks the others."""
        order = order_of(self._table, self._context.reader, self.topic, self.group.name)
        bounds = partial(self._context.reader.bounds, self.topic.base + queue)
        low, high = bounds()
        at, before = max(first, low), self._left
        end = max(0, before - self._room)
        self._places = PARKED_MAX - order.parked_in(queue)
        messages: list[StoredMessage] = []
        while at < high and self._wants_more > end and not self._is_tired:
            count = min(_READ_AT_ONCE, high - at)
            most = _READ_BYTES if self._is_limited else None
            read = partial(fetch, self._context.reader, self.topic, queue, at, count, most)
            result = ReadResult.of_queue(read, at, high, self.group.name, bounds)
            self._unavailable = result.unavailable or self._unavailable
            if result.end == at:
                break
            found = list(result)
            if not found:
                at = result.end
            for message in found:
                if self._wants_more <= end or not self._take_or_park(order, message, messages):
                    break
                self._has_looked(1)
                at = message.offset + 1
            else:
                continue
            break
        else:
            self._more_may_come = self._more_may_come or (self._is_tired and at < high)
        self._note_refused(queue)
        if at != first:
            self._change.next[queue] = at
        self._room -= before - self._left
        self._lock_in_order(queue, messages)

    def _take_or_park(
        self, order: Order, message: StoredMessage, messages: list[StoredMessage]
    ) -> bool:
        """Adds a message to those that are taken, or parks it, or passes it over as the filter
        says, or because it has expired; False if there is no room for it, or it has to stay.
        """
        if has_expired(message, self._now):
            return self._expired.take(message)
        hashed = group_hash(message)
        if hashed not in self._met and order.is_free(hashed):
            fits, unfit = self._fitting([message])
            if fits:
                messages += fits
                self._met.add(hashed)
            return unfit is None
        if self._wanted.matches is None or self._wanted.matches(message):
            if self._places <= 0:
                return False
            self._parking.append((message.queue, message.offset, hashed))
            self._met.add(hashed)
            self._places -= 1
        else:
            self._refused += 1
        return True

    def _lock_in_order(self, queue: int, messages: list[StoredMessage]) -> None:
        if messages:
            self._lock(queue, messages, 1, b"", fresh=False)
            self._locking += [(queue, m.offset, group_hash(m)) for m in messages]

    # --- the change ---

    def _finish(self) -> None:
        """Adds the rows of parked messages to the change; nothing is taken after that."""
        order = order_of(self._table, self._context.reader, self.topic, self.group.name)
        added: dict[tuple[int, int], set[int]] = {}
        removed: dict[tuple[int, int], set[int]] = {}
        for queue, offset, _ in self._parking:
            added.setdefault((queue, offset - offset % SPAN), set()).add(offset)
        for queue, offset in self._unparked:
            removed.setdefault((queue, offset - offset % SPAN), set()).add(offset)
        for queue, first in sorted(added.keys() | removed.keys()):
            offsets = set(order.block(queue, first, SPAN)) - removed.get((queue, first), set())
            bits = bits_of(first, offsets | added.get((queue, first), set()))
            key = LockKey(self._table.group, self._table.topic, PARKED, queue, first)
            self._change.park(key, Lock(0, self._context.offsets.recoveries, 0, bits))

    def _update_order(self) -> None:
        """Brings the order up to date once the change was written."""
        order = order_of(self._table, self._context.reader, self.topic, self.group.name)
        for queue, offset in self._unparked:
            order.unpark(queue, offset)
        for queue, offset, hashed in self._parking:
            order.park(queue, offset, hashed)
        for queue, offset, hashed in self._locking:
            order.lock(queue, offset, hashed)
        # Last, because a message that was parked just now may be next.
        for queue, offset in self._dropped:
            order.free(queue, offset)
        # The next claim takes a message whose turn came by this.
        came = bool(self._dropped) or (bool(self._unparked) and bool(order.ripe))
        self._more_may_come = self._more_may_come or came
