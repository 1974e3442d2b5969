"""Packed integers: what goes in comes out, at few bits; bad bytes are an error, not memory."""

from __future__ import annotations

from struct import Struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError
from tiering.archive.columns.packed import ByteReader, Narrow, encode_column, encode_sorted

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
NUMBERS = st.one_of(
    st.integers(LEAST, GREATEST), st.integers(0, 300), st.sampled_from([LEAST, -1, 0, GREATEST])
)
LISTS = st.lists(NUMBERS, max_size=40)


@given(LISTS)
def test_a_column_gives_its_values_back(values: list[int]) -> None:
    cursor = ByteReader(encode_column(np.array(values, np.int64)))
    assert cursor.column(len(values)).tolist() == values
    cursor.end()


@given(LISTS)
def test_a_sorted_column_gives_its_values_back(values: list[int]) -> None:
    values.sort()
    cursor = ByteReader(encode_sorted(np.array(values, np.int64)))
    assert cursor.sorted(len(values)).tolist() == values
    cursor.end()


@given(LISTS)
def test_a_narrow_column_gives_each_value_and_any_stretch(values: list[int]) -> None:
    column = Narrow(np.array(values, np.int64))
    assert [column[i] for i in range(len(column))] == values
    assert column.values().tolist() == values
    middle = len(values) // 2
    assert column.values(middle // 2, middle).tolist() == values[middle // 2 : middle]


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 31, 33, 55, 56, 57, 62, 63, 64])
def test_values_of_every_width_are_kept(width: int) -> None:
    top = (1 << width) - 1
    values = np.array([0, top, top >> 1, top, 0, top], np.uint64).view(np.int64)
    assert np.array_equal(ByteReader(encode_column(values)).column(6), values)


def test_a_column_of_one_value_takes_no_bytes_a_row() -> None:
    assert len(encode_column(np.full(10_000, 1234))) == len(encode_column(np.full(1, 1234)))
    assert Narrow(np.full(10_000, 1234)).memory_bytes == 0


def test_a_sorted_column_takes_two_bits_more_than_its_mean_step() -> None:
    steps = np.random.default_rng(1).integers(0, 2048, 10_000)
    assert len(encode_sorted(np.cumsum(steps))) * 8 / 10_000 < 12.1


def test_one_large_step_does_not_widen_the_others_of_a_sorted_column() -> None:
    steps = np.full(4096, 1000)
    even = len(encode_sorted(np.cumsum(steps)))
    steps[2000] = 4 << 20
    assert len(encode_sorted(np.cumsum(steps))) < 1.4 * even


@given(st.binary(max_size=60), st.integers(0, 1 << 32), st.booleans())
def test_any_bytes_are_a_column_or_a_format_error(data: bytes, count: int, is_sorted: bool) -> None:
    cursor = ByteReader(data)
    try:
        values = cursor.sorted(count % 600) if is_sorted else cursor.column(count % 600)
    except FormatError:
        return
    assert len(values) == count % 600


def test_a_count_that_the_bytes_do_not_pay_for_is_an_error() -> None:
    with pytest.raises(FormatError):
        ByteReader(encode_column(np.arange(10))).column(1 << 40)
    with pytest.raises(FormatError):
        ByteReader(encode_sorted(np.arange(10))).sorted(1 << 40)


def test_what_is_left_over_is_an_error() -> None:
    cursor = ByteReader(b"\0\0\0\x07\0")
    assert cursor.head(Struct(">I")) == (7,)
    with pytest.raises(FormatError, match="1 bytes are left over"):
        cursor.end()
