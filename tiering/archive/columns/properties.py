"""Properties: the properties fields of a block's records <-> bytes, in columns by name.

The idea: nearly all messages of a queue have the same names in the same order (a *shape*). So names
are written once, and values go to a column a name. The form of a column follows from its values:
one value, unique ids, numbers behind the same text, few distinct values, or text. Many blocks are
encoded at a time, see `tiering.archive.encoding`.

Invariants: a field that its shape and values don't give back exactly has the shape VERBATIM and is
kept as it is; any bytes decode to as many fields as there are rows, or raise ArchiveDamaged; no
more is allocated than `limit` allows, which is the size of the resulting records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.record.properties import NAME_END_BYTE, VALUE_END_BYTE
from tiering.archive.columns.integers import (
    Column,
    decode_column,
    encode_column,
    read_bytes,
    read_varint,
    write_bytes,
    write_varint,
)
from tiering.archive.columns.text_columns import Texts
from tiering.archive.columns.values import Values, decode_values, encode_values, too_large
from tiering.archive.layout import COLUMNS_FORMAT

Shape = tuple[bytes, ...]
"""The names, in order, and behind them one byte: the field's ending."""


class Even(NamedTuple):
    """Fields that all have one ordinary shape, split: the values of each name, in the order of
    rows.
    """

    shape: Shape
    columns: dict[bytes, list[bytes]]


_TERMINATED: Final = b"\x01"
_OPEN: Final = b"\x00"
"""The last value has no separator behind it."""
_VERBATIM: Final[Shape] = (b"\x02",)
"""No names: the one value is the field as it is."""

# --- encoding --------------------------------------------------------------------------------


def encode_properties(
    fields: Sequence[bytes], even: Even | None, bounds: Column, times: Column
) -> list[bytes]:
    """The part's payload for each block. Block i has the fields `bounds[i]` to `bounds[i + 1]`, of
    records born at `times`. `even` is the result of `take_apart_even`.
    """
    shapes, shape_of, by_name = _take_apart(fields, even)
    columns: list[list[bytes]] = [[] for _ in range(len(bounds) - 1)]
    for name in sorted(by_name):
        values, rows = by_name[name]
        found = Values(values, rows, bounds)
        encoded = encode_values(found, times)
        for block, column in zip(found.blocks.tolist(), encoded, strict=True):
            columns[block].append(column)
    heads = _heads(shapes, shape_of, bounds)
    return [b"".join((head, *parts)) for head, parts in zip(heads, columns, strict=True)]


def _take_apart(
    fields: Sequence[bytes], even: Even | None
) -> tuple[list[Shape], Column, dict[bytes, tuple[list[bytes], Column]]]:
    """All shapes; the number of each row's shape; and by name the values and their rows."""
    if even is not None:
        rows = np.arange(len(fields))
        found = {name: (values, rows) for name, values in even.columns.items()}
        return [even.shape], np.zeros(len(fields), np.int64), found
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
        # The next rows mostly have the same shape, so it need not be searched then.
        while row < count and (matched := match(fields[row])):
            taken.append(matched.groups())
            row += 1
        members[number].extend(range(begin, row))
        shape_of[begin:row] = number
    return shapes, shape_of, _by_name(shapes, groups, members)


def take_apart_even(fields: Sequence[bytes]) -> Even | None:
    """Splits fields that all have one ordinary shape, several times as fast as other fields; None
    for other fields.
    """
    shape = _shape_of(fields[0]) if fields else _VERBATIM
    names = shape[:-1]
    count, size = len(fields), len(names)
    if not size or shape[-1] != _TERMINATED or len(set(names)) != size:
        return None
    pieces = b"".join(fields).split(VALUE_END_BYTE)
    if len(pieces) != count * size + 1 or pieces[-1]:
        return None
    columns = {}
    left = np.fromiter(map(len, fields), np.int64, count) - size
    for i, name in enumerate(names):
        column = pieces[i:-1:size]
        stem = name + NAME_END_BYTE
        values = [pair.removeprefix(stem) for pair in column]
        left -= np.fromiter(map(len, values), np.int64, count) + len(stem)
        columns[name] = values
    # All pieces together are as long as all fields. So a missing name makes a row's rest negative,
    # and no row's rest positive. Where no row has a rest, its pieces are its own.
    return None if left.any() else Even(shape, columns)


def _by_name(
    shapes: list[Shape], groups: list[list[tuple[bytes, ...]]], members: list[list[int]]
) -> dict[bytes, tuple[list[bytes], Column]]:
    pieces: dict[bytes, list[tuple[list[bytes], Column]]] = {}
    for shape, taken, rows in zip(shapes, groups, members, strict=True):
        places = np.array(rows, np.int64)
        for name, values in zip(value_names(shape), zip(*taken, strict=True), strict=True):
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
    """The shape of a field; VERBATIM if no shape gives the field back."""
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


def value_names(shape: Shape) -> Shape:
    """The names whose columns a row of this shape takes values from. All fields that are kept whole
    share one column.
    """
    return (b"",) if shape == _VERBATIM else shape[:-1]


def size_of(shape: Shape) -> int:
    """The bytes that a shape adds to the values in each field."""
    return sum(map(len, shape[:-1])) + 2 * (len(shape) - 1)


def _matcher(shape: Shape) -> Callable[[bytes], re.Match[bytes] | None]:
    if shape == _VERBATIM:
        # It takes one field, and looks at the next anew.
        return _Once().match
    if len(shape) == 1:
        return re.compile(b"").fullmatch
    text = b"\x02".join(re.escape(name) + b"\x01([^\x02]*)" for name in shape[:-1])
    return re.compile(text + (b"\x02" if shape[-1] == _TERMINATED else b"")).fullmatch


class _Once:
    """Matches exactly the first field that it is given."""

    _whole: Final = re.compile(b"(.*)", re.DOTALL)

    def __init__(self) -> None:
        self._used = False

    def match(self, field: bytes) -> re.Match[bytes] | None:
        if self._used:
            return None
        self._used = True
        return self._whole.fullmatch(field)


def _heads(shapes: list[Shape], shape_of: Column, bounds: Column) -> list[bytes]:
    """The bytes before the columns: the shapes, and each row's shape where there are several."""
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


# --- decoding --------------------------------------------------------------------------------


class PropertyColumns(NamedTuple):
    """The properties of rows as a block has them. `shape_of` says which of `shapes` a row has. By
    name they hold the values of the rows whose shape has the name, in the order of rows.
    """

    shapes: list[Shape]
    shape_of: Column
    columns: dict[bytes, Texts]

    @property
    def plain_names(self) -> Shape | None:
        """The names, if all rows have the same ones, each once, and nothing else: then a field is
        these names with their values, each followed by its separator. None if not.
        """
        names, end = self.shapes[0][:-1], self.shapes[0][-1:]
        is_ended = end == (_TERMINATED,) if names else end == (_OPEN,)
        plain = len(self.shapes) == 1 and is_ended and len(set(names)) == len(names)
        return names if plain and all(names) else None


def decode_properties(data: bytes, count: int, times: Column, limit: int) -> list[bytes]:
    """The fields of `count` rows, of records born at `times`. Raises ArchiveDamaged, also if the
    fields would take more than `limit` bytes.
    """
    return fields_of(decode_property_columns(data, count, times, limit))


def fields_of(found: PropertyColumns) -> list[bytes]:
    """The fields, as the records have them."""
    shapes, shape_of, columns = found
    values = {name: column.values() for name, column in columns.items()}
    if len(shapes) == 1:
        return _build(shapes[0], [values[name] for name in value_names(shapes[0])], len(shape_of))
    return _build_mixed(shapes, shape_of, values)


def decode_property_columns(data: bytes, count: int, times: Column, limit: int) -> PropertyColumns:
    """The same as `decode_properties`, in columns and not put together. Raises the same errors."""
    if not data or data[0] != COLUMNS_FORMAT:
        raise ArchiveDamaged("the properties of a block are of an unknown format")
    shapes, at = read_shapes(data, count)
    if len(shapes) == 1:
        shape_of = np.zeros(count, np.int64)
    else:
        shape_of, at = decode_column(data, at, count)
        if int(shape_of.min()) < 0 or int(shape_of.max()) >= len(shapes):
            raise ArchiveDamaged("a block names a shape of properties that is not there")
    rows_of = np.bincount(shape_of, minlength=len(shapes))
    sizes = list(map(size_of, shapes))
    if sum(int(n) * size for n, size in zip(rows_of, sizes, strict=True)) > limit:
        raise too_large(limit)
    columns, at = _read_columns(data, at, shapes, shape_of, times, limit)
    if at != len(data):
        raise ArchiveDamaged(f"{len(data) - at} bytes follow behind the properties of a block")
    return PropertyColumns(shapes, shape_of, columns)


def read_shapes(data: bytes, most: int) -> tuple[list[Shape], int]:
    """The shapes that stand before the columns, at most `most`, and the index behind them. Raises
    ArchiveDamaged.
    """
    number, at = read_varint(data, 1)
    if not 1 <= number <= most:
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
) -> tuple[dict[bytes, Texts], int]:
    """The values of each name, in the order of rows; `limit` bounds the bytes of all together."""
    uses: dict[bytes, dict[int, int]] = {}
    for number, shape in enumerate(shapes):
        for name in value_names(shape):
            of_name = uses.setdefault(name, {})
            of_name[number] = of_name.get(number, 0) + 1
    columns: dict[bytes, Texts] = {}
    for name in sorted(uses):
        born = times
        if len(shapes) > 1 or uses[name] != {0: 1}:
            per_shape = np.zeros(len(shapes), np.int64)
            per_shape[list(uses[name])] = list(uses[name].values())
            born = np.repeat(times, per_shape[shape_of])
        columns[name], at, size = decode_values(data, at, born, limit)
        limit -= size
    return columns, at


def _form(shape: Shape) -> bytes:
    """The format string that makes a field of its values by `%`."""
    if shape == _VERBATIM:
        return b"%b"
    text = b"\x02".join(name.replace(b"%", b"%%") + b"\x01%b" for name in shape[:-1])
    return text + (b"\x02" if shape[-1] == _TERMINATED and text else b"")


def _build(shape: Shape, columns: list[list[bytes]], count: int) -> list[bytes]:
    """The fields of rows that all have one shape."""
    names = value_names(shape)
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
    takes = [[turns[name] for name in value_names(shape)] for shape in shapes]
    return [
        forms[number] % tuple([next(turn) for turn in takes[number]])
        for number in shape_of.tolist()
    ]
