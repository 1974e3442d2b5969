"""Store times by positions: they come back, whatever they are, and take little where time passed
as the log was written.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.batch_columns import GroupReader
from tiering.archive.columns.integers import bounds_of, encode_by_block, encode_times

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
BLOCK = st.lists(st.tuples(I64, st.integers(0, (1 << 63) - 1)), min_size=1, max_size=6)
BLOCKS = st.lists(BLOCK, min_size=1, max_size=6)


@given(st.lists(BLOCKS, min_size=1, max_size=3))
def test_any_times_come_back(groups: list[list[list[tuple[int, int]]]]) -> None:
    blocks = [block for group in groups for block in group]
    rows = [row for block in blocks for row in block]
    times, positions = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    inner = bounds_of([len(block) for block in blocks])
    bounds = bounds_of([sum(map(len, group)) for group in groups])
    encoded = encode_times(times, positions, bounds, inner)
    counts = [np.array([len(block) for block in group], np.int64) for group in groups]
    for i in range(len(groups)):
        mine = slice(int(bounds[i]), int(bounds[i + 1]))
        reader = GroupReader([encoded[i] + b"?"], counts[i : i + 1])
        assert reader.times(positions[mine]).tolist() == times[mine].tolist()
        assert reader.cursors == [len(encoded[i])]


@given(st.binary(max_size=60), st.lists(I64, min_size=1, max_size=5))
def test_any_bytes_are_times_or_damage(data: bytes, positions: list[int]) -> None:
    try:
        reader = GroupReader([b"\x05" + data], [np.array([len(positions)])])
        found = reader.times(np.array(positions, np.int64))
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
        GroupReader([b"\x05" + takes], [np.array([2])]).times(np.array([1, 2]))
