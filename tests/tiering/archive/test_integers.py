"""Columns of integers, varints and store times come back; bad bytes are an error."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.columns.group_heads import decode_heads
from kvstore.core.columns.int_columns import (
    decode_column,
    encode_columns,
    read_varint,
    write_signed,
    write_varint,
)
from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.integers import (
    Column,
    bounds_of,
    encode_by_block,
    encode_column,
    encode_times,
    read_bytes,
    write_bytes,
)

I64 = st.integers(-(2**63), 2**63 - 1)
SHORT = st.one_of(
    st.lists(I64, min_size=1, max_size=40),
    st.lists(st.sampled_from([0, 1, 10**15, -(2**63), 2**63 - 1]), min_size=1, max_size=60),
    st.builds(
        lambda first, step, count: [first + i * step for i in range(count)],
        st.integers(-(10**9), 10**9),
        st.integers(-(10**6), 10**6),
        st.integers(1, 100),
    ),
)


def column(values: list[int]) -> Column:
    return np.array(values, np.int64)


@given(st.integers(0, 2**64 - 1))
def test_a_number_without_a_sign_comes_back(value: int) -> None:
    data = b"?" + write_varint(value) + b"!"
    assert read_varint(data, 1) == (value, len(data) - 1)


@given(I64)
def test_a_number_with_a_sign_comes_back(value: int) -> None:
    data = write_signed(value)
    zigzag, end = read_varint(data, 0)
    assert ((zigzag >> 1) ^ -(zigzag & 1), end) == (value, len(data))


@given(st.binary(max_size=300))
def test_a_byte_string_comes_back(value: bytes) -> None:
    data = write_bytes(value) + b"!"
    assert read_bytes(data, 0) == (value, len(data) - 1)


@given(SHORT)
def test_a_column_of_any_64_bit_numbers_comes_back(values: list[int]) -> None:
    data = b"?" + encode_column(column(values)) + b"!"
    found, at = decode_column(data, 1, len(values))
    assert found.tolist() == values
    assert at == len(data) - 1


@given(st.lists(SHORT, min_size=1, max_size=6))
def test_columns_encoded_together_are_those_encoded_one_by_one(stretches: list[list[int]]) -> None:
    together = encode_columns(
        column([value for stretch in stretches for value in stretch]),
        bounds_of([len(stretch) for stretch in stretches]),
    )
    assert together == [encode_column(column(stretch)) for stretch in stretches]


def test_a_column_that_rises_evenly_takes_no_bits_a_row() -> None:
    assert len(encode_column(column(list(range(7, 70_007, 7))))) < 8


def test_a_column_of_few_distinct_values_takes_few_bits_a_row() -> None:
    assert len(encode_column(column([10**18, -(10**18)] * 400))) < 800 // 8 + 32


@pytest.mark.parametrize("bits", [1, 7, 9, 13, 31, 33, 56, 57, 58, 63])
@pytest.mark.parametrize("rows", [41, 1024, 1025, 3000])
def test_a_column_of_numbers_of_any_width_comes_back_however_long(bits: int, rows: int) -> None:
    draw = random.Random(bits)
    drawn = [draw.getrandbits(bits) for _ in range(rows - 2)]
    values = column([0, *drawn, (1 << bits) - 1])
    data = encode_column(values)
    # With something behind it, and at the very end.
    for rest in (b"", b"\xff" * 9):
        found, at = decode_column(data + rest, 0, rows)
        assert found.tolist() == values.tolist()
        assert at == len(data)


def test_no_rows_are_no_bytes() -> None:
    assert encode_column(column([])) == b""
    found, at = decode_column(b"", 0, 0)
    assert (len(found), at) == (0, 0)


@given(st.binary(max_size=60), st.integers(1, 40))
def test_any_bytes_are_a_column_or_damage(data: bytes, count: int) -> None:
    try:
        found, at = decode_column(data, 0, count)
    except ArchiveDamaged:
        return
    assert len(found) == count
    assert at <= len(data)


@given(SHORT)
def test_a_column_cut_short_is_damage(values: list[int]) -> None:
    data = encode_column(column(values))
    with pytest.raises(ArchiveDamaged):
        decode_column(data[:-1], 0, len(values))


def test_a_count_of_distinct_values_that_is_too_large_is_damage() -> None:
    with pytest.raises(ArchiveDamaged, match="distinct"):
        decode_column(b"\x03" + write_varint(2**40), 0, 5)


ANY = st.integers(-(1 << 63), (1 << 63) - 1)
BLOCK = st.lists(st.tuples(ANY, st.integers(0, (1 << 63) - 1)), min_size=1, max_size=6)
BLOCKS = st.lists(BLOCK, min_size=1, max_size=6)


def times_of(data: bytes, positions: Column, counts: Column) -> tuple[list[int], int]:
    """The times of a whole group with these positions, and the bytes that they take."""
    head = b"\xff" + write_varint(len(positions)) + encode_column(positions * 0)
    head += encode_column(positions)
    none = np.zeros(len(counts), np.int64)
    end = encode_column(positions * 0)
    numbers, *_, at = decode_heads(head + data + end, none, counts, none, counts - 1)
    return numbers[7].tolist(), at - len(head) - len(end)


@given(st.lists(BLOCKS, min_size=1, max_size=3))
def test_any_times_come_back(groups: list[list[list[tuple[int, int]]]]) -> None:
    blocks = [block for group in groups for block in group]
    rows = [row for block in blocks for row in block]
    times, positions = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    inner = bounds_of([len(block) for block in blocks])
    bounds = bounds_of([sum(map(len, group)) for group in groups])
    encoded = encode_times(times, positions, bounds, inner)
    for i, group in enumerate(groups):
        mine = slice(int(bounds[i]), int(bounds[i + 1]))
        counts = np.array([len(block) for block in group], np.int64)
        found, size = times_of(encoded[i], positions[mine], counts)
        assert (found, size) == (times[mine].tolist(), len(encoded[i]))


@given(st.binary(max_size=60), st.lists(ANY, min_size=1, max_size=5))
def test_any_bytes_are_times_or_damage(data: bytes, positions: list[int]) -> None:
    counts = np.array([len(positions)], np.int64)
    try:
        found, _ = times_of(b"\x05" + data, np.array(positions, np.int64), counts)
    except ArchiveDamaged:
        return
    assert len(found) == len(positions)


def test_times_that_passed_with_the_log_take_little() -> None:
    rng = np.random.default_rng(1)
    position = np.sort(rng.integers(0, 1 << 30, 1000))
    time = 1_700_000_000_000 + position // 10_000
    order = rng.permutation(1000)
    bounds, inner = np.array([0, 1000]), np.arange(0, 1001, 2)
    (found,) = encode_times(time[order], position[order], bounds, inner)
    (plain,) = encode_by_block(time[order], bounds, inner)
    assert len(found) < 300 < len(plain)


@pytest.mark.parametrize("takes", [b"", b"\x00"])
def test_a_line_that_is_cut_short_is_damage(takes: bytes) -> None:
    with pytest.raises(ArchiveDamaged):
        times_of(b"\x05" + takes, np.array([1, 2]), np.array([2]))
