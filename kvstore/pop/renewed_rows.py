"""Renews lock rows: each is moved, as it is, to another due time.

The idea: the messages that one pop took from one queue share a row, and one holder has them all. So
a whole row moves, with its nonce, first offset and bitmaps; only its due time is another. The
receipts of the row are good as before: `InflightTables.present` finds it by its nonce.

Invariants: a row moves at most once in a change; a lock that ran out is renewed only if nobody else
has the message, and the group's cap has room.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from kvstore.clock import cut_ms
from kvstore.core.popping.inflight import Change
from kvstore.core.popping.receipts import Asked
from kvstore.errors import ReceiptExpired
from kvstore.index.keys import LockKey
from kvstore.meta.groups import GroupInfo
from kvstore.pop.ack import AckResult, Room, ack_results
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.popped import lock_ms


class RenewedRows:
    """See the module. `counted` is `Pop.counted`."""

    def __init__(
        self,
        context: PopContext,
        counted: Callable[[GroupInfo], AbstractContextManager[object]],
    ) -> None:
        self._context = context
        self._counted = counted

    def renew(self, receipts: list[str], invisible_ms: int) -> list[AckResult]:
        """See `Store.renew_batch`."""
        context = self._context
        asked = context.receipts.sort(receipts)
        refused: dict[int, int] = {}
        for (number, topic), rows in asked.tables.items():
            group = context.groups.by_id(number)
            if group is None:
                refused.update((row, asked.bits[row]) for row in rows)
                continue
            with self._counted(group), context.tables.locked(number, topic) as table:
                self._move_rows(table, group, asked, rows, invisible_ms, refused)
        return ack_results(asked, refused)

    def _move_rows(
        self,
        table: InflightTable,
        group: GroupInfo,
        asked: Asked,
        rows: list[int],
        invisible_ms: int,
        refused: dict[int, int],
    ) -> None:
        change, clock, tables = Change(), self._context.clock, self._context.tables
        now, moved = clock.now_ms(), dict[int, int]()
        room = Room(group, tables, now)
        for row in rows:
            (raw, nonce), bits = asked.rows[row], asked.bits[row]
            key = tables.present(table, LockKey._make(raw), nonce)
            lock = table.get(key)
            is_held = lock is not None and lock.nonce == nonce
            gone = bits & ~lock.locked if lock is not None and is_held else bits
            if gone:
                refused[row] = gone
            if lock is None or gone == bits or nonce in moved:
                continue
            due = now + cut_ms(clock) + lock_ms(group, lock.attempts, invisible_ms)
            try:
                room.take(key.due, due)
            except ReceiptExpired:
                refused[row] = bits
                continue
            new = table.free_key(change, key.queue, key.first, due)
            change.remove(key, lock, 0)
            change.add(new, lock)
            moved[nonce] = new.due
        if change.rows:
            tables.write(table, change)
            for nonce, due in moved.items():
                tables.note_renewed(nonce, due)
            # A lock may end earlier now than a waiter thought.
            self._context.waiting.freed(table, 1)
