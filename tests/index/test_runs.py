"""Packed runs: what goes in comes out; bytes that are no run give `FormatError`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.errors import FormatError
from kvstore.index.runs import (
    HEADER,
    RUN_MAX,
    Columns,
    count_of,
    pack_many,
    split_long,
    unpack,
    unpack_many,
)
from tests.support.queue_reading import run_positions

Entry = tuple[int, int, int, int]
"""Step from the position before, size, tag hash, step from the time before."""

STEPS = st.one_of(st.integers(1, 300), st.integers(1, 1 << 20))
SIZES = st.one_of(st.just(135), st.integers(91, 1 << 31))
TAGS = st.one_of(
    st.just(0),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(1_600_000_000_000, 1_900_000_000_000),
    st.integers(-(2**62), 2**62 - 1),
)
TIMES = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1 << 40))
ENTRIES = st.tuples(STEPS, SIZES, TAGS, TIMES)
RUNS = st.lists(st.lists(ENTRIES, min_size=1, max_size=40), min_size=1, max_size=12)


def columns_of(runs: Sequence[Sequence[Entry]], first_time: int) -> tuple[Columns, list[int]]:
    """The columns of runs one behind the other, and where each begins."""
    positions: list[int] = []
    times: list[int] = []
    starts = []
    for run in runs:
        starts.append(len(positions))
        positions += accumulate(step for step, *_ in run)
        times += accumulate((step for *_, step in run), lambda a, b: min(a + b, (1 << 47)))
    times = [t + first_time for t in times]
    flat = [e for run in runs for e in run]
    lists = positions, [e[1] for e in flat], [e[2] for e in flat], times
    return Columns(*(np.array(c, dtype=np.int64) for c in lists)), starts


def values_of(columns: Columns, starts: list[int]) -> list[bytes]:
    packed = pack_many(columns, np.array(starts, dtype=np.int64))
    return [packed.data[a:b] for a, b in zip(packed.starts, packed.ends, strict=True)]


def holds(columns: Columns, starts: list[int]) -> None:
    values = values_of(columns, starts)
    found, found_starts = unpack_many(values)
    for name, before, after in zip(Columns._fields, columns, found, strict=True):
        assert after.tolist() == before.tolist(), name
    assert found_starts.tolist() == starts
    ends = [*starts[1:], len(columns.positions)]
    for value, start, end in zip(values, starts, ends, strict=True):
        own = columns.positions[start:end].tolist()
        assert count_of(value) == end - start
        assert run_positions(value) == own
        assert unpack(value).tag_hashes.tolist() == columns.tag_hashes[start:end].tolist()


@given(RUNS, st.sampled_from([0, 1, 1_700_000_000_000]))
@example([[(1, 91, 0, 0)]], 0)
@example([[(1, 1 << 31, -(2**62), 0), (1, 91, 2**62 - 1, 0)]], 1)
@example([[(1, 91, 1_700_000_000_000, 0), (1, 91, -(2**31), 0)]], 0)
def test_runs_come_back_as_they_were_packed(runs: list[list[Entry]], first_time: int) -> None:
    holds(*columns_of(runs, first_time))


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1023, 1024])
@pytest.mark.parametrize("wide", [False, True])
def test_runs_of_every_length_come_back(count: int, wide: bool) -> None:
    entry = (1 << 21, 1 << 31, -(2**40), 1 << 36) if wide else (135, 135, 7, 0)
    other = (1, 91, 2**41, 0)
    run = [entry if i % 3 else other for i in range(count)]
    holds(*columns_of([run, [other], run], 5))


@pytest.mark.parametrize("count", [1, 1024, 1025, 2048, 2049, 5000])
def test_long_runs_are_split_and_hold_together_what_the_whole_held(count: int) -> None:
    runs = [[(135, 135, i, 1) for i in range(n)] for n in (1, count, 3)]
    columns, starts = columns_of(runs, 9)
    cut = split_long(np.array(starts), len(columns.positions)).tolist()
    assert set(starts) <= set(cut)
    assert max(b - a for a, b in pairwise([*cut, len(columns.positions)])) <= RUN_MAX
    assert len(cut) == 2 + -(-count // RUN_MAX)
    holds(columns, cut)


def test_constant_columns_cost_nothing() -> None:
    """25 bits are the floor for an entry drawn at random; a run of one is its header."""
    one = values_of(*columns_of([[(77, 135, -5, 0)]], 3))
    assert len(one[0]) == HEADER.size
    many = values_of(*columns_of([[(135, 135, -5, 0)] * 500], 3))
    assert len(many[0]) == HEADER.size + 499


def test_positions_of_a_whole_segment_of_4_gib_fit() -> None:
    top = (1 << 32) - 135
    columns = Columns(
        *(np.array(c, dtype=np.int64) for c in ([0, 5, top], [91] * 3, [0] * 3, [1] * 3))
    )
    holds(columns, [0])
    holds(Columns(*(c[2:] for c in columns)), [0])


def test_entries_that_fall_are_refused() -> None:
    fine = np.array([1, 2], dtype=np.int64)
    falls = np.array([2, 1], dtype=np.int64)
    for columns in (Columns(falls, fine, fine, fine), Columns(fine, fine, fine, falls)):
        with pytest.raises(FormatError):
            pack_many(columns, np.array([0]))


GARBAGE = st.one_of(
    st.binary(max_size=80),
    # Headers with plausible counts, so that not only the first check is tried.
    st.builds(
        lambda w, x, count, rest: bytes([w, x]) + count.to_bytes(2, "little") + rest,
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 6),
        st.binary(min_size=22, max_size=90),
    ),
)


@given(GARBAGE)
@settings(max_examples=300)
@example(b"")
@example(bytes(26))
@example(HEADER.pack(0x0F, 0, 3, 5, 1, 0, 0, 0) + bytes(30))
@example(HEADER.pack(0xFF, 0xFF, 0xFFFF, 0, 0, 0, 0, 0))
def test_bytes_that_are_no_run_give_a_format_error_only(value: bytes) -> None:
    for read in (
        unpack,
        run_positions,
        count_of,
    ):
        try:
            read(value)
        except FormatError:
            continue


@given(st.binary(max_size=30), st.integers(0, 40), st.booleans())
def test_a_run_cut_short_or_made_longer_is_told(extra: bytes, cut: int, longer: bool) -> None:
    columns, starts = columns_of([[(300, 91 + i, i, 2) for i in range(9)]], 1)
    (value,) = values_of(columns, starts)
    broken = value + extra if longer else value[: len(value) - cut]
    if broken == value:
        return
    with pytest.raises(FormatError):
        unpack(broken)


def test_the_columns_of_no_runs_are_empty() -> None:
    columns, starts = unpack_many([])
    assert [len(c) for c in columns] == [0, 0, 0, 0]
    assert len(starts) == 0


def test_narrow_columns_take_bits_and_give_back_what_was_put() -> None:
    for bits in range(1, 8):
        largest = (1 << bits) - 1
        count = 13
        codes = np.array([largest, *[i % (largest + 1) for i in range(count - 1)]], dtype=np.int64)
        columns = Columns(
            np.arange(count, dtype=np.int64) * 300,
            codes + 100,
            codes - (1 << 40),
            1_700_000_000_000 + np.cumsum(codes),
        )
        packed = pack_many(columns, np.array([0]))
        in_bits = (2 * count * bits + 7) // 8  # sizes and tags; less than a byte each
        assert len(packed.data) <= 26 + 2 * (count - 1) + in_bits + 1 + (count * bits + 7) // 8
        found, starts = unpack_many([packed.data])
        assert starts.tolist() == [0]
        for got, put in zip(found, columns, strict=True):
            assert got.tolist() == put.tolist()
