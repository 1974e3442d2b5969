"""Timer rows: which messages wait, in tails and in RocksDB.

The idea: a message that was put since the last checkpoint waits in a tail, all others have a row of
`timers` (`transactions` for prepared ones), whose key begins with the due time. A wait that ended
since the checkpoint is noted in a tail, and its row goes with the next one. So a look goes through
the tails first, and then through the rows without those that ended. `take_due` remembers up to
which row all is delivered, and reads on from there.

Invariants: a message that waits is found in each look, also while a checkpoint moves it from a tail
to its row; memory does not grow with the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kvstore.core.tail import PendingTail, Tail, waiting_rows
from kvstore.errors import CallerError, shown
from kvstore.index.families import Batch
from kvstore.index.index import Index
from kvstore.index.keys import (
    TIMERS,
    TIMERS_END,
    TRANSACTIONS,
    U64,
    read_timer,
    read_timer_count,
    timer_count_key,
    timer_key,
)
from kvstore.meta.topics import TopicInfo
from kvstore.read.pull import PAGE_BYTES

if TYPE_CHECKING:
    from kvstore.core.tail import Waiting

_PLACE_END: Final = 1 << 62
"""Above all due times and positions."""
_PAGE_MAX: Final = 10_000
_TIME_END: Final = (1 << 63) - 1
_FEW: Final = 8
"""Rows read at once where one is looked for, and how many times as many with each next look."""
_MANY: Final = 1024
LOOKED_MAX: Final = 10_000
"""Messages that a page is looked for in, however many others wait; the first look is for as many as
are asked for, each other one for `_FEW` times as many.
"""
T = TypeVar("T")
Place = tuple[int, int]
"""Due time in ms and position: the order of messages that wait."""
START: Final[Place] = (-1, -1)
"""Before every message."""


class Looks(NamedTuple):
    """Messages that are due, each list in due order: of the active tail, of the tail that is being
    checkpointed, and of the rows. A message may be in two of them.
    """

    taken: list[Waiting]
    taken_before: list[Waiting]
    rows: list[Waiting]


class TimerRows:
    """The messages that wait; see the module."""

    def __init__(self, index: Index, *, is_prepared: bool = False) -> None:
        """Of prepared messages of transactions, or of delayed ones."""
        self._index = index
        self._families = index.families
        self._family = TRANSACTIONS if is_prepared else TIMERS
        self._of: Callable[[Tail], PendingTail] = attrgetter(
            "prepared" if is_prepared else "timers"
        )
        self._done: Place = START
        """No row up to here is of a message that still waits."""
        self._added = _TIME_END
        """The first due time of the messages that were put since the last look."""
        self._done_lock = threading.Lock()

    def _tails(self) -> list[PendingTail]:
        """The tails, before the rows are looked at: an entry that leaves one is a row by then."""
        return list(map(self._of, self._index.tails.oldest_first()))

    # --- looking ---

    def is_waiting(self, due: int, position: int) -> bool:
        """Whether the message at a position waits until `due`."""
        tails = self._tails()
        if any(tail.has_ended(position) for tail in tails):
            return False
        if any(position in tail for tail in tails):
            return True
        return self._families.get(self._family, timer_key(due, position)) is not None

    def count(self, topic: int) -> int:
        """How many messages of a topic wait, put until now."""
        with self._index.rows_lock:
            more = sum(tail.counts().get(topic, 0) for tail in self._tails())
            row = self._families.get(self._family, timer_count_key(topic))
        return max(0, more + (0 if row is None else U64.unpack(row)[0]))

    def counts(self) -> dict[int, int]:
        """How many messages wait, by the id of their topic; without topics that have none."""
        found: dict[int, int] = {}
        with self._index.rows_lock:
            for tail in self._tails():
                for topic, more in tail.counts().items():
                    found[topic] = found.get(topic, 0) + more
            for key, value in self._families.rows(self._family, TIMERS_END):
                topic, count = read_timer_count(key, value)
                found[topic] = found.get(topic, 0) + count
        return {topic: count for topic, count in found.items() if count > 0}

    def page(self, after: Place, end: int, limit: int, topic: int | None) -> list[Waiting]:
        """The first `limit` messages behind a place, of a topic or of all, whose records are below
        the position `end`.
        """
        tails = self._tails()
        rows = self._rows(after, _TIME_END, tails)
        if topic is None:
            found = set(islice(rows, limit))
            for tail in tails:
                found.update(tail.pending(*after, end, limit))
        else:
            found = set(islice((one for one in rows if one[2] == topic), limit))
            for tail in tails:
                found.update(one for one in tail.pending(*after, end, _TIME_END) if one[2] == topic)
        ended = [one for one in found if any(tail.has_ended(one[1]) for tail in tails)]
        return sorted(found.difference(ended))[:limit]

    def look_through(
        self, place: Place, limit: int, end: int, take: Callable[[Waiting], T | None]
    ) -> tuple[list[T], Place | None]:
        """The values that `take` makes of messages behind a place, if it makes one: `limit` of
        them at most, of records below the position `end`. Also the place where the next look
        begins: behind the last message that was looked at; None if there are no more. A look is at
        `LOOKED_MAX` messages; the records of those it returns have `PAGE_BYTES`, or are one.
        """
        found: list[T] = []
        room = PAGE_BYTES
        left, count = LOOKED_MAX, limit
        while left:
            rows = self.page(place, end, min(count, left), None)
            if not rows:
                return found, None
            for row in rows:
                if found and row[3] > room:
                    return found, place
                one = take(row)
                place = row[:2]
                if one is not None:
                    found.append(one)
                    room -= row[3]
                if len(found) == limit:
                    return found, place
            left -= len(rows)
            count *= _FEW
        return found, place

    def waiting_at(self, positions: Collection[int], likely: int) -> list[Waiting]:
        """The messages whose records are at some positions, if they wait. All that wait are gone
        through, unless they are found at the `likely` due time: it is for damaged records, of which
        nobody knows when they are due.
        """
        found: list[Waiting] = []
        for position in sorted(positions):
            rows = self.page((likely, position - 1), position + 1, 1, None)
            found += [one for one in rows if one[1] == position]
        left = {*positions} - {one[1] for one in found}
        place = START
        while left and (rows := self.page(place, _PLACE_END, _PAGE_MAX, None)):
            place = rows[-1][:2]
            found += [one for one in rows if one[1] in left]
            left.difference_update(one[1] for one in rows)
        return found

    def bytes_by_segment(self, segment_size: int) -> dict[int, int]:
        """The bytes of records that wait, by the numbers of their segments, put until the last
        checkpoint. All rows are read.
        """
        found: dict[int, int] = {}
        for _, position, _, size in self._rows(START, _TIME_END, self._tails()):
            segment = position // segment_size
            found[segment] = found.get(segment, 0) + size
        return found

    def due_at(self, due: int) -> list[Waiting]:
        """The messages that wait until this very ms."""
        tails = self._tails()
        found = set(self._rows((due, -1), due, tails))
        for tail in tails:
            found.update(
                one for one in tail.pending(due, -1, _TIME_END, _TIME_END) if one[0] == due
            )
        return sorted(one for one in found if self.is_waiting(*one[:2]))

    def _pieces(self, after: Place, until: int, count: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """The rows behind a place that are due at `until` or before: of `count` rows, then more."""
        due, position = after
        first = b"" if due < 0 else timer_key(due, position + 1)
        end = TIMERS_END if until == _TIME_END else timer_key(until + 1, 0)
        rows = self._families.rows(self._family, first, end)
        while piece := list(islice(rows, count)):
            yield piece
            count = min(_MANY, count * _FEW)

    def _rows(
        self, after: Place, until: int, tails: list[PendingTail], count: int = _FEW
    ) -> Iterator[Waiting]:
        """As `_pieces`, row by row, without those of waits that ended."""
        for piece in self._pieces(after, until, count):
            yield from waiting_rows(piece, tails)

    def put_removal(self, batch: Batch, topic: TopicInfo) -> None:
        """Puts into a batch that a topic's messages wait no more; the tails have none of them."""
        if self.count(topic.id):
            for due, position, its_topic, _ in self._rows(START, _TIME_END, []):
                if its_topic == topic.id:
                    batch.delete(self._family, timer_key(due, position))
        batch.delete(self._family, timer_count_key(topic.id))

    def first_due(self) -> int | None:
        """The due time of the next message in ms; None if none waits."""
        return self._first_due(lambda place: None)

    def _first_due(self, passed: Callable[[Place], None]) -> int | None:
        """See `first_due`; `passed` is told how far the rows are of waits that ended."""
        tails = self._tails()
        found = [due for tail in tails if (due := tail.first_due()) is not None]
        first = min(found, default=None)
        # Rows behind that are not read: a checkpoint may put others between them.
        until = _TIME_END if first is None else first - 1
        for piece in self._pieces(self._done, until, 1):
            waiting = waiting_rows(piece, tails)
            if waiting:
                due, position = waiting[0][:2]
                passed((due, position - 1))
                return due
            passed(read_timer(*piece[-1])[:2])
        return first

    # --- delivering; one caller at a time, and no wait ends meanwhile ---

    def take_due(self, until: int, limit: int, end: int) -> Looks:
        """Messages that are due at `until` or before, whose records are below `end`: of each look
        the first `limit`. Those of the tails are not taken again before `give_back`.
        """
        with self._done_lock:
            self._added = _TIME_END
        *before, active = tails = self._tails()
        taken = active.take_due(until, limit, end, None)
        taken_before: list[Waiting] = []
        if before:
            taken_before = before[0].take_due(until, limit, end, active)
        rows = list(islice(self._rows(self._done, until, tails, limit), limit))
        return Looks(taken, taken_before, rows)

    def give_back(self) -> None:
        """Lets all messages be taken again that still wait."""
        for tail in self._tails():
            tail.give_back()
        with self._done_lock:
            self._done = START

    def next_due(self) -> int | None:
        """As `first_due`; the rows before that message are not read again."""
        return self._first_due(self.delivered)

    def delivered(self, place: Place) -> None:
        """Notes that no row up to a place is of a message that waits, but for those that were added
        since the last `take_due`.
        """
        with self._done_lock:
            self._done = min(max(self._done, place), (self._added, -1))

    def added(self, due: int) -> None:
        """Notes that a message was put that is due then: its row may come before others that are
        delivered.
        """
        # Without the lock: a look that begins meanwhile finds the message, which is in a tail.
        if self._added <= due and self._done[0] < due:
            return
        with self._done_lock:
            self._added = min(self._added, due)
            self._done = min(self._done, (due, -1))


def check_page(limit: object, after: object) -> Place:
    """The place behind which a page of so many messages begins; `CallerError` if one of the two is
    none.
    """
    if type(limit) is not int or not 1 <= limit <= _PAGE_MAX:
        raise CallerError(f"limit is {shown(limit)}; it must be 1 to {_PAGE_MAX}")
    if after is None:
        return START
    match after:
        case [int(), int()] as place if all(type(n) is int and -1 <= n < _PLACE_END for n in place):
            return place[0], place[1]
    raise CallerError(f"after is {shown(after)}; it must be the `next` of a page before, or None")
