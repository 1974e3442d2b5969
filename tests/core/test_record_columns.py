"""The core joins fields and records as the plain versions do, and refuses columns that lack any."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.columns import record_columns
from kvstore.core.columns.packed_texts import split_fields
from tests.core.test_texts import FIELDS, laid
from tests.reference import record_columns as plain

U32 = st.integers(0, (1 << 32) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOST = st.binary(min_size=12, max_size=12)
NUMBERS = st.tuples(
    U32, U32, I64, I64, st.sampled_from([0, 0x10, 0x20, 0x31, 1]), I64, I64, I64, I64,
    st.integers(-(1 << 31), (1 << 31) - 1), I64, st.sampled_from([1, 2]),
)  # fmt: skip
ROWS = st.lists(
    st.tuples(
        NUMBERS, U32, st.integers(0, 1), st.binary(max_size=9), st.binary(max_size=9), HOST, HOST
    ),
    max_size=6,
)
TOPICS = (b"topic", b"t" * 127)


def beside(some: list[bytes]) -> tuple[bytes, Any]:
    return b"".join(some), np.cumsum([0, *map(len, some)], dtype=np.int64)


def parted(joined: tuple[bytes, Any]) -> list[bytes]:
    data, bounds = joined
    assert (bounds[0], bounds[-1]) == (0, len(data))
    return [data[a:b] for a, b in pairwise(bounds)]


@given(FIELDS)
def test_fields_that_were_split_are_joined_again(fields: list[bytes]) -> None:
    data, starts, stops = laid(fields)
    shapes, shape_of, names, (name_of, _, begins, ends) = split_fields(data, starts, stops)
    columns = {
        name: [data[a:b] for n, a, b in zip(name_of, begins, ends, strict=True) if n == number]
        for number, name in enumerate(names)
    }
    given_ = {name: beside(values) for name, values in columns.items()}
    assert parted(record_columns.join_fields(shapes, shape_of, given_)) == fields
    assert plain.join_fields(shapes, shape_of.tolist(), columns) == fields


@pytest.mark.parametrize(
    ("shapes", "shape_of", "columns"),
    [
        ([(b"A", b"\1")], [0, 0], {b"A": beside([b"x"])}),
        ([(b"A", b"\1")], [1], {b"A": beside([b"x"])}),
        ([(b"A", b"\1")], [-1], {b"A": beside([b"x"])}),
        ([(b"B", b"\1")], [0], {b"A": beside([b"x"])}),
        ([(b"A",)], [0], {b"A": beside([b"x"])}),
        ([()], [0], {}),
        ([(b"A", b"\1")], [0], {b"A": (b"x", np.array([0, 2]))}),
        ([(b"A", b"\1")], [0], {b"A": (b"x", np.array([1, 0]))}),
        ([(b"A", b"\1")], [0], {b"A": (b"x", np.array([], np.int64))}),
    ],
)
def test_columns_that_lack_a_value_are_refused(
    shapes: list[tuple[bytes, ...]], shape_of: list[int], columns: dict[bytes, Any]
) -> None:
    with pytest.raises(ValueError, match=r"a shape|columns must|texts must"):
        record_columns.join_fields(shapes, np.array(shape_of), columns)


def arguments(rows: list[Any], with_crcs: bool) -> list[Any]:
    numbers = np.array([row[0] for row in rows], np.int64).reshape(-1, 12).T
    born = b"".join(row[5] for row in rows if row[0][4] & 0x10)
    store = b"".join(row[6] for row in rows if row[0][4] & 0x20)
    crcs = np.array([row[1] for row in rows], np.int64) if with_crcs else None
    of = np.array([row[2] for row in rows], np.int64)
    bodies, properties = beside([row[3] for row in rows]), beside([row[4] for row in rows])
    return [numbers, crcs, *beside(list(TOPICS)), of, *bodies, *properties, born, store]


@given(ROWS, st.booleans())
def test_records_are_joined_as_the_plain_version_does(rows: list[Any], with_crcs: bool) -> None:
    found = parted(record_columns.join_records(*arguments(rows, with_crcs)))
    assert found == [
        plain.join_record(
            list(row[0]), row[1] if with_crcs else None, TOPICS[row[2]], row[3], row[4], row[5:]
        )
        for row in rows
    ]


ROW = ((1, 2, 3, 4, 0x30, 6, 7, 8, 9, 10, 11, 1), 5, 0, b"body", b"A\1b", bytes(12), bytes(12))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, np.zeros((11, 1), np.int64)),
        (1, np.zeros(2, np.int64)),
        (3, np.array([0, 128, 132])),
        (4, np.array([2])),
        (4, np.array([-1])),
        (4, np.array([0, 0])),
        (6, np.array([0, 2, 4])),
        (6, np.array([0, 5])),
        (8, np.array([0, 1, 3])),
        (9, bytes(11)),
        (10, bytes(11)),
    ],
)
def test_columns_that_do_not_make_a_record_are_refused(place: int, value: Any) -> None:
    given_ = arguments([ROW], with_crcs=True)
    record_columns.join_records(*given_)
    given_[place] = value
    with pytest.raises(ValueError, match=r"column|topic|texts"):
        record_columns.join_records(*given_)


def test_properties_that_are_too_long_for_a_record_are_refused() -> None:
    for size in (32_767, 32_768):
        row = (*ROW[:4], bytes(size), *ROW[5:])
        if size == 32_767:
            record_columns.join_records(*arguments([row], True))
            continue
        with pytest.raises(ValueError, match="too long"):
            record_columns.join_records(*arguments([row], True))


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.randoms(), st.integers(0, 20))
def test_records_are_copied_to_the_places_at_which_they_stood(
    records: list[bytes], random: Any, cut: int
) -> None:
    base = 1 << 40
    log, positions = b"", list[int]()
    for record in records:
        positions.append(base + len(log))
        log += record
    order = list(range(len(records)))
    random.shuffle(order)
    data, bounds = beside([records[i] for i in order])
    at = np.array([positions[i] for i in order], np.int64)
    # The room begins and ends with a record.
    begin = min(cut, len(records))
    first = positions[begin] - base if begin < len(records) else len(log)
    room = bytearray(len(log) - first)

    placed = record_columns.place_records(room, base + first, at, data, bounds)

    assert (bytes(room), placed) == (log[first:], len(records) - begin)


def test_no_record_is_copied_over_the_end_of_its_room() -> None:
    data, bounds = beside([b"whole", b"cut"])
    room = bytearray(7)
    with pytest.raises(ValueError, match="end"):
        record_columns.place_records(room, 10, np.array([10, 15]), data, bounds)
    assert room == b"whole\0\0"
    with pytest.raises(ValueError, match="position for each"):
        record_columns.place_records(room, 10, np.array([10]), data, bounds)
