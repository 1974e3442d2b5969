"""Columns of a group of an archive, decoded one number and one text at a time.

The idea: docs/archive.md's layouts, read by `packing.decode_column`, with numbers of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kvstore.errors import ArchiveDamaged
from tests.reference.packing import Reader, decode_column, signed

_FIELDS = (1, 4, 11, 9, 10, 6, 8)
"""The rows of the table that are usually constant, in the order of their columns."""


def _column(reader: Reader, count: int) -> list[int]:
    values, reader.at = decode_column(reader.data, reader.at, count) if count else ([], reader.at)
    return values


def _kind(reader: Reader) -> int:
    found = reader.take(1)[0]
    reader.at -= 1
    return found


def _by_block(reader: Reader, counts: Sequence[int]) -> list[int]:
    if _kind(reader) != 4:
        return _column(reader, sum(counts))
    reader.at += 1
    firsts = _column(reader, len(counts))
    steps = iter(_column(reader, sum(counts) - len(counts)))
    out: list[int] = []
    for first, count in zip(firsts, counts, strict=True):
        out.append(first)
        for _ in range(count - 1):
            out.append(signed(out[-1] + next(steps)))
    return out


def _times(reader: Reader, positions: list[int], counts: Sequence[int]) -> list[int]:
    if _kind(reader) != 5:
        return _by_block(reader, counts)
    reader.at += 1
    first, takes = reader.zigzag(), reader.zigzag()
    off = _column(reader, len(positions))
    least = min(positions)
    length = max((max(positions) - least) & (1 << 63) - 1, 1)
    return [
        signed(o + first + signed((position - least) * takes) // length)
        for o, position in zip(off, positions, strict=True)
    ]


def decode_heads(
    data: bytes, queues: list[int], counts: list[int], firsts: list[int], lasts: list[int]
) -> tuple[list[list[int]], list[int], bool, bool, int]:
    """See `kvstore.core.columns.group_heads`."""
    if not counts or min(counts) < 1:
        raise ArchiveDamaged("it has a block without messages, as the directory says")
    reader = Reader(data, 0)
    kind, rows = reader.take(1)[0], reader.varint()
    if not 1 <= rows <= 1 << 16 or rows != sum(counts) or kind not in (1, 255):
        raise ArchiveDamaged("it has other rows, or is of another format")
    table = [[0] * rows for _ in range(12)]
    table[0] = [q for queue, count in zip(queues, counts, strict=True) for q in [queue] * count]
    missing = iter(_column(reader, rows))
    table[2] = []
    for first, last, count in zip(firsts, lasts, counts, strict=True):
        mine = [signed(first + i + next(missing)) for i in range(count)]
        if (mine[0], mine[-1]) != (first, last):
            raise ArchiveDamaged("it holds other offsets than the directory says")
        table[2] += mine
    table[3] = _by_block(reader, counts)
    table[7] = _times(reader, table[3], counts)
    if kind == 1:
        born = _column(reader, rows)
        table[5] = [signed(a + b) for a, b in zip(born, table[7], strict=True)]
    sizes = _column(reader, rows)
    if min(sizes) < 0 or sum(sizes) > 1 << 30:
        raise ArchiveDamaged("bodies in a block take more than the 1073741824 bytes there are")
    is_constant = kind == 1
    for field in _FIELDS if kind == 1 else ():
        is_constant = is_constant and _kind(reader) == 0
        table[field] = _column(reader, rows)
    fits = all(0 <= n < 1 << 32 for n in (*table[1], *table[4], *(n + (1 << 31) for n in table[9])))
    if kind == 1 and not (fits and set(table[11]) <= {1, 2}):
        raise ArchiveDamaged("it has a number that does not fit its field")
    return table, [0, *accumulate(sizes)], kind == 255, is_constant, reader.at


def _allow(size: int, limit: int) -> None:
    if size > limit:
        raise ArchiveDamaged(f"texts take {size} bytes of {limit}")


def _ids(reader: Reader, born: list[int], limit: int) -> list[bytes]:
    _allow(32 * len(born), limit)
    parts = [_column(reader, len(born)) for _ in range(4)]
    parts[2] = [since + time for since, time in zip(parts[2], born, strict=True)]
    return [
        b"%016X%04X%08X%04X" % (a % (1 << 64), b % (1 << 16), c % (1 << 32), d % (1 << 16))
        for a, b, c, d in zip(*parts, strict=True)
    ]


def _numbers(reader: Reader, count: int, limit: int) -> tuple[list[bytes], int]:
    prefix, width = reader.take(reader.varint()), reader.take(1)[0]
    if width > 18:
        raise ArchiveDamaged(f"a column of numbers in a block has {width} digits")
    _allow(len(prefix) * count, limit)
    texts = [prefix + b"%0*d" % (width, number) for number in _column(reader, count)]
    return texts, min((len(prefix) + 20) * count, limit)


def _distinct(reader: Reader, count: int) -> list[bytes]:
    number = reader.varint()
    if not 1 <= number <= count:
        raise ArchiveDamaged(f"a column of {count} properties has {number} distinct values")
    distinct = [reader.take(reader.varint()) for _ in range(number)]
    index = _column(reader, count)
    if min(index) < 0 or max(index) >= number:
        raise ArchiveDamaged("a column of properties names a value that is not there")
    return [distinct[i] for i in index]


def _plain(reader: Reader, count: int) -> list[bytes]:
    lengths = _column(reader, count)
    if min(lengths) < 0:
        raise ArchiveDamaged("a length is negative")
    return [reader.take(length) for length in lengths]


def decode_texts(data: bytes, at: int, born: list[int], limit: int) -> tuple[list[bytes], int, int]:
    """See `kvstore.core.columns.text_forms`: the texts, the index behind them, and their bytes."""
    count, limit = len(born), max(limit, 0)
    if not count:
        return [], at, 0
    if not 0 <= at < len(data) or data[at] > 4:
        raise ArchiveDamaged("a block has a column of properties of an unknown kind")
    reader = Reader(data, at + 1)
    if data[at] == 2:
        texts, size = _numbers(reader, count, limit)
        return texts, reader.at, size
    forms = {
        0: lambda: [reader.take(reader.varint())] * count,
        1: lambda: _ids(reader, born, limit),
        3: lambda: _distinct(reader, count),
        4: lambda: _plain(reader, count),
    }
    texts = forms[data[at]]()
    size = sum(map(len, texts))
    _allow(size, limit)
    return texts, reader.at, size
