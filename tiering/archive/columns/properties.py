"""Properties: the properties fields of a block's records -> bytes, in columns by name.

The idea: nearly all messages of a queue have the same names in the same order (a *shape*). So names
are written once, and values go to a column a name. The form of a column follows from its values:
one value, unique ids, numbers behind the same text, few distinct values, or text. Many blocks are
encoded at a time, see `tiering.archive.encoding`.

Not in here: reading them (`property_decoder`).

Invariant: a field that its shape and values don't give back exactly has the shape VERBATIM and is
kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvstore.record.properties import NAME_END_BYTE, VALUE_END_BYTE
from tiering.archive.columns.integers import (
    Column,
    encode_column,
    write_bytes,
    write_varint,
)
from tiering.archive.columns.values import Values, encode_values
from tiering.archive.layout import COLUMNS_FORMAT

Shape = tuple[bytes, ...]
"""The names, in order, and behind them one byte: the field's ending."""


class UniformProperties(NamedTuple):
    """Fields that all have one ordinary shape, split: the values of each name, in the order of
    rows.
    """

    shape: Shape
    columns: dict[bytes, list[bytes]]


TERMINATED: Final = b"\x01"
OPEN: Final = b"\x00"
"""The last value has no separator behind it."""
VERBATIM: Final[Shape] = (b"\x02",)
"""No names: the one value is the field as it is."""

# --- encoding --------------------------------------------------------------------------------


def encode_properties(
    fields: Sequence[bytes], uniform: UniformProperties | None, bounds: Column, times: Column
) -> list[bytes]:
    """The part's payload for each block. Block i has the fields `bounds[i]` to `bounds[i + 1]`, of
    records born at `times`. `uniform` is the result of `split_uniform`.
    """
    shapes, shape_of, by_name = _split(fields, uniform)
    columns: list[list[bytes]] = [[] for _ in range(len(bounds) - 1)]
    for name in sorted(by_name):
        values, rows = by_name[name]
        found = Values(values, rows, bounds)
        encoded = encode_values(found, times)
        for block, column in zip(found.blocks.tolist(), encoded, strict=True):
            columns[block].append(column)
    heads = _heads(shapes, shape_of, bounds)
    return [b"".join((head, *parts)) for head, parts in zip(heads, columns, strict=True)]


def _split(
    fields: Sequence[bytes], uniform: UniformProperties | None
) -> tuple[list[Shape], Column, dict[bytes, tuple[list[bytes], Column]]]:
    """All shapes; the number of each row's shape; and by name the values and their rows."""
    if uniform is not None:
        rows = np.arange(len(fields))
        found = {name: (values, rows) for name, values in uniform.columns.items()}
        return [uniform.shape], np.zeros(len(fields), np.int64), found
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
        # The next rows mostly have the same shape, which then need not be found anew.
        while row < count and (matched := match(fields[row])):
            taken.append(matched.groups())
            row += 1
        members[number].extend(range(begin, row))
        shape_of[begin:row] = number
    return shapes, shape_of, _by_name(shapes, groups, members)


def split_uniform(fields: Sequence[bytes]) -> UniformProperties | None:
    """Splits fields that all have one ordinary shape, several times as fast as other fields; None
    for other fields.
    """
    shape = _shape_of(fields[0]) if fields else VERBATIM
    names = shape[:-1]
    count, size = len(fields), len(names)
    if not size or shape[-1] != TERMINATED or len(set(names)) != size:
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
    return None if left.any() else UniformProperties(shape, columns)


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
        return (OPEN,)
    end = TERMINATED if field.endswith(VALUE_END_BYTE) else OPEN
    pairs = field.split(VALUE_END_BYTE)
    if end == TERMINATED:
        pairs.pop()
    names = []
    for pair in pairs:
        name, found, _ = pair.partition(NAME_END_BYTE)
        if not found:
            return VERBATIM
        names.append(name)
    return (*names, end)


def value_names(shape: Shape) -> Shape:
    """The names whose columns a row of this shape takes values from. All fields that are kept whole
    share one column.
    """
    return (b"",) if shape == VERBATIM else shape[:-1]


def size_of(shape: Shape) -> int:
    """The bytes that a shape adds to the values in each field."""
    return sum(map(len, shape[:-1])) + 2 * (len(shape) - 1)


def format_of(shape: Shape) -> bytes:
    """The format string that makes a field of its values by `%`."""
    if shape == VERBATIM:
        return b"%b"
    text = b"\x02".join(name.replace(b"%", b"%%") + b"\x01%b" for name in shape[:-1])
    return text + (b"\x02" if shape[-1] == TERMINATED and text else b"")


def _matcher(shape: Shape) -> Callable[[bytes], re.Match[bytes] | None]:
    if shape == VERBATIM:
        # It takes one field only: the shape of the next one is found anew.
        return _Once().match
    if len(shape) == 1:
        return re.compile(b"").fullmatch
    text = b"\x02".join(re.escape(name) + b"\x01([^\x02]*)" for name in shape[:-1])
    return re.compile(text + (b"\x02" if shape[-1] == TERMINATED else b"")).fullmatch


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
