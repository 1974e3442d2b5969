"""Acks popped messages and changes their locks.

The idea: a receipt names a row and a message's bit in it. An ack clears that bit;
the last ack deletes the row. The core sorts a batch by rows first: each row is looked up and
written once, and all rows of an in-flight table are one write. Mostly the table knows the row, and
all its messages are acked: then the ack is one removal. A change of locks moves messages to rows of
their own; those of one row that get the same value stay together.

A row is renewed by moving it, as it is, to another due time (`renewed_rows`). Its nonce, which no
other delivery has, still names it: a row that is not where a receipt says is looked up by that.

Invariants: a receipt that is not current changes nothing; acking twice by the same delivery is as
good as once; a row is in one change at most once, by whichever of its receipts it was named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal, NamedTuple

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
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.nack import LockChange
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

    def named(self, receipts: list[str]) -> set[tuple[str, str]]:
        """See `Store._named_in`."""
        context = self._context
        found = set[tuple[str, str]]()
        for group_id, topic_id in self._receipts.sort(receipts).tables:
            group, topic = context.groups.by_id(group_id), context.topics.name_of(topic_id)
            if group is not None and topic is not None:
                found.add((group.name, topic))
        return found

    def ack(self, receipts: list[str]) -> list[AckResult]:
        """See `Store.ack_batch`."""
        asked = self._receipts.sort(receipts)
        refused: dict[int, int] = {}
        for (group, topic), numbers in asked.tables.items():
            while not self._ack_rows(self._tables.get(group, topic), asked, numbers, refused):
                pass  # the table was let go meanwhile
        return ack_results(asked, refused)

    def ack_now(self, receipts: list[str]) -> list[AckResult] | None:
        """As `ack`, if nothing has to be waited for: no other thread, no first look at a group's
        rows. None if something may have to be: then some were acked, and all can be acked again.
        """
        asked = self._receipts.sort(receipts)
        refused: dict[int, int] = {}
        for (group, topic), numbers in asked.tables.items():
            table = self._tables.known_table(group, topic)
            if table is None or not self._ack_rows(table, asked, numbers, refused, waits=False):
                return None
        return ack_results(asked, refused)

    def _ack_rows(
        self,
        table: InflightTable,
        asked: Asked,
        numbers: list[int],
        refused: dict[int, int],
        *,
        waits: bool = True,
    ) -> bool:
        """Acks rows of one table, and adds the bits that can't be acked to `refused`; False if the
        table is gone, or another thread is at it and this one does not wait.
        """
        change = Change()
        try:
            if not table.lock.acquire(False):
                if not waits:
                    return False
                acquire(table.lock)
            if table.gone:
                return False
            renewed: list[int] = []
            for number in table.ack(change, asked, numbers):
                key, nonce = LockKey._make(asked.rows[number][0]), asked.rows[number][1]
                if self._tables.present(table, key, nonce) != key:
                    renewed.append(number)
                else:
                    self._ack_row(table, change, key, asked, number, refused)
            self._ended(table, change)
            for number in renewed:
                # Each by itself: other receipts may have named the same row.
                change = Change()
                raw, nonce = asked.rows[number]
                key = self._tables.present(table, LockKey._make(raw), nonce)
                self._ack_row(table, change, key, asked, number, refused)
                self._ended(table, change)
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                table.lock.release()
            except RuntimeError:
                pass  # it was not taken
        return True

    def _ended(self, table: InflightTable, change: Change) -> None:
        """Writes a change that acks messages, if it does."""
        if not change.rows:
            return
        self._tables.write(table, change)
        if table.group in self._waiting.short:
            self._waiting.made_room(table.group)
        if table.order is not None:
            self._free(table, table.order, change)

    def _free(self, table: InflightTable, order: Order, change: Change) -> None:
        """Gives the next messages of the acked messages' groups their turn."""
        acked = [(key, lock[3]) for key, lock, _ in change.removed]
        acked += [(key, gone) for key, _, gone in change.shrunk]
        ripe = sum(order.free(k[3], o) for k, bits in acked for o in offsets_of(k[4], bits))
        if ripe:
            self._waiting.freed(table, ripe)

    def _ack_row(
        self,
        table: InflightTable,
        change: Change,
        key: LockKey,
        asked: Asked,
        number: int,
        refused: dict[int, int],
    ) -> None:
        """Acks messages of a row; adds the bits that can't be acked any more to `refused`."""
        nonce, bits = asked.rows[number][1], asked.bits[number]
        lock = table.get(key)
        if lock is None or lock.nonce != nonce:
            bad = bits & self._expired(table, key, nonce, bits)
        else:
            left = lock.locked & ~bits
            if left != lock.locked:
                change.shrink(key, lock, lock._replace(locked=left))
            bad = bits & lock.moved
        if bad:
            refused[number] = bad

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

    def change(self, changes: Sequence[LockChange]) -> list[str | ReceiptIllegal | ReceiptExpired]:
        """Changes locks: for each, in order, the receipt that holds from now on, or the error. All
        changes of an in-flight table are one write.
        """
        results: list[str | ReceiptIllegal | ReceiptExpired] = [""] * len(changes)
        tables: dict[tuple[int, int], list[_AskedChange]] = {}
        for at, change in enumerate(changes):
            try:
                raw, nonce, bit = self._receipts.read(change.receipt)
            except ReceiptIllegal as e:
                results[at] = e
                continue
            asked = _AskedChange(at, LockKey._make(raw), nonce, bit, change)
            tables.setdefault((asked.key.group, asked.key.topic), []).append(asked)
        for (number, topic), wanted in tables.items():
            group = self._context.groups.by_id(number)
            if group is None:
                for asked in wanted:
                    results[asked.at] = expired()
                continue
            with self._counted(group), self._tables.locked(number, topic) as table:
                self._change_rows(table, group, wanted, results)
        return results

    def _change_rows(
        self,
        table: InflightTable,
        group: GroupInfo,
        wanted: list[_AskedChange],
        results: list[str | ReceiptIllegal | ReceiptExpired],
    ) -> None:
        """Changes rows of one table, whose lock is held, and gives each receipt's result."""
        before: dict[LockKey, Lock] = {}
        rows: dict[LockKey, Lock] = {}
        moves: dict[_Move, list[_AskedChange]] = {}
        room = Room(group, self._tables, self._context.clock.now_ms())
        for one in wanted:
            key, bit = self._tables.present(table, one.key, one.nonce), 1 << one.bit
            asked = one._replace(key=key)
            left = rows[key] if key in rows else table.get(key)
            if left is None or left.nonce != asked.nonce or not left.locked & bit:
                results[asked.at] = expired()
                continue
            move = self._move_of(asked, left, group, room.now)
            try:
                room.take(key.due, move.due)
            except ReceiptExpired as e:
                results[asked.at] = e
                continue
            before.setdefault(key, left)
            rows[key] = left._replace(locked=left.locked & ~bit, moved=left.moved | bit)
            moves.setdefault(move, []).append(asked)
        if not moves:
            return
        change, dead = Change(), list[LockKey]()
        for key, left in rows.items():
            change.shrink(key, before[key], left)
        for move, together in moves.items():
            new = self._add_row(table, change, move, together, results)
            if move.has_failed:
                dead.append(new)
        self._tables.write(table, change)
        for new in dead:
            self._bury(table, group, new)
        self._waiting.freed(table, sum(map(len, moves.values())))
        if table.group in self._waiting.short:
            self._waiting.made_room(table.group)

    def _move_of(self, asked: _AskedChange, lock: Lock, group: GroupInfo, now: int) -> _Move:
        """The row to which a message goes."""
        lasts_ms, unseen = asked.change.lasts_ms, asked.change.unseen
        keeps = bool(lasts_ms) and not asked.change.gives_back
        attempts = lock.attempts - unseen
        if asked.change.gives_up:
            attempts = max(attempts, group.max_attempts)
        has_failed = not keeps and not unseen and attempts >= group.max_attempts
        lasts = 0 if has_failed else _lasts(group, lock.attempts, lasts_ms, keeps=keeps)
        due = now + cut_ms(self._context.clock) + lasts if lasts else now
        reason = lock.reason if asked.change.reason is None else asked.change.reason
        # A message given back can't be had before its time by repeating the attempt id.
        attempt_id = lock.attempt_id if keeps else b""
        kept = lock._replace(
            attempts=attempts, nonce=0, locked=0, moved=0,
            attempt_id=attempt_id, reason=reason,
        )  # fmt: skip
        return _Move(asked.key, due, kept, has_failed)

    def _add_row(
        self,
        table: InflightTable,
        change: Change,
        move: _Move,
        together: list[_AskedChange],
        results: list[str | ReceiptIllegal | ReceiptExpired],
    ) -> LockKey:
        """Adds the row of messages that go together, and gives their receipts."""
        together.sort(key=lambda asked: asked.bit)
        first = together[0].bit
        bits = sum(1 << asked.bit - first for asked in together)
        new = table.free_key(change, move.key.queue, move.key.first + first, move.due)
        lock = move.lock._replace(nonce=next(self._context.nonces), locked=bits)
        change.add(new, lock)
        receipts = Delivery(self._receipts, *new, lock.nonce).receipts(bits)
        for asked, receipt in zip(together, receipts, strict=True):
            results[asked.at] = receipt
        return new


class _AskedChange(NamedTuple):
    """A change, its place in the batch, and the receipt of its message, read."""

    at: int
    key: LockKey
    nonce: int
    bit: int
    change: LockChange


class _Move(NamedTuple):
    """Messages of a row that go to a row of their own: when that is due, and its value but for its
    nonce and bitmap. `has_failed`: it goes to the dead letters at once.
    """

    key: LockKey
    due: int
    lock: Lock
    has_failed: bool


class Room:
    """The room that a group's cap has for locks that ran out and are renewed. Such a lock counts no
    more: by now its place may be another message's.
    """

    def __init__(self, group: GroupInfo, tables: InflightTables, now: int) -> None:
        self.now = now
        self._most = group.max_in_flight
        self._live = 0 if self._most is None else tables.live_at(group.id, now)

    def take(self, old_due: int, new_due: int) -> None:
        """Refuses a renewal for which there is no room."""
        if self._most is None or old_due > self.now or new_due <= self.now:
            return
        if self._live >= self._most:
            raise ReceiptExpired(
                f"the lock ran out, and its group has taken {self._most} others since, as many as "
                "max_in_flight says; drop the receipt, the message is handed out again"
            )
        self._live += 1


def ack_results(asked: Asked, refused: dict[int, int]) -> list[AckResult]:
    """For each receipt True, or its error; `refused` has bits by the numbers of rows."""
    results: list[AckResult] = [_DONE] * asked.count
    for at, error in asked.errors:
        results[at] = error
    if refused:
        for at in asked.indices(refused):
            results[at] = expired()
    return results


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
