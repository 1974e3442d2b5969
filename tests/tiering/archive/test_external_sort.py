"""Rows come out in the order of their keys, however little of them is in memory."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvstore.errors import CallerError, DiskFull
from kvstore.files import LocalFiles, LocalScratch
from tests.support.files import WatchedFiles
from tiering.archive import external_sort
from tiering.archive.archive_check import differences
from tiering.archive.external_sort import ExternalSort
from tiering.archive.tail_columns import ArchiveColumns, BlockColumns, TailColumns
from tiering.archive.writer import scratches, temporary

ROW = np.dtype([("key", "<i8"), ("value", "<u4")])


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Some rows fit into memory, and a run is read two at a time."""
    monkeypatch.setattr(external_sort, "ROWS_MAX", 16)
    monkeypatch.setattr(external_sort, "_BLOCK_MIN", 2)
    return 16


@given(
    st.lists(st.lists(st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=60)),
    st.integers(1, 9),
)
@settings(max_examples=60)
def test_rows_with_one_key_keep_their_order_and_each_pass_gives_the_same(
    portions: list[list[int]], multiple_of: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "ROWS_MAX", 16)
        patch.setattr(external_sort, "_BLOCK_MIN", 2)
        rows = ExternalSort(ROW, temporary)
        given_keys: list[int] = []
        for keys in portions:
            numbers = np.arange(len(given_keys), len(given_keys) + len(keys))
            rows.add(np.array(keys, np.int64), numbers)
            given_keys += keys
        wanted = sorted((key, n) for n, key in enumerate(given_keys))
        assert rows.rows == len(wanted)
        for _ in range(2):
            found = [part.tolist() for part in rows.sorted(multiple_of=multiple_of)]
            assert [tuple(row) for part in found for row in part] == wanted
            assert all(len(part) % multiple_of == 0 for part in found[:-1])


def test_plain_keys_are_sorted_as_unsigned_numbers(few_rows: int) -> None:
    keys = np.array([1 << 63, 0, (1 << 64) - 1, 5] * few_rows, np.uint64)
    rows = ExternalSort(np.uint64, temporary)
    rows.add(keys)
    assert np.concatenate(list(rows.sorted())).tolist() == sorted(keys.tolist())


def test_rows_that_fit_into_memory_need_no_file(few_rows: int) -> None:
    def no_file() -> LocalScratch:
        raise AssertionError("nothing has to go to the disk")

    rows = ExternalSort(np.uint64, no_file)
    rows.add(np.arange(few_rows - 1)[::-1])
    assert np.concatenate(list(rows.sorted())).tolist() == list(range(few_rows - 1))


def peak_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most memory that sorting so many rows takes."""
    monkeypatch.setattr(external_sort, "ROWS_MAX", 1 << 10)
    monkeypatch.setattr(external_sort, "_BLOCK_MIN", 1 << 4)
    mixed = np.random.default_rng(1)
    tracemalloc.start()
    try:
        found = ExternalSort(ROW, temporary)
        for _ in range(rows >> 10):
            found.add(mixed.integers(0, 1 << 40, 1 << 10), np.zeros(1 << 10, np.uint32))
        assert sum(map(len, found.sorted())) == rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_times_the_rows_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (peak_of(rows, monkeypatch) for rows in (4 << 10, 40 << 10))
    assert many < 1.5 * few


def columns_of(positions: list[int], digests: list[list[int]]) -> TailColumns:
    keyed = [n for n, some in enumerate(digests) for _ in some]
    one = np.zeros(1, np.int64)
    return TailColumns(
        BlockColumns((one,) * 10, (one,) * 7),
        np.array(positions, np.int64),
        np.array([digest for some in digests for digest in some], np.uint32),
        np.array(keyed, np.uint32),
    )


@given(
    st.lists(st.integers(0, 1 << 62), min_size=1, max_size=80, unique=True),
    st.lists(st.lists(st.integers(0, 3) | st.integers(0, (1 << 32) - 1), max_size=3), max_size=80),
    st.integers(1, 30),
)
@settings(max_examples=60)
def test_each_key_is_paired_with_the_rank_of_its_message(
    positions: list[int], keys: list[list[int]], portion: int
) -> None:
    keys = (keys + [[]] * len(positions))[: len(positions)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "ROWS_MAX", 16)
        patch.setattr(external_sort, "_BLOCK_MIN", 2)
        patch.setattr("tiering.archive.tail_columns.CHUNK", 4)
        columns = ArchiveColumns(temporary)
        for at in range(0, len(positions), portion):
            some = slice(at, at + portion)
            columns.add(columns_of(positions[some], keys[some]))
        ranks = {position: rank for rank, position in enumerate(sorted(positions))}
        wanted = {
            digest << 32 | ranks[position]
            for position, some in zip(positions, keys, strict=True)
            for digest in some
        }
        pairs = columns.key_pairs()
        found = [pair for part in pairs.sorted() for pair in part.tolist()]
        assert found == sorted(wanted)
        assert pairs.rows == len(wanted)
        placed = [pair for one in columns.by_position() for pair in zip(*one, strict=True)]
        assert placed == sorted((position, n) for n, position in enumerate(positions))
        assert (columns.first_position, columns.last_position) == (min(positions), max(positions))


def test_two_records_of_one_position_are_refused_wherever_they_meet(
    few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiering.archive.tail_columns.CHUNK", few_rows)
    for count in (2, few_rows, 3 * few_rows):
        columns = ArchiveColumns(temporary)
        columns.add(columns_of(list(range(count)), [[]] * count))
        columns.add(columns_of([count - 1], [[]]))
        with pytest.raises(CallerError, match="the same position"):
            list(columns.by_position())


PORTIONS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=6)


@given(PORTIONS, PORTIONS)
def test_keys_that_only_one_of_two_streams_has_are_counted_once_each(
    first: list[list[int]], second: list[list[int]]
) -> None:
    def stream(portions: list[list[int]]) -> Iterator[NDArray[np.uint64]]:
        keys = sorted(key for portion in portions for key in portion)
        for portion in portions:
            some, keys = keys[: len(portion)], keys[len(portion) :]
            yield np.array(some, np.uint64)

    one, two = ({key for portion in each for key in portion} for each in (first, second))
    wanted = len(one - two), len(two - one)
    assert differences(stream(first), stream(second)) == wanted


def test_a_scratch_file_has_no_name_and_gives_back_its_bytes(tmp_path: Path) -> None:
    with closing(LocalFiles().scratch(tmp_path)) as scratch:
        scratch.append(b"one")
        scratch.append(b"three")
        assert list(tmp_path.iterdir()) == []
        assert scratch.read(1, 5) == b"nethr"
        with pytest.raises(OSError, match="lost its end"):
            scratch.read(6, 3)


def test_a_full_disk_under_a_sort_is_told_and_leaves_nothing(tmp_path: Path, few_rows: int) -> None:
    files = WatchedFiles()
    with scratches(files, tmp_path) as scratch:
        rows = ExternalSort(np.uint64, scratch)
        rows.add(np.arange(3 * few_rows))
        files.fail("append", error=errno.ENOSPC)
        with pytest.raises(DiskFull, match="for a scratch file in"):
            rows.add(np.arange(3 * few_rows))
    assert list(tmp_path.iterdir()) == []
