"""Properties: the properties fields of groups' records <-> bytes, in columns by name.

The idea: nearly all messages of a queue have the same names in the same order (a *shape*). So names
are written once, and values go to a column a name (`text_columns`). Many groups are encoded at a
time.

Invariants: a field that its shape and values don't give back exactly has the shape VERBATIM and is
kept as it is; any bytes decode to as many fields as there are rows, or raise ArchiveDamaged; the
properties of a group take at most `limit` bytes.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.int_columns import decode_column, read_varint, write_varint
from kvstore.core.columns.packed_texts import split_fields
from kvstore.core.columns.record_columns import join_fields
from kvstore.core.columns.text_forms import decode_texts
from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.integers import (
    Column,
    encode_column,
    read_bytes,
    write_bytes,
)
from tiering.archive.columns.text_columns import Joined, Slices, encode_values

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

COLUMNS_FORMAT: Final = 1
"""Format byte of a fixed part and of a properties part that are in columns."""

Shape = tuple[bytes, ...]
"""The names, in order, and behind them one byte: the field's ending."""


TERMINATED: Final = b"\x01"
OPEN: Final = b"\x00"
"""The last value has no separator behind it."""
VERBATIM: Final[Shape] = (b"\x02",)
"""No names: the one value is the field as it is."""

# --- encoding --------------------------------------------------------------------------------


class SplitProperties(NamedTuple):
    """Fields, split into the values of each name. `shape_of` says which of `shapes` a row has."""

    shapes: list[Shape]
    shape_of: Column
    columns: dict[bytes, Slices]

    def plain_names(self) -> Shape | None:
        """The names, if all fields have the same ones, each once, and each value has its separator;
        None if not.
        """
        is_one = len(self.shapes) == 1 and len(self.shapes[0]) > 1
        return self.shapes[0][:-1] if is_one and is_plain(self.shapes[0]) else None

    def plain_rows(self) -> NDArray[np.bool_]:
        """The rows whose shape is plain."""
        return np.array(list(map(is_plain, self.shapes)), np.bool_)[self.shape_of]


def is_plain(shape: Shape) -> bool:
    """Whether a shape has each of its names once, and a separator behind each value."""
    names = shape[:-1]
    return shape[-1] == (TERMINATED if names else OPEN) and len(set(names)) == len(names)


def split_properties(data: Buffer, starts: Column, stops: Column) -> SplitProperties:
    """Splits the fields that lie in a buffer, from each start to its stop."""
    shapes, shape_of, names, (name_of, *values) = split_fields(data, starts, stops)
    columns = {}
    for number, name in enumerate(names):
        some = np.flatnonzero(name_of == number)
        rows, begins, ends = (column[some] for column in values)
        columns[name] = Slices(data, begins, ends, rows)
    return SplitProperties(shapes, shape_of, columns)


def encode_properties(fields: SplitProperties, bounds: Column, times: Column) -> list[bytes]:
    """The part's payload for each block. Block i has the fields `bounds[i]` to `bounds[i + 1]`, of
    records born at `times`.
    """
    parts = [[head] for head in _heads(fields.shapes, fields.shape_of, bounds)]
    for _, values in sorted(fields.columns.items()):
        for block, column in encode_values(values, bounds, times):
            parts[block].append(column)
    return list(map(b"".join, parts))


def value_names(shape: Shape) -> Shape:
    """The names whose columns a row of this shape takes values from. All fields that are kept whole
    share one column.
    """
    return (b"",) if shape == VERBATIM else shape[:-1]


def size_of(shape: Shape) -> int:
    """The bytes that a shape adds to the values in each field."""
    return sum(map(len, shape[:-1])) + 2 * (len(shape) - 1)


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


class PropertyColumns(NamedTuple):
    """The properties of a group's rows. `shape_of` says which of `shapes` a row has. By name they
    hold the values of the rows whose shape has the name, in the order of rows.
    """

    shapes: list[Shape]
    shape_of: Column
    columns: dict[bytes, Joined]

    @property
    def plain_names(self) -> Shape | None:
        """The names, if all rows have the same ones, each once, and nothing else: then a field is
        these names with their values, each followed by its separator. None if not.
        """
        names, end = self.shapes[0][:-1], self.shapes[0][-1:]
        is_ended = end == (TERMINATED,) if names else end == (OPEN,)
        plain = len(self.shapes) == 1 and is_ended and len(set(names)) == len(names)
        return names if plain and all(names) else None

    def fields(self) -> Joined:
        """The fields, as the records have them."""
        return Joined(*join_fields(self.shapes, self.shape_of, self.columns))


def decode_properties(payload: bytes, born: Column, limit: int) -> PropertyColumns:
    """The properties of a group whose records were born at these times. Raises ArchiveDamaged, also
    if its fields would take more than `limit` bytes.
    """
    shapes, at = _read_shapes(payload, len(born))
    shape_of = np.zeros(len(born), np.int64)
    counts = [len(born)]
    if len(shapes) > 1:
        shape_of, at = decode_column(payload, at, len(born))
        if int(shape_of.min()) < 0 or int(shape_of.max()) >= len(shapes):
            raise ArchiveDamaged("a block names a shape of properties that is not there")
        counts = np.bincount(shape_of, minlength=len(shapes)).tolist()
    if sum(map(mul, counts, map(size_of, shapes))) > limit:
        raise _too_large(limit)
    names: dict[bytes, list[int]] = {}
    """How often each shape has a name."""
    for number, shape in enumerate(shapes):
        for name in value_names(shape):
            names.setdefault(name, [0] * len(shapes))[number] += 1
    columns: dict[bytes, Joined] = {}
    left = limit
    for name in sorted(names):
        times = born
        if names[name] != [1] * len(shapes):
            times = born.repeat(np.array(names[name])[shape_of])
        data, bounds, at, size = decode_texts(payload, at, times, left)
        columns[name] = Joined(data, bounds)
        left -= size
        if left < 0:
            raise _too_large(limit)
    if at != len(payload):
        raise ArchiveDamaged(f"{len(payload) - at} bytes follow behind the properties of a block")
    return PropertyColumns(shapes, shape_of, columns)


def _too_large(limit: int) -> ArchiveDamaged:
    return ArchiveDamaged(f"the properties of a block take more than the {limit} bytes there are")


def _read_shapes(data: bytes, most: int) -> tuple[list[Shape], int]:
    """The shapes that stand before the columns, at most `most`, and the index behind them. Raises
    ArchiveDamaged.
    """
    if data[:1] != bytes((COLUMNS_FORMAT,)):
        raise ArchiveDamaged("the properties of a block are of an unknown format")
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
        if shape[-1] not in (TERMINATED, OPEN) and shape != VERBATIM:
            raise ArchiveDamaged("a block has a shape of properties of an unknown kind")
        shapes.append(shape)
    return shapes, at
