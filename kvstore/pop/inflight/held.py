"""What a group holds of one queue: which offsets are under lock, and which are parked.

The idea: one bit an offset, in pages of 256, and the number of the lowest page that has a bit. So
the lowest offset that is not done, and how many there are, are known without a look at any row,
however many rows there are. Numbers of which the lowest is wanted, each with a value (a page's
bits, or how many rows are due in a stretch of time), are kept by a `Shelf`.

Invariants: what is here agrees with the rows of `locks`; a number whose value went to 0 stays for a
while, because mostly it comes back, but never more of these than of the others, and 128.
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
    """See the module."""

    __slots__ = ("_empty", "_order", "values")

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        """May be changed by others as long as what is not 0 stays so."""
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
    """A set of offsets."""

    __slots__ = ("_pages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._pages = Shelf()

    def add(self, first: int, bits: int) -> None:
        """Add the offsets that a row's bitmap names, of which none is there: `first` + i for bit i.
        A row may reach over two pages.
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
        """Take offsets out, which are there."""
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
        """Let the page that begins with `first` have these offsets and no others."""
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

    def within(self, first: int, size: int) -> int:
        """Which of `size` offsets from `first` on there are: bit i for `first` + i."""
        values, found = self._pages.values, 0
        page, at = first >> _PAGE_BITS, -(first & _IN_PAGE)
        while at < size:
            here = values.get(page, 0)
            found |= here << at if at >= 0 else here >> -at
            page, at = page + 1, at + _PAGE
        return found & ((1 << size) - 1)

    def count_from(self, offset: int) -> int:
        """How many offsets there are from `offset` on."""
        lowest = self.lowest()
        if lowest is None or lowest >= offset:
            return self.count
        page, count = offset >> _PAGE_BITS, self.count
        for number, bits in self._pages.values.items():
            if number < page:
                count -= bits.bit_count()
            elif number == page:
                count -= (bits & ((1 << (offset & _IN_PAGE)) - 1)).bit_count()
        return count


class QueueLocks:
    """What is known of one queue: how many rows it has, and, once somebody asks for this queue
    alone, how many are due in each 1/8 s; which offsets the rows lock, and which are parked.
    """

    __slots__ = ("dues", "locked", "parked", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.dues: Shelf | None = None
        self.locked = OffsetSet()
        self.parked = OffsetSet()

    def lowest(self) -> int | None:
        """The lowest offset that is not done, of those that were passed."""
        locked, parked = self.locked.lowest(), self.parked.lowest()
        if locked is None or parked is None:
            return parked if locked is None else locked
        return min(locked, parked)
