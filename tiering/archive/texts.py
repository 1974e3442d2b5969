"""Texts: one value a row, as a block has them, to be had as a list or laid side by side.

The idea: whoever wants messages takes values one by one; whoever wants a column takes all their
bytes at once, and where each begins. What a block says in short (one value, ids, numbers, few
different values) becomes either without the other.

Invariant: both ways say the same, byte for byte.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np

from tiering.archive.integers import Column, bounds_of

ID_DIGITS: Final = 32
DIGITS_MAX: Final = 18
"""Decimal digits that always fit 64 bits."""
_POWERS: Final = 10 ** np.arange(DIGITS_MAX + 1, dtype=np.int64)
_ZERO: Final = 48


class Joined(NamedTuple):
    """The bytes of all values, and where each begins and the last ends."""

    data: bytes
    bounds: Column


class Texts(Protocol):
    """See the module."""

    def values(self) -> list[bytes]:
        """One value after the other."""
        ...

    def joined(self) -> Joined:
        """All of them side by side."""
        ...


def joined_of(values: list[bytes]) -> Joined:
    """Values side by side."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return Joined(b"".join(values), bounds_of(sizes))


class Listed(NamedTuple):
    """Values as they are."""

    given: list[bytes]

    def values(self) -> list[bytes]:
        """See Texts."""
        return self.given

    def joined(self) -> Joined:
        """See Texts."""
        return joined_of(self.given)


class Constant(NamedTuple):
    """The same value in all rows."""

    value: bytes
    rows: int

    def values(self) -> list[bytes]:
        """See Texts."""
        return [self.value] * self.rows

    def joined(self) -> Joined:
        """See Texts."""
        size = len(self.value)
        return Joined(self.value * self.rows, np.arange(self.rows + 1) * size)


class Ids(NamedTuple):
    """Ids of 32 digits, side by side."""

    data: bytes

    def values(self) -> list[bytes]:
        """See Texts."""
        data = self.data
        return [data[i : i + ID_DIGITS] for i in range(0, len(data), ID_DIGITS)]

    def joined(self) -> Joined:
        """See Texts."""
        return Joined(self.data, np.arange(0, len(self.data) + 1, ID_DIGITS))


class Numbers(NamedTuple):
    """Numbers behind the same text, with leading zeros to `width` digits (0: with none)."""

    prefix: bytes
    width: int
    numbers: Column

    def values(self) -> list[bytes]:
        """See Texts."""
        form = self.prefix.replace(b"%", b"%%")
        form += b"%%0%dd" % self.width if self.width else b"%d"
        return [form % number for number in self.numbers.tolist()]

    def joined(self) -> Joined:
        """See Texts."""
        numbers, count = self.numbers, len(self.numbers)
        most = int(numbers.max()) if count else 0
        if not count or int(numbers.min()) < 0 or most >= _POWERS[-1]:
            return joined_of(self.values())
        lengths = np.maximum(np.searchsorted(_POWERS, numbers, side="right"), max(self.width, 1))
        digits, stem = int(lengths.max()), len(self.prefix)
        wide = np.empty((count, stem + digits), np.uint8)
        wide[:, :stem] = np.frombuffer(self.prefix, np.uint8)
        left = numbers
        for place in range(stem + digits - 1, stem - 1, -1):
            left, digit = np.divmod(left, 10)
            wide[:, place] = digit + _ZERO
        if int(lengths.min()) == digits:
            return Joined(wide.tobytes(), np.arange(count + 1) * (stem + digits))
        # A shorter one lacks the first places behind the text.
        is_there = np.arange(stem + digits) - stem >= (digits - lengths)[:, None]
        is_there[:, :stem] = True
        return Joined(wide[is_there].tobytes(), bounds_of(lengths + stem))


class Distinct(NamedTuple):
    """Few different values, and which of them each row has."""

    distinct: list[bytes]
    which: Column

    def values(self) -> list[bytes]:
        """See Texts."""
        distinct = self.distinct
        return [distinct[i] for i in self.which.tolist()]

    def joined(self) -> Joined:
        """See Texts."""
        return joined_of(self.values())


class Pieces(NamedTuple):
    """Values in the midst of other bytes."""

    data: bytes
    bounds: Column

    def values(self) -> list[bytes]:
        """See Texts."""
        return [self.data[a:b] for a, b in pairwise(self.bounds.tolist())]

    def joined(self) -> Joined:
        """See Texts."""
        begin, end = int(self.bounds[0]), int(self.bounds[-1])
        return Joined(self.data[begin:end], self.bounds - begin)
