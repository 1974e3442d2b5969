"""The core packs what the plain versions pack, byte for byte, and reads or refuses what they do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.core import packed_pairs, packed_runs
from kvstore.core.columns import bits, int_columns
from kvstore.errors import Damaged, FormatError
from tests.reference import packing
from tests.support.queue_reading import run_positions

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
WIDTHS = st.integers(0, 64)


def int64(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


T = TypeVar("T")


def answer(call: Callable[[], T]) -> T | tuple[type, str]:
    """The result, or the error."""
    try:
        return call()
    except Damaged as e:
        return type(e), str(e)


# -- bits


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=100), WIDTHS)
def test_numbers_of_any_width_are_packed_as_the_plain_version_does(
    values: list[int], width: int
) -> None:
    assert bits.pack(np.array(values, np.uint64), width) == packing.pack(values, width)


@given(st.binary(max_size=200), WIDTHS, st.integers(0, 20), st.integers(0, 60), st.integers(0, 9))
def test_any_bytes_are_unpacked_as_the_plain_version_does(
    data: bytes, width: int, at: int, count: int, skip: int
) -> None:
    if at + (width * (skip + count) + 7) // 8 > len(data) or at > len(data):
        with pytest.raises(FormatError):
            bits.unpack(data, at, width, count, skip)
        return
    found = bits.unpack(memoryview(data), at, width, count, skip).tolist()
    assert found == packing.unpack(data, at, width, skip + count)[skip:]


@pytest.mark.parametrize(
    ("at", "width", "count", "skip"),
    [
        (0, 8, 9, 0),
        (8, 1, 1, 0),
        (9, 0, 0, 0),
        (-1, 8, 1, 0),
        (0, 8, -1, 0),
        (0, 8, 1, -1),
        (0, 65, 1, 0),
        (0, -1, 1, 0),
        (0, 64, (1 << 63) - 1, 0),
        (0, 1, 1, (1 << 63) - 1),
        (0, 64, 1 << 58, 1 << 58),
    ],
)
def test_sizes_that_can_not_be_are_refused(at: int, width: int, count: int, skip: int) -> None:
    with pytest.raises(FormatError):
        bits.unpack(bytes(8), at, width, count, skip)


@pytest.mark.parametrize("width", [-1, 65])
def test_a_width_that_no_number_has_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        bits.pack(np.zeros(3, np.uint64), width)


def test_every_second_number_of_an_array_is_packed_as_a_copy_of_them_is() -> None:
    values = np.arange(100, dtype=np.uint64)
    assert bits.pack(values[::2], 9) == bits.pack(values[::2].copy(), 9)
    assert bits.pack(values[::-1].astype(np.uint8), 9) == bits.pack(values[::-1].copy(), 9)


# -- runs

SMALL = st.integers(0, 300)
ENTRIES = st.tuples(
    st.one_of(SMALL, st.integers(0, 1 << 20)),
    st.one_of(SMALL, st.integers(0, (1 << 32) - 1)),
    st.one_of(st.sampled_from([0, 5, -(1 << 40)]), st.integers(-(1 << 62), 1 << 62)),
    st.one_of(SMALL, st.integers(0, 1 << 40)),
)


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=30), min_size=1, max_size=8))
def test_runs_are_packed_and_unpacked_as_the_plain_version_does(
    runs: list[list[packing.Entry]],
) -> None:
    rising = [
        [
            (position, entry[1], entry[2], time & (1 << 48) - 1 if time < 1 << 48 else time)
            for position, entry, time in zip(
                accumulate(e[0] for e in run), run, accumulate(e[3] for e in run), strict=True
            )
        ]
        for run in runs
    ]
    starts = int64([0, *accumulate(map(len, runs))][:-1])
    flat = [entry for run in rising for entry in run]
    a, b, c, d = (int64(list(column)) for column in zip(*flat, strict=True))
    data, begins, ends = packed_runs.pack_runs(a, b, c, d, starts)
    values = [data[a:b] for a, b in zip(begins, ends, strict=True)]
    assert values == [packing.pack_run(run) for run in rising]
    *found, found_starts = packed_runs.unpack_runs(values)
    assert found_starts.tolist() == starts.tolist()
    plain = [entry for value in values for entry in packing.unpack_run(value)]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == plain


RUN_BYTES = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda a, b, count, rest: bytes((a, b)) + count.to_bytes(2, "little") + rest,
        st.sampled_from([0, 1, 2, 0x10, 0x11, 0x92, 0xF1, 0x99, 8, 9]),
        st.sampled_from([0, 1, 0x10, 0x22, 0x99, 0xFF, 0x9A]),
        st.integers(0, 6),
        st.binary(min_size=22, max_size=90),
    ),
)


@given(RUN_BYTES)
@example(bytes(26))
@example(b"\xff\xff\xff\xff" + bytes(22))
def test_any_bytes_are_a_run_as_they_are_for_the_plain_version(value: bytes) -> None:
    def entries() -> list[packing.Entry]:
        a, b, c, d, _ = packed_runs.unpack_runs([value])
        return list(zip(a.tolist(), b.tolist(), c.tolist(), d.tolist(), strict=True))

    expected = answer(lambda: packing.unpack_run(value))
    assert answer(entries) == expected
    if isinstance(expected, list):
        assert run_positions(value) == [entry[0] for entry in expected]


@pytest.mark.parametrize("starts", [[1], [0, 0], [0, 3], [0, 5, 2], [0, 2, 1], [-1], []])
def test_starts_that_cut_no_runs_are_refused(starts: list[int]) -> None:
    column = int64([1, 2, 3])
    with pytest.raises(ValueError, match="run"):
        packed_runs.pack_runs(column, column, column, column, int64(starts))


def test_columns_of_several_lengths_are_refused() -> None:
    three = int64([1, 2, 3])
    with pytest.raises(ValueError, match="lengths"):
        packed_runs.pack_runs(three, three, three, three[:2], int64([0]))


def test_a_run_of_more_entries_than_its_count_can_say_is_refused() -> None:
    column = np.zeros(1 << 16, np.int64)
    with pytest.raises(FormatError):
        packed_runs.pack_runs(column, column, column, column, int64([0]))
    most = column[1:]
    packed_runs.pack_runs(most, most, most, most, int64([0]))


@pytest.mark.parametrize("value", [None, "text", 5, bytearray(30)])
def test_a_run_that_is_not_bytes_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        packed_runs.unpack_runs([value])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        run_positions(value)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=12),
    st.sampled_from([0, 5 << 30]),
)
def test_each_offset_of_the_last_run_that_was_added_is_found(
    added: list[tuple[int, int]], base: int
) -> None:
    """Also where it joins runs, or parts of runs, that were added before."""
    runs = packed_runs.DecodedRuns()
    for first, count in added:
        column, none = int64([*range(first, first + count)]), int64([0] * count)
        value = packed_runs.pack_runs(column, none, none, none, int64([0]))[0]
        runs.add(7, first, base, value)
        for offset in range(first, first + count):
            rest = [base + n for n in range(offset, first + count)]
            assert runs.positions(7, offset, 1000) == rest
            assert runs.positions(8, offset, 1000) == []
        for offset in range(80):
            assert runs.positions(7, offset, 1) in ([], [base + offset])
    assert len(runs) <= len(added)
    runs.forget()
    assert (len(runs), runs.positions(7, 0, 9)) == (0, [])


# -- key blocks

PAIRS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 5), st.integers(0, (1 << 40) - 1)),
        st.one_of(st.integers(0, 5), st.integers(0, (1 << 32) - 1)),
    ),
    min_size=1,
    max_size=60,
).map(lambda pairs: sorted(pairs, key=lambda pair: pair[0]))


@given(PAIRS, st.integers(1, 20))
def test_key_blocks_are_packed_as_the_plain_version_does(
    pairs: list[packing.Pair], together: int
) -> None:
    hashes, positions = (int64(list(column)) for column in zip(*pairs, strict=True))
    blocks = [pairs[at : at + together] for at in range(0, len(pairs), together)]
    plain = [(block[0][0], packing.pack_block(block[0][0], block)) for block in blocks]
    assert packed_pairs.pack_blocks(hashes, positions, together) == plain
    assert packed_pairs.pack_block(0, hashes, positions) == packing.pack_block(0, pairs)


BLOCK_BYTES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda widths, count, rest: bytes((widths,)) + count.to_bytes(4, "little") + rest,
        st.sampled_from([0, 1, 0x10, 0x11, 0x12, 0x88, 0x90, 9]),
        st.one_of(st.integers(0, 5), st.just((1 << 32) - 1)),
        st.binary(max_size=40),
    ),
)


@given(BLOCK_BYTES, I64)
def test_any_bytes_are_a_key_block_as_they_are_for_the_plain_version(
    value: bytes, first: int
) -> None:
    def pairs() -> list[packing.Pair]:
        hashes, positions = packed_pairs.unpack_block(first, value)
        return list(zip(hashes.tolist(), positions.tolist(), strict=True))

    expected = answer(lambda: packing.unpack_block(first, value))
    assert answer(pairs) == expected
    counted = answer(lambda: packed_pairs.count_in(value))
    assert counted == (len(expected) if isinstance(expected, list) else expected)


@given(BLOCK_BYTES, I64, I64, I64)
def test_looking_into_any_bytes_finds_pairs_or_says_that_they_are_no_block(
    value: bytes, first: int, low: int, high: int
) -> None:
    answer(lambda: packed_pairs.find_in_block(first, value, low, high))
    read = {(1, 0): [(first, value)]}
    answer(
        lambda: packed_pairs.known_positions(
            [(1, 0, high, 1)], {(1, 0): b"\xff" * 64}, read, {}, low & 0xFFFFFFFFFF, 0, high, 1, 5
        )
    )


def test_hashes_that_fall_are_refused() -> None:
    for hashes in ([2, 1], [3, 3, 2]):
        positions = int64([0] * len(hashes))
        with pytest.raises(ValueError, match="rise"):
            packed_pairs.pack_blocks(int64(hashes), positions, 8)
    with pytest.raises(ValueError, match="rise"):
        packed_pairs.pack_block(5, int64([4]), int64([0]))


def test_pairs_that_are_not_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="positions"):
        packed_pairs.pack_blocks(int64([1, 2]), int64([1]), 8)
    with pytest.raises(ValueError, match="pair"):
        packed_pairs.pack_block(0, int64([]), int64([]))
    with pytest.raises(ValueError, match="first hashes"):
        packed_pairs.unpack_blocks([1, 2], [b"\0\1\0\0\0"])


# -- columns of archives

COLUMNS = st.one_of(
    st.lists(I64, min_size=1, max_size=60),
    st.lists(st.integers(-3, 300), min_size=1, max_size=60),
    st.lists(st.sampled_from([0, 10**15, -(10**9), (1 << 63) - 1]), min_size=1, max_size=99),
    st.lists(st.integers(0, 1 << 30), min_size=1, max_size=60).map(
        lambda steps: list(accumulate(steps))
    ),
    st.lists(st.sampled_from([i * 10**9 for i in range(14)]), min_size=23, max_size=99),
)


@given(st.lists(COLUMNS, min_size=1, max_size=5))
@example([[i % 256 * 10**9 for i in range(512)], [i % 257 * 10**9 for i in range(514)]])
@example([[*range(0, 12 * 10**6, 10**6)] * 2, [*range(0, 13 * 10**6, 10**6)] * 2])
@example([[0, (1 << 53) + 1], [0, (1 << 60) - 1]])
def test_columns_are_encoded_and_decoded_as_the_plain_version_does(
    columns: list[list[int]],
) -> None:
    bounds = int64([0, *accumulate(map(len, columns))])
    encoded = int_columns.encode_columns(int64([v for column in columns for v in column]), bounds)
    assert encoded == [packing.encode_column(column) for column in columns]
    for one, column in zip(encoded, columns, strict=True):
        values, at = int_columns.decode_column(one, 0, len(column))
        assert (values.tolist(), at) == (column, len(one))
        assert packing.decode_column(one, 0, len(column)) == (column, len(one))


COLUMN_BYTES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda kind, rest: bytes((kind,)) + rest, st.integers(0, 4), st.binary(max_size=60)),
    st.builds(
        lambda kind, numbers, width, rest: bytes((kind, *numbers, width)) + rest,
        st.integers(1, 3),
        st.lists(st.integers(0, 9), min_size=1, max_size=4),
        st.integers(0, 66),
        st.binary(max_size=80),
    ),
)


@given(COLUMN_BYTES, st.integers(1, 40))
def test_any_bytes_are_a_column_as_they_are_for_the_plain_version(data: bytes, count: int) -> None:
    def read() -> tuple[list[int], int]:
        values, at = int_columns.decode_column(data, 0, count)
        return values.tolist(), at

    expected = answer(lambda: packing.decode_column(data, 0, count))
    assert answer(read) == expected


@pytest.mark.parametrize("bounds", [[0, 4], [0, 0, 3], [-1, 2], [2, 1], [0, 2, 9]])
def test_slices_that_are_not_in_the_values_are_refused(bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="slice"):
        int_columns.encode_columns(int64([1, 2, 3]), int64(bounds))


@pytest.mark.parametrize(("at", "count"), [(-1, 1), (2, 1), (1 << 62, 1), (0, -1), (0, 1 << 60)])
def test_a_column_that_is_not_there_is_damage(at: int, count: int) -> None:
    with pytest.raises(Damaged):
        int_columns.decode_column(b"\0\0", at, count)


@pytest.mark.parametrize("blocks", [[()], [(1,)], [(0, b"", 1)], [5], [(0, 5)]])
def test_blocks_without_their_parts_are_refused(blocks: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        packed_pairs.known_positions(
            [(1, 0, 9, 1)], {(1, 0): b"\xff" * 64}, {(1, 0): blocks}, {}, 5, 0, 9, 1, 5
        )


def test_a_position_beyond_all_numbers_is_none_of_the_log() -> None:
    block = packed_pairs.pack_block(1, int64([1, 5, 9]), int64([0, (1 << 63) - 1, 0]))
    found = packed_pairs.known_positions(
        [(1, 8, 99, 1)], {(1, 0): b"\xff" * 64}, {(1, 0): [(1, block)]}, {}, 5, 8, 99, 1, 5
    )
    assert found == []
