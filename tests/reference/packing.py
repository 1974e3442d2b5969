"""Runs, key blocks, and columns of numbers, packed and unpacked number by number.

The idea: the layouts of docs/runs.md, docs/keys.md and docs/archive.md, written down once more with
whole numbers of Python, which have no width to get wrong. Errors are those of the core.
"""

from __future__ import annotations

from itertools import pairwise
from math import frexp
from struct import Struct
from typing import Final

from kvstore.errors import ArchiveDamaged, FormatError

Entry = tuple[int, int, int, int]
"""Position, size, tag hash, time."""
Pair = tuple[int, int]

_RUN: Final = Struct("<BBHIIqIH")
_BLOCK: Final = Struct("<BI")
_MASK: Final = (1 << 64) - 1
_SKIPS: Final = (1, 0, 0, 1)


def signed(value: int) -> int:
    """A number modulo 2**64 as an int64."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def byte_width(largest: int) -> int:
    """The bytes that a number takes."""
    return (largest.bit_length() + 7) // 8


def planes(values: list[int], width: int) -> bytes:
    """All lowest bytes, then the next."""
    return bytes(value >> 8 * plane & 0xFF for plane in range(width) for value in values)


def of_planes(data: bytes, count: int) -> list[int]:
    """The inverse of `planes`."""
    width = len(data) // count if count else 0
    return [sum(data[p * count + i] << 8 * p for p in range(width)) for i in range(count)]


# --- bits, the highest first ---


def pack(values: list[int], width: int) -> bytes:
    """See `kvstore.core.columns.bits`."""
    joint = 0
    for value in values:
        joint = joint << width | value & (1 << width) - 1
    size = (width * len(values) + 7) // 8
    return (joint << (size * 8 - width * len(values))).to_bytes(size, "big")


def unpack(data: bytes, at: int, width: int, count: int) -> list[int]:
    """See `kvstore.core.columns.bits`; the caller has checked the sizes."""
    size = (width * count + 7) // 8
    joint = int.from_bytes(data[at : at + size], "big") >> (size * 8 - width * count)
    return [joint >> width * (count - 1 - i) & (1 << width) - 1 for i in range(count)]


# --- runs ---


def pack_run(entries: list[Entry]) -> bytes:
    """One run."""
    positions, sizes, tags, times = (list(column) for column in zip(*entries, strict=True))
    columns = [
        [b - a for a, b in pairwise(positions)],
        [size - min(sizes) for size in sizes],
        [tag - min(tags) for tag in tags],
        [b - a for a, b in pairwise(times)],
    ]
    if any(step < 0 for column in (columns[0], columns[3]) for step in column):
        raise FormatError("entries of a run must rise in position and store time")
    widths, parts = [], []
    for number, column in enumerate(columns):
        bits = max(column, default=0).bit_length()
        if number and 0 < bits < 8:
            widths.append(8 + bits)
            joint = sum(value << bits * i for i, value in enumerate(column))
            parts.append(joint.to_bytes((bits * len(column) + 7) // 8, "little"))
        else:
            widths.append((bits + 7) // 8)
            parts.append(planes(column, widths[-1]))
    a, b, c, d = widths
    first = (positions[0] & 0xFFFFFFFF, min(sizes) & 0xFFFFFFFF, min(tags))
    time = times[0] & 0xFFFFFFFF, times[0] >> 32 & 0xFFFF
    return _RUN.pack(a | b << 4, c | d << 4, len(entries), *first, *time) + b"".join(parts)


def unpack_run(value: bytes) -> list[Entry]:
    """The inverse of `pack_run`. Raises FormatError."""
    if len(value) < _RUN.size:
        raise FormatError(f"a run has {len(value)} bytes, at least {_RUN.size} are needed")
    a, b, count, first, size, tag, low, high = _RUN.unpack_from(value)
    widths, at, columns = (a & 15, a >> 4, b & 15, b >> 4), _RUN.size, []
    for skip, width in zip(_SKIPS, widths, strict=True):
        rows = count - skip
        bits = width - 8
        stop = at + ((rows * bits + 7) // 8 if bits > 0 else rows * width)
        part = value[at:stop]
        if bits > 0:
            joint = int.from_bytes(part, "little")
            columns.append([joint >> bits * i & (1 << bits) - 1 for i in range(max(rows, 0))])
        elif stop <= len(value):
            columns.append(of_planes(part, rows))
        at = stop
    if not count or at != len(value) or widths[0] > 8:
        raise FormatError("a run's length does not follow from its header")
    steps, sizes, tags, waits = columns
    positions, times = [first], [low | high << 32]
    for step, wait in zip(steps, waits, strict=True):
        positions.append(signed(positions[-1] + step))
        times.append(signed(times[-1] + wait))
    sizes = [signed(size + above) for above in sizes]
    tags = [signed(tag + above) for above in tags]
    return list(zip(positions, sizes, tags, times, strict=True))


# --- key blocks ---


def pack_block(first: int, pairs: list[Pair]) -> bytes:
    """A block of sorted pairs."""
    distances = [hash_ - first for hash_, _ in pairs]
    wide = byte_width(max(distances))
    far = byte_width(max(position for _, position in pairs))
    if wide + far == 0 and len(pairs) > 1:
        far = 1
    head = _BLOCK.pack(wide | far << 4, len(pairs))
    return head + planes(distances, wide) + planes([position for _, position in pairs], far)


def unpack_block(first: int, value: bytes) -> list[Pair]:
    """The inverse. Raises FormatError."""
    if len(value) < _BLOCK.size:
        raise FormatError(f"a key block has {len(value)} bytes, at least {_BLOCK.size} are needed")
    widths, count = _BLOCK.unpack_from(value)
    wide, far = widths & 15, widths >> 4
    if not count or (wide + far == 0 and count > 1):
        raise FormatError(f"a key block of no bytes a pair can't hold {count} pairs")
    if wide > 8 or far > 8 or len(value) != _BLOCK.size + (wide + far) * count:
        raise FormatError("a key block's length does not follow from its header")
    middle = _BLOCK.size + wide * count
    hashes, positions = (
        of_planes(value[_BLOCK.size : middle], count),
        of_planes(value[middle:], count),
    )
    return [(signed(first + h), signed(p)) for h, p in zip(hashes, positions, strict=True)]


# --- columns of archives ---


def varint(value: int) -> bytes:
    """See `kvstore.core.columns.int_columns.write_varint`."""
    if value < 0xF8:
        return bytes((value,))
    return bytes((0xF7 + byte_width(value),)) + value.to_bytes(byte_width(value), "big")


def zigzag(value: int) -> bytes:
    """A signed number as a varint."""
    return varint(-2 * value - 1 if value < 0 else 2 * value)


def encode_column(values: list[int]) -> bytes:
    """A column of one number or more."""
    least, most = min(values), max(values)
    if least == most:
        return b"\x00" + zigzag(least)
    steps = [signed(b - a) for a, b in pairwise(values)]
    width, by_step = _float_width(most - least), _float_width(max(steps) - min(steps))
    if len(steps) * by_step + 16 < len(values) * width:
        width = by_step
        head = b"\x01" + zigzag(values[0]) + zigzag(min(steps)) + bytes((width,))
        found = head + pack([step - min(steps) for step in steps], width)
    else:
        head = b"\x02" + zigzag(least) + bytes((width,))
        found = head + pack([value - least for value in values], width)
    distinct = sorted(set(values))
    few = len(distinct) <= 256 and len(distinct) * 2 <= len(values)
    if width >= 12 and len(values) >= 24 and len(set(values[:24])) <= 12 and few:
        bits = (len(distinct) - 1).bit_length()
        head = b"\x03" + varint(len(distinct)) + b"".join(map(zigzag, distinct)) + bytes((bits,))
        found = min(found, head + pack([distinct.index(value) for value in values], bits), key=len)
    return found


def _float_width(span: int) -> int:
    return min(frexp(float(span))[1], 64)


class Reader:
    """Reads numbers from an index on, which moves on. Raises ArchiveDamaged at the end."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > len(self.data) - self.at:
            raise ArchiveDamaged("a block ends in the middle of a column")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        """The next number without a sign."""
        (head,) = self.take(1)
        return head if head < 0xF8 else int.from_bytes(self.take(head - 0xF7), "big")

    def zigzag(self) -> int:
        """The next number with a sign."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def numbers(self, count: int) -> list[int]:
        """Packed numbers, behind their width."""
        (width,) = self.take(1)
        if width > 64:
            raise ArchiveDamaged("a block ends in the middle of a column")
        return unpack(self.take((width * count + 7) // 8), 0, width, count)


def decode_column(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """The values of a column of one number or more, and the index behind. Raises ArchiveDamaged."""
    reader = Reader(data, at)
    (kind,) = reader.take(1)
    if kind == 0:
        return [reader.zigzag()] * count, reader.at
    if kind == 1:
        found, least = [reader.zigzag()], reader.zigzag()
        for above in reader.numbers(count - 1):
            found.append(signed(found[-1] + least + above))
        return found, reader.at
    if kind == 2:
        least = reader.zigzag()
        return [signed(least + above) for above in reader.numbers(count)], reader.at
    if kind != 3:
        raise ArchiveDamaged(f"a block has a column of a kind {kind}, which there is not")
    size = reader.varint()
    if not 1 <= size <= 256:
        raise ArchiveDamaged(f"a column has {size} distinct values, at most 256 may be")
    distinct = [reader.zigzag() for _ in range(size)]
    index = reader.numbers(count)
    if max(index) >= size:
        raise ArchiveDamaged("a column names a distinct value that is not there")
    return [distinct[i] for i in index], reader.at


# --- key filters ---

_WORD = (1 << 64) - 1


def filter_mask(digest: int, hashes: int) -> int:
    """The bits of a digest in its block of a filter, as a number: splitmix64's finisher, in pieces
    of 9 bits.
    """
    mixed = digest + 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    mixed ^= mixed >> 31
    mask = 0
    for turn in range(hashes):
        mask |= 1 << (mixed >> 9 * turn & 511)
    return mask


def filter_holds(data: bytes, begin: int, digest: int, hashes: int) -> bool:
    """Whether the block that begins at an index has all bits of a digest."""
    mask = filter_mask(digest, hashes)
    return int.from_bytes(data[begin : begin + 64], "little") & mask == mask
