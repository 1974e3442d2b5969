"""Key blocks: sorted pairs come back, and are found by hash and by range.

Bytes that are no block give `FormatError`.
"""

from __future__ import annotations

import tracemalloc
from struct import Struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.core.packed_pairs import (
    count_in,
    find_in_block,
    pack_block,
    pack_blocks,
    sort_pairs,
    unpack_block,
)
from kvstore.errors import FormatError
from kvstore.index.key_parts import BLOCK

Pair = tuple[int, int]
HEADER = Struct("<BI")
HASHES = st.one_of(st.integers(0, 5), st.integers(0, (1 << 40) - 1))
PAIRS = st.lists(st.tuples(HASHES, st.integers(0, (1 << 32) - 1)), min_size=1, max_size=600)


def blocks_of(pairs: list[Pair]) -> list[tuple[int, bytes]]:
    columns = (np.array(c, dtype=np.int64) for c in zip(*pairs, strict=True))
    return pack_blocks(*sort_pairs(*columns), BLOCK)


def all_pairs(blocks: list[tuple[int, bytes]]) -> list[Pair]:
    found: list[Pair] = []
    for first, value in blocks:
        hashes, positions = unpack_block(first, value)
        found += zip(hashes.tolist(), positions.tolist(), strict=True)
    return found


@given(PAIRS)
@example([(0, 0)])
@example([(5, 0)] * 300)
@example([((1 << 40) - 1, (1 << 32) - 1), (0, 0)])
def test_pairs_come_back_sorted_by_hash(pairs: list[Pair]) -> None:
    """Pairs of one hash come in the order they had, so that positions rise."""
    assert all_pairs(blocks_of(pairs)) == sorted(pairs, key=lambda p: p[0])


@given(PAIRS, HASHES, st.integers(0, 1 << 33))
def test_a_range_of_hashes_is_found_in_every_block(pairs: list[Pair], low: int, width: int) -> None:
    high = low + width
    found: list[Pair] = []
    for first, value in blocks_of(pairs):
        found += find_in_block(first, value, low, high)
    assert found == sorted(((h, p) for h, p in pairs if low <= h <= high), key=lambda p: p[0])


@given(PAIRS)
def test_no_block_has_more_pairs_than_fit_and_each_begins_with_its_first_hash(
    pairs: list[Pair],
) -> None:
    for first, value in blocks_of(pairs):
        hashes = unpack_block(first, value)[0]
        assert hashes[0] == first
        assert len(hashes) == count_in(value) <= BLOCK


def test_a_block_may_begin_below_its_first_pair() -> None:
    """So that its key can stay when its first pairs go."""
    hashes, positions = np.array([7, 9, 9]), np.array([5, 6, 7])
    value = pack_block(3, hashes, positions)
    assert [c.tolist() for c in unpack_block(3, value)] == [[7, 9, 9], [5, 6, 7]]
    assert find_in_block(3, value, 8, 9) == [(9, 6), (9, 7)]


def test_a_key_of_many_costs_seven_bytes_at_most() -> None:
    pairs = [((i * 2654435761 << 8) & ((1 << 40) - 1), i * 135) for i in range(20_000)]
    size = sum(len(value) + 14 for _, value in blocks_of(pairs))
    assert size / len(pairs) < 9


GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda widths, count, rest: HEADER.pack(widths, count) + rest,
        st.integers(0, 255),
        st.integers(0, 5),
        st.binary(max_size=60),
    ),
)


@given(GARBAGE, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
@settings(max_examples=300)
def test_bytes_that_are_no_block_give_a_format_error_only(
    value: bytes, low: int, high: int
) -> None:
    if len(value) == HEADER.size:
        return  # no bytes for pairs: see the test below
    for read in (lambda: unpack_block(3, value), lambda: find_in_block(3, value, low, high)):
        try:
            read()
        except FormatError:
            continue


@pytest.mark.parametrize("count", [1 << 20, (1 << 32) - 1])
def test_a_block_of_five_bytes_does_not_allocate_by_its_count(count: int) -> None:
    """No unbounded allocation from a length field: with widths 0, no byte stands for a pair."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            unpack_block(0, HEADER.pack(0, count))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_pairs_that_are_all_zero_still_come_back() -> None:
    assert all_pairs(blocks_of([(9, 0)] * 3)) == [(9, 0)] * 3
