"""Text columns: one text a row, read as a list of values or as all bytes side by side.

The idea: a caller that wants messages takes values one by one. A caller that wants a column takes
all bytes at once, with the begin of each value. The short forms of a block (one value, ids,
numbers, few distinct values) become either one directly, without the other in between.

Invariant: both ways give the same values, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np

from tiering.archive.columns.integers import Column, bounds_of

ID_DIGITS: Final = 32
DIGITS_MAX: Final = 18
"""Decimal digits that always fit 64 bits."""
_LETTER: Final = np.uint8(0x40)
"""The bit that letters have and digits lack. A letter without the next lower bit is a capital."""
_POWERS: Final = 10 ** np.arange(DIGITS_MAX + 1, dtype=np.int64)
_FOUR: Final = 4
_FOURS: Final = np.frombuffer(b"".join(b"%04d" % i for i in range(10**_FOUR)), np.uint32)
"""The four digits of each number below 10,000, as their bytes lie in memory."""


class Joined(NamedTuple):
    """The bytes of all values, the begin of each, and the end of the last."""

    data: bytes
    bounds: Column


class Texts(Protocol):
    """A column of texts; see the module."""

    def values(self) -> list[bytes]:
        """The values as a list."""
        ...

    def joined(self) -> Joined:
        """The values side by side."""
        ...


def join_values(values: list[bytes]) -> Joined:
    """Values side by side."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return Joined(b"".join(values), bounds_of(sizes))


class Listed(NamedTuple):
    """Values that are in a list already."""

    given: list[bytes]

    def values(self) -> list[bytes]:
        """See Texts."""
        return self.given

    def joined(self) -> Joined:
        """See Texts."""
        return join_values(self.given)


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
    """Ids of 32 digits, as 16 bytes each, side by side."""

    raw: bytes

    def values(self) -> list[bytes]:
        """See Texts."""
        data = self._digits()
        return [data[i : i + ID_DIGITS] for i in range(0, len(data), ID_DIGITS)]

    def joined(self) -> Joined:
        """See Texts."""
        return Joined(self._digits(), np.arange(0, 2 * len(self.raw) + 1, ID_DIGITS))

    def _digits(self) -> bytes:
        found = np.frombuffer(self.raw.hex().encode("ascii"), np.uint8)
        # To capitals by one bit: a third of the time of `upper`.
        return (found - ((found & _LETTER) >> 1)).tobytes()


class Numbers(NamedTuple):
    """Numbers behind the same text, with leading zeros to `width` digits (0: without zeros)."""

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
            return join_values(self.values())
        least = max(len(str(int(numbers.min()))), self.width)
        digits, stem = max(len(str(most)), least), len(self.prefix)
        wide = np.empty((count, stem + digits), np.uint8)
        wide[:, :stem] = np.frombuffer(self.prefix, np.uint8)
        left = numbers
        for end in range(stem + digits, stem, -_FOUR):
            more = left // len(_FOURS)
            begin = max(end - _FOUR, stem)
            fours = _FOURS.take(left - more * len(_FOURS)).view(np.uint8).reshape(-1, _FOUR)
            wide[:, begin:end] = fours[:, _FOUR - (end - begin) :]
            left = more
        if least == digits:
            return Joined(wide.tobytes(), np.arange(count + 1) * (stem + digits))
        # A shorter number lacks the first places behind the text.
        is_there = np.ones((count, stem + digits), np.bool_)
        sizes = np.full(count, stem + least)
        for place, power in enumerate(_POWERS[digits - 1 : least - 1 : -1].tolist(), stem):
            has_it = numbers >= power
            is_there[:, place] = has_it
            sizes += has_it
        return Joined(wide[is_there].tobytes(), bounds_of(sizes))


class Distinct(NamedTuple):
    """Few distinct values, and the index of each row's value."""

    distinct: list[bytes]
    which: Column

    def values(self) -> list[bytes]:
        """See Texts."""
        distinct = self.distinct
        return [distinct[i] for i in self.which.tolist()]

    def joined(self) -> Joined:
        """See Texts."""
        return join_values(self.values())


class Pieces(NamedTuple):
    """Values within a larger buffer."""

    data: bytes
    bounds: Column

    def values(self) -> list[bytes]:
        """See Texts."""
        return [self.data[a:b] for a, b in pairwise(self.bounds.tolist())]

    def joined(self) -> Joined:
        """See Texts."""
        begin, end = int(self.bounds[0]), int(self.bounds[-1])
        return Joined(self.data[begin:end], self.bounds - begin)


def concat_columns(parts: Sequence[Texts]) -> Joined:
    """The values of several columns side by side; in one pass if all have the same form."""
    first = parts[0]
    if isinstance(first, Ids):
        ids = [one.raw for one in parts if isinstance(one, Ids)]
        if len(ids) == len(parts):
            return Ids(b"".join(ids)).joined()
    if isinstance(first, Constant):
        rows = [one.rows for one in parts if isinstance(one, Constant) and one.value == first.value]
        if len(rows) == len(parts):
            return Constant(first.value, sum(rows)).joined()
    if isinstance(first, Numbers):
        form = first[:2]
        columns = [one.numbers for one in parts if isinstance(one, Numbers) and one[:2] == form]
        if len(columns) == len(parts):
            return Numbers(*form, np.concatenate(columns)).joined()
    return concat_joined([one.joined() for one in parts])


def concat_joined(parts: Sequence[Joined]) -> Joined:
    """Joins several joined columns side by side."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([np.diff(part.bounds) for part in parts])
    return Joined(b"".join(part.data for part in parts), bounds_of(sizes))
