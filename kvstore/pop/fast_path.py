"""The fast path: one-row pops and whole-row acks, which are nearly all there are.

The idea: mostly a caller asks the same again, nothing is due, and a row is acked as a whole, as it
was popped. Then a pop is one row and one offset, and an ack is one deletion. The row need not be
read again: every other change to an in-flight table's rows changes the table's `epoch`. The
arguments of a pop are checked and worked out once, as an `_Ask`. All other pops and acks are left
to `claim` and `ack`, which do the same at two to five times the cost.

Invariant: this path does exactly what `claim` and `ack` would have done.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from kvstore.clock import cut_ms
from kvstore.core.pop_values import Popped, popped_row
from kvstore.errors import ArchiveUnavailable
from kvstore.index.archived import AtHand
from kvstore.index.keys import LOCK_KEY_SIZE, LOCKS, OFFSETS, LockKey
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topic import Topic
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.lock_rows import SPAN, around_nonce
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import prefetch
from kvstore.pop.popped import Wanted, check_wanted, lock_ms
from kvstore.pop.receipts import HEAD_CHARS, Delivery, pack_head
from kvstore.process.locks import Signal
from kvstore.read.cold import READ_ERRORS

_TRIES: Final = 8
_PAUSE: Final = 0.0002
"""Seconds: long enough for the holder to go on if it only waits for Python's lock."""
_never: Final = Signal()


def let_others() -> None:
    """Lets waiting threads have a lock before this one takes it again."""
    _never.wait(_PAUSE)


def acquire(lock: threading.RLock) -> None:
    """Takes a lock, inside the `try` that lets it go."""
    if lock.acquire(False):
        return
    for _ in range(_TRIES):
        _never.wait(_PAUSE)
        if lock.acquire(False):
            return
    lock.acquire()


_ASKS_MAX: Final = 4096
_USUAL: Final = {(int, float, int), (int, float, type(None))}
_new: Final = tuple.__new__
"""Makes a `LockKey` at a third of the cost of calling it."""


class _Ask:
    """The checked arguments of a pop, with all that stays the same when it is repeated."""

    __slots__ = (
        "after",
        "before",
        "group",
        "lasts",
        "limit",
        "locked",
        "queues",
        "step",
        "table",
        "topic",
    )

    def __init__(
        self,
        table: InflightTable,
        group: GroupInfo,
        topic: Topic,
        wanted: Wanted,
        recoveries: int,
        cut: int,
    ) -> None:
        self.table = table
        self.group = group
        """While it is kept here, no other group has its `id()`."""
        self.topic = topic
        self.limit = wanted.limit
        self.lasts = cut + lock_ms(group, 1, wanted.invisible_ms)
        """How many ms from now, as the clock says it, a lock is due."""
        asked = wanted.queue
        self.queues: Sequence[int] = range(topic.read_queues) if asked is None else (asked,)
        self.step = 1 if asked is None else 0
        """By how much a pop advances its table's turn."""
        self.locked = (1 << wanted.limit) - 1
        self.before, self.after = around_nonce(recoveries, self.locked)


class FastPath:
    """Pops and acks in the usual case; see the module."""

    def __init__(self, context: PopContext) -> None:
        # Methods of other objects, so that they need not be looked up twice each time.
        self._reader = context.reader
        self._mark = context.reader.mark
        self._offsets = context.offsets
        self._tables = context.tables
        self._receipts = context.receipts
        self._waiting = context.waiting
        self._nonces = context.nonces
        self._cut = cut_ms(context.clock)
        self._now_ms = context.clock.now_ms
        self._put_two = context.families.put_two
        self._delete = context.families.delete
        self._next_row = context.offsets.pop_row
        self._sign = context.receipts.sign
        self._remembered = context.receipts.remembered
        self._short = context.waiting.short
        self._asks: dict[tuple[object, ...], _Ask] = {}

    # --- pop ---

    def pop(
        self, group: GroupInfo, topic: Topic, limit: object, invisible_for: object, queue: object
    ) -> list[Popped] | None:
        """Pops unread messages of one queue; None if that takes more than this path does."""
        # True equals 1, but only one of the two types is right.
        if (type(limit), type(invisible_for), type(queue)) not in _USUAL:
            return None
        ask = self._asks.get((id(group), topic, limit, invisible_for, queue))
        if ask is None or ask.table.gone:
            ask = self._learn(group, topic, limit, invisible_for, queue)
            if ask is None:
                return None
        table, count = ask.table, ask.limit
        try:
            acquire(table.lock)
            now = self._now_ms()
            if (
                # Mostly it is plain from `soonest` that nothing is due.
                (table.rows and table.soonest <= now and table.may_be_due(now))
                or table.parked_count
                or table.order is not None
                or table.gone
            ):
                return None
            at = ask.queues[table.turn % len(ask.queues)]
            ahead = table.ahead(at, self._mark())
            if not ahead or len(ahead) < count or ahead[-1].offset != table.next.get(at):
                ahead = self._prefetch(ask, table, at)
                if ahead is None:
                    return None
            first = ahead[-1].offset
            nonce, due, end = next(self._nonces), now + ask.lasts, first + count
            head = pack_head(table.group, table.topic, due, at, first, nonce)
            raw_key = head[:LOCK_KEY_SIZE]
            row = ask.before + head[LOCK_KEY_SIZE:] + ask.after
            offset = self._next_row(table, at, end)
            self._put_two(LOCKS, raw_key, row, OFFSETS, *offset)
            table.next[at] = end
            table.turn += ask.step
            key = _new(LockKey, (table.group, table.topic, due, at, first))
            table.added(key, ask.locked)
            epoch = table.epoch
            messages = ahead[: -count - 1 : -1]
            del ahead[-count:]
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                table.lock.release()
            except RuntimeError:
                pass  # it was not taken
        # The rest concerns nobody else, so nobody has to wait for it.
        receipts = self._sign(Delivery(key, nonce, ask.locked, [], raw_key, table, epoch), head)
        if table.waiters:
            # A waiter may have to look again earlier than it thought.
            self._waiting.freed(table, 1)
        return popped_row(messages, receipts, 1, due)

    def _learn(
        self, group: GroupInfo, topic: Topic, limit: Any, invisible_for: Any, queue: Any
    ) -> _Ask | None:
        """Checks the arguments of a pop and remembers them; None if they are not for this path."""
        if not group.is_plain or topic.is_priority or limit > SPAN:
            return None
        wanted = check_wanted(topic, limit, None, invisible_for, queue, None, None)
        table = self._tables.get(group.id, topic.id)
        if table.dead:
            return None
        ask = _Ask(table, group, topic, wanted, self._offsets.recoveries, self._cut)
        if len(self._asks) >= _ASKS_MAX:
            self._asks.clear()
        self._asks[id(group), topic, limit, invisible_for, queue] = ask
        return ask

    def _prefetch(self, ask: _Ask, table: InflightTable, queue: int) -> list[StoredMessage] | None:
        """As many messages as are wanted, the next one last; None if they are not in memory."""
        at = table.next.get(queue)
        if at is None:
            return None
        try:
            with self._reader.at_hand(AtHand()):
                low, high = self._reader.bounds(ask.topic.base + queue)
                if at < low or high - at < ask.limit:
                    return None
                ahead = prefetch(table, self._reader, ask.topic, queue, at, ask.limit)
        except (*READ_ERRORS, ArchiveUnavailable):
            return None
        self._tables.note_prefetch(table)
        # Another path goes on behind messages that are not held any more.
        return ahead if len(ahead) >= ask.limit and ahead[-1].offset == at else None

    # --- ack ---

    def ack(self, receipts: list[str]) -> bool:
        """Acks a whole row if these are its receipts in order and nobody has touched it since it
        was popped; False if that is not known.
        """
        delivery = self._receipts.batch_of(receipts[0]) if receipts else None
        return (
            delivery is not None
            and delivery.receipts == receipts
            and self._done(delivery, receipts[0])
        )

    def ack_one(self, receipt: object) -> bool:
        """Acks the lock row of one message if this is its receipt and nobody has touched the row
        since it was popped; False if that is not known.
        """
        if type(receipt) is not str:
            return False
        delivery = self._remembered.get(receipt[:HEAD_CHARS])
        return (
            delivery is not None
            and delivery.locked == 1
            and delivery.receipts[0] == receipt
            and self._done(delivery, receipt)
        )

    def _done(self, delivery: Delivery, receipt: str) -> bool:
        table = delivery.table
        if table is None:
            return False
        try:
            acquire(table.lock)
            if delivery.epoch != table.epoch or table.gone or table.order is not None:
                return False
            self._delete(LOCKS, delivery.raw_key)
            delivery.epoch = -1
            table.removed(delivery.key, delivery.locked)
            self._tables.end(delivery.nonce, 0)
            if table.group in self._short:
                self._waiting.made_room(table.group)
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                table.lock.release()
            except RuntimeError:
                pass  # it was not taken
        self._remembered.pop(receipt[:HEAD_CHARS], None)
        return True
