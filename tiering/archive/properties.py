"""Properties: the properties fields of a block's records <-> bytes, in columns by name.

The idea: nearly all messages of a queue have the same names in the same order (a *shape*), so names
are written once and values go to a column a name. A column of values is kept as what it looks like:
one value, unique ids, numbers with the same text before them, few distinct values, or text. Blocks
are encoded many at a time, see `tiering.archive.block`.

Invariants: a field that its shape and values don't give back exactly has the shape VERBATIM and is
kept as it is; any bytes decode to as many fields as there are rows, or ArchiveDamaged; no more is
allocated than `limit`, the size of the records that are to come out, allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.record.properties import NAME_END_BYTE, VALUE_END_BYTE
from tiering.archive.integers import (
    Column,
    decode_column,
    encode_column,
    encode_columns,
    read_bytes,
    read_varint,
    total,
    write_bytes,
    write_varint,
)
from tiering.archive.layout import COLUMNS_FORMAT

Shape = tuple[bytes, ...]
"""The names, in order, and behind them one byte: what the field ends with."""

_TERMINATED: Final = b"\x01"
_OPEN: Final = b"\x00"
"""The last value has no separator behind it."""
_VERBATIM: Final[Shape] = (b"\x02",)
"""No names: the one value is the field as it is."""
_SHAPES_MAX: Final = 1 << 15

_CONSTANT: Final = 0
_IDS: Final = 1
_NUMBERS: Final = 2
_DISTINCT: Final = 3
_TEXT: Final = 4

_ID_DIGITS: Final = 32
_ID: Final = np.dtype([("source", ">i8"), ("token", ">u2"), ("time", ">u4"), ("counter", ">u2")])
"""How the 16 bytes of a unique id are split: as RocketMQ makes them, but any will do."""
_TIME_MASK: Final = 0xFFFF_FFFF
_DIGITS: Final = b"0123456789"
_DIGITS_MAX: Final = 18
"""Decimal digits that always fit 64 bits."""
_DISTINCT_SHARE: Final = 2
"""Values are kept as distinct ones where there are at least so many rows a value."""


# --- encoding --------------------------------------------------------------------------------


class _Values:
    """The values of one name: in the order of rows, and how many each block has."""

    def __init__(self, values: list[bytes], rows: Column, bounds: Column) -> None:
        self.values = values
        self.rows = rows
        per_block = np.searchsorted(rows, bounds)
        self.blocks = np.flatnonzero(np.diff(per_block))
        """Which blocks have any."""
        self.bounds = np.append(per_block[self.blocks], len(values)).astype(np.int64)


def encode_properties(fields: Sequence[bytes], bounds: Column, times: Column) -> list[bytes]:
    """The part's payload for each block; block i has the fields `bounds[i]` to `bounds[i + 1]`, of
    records born at `times`.
    """
    shapes, shape_of, by_name = _take_apart(fields)
    columns: list[list[bytes]] = [[] for _ in range(len(bounds) - 1)]
    for name in sorted(by_name):
        values, rows = by_name[name]
        found = _Values(values, rows, bounds)
        encoded = _encode_values(found, times)
        for block, column in zip(found.blocks.tolist(), encoded, strict=True):
            columns[block].append(column)
    heads = _heads(shapes, shape_of, bounds)
    return [b"".join((head, *parts)) for head, parts in zip(heads, columns, strict=True)]


def _take_apart(
    fields: Sequence[bytes],
) -> tuple[list[Shape], Column, dict[bytes, tuple[list[bytes], Column]]]:
    """All shapes; the shape's number of each row; and by name the values and their rows."""
    even = _take_apart_even(fields)
    if even is not None:
        return even
    numbers: dict[Shape, int] = {}
    shapes: list[Shape] = []
    shape_of = np.zeros(len(fields), np.int64)
    groups: list[list[tuple[bytes, ...]]] = []
    members: list[list[int]] = []
    row, count = 0, len(fields)
    while row < count:
        shape = _shape_of(fields[row])
        number = numbers.setdefault(shape, len(shapes))
        if number == len(shapes):
            shapes.append(shape)
            groups.append([])
            members.append([])
        match = _matcher(shape)
        taken, begin = groups[number], row
        # The next ones mostly have the same shape: no need to find out which, then.
        while row < count and (found := match(fields[row])):
            taken.append(found.groups())
            row += 1
        members[number].extend(range(begin, row))
        shape_of[begin:row] = number
    return shapes, shape_of, _by_name(shapes, groups, members)


def _take_apart_even(
    fields: Sequence[bytes],
) -> tuple[list[Shape], Column, dict[bytes, tuple[list[bytes], Column]]] | None:
    """As `_take_apart`, several times as fast, for fields that all have one ordinary shape."""
    shape = _shape_of(fields[0]) if fields else _VERBATIM
    names = shape[:-1]
    count, size = len(fields), len(names)
    if not size or shape[-1] != _TERMINATED or len(set(names)) != size:
        return None
    pieces = b"".join(fields).split(VALUE_END_BYTE)
    if len(pieces) != count * size + 1:
        return None
    rows = np.arange(count)
    by_name = {}
    left = np.fromiter(map(len, fields), np.int64, count) - size
    for i, name in enumerate(names):
        column = pieces[i:-1:size]
        stem = name + NAME_END_BYTE
        values = [pair.removeprefix(stem) for pair in column]
        left -= np.fromiter(map(len, values), np.int64, count) + len(stem)
        by_name[name] = (values, rows)
    # All pieces together are as long as all fields. So a name that is not there makes a row's rest
    # negative and none positive; and where no row has a rest, its pieces are its own.
    return None if left.any() else ([shape], np.zeros(count, np.int64), by_name)


def _by_name(
    shapes: list[Shape], groups: list[list[tuple[bytes, ...]]], members: list[list[int]]
) -> dict[bytes, tuple[list[bytes], Column]]:
    pieces: dict[bytes, list[tuple[list[bytes], Column]]] = {}
    for shape, taken, rows in zip(shapes, groups, members, strict=True):
        places = np.array(rows, np.int64)
        for name, values in zip(_value_names(shape), zip(*taken, strict=True), strict=True):
            pieces.setdefault(name, []).append((list(values), places))
    out = {}
    for name, found in pieces.items():
        column, at = found[0]
        if len(found) > 1:
            column = [value for part, _ in found for value in part]
            at = np.concatenate([rows for _, rows in found])
            # Stable: where a row has a name twice, the values stay in their order.
            order = np.argsort(at, kind="stable")
            column, at = [column[i] for i in order.tolist()], at[order]
        out[name] = (column, at)
    return out


def _shape_of(field: bytes) -> Shape:
    """The shape of a field; VERBATIM where there is none that gives it back."""
    if not field:
        return (_OPEN,)
    end = _TERMINATED if field.endswith(VALUE_END_BYTE) else _OPEN
    pairs = field.split(VALUE_END_BYTE)
    if end == _TERMINATED:
        pairs.pop()
    names = []
    for pair in pairs:
        name, found, _ = pair.partition(NAME_END_BYTE)
        if not found:
            return _VERBATIM
        names.append(name)
    return (*names, end)


def _value_names(shape: Shape) -> Shape:
    """Whose columns a row of this shape takes values from; all fields kept whole are one column."""
    return (b"",) if shape == _VERBATIM else shape[:-1]


def _matcher(shape: Shape) -> Callable[[bytes], re.Match[bytes] | None]:
    if shape == _VERBATIM:
        # Takes one, and looks at the next anew.
        return _Once().match
    if len(shape) == 1:
        return re.compile(b"").fullmatch
    text = b"\x02".join(re.escape(name) + b"\x01([^\x02]*)" for name in shape[:-1])
    return re.compile(text + (b"\x02" if shape[-1] == _TERMINATED else b"")).fullmatch


class _Once:
    """Matches the first field it is given, whole, and no other."""

    _whole: Final = re.compile(b"(.*)", re.DOTALL)

    def __init__(self) -> None:
        self._used = False

    def match(self, field: bytes) -> re.Match[bytes] | None:
        if self._used:
            return None
        self._used = True
        return self._whole.fullmatch(field)


def _heads(shapes: list[Shape], shape_of: Column, bounds: Column) -> list[bytes]:
    """What stands before the columns: shapes, and the rows' where there are several."""
    written = [
        write_varint(len(shape) - 1) + b"".join(map(write_bytes, shape[:-1])) + shape[-1]
        for shape in shapes
    ]
    start = bytes((COLUMNS_FORMAT,))
    if len(shapes) == 1:
        return [start + b"\x01" + written[0]] * (len(bounds) - 1)
    out = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        used, index = np.unique(shape_of[begin:end], return_inverse=True)
        head = start + write_varint(len(used)) + b"".join(written[i] for i in used.tolist())
        out.append(head + (encode_column(index.reshape(-1)) if len(used) > 1 else b""))
    return out


def _encode_values(found: _Values, times: Column) -> list[bytes]:
    values = found.values
    ids = _encode_ids(found, times)
    if ids is not None:
        return ids
    bounds = found.bounds.tolist()
    out, left = [], []
    for i, begin in enumerate(bounds[:-1]):
        rows = values[begin : bounds[i + 1]]
        distinct = set(rows)
        if len(distinct) == 1:
            out.append(b"\x00" + write_bytes(rows[0]))
        elif len(distinct) * _DISTINCT_SHARE <= len(rows):
            out.append(_encode_distinct(rows, distinct))
        else:
            out.append(b"")
            left.append(i)
    numbers = _encode_numbers(found) if left else out
    for i in left:
        out[i] = numbers[i] or _encode_text(values[bounds[i] : bounds[i + 1]])
    return out


def _encode_distinct(rows: list[bytes], distinct: set[bytes]) -> bytes:
    order = sorted(distinct)
    index = {value: i for i, value in enumerate(order)}
    head = b"\x03" + write_varint(len(order)) + b"".join(map(write_bytes, order))
    return head + encode_column(np.array([index[value] for value in rows], np.int64))


def _encode_text(rows: list[bytes]) -> bytes:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return b"\x04" + encode_column(lengths) + b"".join(rows)


def _encode_ids(found: _Values, times: Column) -> list[bytes] | None:
    """Columns of unique ids, if all values are such."""
    joined = b"".join(found.values)
    count = len(found.values)
    if len(joined) != _ID_DIGITS * count or set(map(len, found.values)) != {_ID_DIGITS}:
        return None
    try:
        raw = bytes.fromhex(joined.decode("ascii"))
    except ValueError:
        return None
    if raw.hex().upper().encode() != joined:
        return None
    ids = np.frombuffer(raw, _ID)
    born = times[found.rows]
    # The difference of two times that mostly are the same: a constant, or nearly.
    time = (ids["time"].astype(np.int64) - born) & _TIME_MASK
    columns = [
        encode_columns(column, found.bounds)
        for column in (
            ids["source"].astype(np.int64),
            ids["token"].astype(np.int64),
            time,
            ids["counter"].astype(np.int64),
        )
    ]
    return [b"\x01" + b"".join(parts) for parts in zip(*columns, strict=True)]


def _encode_numbers(found: _Values) -> list[bytes]:
    """Columns of decimal numbers behind a text that all rows of a block share; empty where they
    are none.
    """
    values, starts = found.values, found.bounds[:-1]
    out = [b""] * len(starts)
    if values[0].rstrip(_DIGITS) == values[0]:
        return out
    before = [value.rstrip(_DIGITS) for value in values]
    stems = set(before)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    digits = lengths - np.fromiter(map(len, before), np.int64, len(values))
    fits = (digits > 0) & (digits <= _DIGITS_MAX)
    if len(stems) == 1 and fits.all():
        skip = len(before[0])
        numbers = np.fromiter([int(value[skip:]) for value in values], np.int64, len(values))
    else:
        parsed = [
            int(value[-size:]) if fit else 0
            for value, size, fit in zip(values, digits.tolist(), fits.tolist(), strict=True)
        ]
        numbers = np.array(parsed, np.int64)
    plain = (numbers >= 10 ** np.maximum(digits - 1, 0).clip(0, _DIGITS_MAX - 1)) | (digits == 1)
    all_fit = np.logical_and.reduceat(fits, starts)
    all_plain = np.logical_and.reduceat(plain, starts)
    least = np.minimum.reduceat(digits, starts)
    same_width = least == np.maximum.reduceat(digits, starts)
    width = np.where(all_plain, 0, least).tolist()
    columns = encode_columns(numbers, found.bounds)
    bounds, counts = found.bounds.tolist(), np.diff(found.bounds).tolist()
    for i in np.flatnonzero(all_fit & (all_plain | same_width)).tolist():
        stem = before[bounds[i]]
        if len(stems) == 1 or before[bounds[i] : bounds[i + 1]].count(stem) == counts[i]:
            out[i] = b"\x02" + write_bytes(stem) + bytes((width[i],)) + columns[i]
    return out


# --- decoding --------------------------------------------------------------------------------


def decode_properties(data: bytes, count: int, times: Column, limit: int) -> list[bytes]:
    """The fields of `count` rows, of records born at `times`. Raises ArchiveDamaged, also if they
    would take more than `limit` bytes.
    """
    if not data or data[0] != COLUMNS_FORMAT:
        raise ArchiveDamaged("the properties of a block are of an unknown format")
    shapes, at = _read_shapes(data)
    if len(shapes) == 1:
        shape_of = np.zeros(count, np.int64)
    else:
        shape_of, at = decode_column(data, at, count)
        if int(shape_of.min()) < 0 or int(shape_of.max()) >= len(shapes):
            raise ArchiveDamaged("a block names a shape of properties that is not there")
    rows_of = np.bincount(shape_of, minlength=len(shapes))
    sizes = [sum(map(len, shape[:-1])) + 2 * (len(shape) - 1) for shape in shapes]
    if sum(int(n) * size for n, size in zip(rows_of, sizes, strict=True)) > limit:
        raise _too_large(limit)
    columns, at = _read_columns(data, at, shapes, shape_of, times, limit)
    if at != len(data):
        raise ArchiveDamaged(f"{len(data) - at} bytes follow behind the properties of a block")
    if len(shapes) == 1:
        return _build(shapes[0], [columns[name] for name in _value_names(shapes[0])], count)
    return _build_mixed(shapes, shape_of, columns)


def _read_shapes(data: bytes) -> tuple[list[Shape], int]:
    number, at = read_varint(data, 1)
    if not 1 <= number <= _SHAPES_MAX:
        raise ArchiveDamaged(f"a block has {number} shapes of properties")
    shapes: list[Shape] = []
    for _ in range(number):
        size, at = read_varint(data, at)
        if size > len(data) - at:
            raise ArchiveDamaged("a block ends in the middle of its shapes of properties")
        names = []
        for _ in range(size):
            name, at = read_bytes(data, at)
            names.append(name)
        shape = (*names, data[at : at + 1])
        at += 1
        if shape[-1] not in (_TERMINATED, _OPEN) and shape != _VERBATIM:
            raise ArchiveDamaged("a block has a shape of properties of an unknown kind")
        shapes.append(shape)
    return shapes, at


def _read_columns(
    data: bytes, at: int, shapes: list[Shape], shape_of: Column, times: Column, limit: int
) -> tuple[dict[bytes, list[bytes]], int]:
    """The values of each name, in the order of rows; `limit` bounds them all together."""
    uses: dict[bytes, Column] = {}
    for number, shape in enumerate(shapes):
        for name in _value_names(shape):
            if name not in uses:
                uses[name] = np.zeros(len(shapes), np.int64)
            uses[name][number] += 1
    columns: dict[bytes, list[bytes]] = {}
    for name in sorted(uses):
        born = np.repeat(times, uses[name][shape_of])
        columns[name], at, size = _read_values(data, at, born, limit)
        limit -= size
    return columns, at


def _read_values(data: bytes, at: int, born: Column, limit: int) -> tuple[list[bytes], int, int]:
    """As many values as `born` has rows, the index behind them, and how much they take."""
    count = len(born)
    if not count:
        return [], at, 0
    kind = data[at] if at < len(data) else -1
    at += 1
    if kind == _CONSTANT:
        value, at = read_bytes(data, at)
        _allow(len(value) * count, limit)
        return [value] * count, at, len(value) * count
    if kind == _IDS:
        _allow(_ID_DIGITS * count, limit)
        values, at = _read_ids(data, at, born)
        return values, at, _ID_DIGITS * count
    if kind == _NUMBERS:
        return _read_numbers(data, at, count, limit)
    if kind == _DISTINCT:
        return _read_distinct(data, at, count, limit)
    if kind == _TEXT:
        lengths, at = decode_column(data, at, count)
        size = total(lengths, "properties", min(limit, len(data) - at))
        stops = np.cumsum(lengths) + at
        values = [
            data[a:b] for a, b in zip((stops - lengths).tolist(), stops.tolist(), strict=True)
        ]
        return values, at + size, size
    raise ArchiveDamaged("a block has a column of properties of an unknown kind")


def _read_ids(data: bytes, at: int, born: Column) -> tuple[list[bytes], int]:
    ids = np.empty(len(born), _ID)
    ids["source"], at = decode_column(data, at, len(born))
    for name in ("token", "time", "counter"):
        column, at = decode_column(data, at, len(born))
        if name == "time":
            column = (column + born) & _TIME_MASK
        ids[name] = column & ((1 << 8 * _ID[name].itemsize) - 1)
    text = ids.tobytes().hex().upper().encode()
    return [text[i : i + _ID_DIGITS] for i in range(0, len(text), _ID_DIGITS)], at


def _read_numbers(data: bytes, at: int, count: int, limit: int) -> tuple[list[bytes], int, int]:
    prefix, at = read_bytes(data, at)
    width = data[at] if at < len(data) else _DIGITS_MAX + 1
    if width > _DIGITS_MAX:
        raise ArchiveDamaged(f"a column of numbers in a block has {width} digits")
    size = (len(prefix) + _DIGITS_MAX + 2) * count
    # Short of a few digits a row this is what comes out; the rows' lengths are checked as well.
    _allow(len(prefix) * count, limit)
    numbers, at = decode_column(data, at + 1, count)
    form = prefix.replace(b"%", b"%%") + (b"%%0%dd" % width if width else b"%d")
    return [form % number for number in numbers.tolist()], at, min(size, limit)


def _read_distinct(data: bytes, at: int, count: int, limit: int) -> tuple[list[bytes], int, int]:
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
    return [distinct[i] for i in index.tolist()], at, size


def _form(shape: Shape) -> bytes:
    """What makes a field of its values by `%`."""
    if shape == _VERBATIM:
        return b"%b"
    text = b"\x02".join(name.replace(b"%", b"%%") + b"\x01%b" for name in shape[:-1])
    return text + (b"\x02" if shape[-1] == _TERMINATED and text else b"")


def _build(shape: Shape, columns: list[list[bytes]], count: int) -> list[bytes]:
    """The fields of rows that are all of one shape."""
    names = _value_names(shape)
    if len(set(names)) != len(names):
        return _build_mixed(
            [shape], np.zeros(count, np.int64), dict(zip(names, columns, strict=True))
        )
    if not columns:
        return [b""] * count
    form = _form(shape)
    return [form % values for values in zip(*columns, strict=True)]


def _build_mixed(
    shapes: list[Shape], shape_of: Column, columns: dict[bytes, list[bytes]]
) -> list[bytes]:
    """The fields row by row, each taking its values from the columns of its names."""
    forms = [_form(shape) for shape in shapes]
    turns = {name: iter(values) for name, values in columns.items()}
    takes = [[turns[name] for name in _value_names(shape)] for shape in shapes]
    return [
        forms[number] % tuple([next(turn) for turn in takes[number]])
        for number in shape_of.tolist()
    ]


def _allow(size: int, limit: int) -> None:
    if size > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> ArchiveDamaged:
    return ArchiveDamaged(f"the properties of a block take more than the {limit} bytes there are")
