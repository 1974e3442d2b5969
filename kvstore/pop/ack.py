"""Acks popped messages and changes their locks.

The idea: a receipt names a row and a message's place in it. An ack clears the bit of that place;
the last bit takes the row along. A batch is sorted by rows first: each row is read and written
once, and all rows of an in-flight table are one WriteBatch. A batch as it was popped is compared as
a list.

Invariants: a receipt that is not current changes nothing; acking twice by the same delivery is as
good as once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal

from kvstore.clock import cut_ms
from kvstore.errors import ReceiptExpired, ReceiptIllegal
from kvstore.index.keys import LockKey
from kvstore.meta.groups import GroupInfo
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.lock_rows import Lock, offsets_of
from kvstore.pop.inflight.queue_order import Order
from kvstore.pop.inflight.table import Change, InflightTable
from kvstore.pop.popped import backoff_ms, lock_ms
from kvstore.pop.receipts import Delivery

Bury = Callable[[InflightTable, GroupInfo, LockKey], None]
AckResult = Literal[True] | ReceiptIllegal | ReceiptExpired

_DONE: Final = True


class _Asked:
    """The part of a batch that concerns one row: bits, and the receipts that ask for them."""

    __slots__ = ("acked", "bits", "delivery", "singly", "wholes")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.bits = 0
        self.acked = 0
        """Messages that this batch acks."""
        self.wholes: list[int] = []
        """Indices in the batch where all receipts of the row begin."""
        self.singly: list[tuple[int, int]] = []
        """Index in the batch, and bit."""


class Acks:
    """Acks messages and changes their locks; see the module."""

    def __init__(
        self,
        context: PopContext,
        counted: Callable[[GroupInfo], AbstractContextManager[object]],
        bury: Bury,
    ) -> None:
        self._context = context
        self._tables = context.tables
        self._receipts = context.receipts
        self._waiting = context.waiting
        self._counted = counted
        self._bury = bury

    def ack(self, receipts: list[str]) -> list[AckResult]:
        """See `Store.ack_batch`."""
        results: list[AckResult] = [_DONE] * len(receipts)
        for (group, topic), rows in self._sort(receipts, results).items():
            with self._tables.locked(group, topic) as table:
                change = Change(self._context.families.batch())
                ended = [self._ack_row(table, change, asked, results) for asked in rows]
                if change:
                    self._context.families.write(change.batch)
                    table.apply(change)
                    if group in self._waiting.short:
                        self._waiting.made_room(group)
                    if table.order is not None:
                        self._free(table, table.order, rows)
                for nonce, bad in filter(None, ended):
                    self._tables.end(nonce, bad)
        return results

    def _free(self, table: InflightTable, order: Order, rows: list[_Asked]) -> None:
        """Gives the next messages of these messages' groups their turn."""
        ripe = 0
        for asked in rows:
            key = asked.delivery.key
            ripe += sum(order.free(key.queue, o) for o in offsets_of(key.first, asked.acked))
        if ripe:
            self._waiting.freed(table, ripe)

    def _sort(
        self, receipts: Sequence[str], results: list[AckResult]
    ) -> dict[tuple[int, int], list[_Asked]]:
        """The batch by in-flight table and row; errors for texts that are no receipts go to the
        results.
        """
        rows: dict[int, _Asked] = {}
        at, count = 0, len(receipts)
        while at < count:
            whole = self._receipts.batch_of(receipts[at])
            if whole is not None and whole.receipts:
                size = len(whole.receipts)
                if receipts[at : at + size] == whole.receipts:
                    asked = rows.get(whole.nonce) or rows.setdefault(whole.nonce, _Asked(whole))
                    asked.bits |= whole.locked
                    asked.wholes.append(at)
                    at += size
                    continue
            try:
                delivery, place = self._receipts.read(receipts[at])
            except ReceiptIllegal as e:
                results[at] = e
            else:
                nonce = delivery.nonce
                asked = rows.get(nonce) or rows.setdefault(nonce, _Asked(delivery))
                asked.bits |= 1 << place
                asked.singly.append((at, 1 << place))
            at += 1
        tables: dict[tuple[int, int], list[_Asked]] = {}
        for asked in rows.values():
            key = asked.delivery.key
            tables.setdefault((key.group, key.topic), []).append(asked)
        return tables

    def _ack_row(
        self, table: InflightTable, change: Change, asked: _Asked, results: list[AckResult]
    ) -> tuple[int, int] | None:
        """Acks a row's messages; returns its nonce and dead bits if it ends by that."""
        delivery = asked.delivery
        key = delivery.key
        lock = table.get(key)
        if lock is None or lock.nonce != delivery.nonce:
            expired = asked.bits & self._expired(table, delivery, asked.bits)
            if expired:
                _refuse(asked, expired, results)
            return None
        expired = asked.bits & lock.moved
        if expired:
            _refuse(asked, expired, results)
        left = lock.locked & ~asked.bits
        if left != lock.locked:
            change.shrink(key, lock, lock._replace(locked=left))
            asked.acked = lock.locked & ~left
            if not left:
                return lock.nonce, lock.moved
        return None

    def _expired(self, table: InflightTable, delivery: Delivery, bits: int) -> int:
        """The bits of a row that is gone which can't be acked any more."""
        remembered = self._tables.bad_of(delivery.key, delivery.nonce)
        if remembered is not None:
            return remembered
        if self._context.clock.now_ms() >= delivery.key.due:
            return bits
        # No other pop can have got it since, unless it was moved, or the offset was set back.
        queue, first = delivery.key.queue, delivery.key.first
        read = max(0, (self._tables.next_of(table, queue) or 0) - first)
        return bits & (~((1 << read) - 1) | table.held(queue, first, bits.bit_length()))

    # --- changing the time ---

    def give_back(self, receipt: str) -> None:
        """Undoes the delivery of a message that nobody has seen; it is due at once."""
        self.change(receipt, 0, unseen=1)

    def change(
        self,
        receipt: str,
        invisible_ms: int | None,
        *,
        gives_back: bool = False,
        unseen: int = 0,
    ) -> str:
        """See `Store.change_invisible`. `unseen` attempts are taken back."""
        delivery, place = self._receipts.read(receipt)
        key, bit = delivery.key, 1 << place
        group = self._context.groups.by_id(key.group)
        if group is None:
            raise expired()
        with self._counted(group), self._tables.locked(key.group, key.topic) as table:
            lock = table.get(key)
            if lock is None or lock.nonce != delivery.nonce or not lock.locked & bit:
                raise expired()
            keeps = bool(invisible_ms) and not gives_back
            attempt_id = lock.attempt_id if keeps else b""
            has_failed = not keeps and not unseen and lock.attempts >= group.max_attempts
            change = Change(self._context.families.batch())
            left = lock._replace(locked=lock.locked & ~bit, moved=lock.moved | bit)
            now = self._context.clock.now_ms()
            lasts = 0 if has_failed else _lasts(group, lock.attempts, invisible_ms, keeps=keeps)
            due = now + cut_ms(self._context.clock) + lasts if lasts else now
            self._check_room(group, key.due, due, now)
            new = table.free_key(change, key.queue, key.first + place, due)
            attempts, nonce = lock.attempts - unseen, next(self._context.nonces)
            # A message given back can't be had before its time by repeating the attempt id.
            moved = Lock(attempts, lock.recoveries, nonce, 1, 0, attempt_id)
            change.shrink(key, lock, left)
            change.add(new, moved)
            self._context.families.write(change.batch)
            table.apply(change)
            if not left.locked:
                self._tables.end(lock.nonce, left.moved)
            if has_failed:
                self._bury(table, group, new)
            self._waiting.freed(table, 1)
            if key.group in self._waiting.short:
                self._waiting.made_room(key.group)
        return self._receipts.make(Delivery(new, moved.nonce), 1)[0]

    def _check_room(self, group: GroupInfo, old_due: int, new_due: int, now: int) -> None:
        """Refuses to renew a lock that ran out if the group's cap has no room. Such a lock counts
        no more: by now its place may be another message's.
        """
        most = group.max_in_flight
        if most is None or old_due > now or new_due <= now:
            return
        if self._tables.live_at(group.id, now) >= most:
            raise ReceiptExpired(
                f"the lock ran out, and group {group.name!r} has taken {most} others since, as "
                "many as max_in_flight says; drop the receipt, the message is handed out again"
            )


def _lasts(group: GroupInfo, attempts: int, invisible_ms: int | None, *, keeps: bool) -> int:
    """How many ms the new lock lasts, or the message waits if it is given back; `keeps`: the
    lock's holder goes on.
    """
    if invisible_ms is None:
        return backoff_ms(group, attempts)
    return lock_ms(group, attempts, invisible_ms) if keeps else invisible_ms


def _refuse(asked: _Asked, bits: int, results: list[AckResult]) -> None:
    for at, bit in asked.singly:
        if bit & bits:
            results[at] = expired()
    for start in asked.wholes:
        locked, at = asked.delivery.locked, start
        while locked:
            bit = locked & -locked
            if bit & bits:
                results[at] = expired()
            locked &= ~bit
            at += 1


def expired() -> ReceiptExpired:
    """The error for a receipt whose delivery is over."""
    return ReceiptExpired(
        "the message was handed out again, moved, reset or taken away since this receipt was "
        "given; drop it, the present holder of the message has a newer one"
    )
