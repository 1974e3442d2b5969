"""Packed: integers at as few bits as they need in files, and at as few bytes in memory.

The idea: three forms. A *column* is a minimum, and the distances from it at a fixed number of bits.
A *sorted column* is Elias and Fano's: low bits as they are, high bits in unary. It takes two bits
more than the logarithm of the mean step, however single steps differ. `Narrow` is the form in
memory: it gives any one value without decoding the others.

Invariants: the sizes that a column states are compared with the bytes that are there before
anything is allocated; values are 64 bits and may wrap, so that differences of any two are kept
exactly.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.bits import pack, unpack
from kvstore.errors import FormatError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_COLUMN: Final = Struct(">qB")
"""Minimum, bits of a value; then the values, big-endian bit by bit."""
_SORTED: Final = Struct(">qBI")
"""First value, low bits, bytes of the high bits; then the low bits, then the high bits."""
_WINDOW_MAX: Final = 56
"""The most bits of a value in these columns, except 64; a part of the format."""
_WIDEST: Final = 64
_SLOPE_MAX: Final = 1 << 30
_STRAIGHT_MAX: Final = 1 << 61
"""A bound for which neither slope times count nor a value's distance from the line overflows."""
_TAKEN: Final = 8
"""The bytes that hold a value, from the one in which it begins."""


def width_of(greatest: int) -> int:
    """The number of bits at which values up to `greatest` are packed."""
    width = greatest.bit_length()
    return width if width <= _WINDOW_MAX else _WIDEST


def size_of(width: int, count: int) -> int:
    """The bytes of `count` values packed at `width` bits."""
    return (width * count + 7) // 8


def encode_column(values: I64) -> bytes:
    """The column of some values, in any order."""
    if not len(values):
        return b""
    least = int(values.min())
    above = values.astype(np.uint64) - np.uint64(least & 0xFFFF_FFFF_FFFF_FFFF)
    width = width_of(int(above.max()))
    return _COLUMN.pack(least, width) + pack(above, width)


def encode_sorted(values: I64) -> bytes:
    """The sorted column of values that never fall."""
    if not len(values):
        return b""
    first = int(values[0])
    above = values.astype(np.uint64) - np.uint64(first & 0xFFFF_FFFF_FFFF_FFFF)
    low = max((int(above[-1]) // len(values)).bit_length() - 1, 0)
    low = min(low, _WINDOW_MAX)
    high = (above >> np.uint64(low)).astype(np.int64) + np.arange(len(values))
    bits = np.zeros(int(high[-1]) + 1, np.uint8)
    bits[high] = 1
    unary = np.packbits(bits).tobytes()
    mask = np.uint64((1 << low) - 1)
    return _SORTED.pack(first, low, len(unary)) + pack(above & mask, low) + unary


class ByteReader:
    """Reads the columns of this module, and Structs, one behind the other; raises FormatError."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise FormatError(f"{size} bytes are wanted, {len(self._data) - self._at} are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def head(self, struct: Struct) -> tuple[int, ...]:
        """The fields of a Struct."""
        return struct.unpack(self.take(struct.size))

    def column(self, count: int) -> I64:
        """A column of `count` values."""
        if not count:
            return np.zeros(0, np.int64)
        least, width = self.head(_COLUMN)
        above = self._values(width, count)
        return (above + np.uint64(least & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.int64)

    def _values(self, width: int, count: int) -> U64:
        if width > _WINDOW_MAX and width != _WIDEST:
            raise FormatError(f"values of {width} bits are in no column")
        return unpack(self.take(size_of(width, count)), 0, width, count)

    def sorted(self, count: int) -> I64:
        """A sorted column of `count` values."""
        if not count:
            return np.zeros(0, np.int64)
        first, low, size = self.head(_SORTED)
        if count > 8 * size:
            raise FormatError(f"{size} bytes don't hold the high bits of {count} values")
        lows = self._values(low, count)
        ones = np.flatnonzero(np.unpackbits(np.frombuffer(self.take(size), np.uint8)))
        if len(ones) != count:
            raise FormatError(f"a sorted column of {count} values has {len(ones)}")
        high = (ones - np.arange(count)).astype(np.uint64) << np.uint64(low)
        return ((high | lows) + np.uint64(first & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.int64)

    def end(self) -> None:
        """Raises FormatError unless everything was read."""
        if self._at != len(self._data):
            raise FormatError(f"{len(self._data) - self._at} bytes are left over")


class Narrow:
    """A column in memory: `column[i]` is found at once; each value takes as few bits as the widest
    needs.

    A value is kept as its distance from a straight line through the first and the last value, if
    that takes fewer bits: nothing at all for columns that count up.
    """

    __slots__ = ("_base", "_data", "_slope", "_width", "count")

    def __init__(self, values: I64) -> None:
        values = np.asarray(values, dtype=np.int64)
        self.count = len(values)
        self._base, self._width, above = _above(values)
        self._slope = 0
        if self._width and self.count > 1 and _is_near(values):
            slope = (int(values[-1]) - int(values[0])) // (self.count - 1)
            if abs(slope) < _SLOPE_MAX:
                base, width, straight = _above(values - np.arange(self.count) * slope)
                if width < self._width:
                    self._base, self._width, self._slope, above = base, width, slope, straight
        # From where any value begins, this many bytes can be read.
        self._data = pack(above, self._width) + bytes(_TAKEN) if self._width else b""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        width = self._width
        base = self._base + i * self._slope
        if not width:
            return base
        at = i * width
        taken = int.from_bytes(self._data[at >> 3 : (at >> 3) + _TAKEN], "big")
        return base + (taken >> (8 * _TAKEN - width - (at & 7)) & ((1 << width) - 1))

    def values(self, start: int = 0, stop: int | None = None) -> I64:
        """Some of the values, all by default."""
        stop = self.count if stop is None else stop
        found = unpack(self._data, 0, self._width, stop - start, start).view(np.int64)
        found += self._base
        if self._slope:
            found += np.arange(start, stop) * self._slope
        return found

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that it takes, without its own objects."""
        return len(self._data)


def _is_near(values: I64) -> bool:
    """Whether a straight line through the values stays far from overflowing."""
    return int(values.min()) > -_STRAIGHT_MAX and int(values.max()) < _STRAIGHT_MAX


def _above(values: I64) -> tuple[int, int, U64]:
    """The minimum, the bits that each value takes above it, and each value's distance from it."""
    base = int(values.min()) if len(values) else 0
    above = (values - np.int64(base)).view(np.uint64)
    return base, width_of(int(above.max())) if len(values) else 0, above
