"""Text columns: the values that records have under one property name <-> bytes, one text a row.

The idea: the form of a column follows from its values: one value, unique ids, numbers behind the
same text, few distinct values, or text. A unique id is its 16 bytes, split into the parts that
RocketMQ makes it of; its time is kept as the difference to the record's born time. The columns of
many blocks are encoded at a time.

A caller that wants messages takes the decoded values one by one. A caller that wants a column takes
all bytes at once, with the begin of each value. Each form becomes either one directly, without the
other in between.

Invariants: values come back byte for byte, both ways; any bytes decode to as many values as there
are rows, of at most `limit` bytes together, or raise ArchiveDamaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from kvstore.core.columns.int_columns import (
    decode_column,
    encode_columns,
    read_varint,
    write_varint,
)
from kvstore.core.columns.packed_texts import gather, number_texts, parse_ids, parse_numbers
from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.integers import (
    Column,
    bounds_of,
    encode_column,
    read_bytes,
    total,
    write_bytes,
)

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_CONSTANT: Final = 0
IDS: Final = 1
NUMBERS: Final = 2
_DISTINCT: Final = 3
_TEXT: Final = 4

_ID: Final = np.dtype([("source", ">i8"), ("token", ">u2"), ("time", ">u4"), ("counter", ">u2")])
"""The split of a unique id's 16 bytes: as RocketMQ makes them, but any bytes will do."""
ID_PARTS: Final = 4
"""The parts of an id; the third is the difference to the record's born time."""
_TIME: Final = 2
_TIME_MASK: Final = 0xFFFF_FFFF
_LAST_DIGITS: Final = frozenset(b"%d" % i for i in range(10))
_DISTINCT_SHARE: Final = 2
"""Distinct values are used where there are at least this many rows a value."""


class Slices(NamedTuple):
    """Texts in a buffer, each with its row; rows rise."""

    data: Buffer
    starts: Column
    stops: Column
    rows: Column

    def part(self, begin: int, end: int) -> Slices:
        """Some of the texts."""
        some = slice(begin, end)
        return Slices(self.data, self.starts[some], self.stops[some], self.rows[some])

    def text(self, i: int) -> bytes:
        """One of the texts."""
        return bytes(self.data[self.starts[i] : self.stops[i]])

    def joined(self) -> Joined:
        """The texts side by side."""
        return Joined(gather(*self[:3]), bounds_of(self.stops - self.starts))


def encode_values(values: Slices, bounds: Column, times: Column) -> Iterator[tuple[int, bytes]]:
    """The column for each block that has any of the values: the block's number, and the column.
    Block i has the rows `bounds[i]` to `bounds[i + 1]`; records were born at `times`.
    """
    borders = np.searchsorted(values.rows, bounds)
    blocks = np.flatnonzero(np.diff(borders)).tolist()
    ids = parse_ids(*values[:3])
    if ids is not None:
        # The difference of two times that mostly are the same: constant, or nearly.
        ids[_TIME] = (ids[_TIME] - times[values.rows]) & _TIME_MASK
        within = np.append(borders[blocks], len(values.rows))
        columns = [encode_columns(part, within) for part in ids]
        yield from zip(blocks, map(b"".join, zip(repeat(b"\x01"), *columns)), strict=True)
        return
    # Where the first value is no number, mostly none is.
    may_be_numbers = values.text(0)[-1:] in _LAST_DIGITS
    for block in blocks:
        yield block, _encode(values.part(borders[block], borders[block + 1]), may_be_numbers)


def _encode(values: Slices, may_be_numbers: bool) -> bytes:
    """The column of a block."""
    texts = values[:3]
    count = len(values.rows)
    found = number_texts(*texts, max(count // _DISTINCT_SHARE, 1))
    if found is not None:
        numbers, firsts = found
        distinct = list(map(values.text, firsts.tolist()))
        if len(distinct) == 1:
            return b"\x00" + write_bytes(distinct[0])
        order = sorted(range(len(distinct)), key=distinct.__getitem__)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        head = b"\x03" + write_varint(len(order))
        head += b"".join([write_bytes(distinct[i]) for i in order])
        return head + encode_column(places[numbers])
    parsed = parse_numbers(*texts) if may_be_numbers else None
    if parsed is not None:
        decimals, stem, width = parsed
        head = b"\x02" + write_bytes(values.text(0)[:stem])
        return head + bytes((width,)) + encode_column(decimals)
    return b"\x04" + encode_column(values.stops - values.starts) + gather(*texts)


# --- decoding ---------------------------------------------------------------------------------


def decode_values(data: bytes, at: int, born: Column, limit: int) -> tuple[Texts, int, int]:
    """The values of as many rows as `born` has, the index behind them, and the bytes that they
    take.
    """
    count = len(born)
    if not count:
        return Listed([]), at, 0
    kind = data[at] if at < len(data) else -1
    at += 1
    if kind == _CONSTANT:
        value, at = read_bytes(data, at)
        _allow(len(value) * count, limit)
        return Constant(value, count), at, len(value) * count
    if kind == IDS:
        _allow(ID_DIGITS * count, limit)
        found, at = _read_ids(data, at, born)
        return found, at, ID_DIGITS * count
    if kind == NUMBERS:
        return _read_numbers(data, at, count, limit)
    if kind == _DISTINCT:
        return _read_distinct(data, at, count, limit)
    if kind == _TEXT:
        lengths, at = decode_column(data, at, count)
        size = total(lengths, "properties", min(limit, len(data) - at))
        return Pieces(data, bounds_of(lengths) + at), at + size, size
    raise ArchiveDamaged("a block has a column of properties of an unknown kind")


def _read_ids(data: bytes, at: int, born: Column) -> tuple[Ids, int]:
    columns = []
    for _ in range(ID_PARTS):
        column, at = decode_column(data, at, len(born))
        columns.append(column)
    return Ids(ids_of(columns, born)), at


def ids_of(parts: Sequence[Column], born: Column) -> bytes:
    """Ids of messages born at these times, 16 bytes each, from the columns of their parts. Each
    part takes as many low bits as it has room for.
    """
    ids = np.empty(len(born), _ID)
    ids["source"], ids["token"], since_born, ids["counter"] = parts
    ids["time"] = since_born + born
    return ids.tobytes()


def _read_numbers(data: bytes, at: int, count: int, limit: int) -> tuple[Numbers, int, int]:
    prefix, width, at = read_number_form(data, at, count, limit)
    numbers, at = decode_column(data, at, count)
    return Numbers(prefix, width, numbers), at, numbers_size(prefix, count, limit)


def numbers_size(prefix: bytes, count: int, limit: int) -> int:
    """The bytes that are counted for numbers behind this text, at most `limit`: a number takes 20
    bytes with its sign.
    """
    return min((len(prefix) + DIGITS_MAX + 2) * count, limit)


def read_number_form(data: bytes, at: int, count: int, limit: int) -> tuple[bytes, int, int]:
    """The text before the numbers and their number of digits, and the index behind them. Raises
    ArchiveDamaged.
    """
    prefix, at = read_bytes(data, at)
    width = data[at] if at < len(data) else DIGITS_MAX + 1
    if width > DIGITS_MAX:
        raise ArchiveDamaged(f"a column of numbers in a block has {width} digits")
    # The size of the result, but for a few digits a row; the rows' lengths are checked as well.
    _allow(len(prefix) * count, limit)
    return prefix, width, at + 1


def _read_distinct(data: bytes, at: int, count: int, limit: int) -> tuple[Distinct, int, int]:
    number, at = read_varint(data, at)
    if not 1 <= number <= count:
        raise ArchiveDamaged(f"a column of {count} properties has {number} distinct values")
    distinct = []
    for _ in range(number):
        value, at = read_bytes(data, at)
        distinct.append(value)
    index, at = decode_column(data, at, count)
    if int(index.min()) < 0 or int(index.max()) >= number:
        raise ArchiveDamaged("a column of properties names a value that is not there")
    size = int(np.array([len(value) for value in distinct], np.int64)[index].sum())
    _allow(size, limit)
    return Distinct(distinct, index), at, size


def _allow(size: int, limit: int) -> None:
    if size > limit:
        raise too_large(limit)


def too_large(limit: int) -> ArchiveDamaged:
    """The error for a result that is larger than allowed."""
    return ArchiveDamaged(f"the properties of a block take more than the {limit} bytes there are")


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

    def values(self) -> list[bytes]:
        """The values as a list."""
        data = self.data
        return [data[a:b] for a, b in pairwise(self.bounds.tolist())]


class Texts(Protocol):
    """A column of texts; see the module."""

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

    def joined(self) -> Joined:
        """See Texts."""
        return join_values(self.given)


class Constant(NamedTuple):
    """The same value in all rows."""

    value: bytes
    rows: int

    def joined(self) -> Joined:
        """See Texts."""
        size = len(self.value)
        return Joined(self.value * self.rows, np.arange(self.rows + 1) * size)


class Ids(NamedTuple):
    """Ids of 32 digits, as 16 bytes each, side by side."""

    raw: bytes

    def joined(self) -> Joined:
        """See Texts."""
        found = np.frombuffer(self.raw.hex().encode("ascii"), np.uint8)
        # To capitals by one bit: a third of the time of `upper`.
        digits = (found - ((found & _LETTER) >> 1)).tobytes()
        return Joined(digits, np.arange(0, 2 * len(self.raw) + 1, ID_DIGITS))


class Numbers(NamedTuple):
    """Numbers behind the same text, with leading zeros to `width` digits (0: without zeros)."""

    prefix: bytes
    width: int
    numbers: Column

    def joined(self) -> Joined:
        """See Texts."""
        numbers, count = self.numbers, len(self.numbers)
        most = int(numbers.max()) if count else 0
        if not count or int(numbers.min()) < 0 or most >= _POWERS[-1]:
            form = self.prefix.replace(b"%", b"%%")
            form += b"%%0%dd" % self.width if self.width else b"%d"
            return join_values([form % number for number in numbers.tolist()])
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

    def joined(self) -> Joined:
        """See Texts."""
        data, bounds = join_values(self.distinct)
        starts, stops = bounds[self.which], bounds[self.which + 1]
        return Joined(gather(data, starts, stops), bounds_of(stops - starts))


class Pieces(NamedTuple):
    """Values within a larger buffer."""

    data: bytes
    bounds: Column

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
