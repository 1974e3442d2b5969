"""Counters over lock rows: offsets of a queue, live locks of a group, and ids that were deleted.

The idea: one bit an offset, in pages of 256 offsets, and the number of the lowest page that has a
bit. So the lowest offset that is not done, and the count of such offsets, are known without a look
at any row, however many rows there are. A `Shelf` keeps numbers, each with a value, and finds the
lowest number: pages with their bits, or stretches of time with their due rows.

A `Tally` counts the locks of a group by the millisecond at which they end. A lock ends without any
call, so the caller of `live_at` gives the time, and the locks that ended since the last call are
taken off then: each lock once, whether there are ten or a million. Only groups with a
`max_in_flight` have one.

Invariants: all agree with the rows of `locks`; a `Tally` may be asked without any table's lock, and
counts anew when the clock was set back. A number of a `Shelf` whose value went to 0 stays for a
while, because mostly it comes back; there are never more of these than of the others plus 128.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import Final

_PAGE_BITS: Final = 8
_PAGE: Final = 1 << _PAGE_BITS
_IN_PAGE: Final = _PAGE - 1
_ALL: Final = (1 << _PAGE) - 1
_EMPTY_MAX: Final = 64
_STALE_MAX: Final = 64


class Shelf:
    """Numbers with values, of which the lowest is wanted; see the module."""

    __slots__ = ("_empty", "_order", "values")

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        """Others may change it as long as values other than 0 stay so."""
        self._order: list[int] = []
        """A heap of the numbers, each once."""
        self._empty = 0
        """How many of the values are 0."""

    def put(self, number: int, value: int) -> None:
        """Sets a number's value."""
        values = self.values
        old = values.get(number)
        values[number] = value
        if old is None:
            heapq.heappush(self._order, number)
            self._empty += not value
        elif not old:
            self._empty -= bool(value)
        elif not value:
            self._empty += 1
        if self._empty > _EMPTY_MAX + (len(values) >> 1):
            self.values = {number: value for number, value in values.items() if value}
            self._order = sorted(self.values)
            self._empty = 0

    def add(self, number: int, by: int) -> None:
        """Changes a number's value."""
        self.put(number, self.values.get(number, 0) + by)

    def first(self) -> int | None:
        """The lowest number with a value; None if there is none."""
        order, values = self._order, self.values
        while order:
            if values[order[0]]:
                return order[0]
            del values[heapq.heappop(order)]
            self._empty -= 1
        return None

    def __len__(self) -> int:
        return len(self.values)


class OffsetSet:
    """A set of offsets, one bit each."""

    __slots__ = ("_pages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._pages = Shelf()

    def add(self, first: int, bits: int) -> None:
        """Adds the offsets that a row's bitmap names: `first` + i for bit i. None of them is in the
        set. A row may reach over two pages.
        """
        self.count += bits.bit_count()
        page, bits = first >> _PAGE_BITS, bits << (first & _IN_PAGE)
        while bits:
            here = bits & _ALL
            if here:
                values = self._pages.values
                old = values.get(page)
                if old:
                    values[page] = old | here
                else:
                    self._pages.put(page, here)
            bits >>= _PAGE
            page += 1

    def remove(self, first: int, bits: int) -> None:
        """Removes offsets that are in the set."""
        self.count -= bits.bit_count()
        page, bits = first >> _PAGE_BITS, bits << (first & _IN_PAGE)
        while bits:
            here = bits & _ALL
            if here:
                values = self._pages.values
                left = values[page] & ~here
                if left:
                    values[page] = left
                else:
                    self._pages.put(page, 0)
            bits >>= _PAGE
            page += 1

    def replace(self, first: int, bits: int) -> None:
        """Gives the page that begins with `first` these offsets and no others."""
        page = first >> _PAGE_BITS
        self.count += bits.bit_count() - self._pages.values.get(page, 0).bit_count()
        self._pages.put(page, bits)

    def lowest(self) -> int | None:
        """The lowest offset; None if there is none."""
        page = self._pages.first()
        if page is None:
            return None
        bits = self._pages.values[page]
        return (page << _PAGE_BITS) + (bits & -bits).bit_length() - 1

    def has_below(self, offset: int) -> bool:
        """Whether there is an offset below this one."""
        lowest = self.lowest()
        return lowest is not None and lowest < offset

    def within(self, first: int, size: int) -> int:
        """Which of `size` offsets from `first` on are in the set: bit i for `first` + i."""
        values, found = self._pages.values, 0
        page, at = first >> _PAGE_BITS, -(first & _IN_PAGE)
        while at < size:
            here = values.get(page, 0)
            found |= here << at if at >= 0 else here >> -at
            page, at = page + 1, at + _PAGE
        return found & ((1 << size) - 1)

    def count_from(self, offset: int) -> int:
        """How many offsets there are from `offset` on."""
        if not self.has_below(offset):
            return self.count
        page, count = offset >> _PAGE_BITS, self.count
        for number, bits in self._pages.values.items():
            if number < page:
                count -= bits.bit_count()
            elif number == page:
                count -= (bits & ((1 << (offset & _IN_PAGE)) - 1)).bit_count()
        return count


class QueueLocks:
    """A group's rows in one queue: their count, the offsets they lock, those of them that were
    handed out before, and the parked offsets. Once this queue alone is asked for: how many rows are
    due in each 1/8 s. The table has counted the locked offsets below `gone_below` as gone.
    """

    __slots__ = ("dues", "gone_below", "locked", "parked", "redelivered", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.dues: Shelf | None = None
        self.gone_below = 0
        self.locked = OffsetSet()
        self.redelivered = OffsetSet()
        self.parked = OffsetSet()

    def has_gone(self, low: int) -> bool:
        """Whether an offset from `gone_below` to before `low` is locked."""
        if not self.locked.has_below(low):
            return False
        return self.locked.count_from(self.gone_below) > self.locked.count_from(low)

    def lowest(self) -> int | None:
        """The lowest offset below the next offset that is not done."""
        locked, parked = self.locked.lowest(), self.parked.lowest()
        if locked is None or parked is None:
            return parked if locked is None else locked
        return min(locked, parked)


class Tally:
    """Counts a group's live locks, see the module. `is_stale`: its rows were changed otherwise, so
    another has to be made.
    """

    def __init__(self) -> None:
        self.is_stale = False
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        """Time at which locks end -> how many messages they have."""
        self._coming: list[int] = []
        """A heap of the times that are after `_now`; perhaps some twice, and some that have no
        messages any more.
        """
        self._now = 0
        self._live = 0

    def add(self, due: int, messages: int) -> None:
        """Counts a lock that was made."""
        with self._lock:
            if due not in self._counts:
                self._counts[due] = 0
                if due > self._now:
                    heapq.heappush(self._coming, due)
            self._counts[due] += messages
            if due > self._now:
                self._live += messages

    def remove(self, due: int, messages: int) -> None:
        """Uncounts messages that left a lock."""
        with self._lock:
            self._counts[due] -= messages
            if not self._counts[due]:
                del self._counts[due]
            if due > self._now:
                self._live -= messages
            if len(self._coming) > _STALE_MAX + 2 * len(self._counts):
                self._coming = sorted(time for time in self._counts if time > self._now)

    def live_at(self, now: int) -> int:
        """How many messages are under locks that end after `now`."""
        with self._lock:
            if now < self._now:
                self._coming = sorted(time for time in self._counts if time > now)
                self._live = sum(self._counts[time] for time in self._coming)
            self._now = now
            last = -1
            while self._coming and self._coming[0] <= now:
                time = heapq.heappop(self._coming)
                if time != last:
                    self._live -= self._counts.get(time, 0)
                last = time
            return self._live


class Ids:
    """A set of small numbers; see the module."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (number & 7) & 1)

    def update(self, numbers: Iterable[int]) -> None:
        """Adds numbers."""
        for number in numbers:
            at = number >> 3
            if at >= len(self._bits):
                self._bits.extend(bytes(at + 1 - len(self._bits)))
            self._bits[at] |= 1 << (number & 7)

    def difference_update(self, numbers: Iterable[int]) -> None:
        """Removes numbers."""
        for number in numbers:
            if number in self:
                self._bits[number >> 3] &= ~(1 << (number & 7))
