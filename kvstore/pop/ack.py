"""Acks popped messages and changes their locks.

The idea: a receipt names a row and a message's place in it. An ack clears the bit of that place;
the last bit takes the row along. The core sorts a batch by rows first: each row is looked up and
written once, and all rows of an in-flight table are one write. Mostly the table knows the row, and
all its messages are acked: then the ack is one removal.

Invariants: a receipt that is not current changes nothing; acking twice by the same delivery is as
good as once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Literal

from kvstore.clock import cut_ms
from kvstore.core.popping.inflight import Change
from kvstore.core.popping.receipts import Asked, Delivery
from kvstore.errors import ReceiptExpired, ReceiptIllegal
from kvstore.index.keys import LockKey
from kvstore.meta.groups import GroupInfo
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.lock_rows import Lock, offsets_of
from kvstore.pop.inflight.queue_order import Order
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.popped import backoff_ms, lock_ms
from kvstore.process.locks import acquire

Bury = Callable[[InflightTable, GroupInfo, LockKey], None]
AckResult = Literal[True] | ReceiptIllegal | ReceiptExpired

_DONE: Final = True


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
        asked = self._receipts.sort(receipts)
        refused: dict[int, int] = {}
        for (group, topic), numbers in asked.tables.items():
            while not self._ack_rows(self._tables.get(group, topic), asked, numbers, refused):
                pass  # the table was let go meanwhile
        results: list[AckResult] = [_DONE] * asked.count
        for at, error in asked.errors:
            results[at] = error
        if refused:
            for at in asked.indices(refused):
                results[at] = expired()
        return results

    def _ack_rows(
        self, table: InflightTable, asked: Asked, numbers: list[int], refused: dict[int, int]
    ) -> bool:
        """Acks rows of one table, and adds the bits that can't be acked to `refused`; False if the
        table is gone.
        """
        change = Change()
        try:
            if not table.lock.acquire(False):
                acquire(table.lock)
            if table.gone:
                return False
            for number in table.ack(change, asked, numbers):
                bits = self._ack_row(table, change, asked, number)
                if bits:
                    refused[number] = bits
            if change.rows:
                self._tables.write(table, change)
                if table.group in self._waiting.short:
                    self._waiting.made_room(table.group)
                if table.order is not None:
                    self._free(table, table.order, change)
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                table.lock.release()
            except RuntimeError:
                pass  # it was not taken
        return True

    def _free(self, table: InflightTable, order: Order, change: Change) -> None:
        """Gives the next messages of the acked messages' groups their turn."""
        acked = [(key, lock[3]) for key, lock, _ in change.removed]
        acked += [(key, gone) for key, _, gone in change.shrunk]
        ripe = sum(order.free(k[3], o) for k, bits in acked for o in offsets_of(k[4], bits))
        if ripe:
            self._waiting.freed(table, ripe)

    def _ack_row(self, table: InflightTable, change: Change, asked: Asked, number: int) -> int:
        """Acks messages of a row; returns those that can't be acked any more."""
        raw, nonce = asked.rows[number]
        key, bits = LockKey._make(raw), asked.bits[number]
        lock = table.get(key)
        if lock is None or lock.nonce != nonce:
            return bits & self._expired(table, key, nonce, bits)
        left = lock.locked & ~bits
        if left != lock.locked:
            change.shrink(key, lock, lock._replace(locked=left))
        return bits & lock.moved

    def _expired(self, table: InflightTable, key: LockKey, nonce: int, bits: int) -> int:
        """The bits of a row that is gone which can't be acked any more."""
        remembered = self._tables.bad_of(key, nonce)
        if remembered is not None:
            return remembered
        if self._context.clock.now_ms() >= key.due:
            return bits
        # No other pop can have got it since, unless it was moved, or the offset was set back.
        queue, first = key.queue, key.first
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
        raw, nonce, place = self._receipts.read(receipt)
        key, bit = LockKey._make(raw), 1 << place
        group = self._context.groups.by_id(key.group)
        if group is None:
            raise expired()
        with self._counted(group), self._tables.locked(key.group, key.topic) as table:
            lock = table.get(key)
            if lock is None or lock.nonce != nonce or not lock.locked & bit:
                raise expired()
            keeps = bool(invisible_ms) and not gives_back
            attempt_id = lock.attempt_id if keeps else b""
            has_failed = not keeps and not unseen and lock.attempts >= group.max_attempts
            change = Change()
            left = lock._replace(locked=lock.locked & ~bit, moved=lock.moved | bit)
            now = self._context.clock.now_ms()
            lasts = 0 if has_failed else _lasts(group, lock.attempts, invisible_ms, keeps=keeps)
            due = now + cut_ms(self._context.clock) + lasts if lasts else now
            self._check_room(group, key.due, due, now)
            new = table.free_key(change, key.queue, key.first + place, due)
            attempts = lock.attempts - unseen
            # A message given back can't be had before its time by repeating the attempt id.
            moved = Lock(attempts, lock.recoveries, next(self._context.nonces), 1, 0, attempt_id)
            change.shrink(key, lock, left)
            change.add(new, moved)
            self._tables.write(table, change)
            if has_failed:
                self._bury(table, group, new)
            self._waiting.freed(table, 1)
            if key.group in self._waiting.short:
                self._waiting.made_room(key.group)
        return Delivery(self._receipts, *new, moved.nonce).receipts(1)[0]

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


def expired() -> ReceiptExpired:
    """The error for a receipt whose delivery is over."""
    return ReceiptExpired(
        "the message was handed out again, moved, reset or taken away since this receipt was "
        "given; drop it, the present holder of the message has a newer one"
    )
