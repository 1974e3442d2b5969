"""The offsets of one queue that a group has locked or parked.

The idea: one bit an offset, in pages of 256 offsets, and the number of the lowest page that has a
bit. So the lowest offset that is not done, and the count of such offsets, are known without a look
at any row, however many rows there are. A `Shelf` keeps numbers, each with a value, and finds the
lowest number: pages with their bits, or stretches of time with their due rows.

Invariants: the bits agree with the rows of `locks`. A number whose value went to 0 stays for a
while, because mostly it comes back; there are never more of these than of the others plus 128.
"""

from __future__ import annotations

import heapq
from typing import Final

_PAGE_BITS: Final = 8
_PAGE: Final = 1 << _PAGE_BITS
_IN_PAGE: Final = _PAGE - 1
_ALL: Final = (1 << _PAGE) - 1
_EMPTY_MAX: Final = 64


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
        """Set a number's value."""
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
        """Change a number's value."""
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
    due in each 1/8 s.
    """

    __slots__ = ("dues", "locked", "parked", "redelivered", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.dues: Shelf | None = None
        self.locked = OffsetSet()
        self.redelivered = OffsetSet()
        self.parked = OffsetSet()

    def lowest(self) -> int | None:
        """The lowest offset below the next offset that is not done."""
        locked, parked = self.locked.lowest(), self.parked.lowest()
        if locked is None or parked is None:
            return parked if locked is None else locked
        return min(locked, parked)
