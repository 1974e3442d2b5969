"""Records the progress of popping groups: their part of the history of offsets.

The idea: a commit writes its row of history itself. A popping group's progress lies between its
locks and moves with every ack, which shall not pay for a row. So a pop or an ack only leaves its
time, per group and topic. When the stretch of that time is over, the progress is read from the rows
of `offsets` and from the locks in the in-flight table: by the housekeeper, before the first pop or
ack of a later stretch, when the history is asked for, or at the close. Where a message is still
locked the table is looked at again, since locks also end without an ack.

Invariants: a row says what was done at its time, which is that of the last pop or ack before it, or
of the look if neither moved it; nothing is written where nothing changed; no row is written from a
look that a commit or a reset has overtaken; no lock row is read, however many there are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvstore.clock import Clock
from kvstore.meta.history import NewNote
from kvstore.meta.offsets import Offsets
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables

_HEAD: Final = struct.Struct(">II")
_HEAD_DIGITS: Final = 16
"""Characters at the beginning of a receipt that are its row's group and topic, in hex."""
_NO_TOPIC: Final = (1 << 32) - 1
_PAIRS_MAX: Final = 1 << 12
_SLICE: Final = 0.02
"""Seconds that one look of the housekeeper takes; a table that was begun is finished."""
_SHARE: Final = 50
"""One second of this many goes into looking."""
_CLOSING: Final = 1.0
"""Seconds that a close spends on progress that was not recorded yet."""

Pair = tuple[int, int]


class ProgressHistory:
    """Records the progress of popping groups, see the module. A pair is a group's id and a
    topic's.
    """

    def __init__(
        self,
        offsets: Offsets,
        flights: InflightTables,
        clock: Clock,
        *,
        after_crash: bool,
    ) -> None:
        """`after_crash`: the opening before may have left progress that was not recorded."""
        self._offsets = offsets
        self._flights = flights
        self._clock = clock
        self._stretch_ms = offsets.kept.stretch_ms
        self._pending: dict[Pair, int | None] = {}
        """Time of the last move; None: nothing moved since the last look, but there are locks."""
        self._pairs: dict[str, Pair] = {}
        """Pairs by the beginning of their receipts: reading that costs as much as all the rest."""
        self._caught_up: set[Pair] | None = set() if after_crash else None
        """The pairs whose history was asked for since a crash."""
        self._look_at = clock.monotonic()
        offsets.moved = self.moved

    def moved(self, group: int, topic: int, now: int) -> None:
        """Marks that a group is about to take or ack messages of a topic."""
        pair = group, topic
        last = self._pending.get(pair)
        if last is not None and last // self._stretch_ms != now // self._stretch_ms:
            self._note(pair, last)
        self._pending[pair] = now

    def acking(self, receipts: Sequence[Any]) -> None:
        """Marks that these receipts are about to be acked; texts that are none are refused
        there.
        """
        if not self._offsets.kept.is_on:
            return  # nobody would ask
        try:
            # Mostly all receipts are of one topic: then the lowest and the highest begin alike.
            first = receipts[0][:_HEAD_DIGITS]
            if len(receipts) > 1 and not (
                min(receipts).startswith(first) and max(receipts).startswith(first)
            ):
                heads = {receipt[:_HEAD_DIGITS] for receipt in receipts}
            else:
                heads = {first}
            for head in heads:
                pair = self._pairs.get(head) or self._pair_of(head)
                self.moved(*pair, self._clock.now_ms())
        except (AttributeError, LookupError, TypeError, ValueError, struct.error):
            return

    def _pair_of(self, head: str) -> Pair:
        group, topic = _HEAD.unpack(bytes.fromhex(head))
        if topic >= _NO_TOPIC:
            raise ValueError("nothing has that id")
        if len(self._pairs) >= _PAIRS_MAX:
            self._pairs.clear()
        self._pairs[head] = group, topic
        return group, topic

    # --- looking ---

    def due(self) -> bool:
        """Whether it is time for another look."""
        return bool(self._pending) and self._clock.monotonic() >= self._look_at

    def look(self) -> None:
        """Records progress in stretches that are over, for as many pairs as there is time for."""
        begin = self._clock.monotonic()
        stretch = self._clock.now_ms() // self._stretch_ms
        pending = list(self._pending.items())
        moved = [
            pair for pair, at in pending if at is not None and at // self._stretch_ms < stretch
        ]
        for pair in moved + [pair for pair, at in pending if at is None]:
            self._look_at_one(pair)
            if self._clock.monotonic() - begin > _SLICE:
                break
        end = self._clock.monotonic()
        self._look_at = end + max(self._stretch_ms / 1000, (end - begin) * _SHARE)

    def asked(self, group: int, topic: int) -> None:
        """Records the progress in a topic now: its history is asked for."""
        if not self._offsets.kept.is_on:
            return
        pair = group, topic
        if pair in self._pending:
            self._look_at_one(pair)
        elif self._caught_up is not None and pair not in self._caught_up:
            if len(self._caught_up) >= _PAIRS_MAX:
                self._caught_up.clear()  # then some are looked at once more
            self._caught_up.add(pair)
            self._note(pair, None, only_known=True)

    def settle(self, pairs: Iterable[Pair]) -> None:
        """Records the progress of these pairs before an offset is set there."""
        for pair in pairs:
            if pair in self._pending:
                self._look_at_one(pair)

    def finish(self) -> None:
        """Records progress before a close; the rest is recorded when it is asked for."""
        until = self._clock.monotonic() + _CLOSING
        for pair in list(self._pending):
            if self._clock.monotonic() > until:
                return
            self._note(pair, self._pending.pop(pair, None))

    def _look_at_one(self, pair: Pair) -> None:
        moved = self._pending.pop(pair, None)
        try:
            is_over = self._note(pair, moved)
        except BaseException:
            self._pending.setdefault(pair, moved)
            raise
        if not is_over:
            self._pending.setdefault(pair, None)

    def _note(self, pair: Pair, moved: int | None, *, only_known: bool = False) -> bool:
        """Records the progress in a topic if it differs from the last record. Returns whether no
        message is locked or parked any more. With `only_known` only queues that have history are
        recorded.
        """
        if next(self._offsets.rows_of(*pair), None) is None:
            return True  # deleted, or there never was such a group
        with self._flights.flying(*pair) as flight:
            notes = self._read(pair, flight, only_known=only_known)
            if not flight.dead:
                self._offsets.write_notes(notes, moved)
            return not (flight.rows or flight.parked_count)

    def _read(self, pair: Pair, flight: InflightTable, *, only_known: bool) -> list[NewNote]:
        """The rows to write."""
        notes = []
        for key, queue, offset, recoveries in self._offsets.rows_of(*pair):
            lowest = flight.lowest(queue)
            done = offset if lowest is None else min(offset, lowest)
            last = self._offsets.kept.last(key)
            if last is None:
                if not only_known:
                    notes.append(NewNote(key, done, recoveries, 0))
            elif last.offset != done:
                notes.append(NewNote(key, done, recoveries, last.committed_at))
        return notes
