"""Portions: all of a size, and smaller ones at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.merge.partition import portion


def portions(total: int, most: int) -> list[int]:
    found = []
    while total > 0:
        found.append(min(portion(total, most), total))
        total -= found[-1]
    return found


@given(st.integers(1, 10_000), st.integers(1, 3_000))
def test_all_of_it_is_handed_out_in_portions_that_do_not_grow(total: int, most: int) -> None:
    found = portions(total, most)
    assert sum(found) == total
    assert found == sorted(found, reverse=True)
    assert found[0] <= most


@pytest.mark.parametrize(("workers", "most"), [(2, 32), (3, 32), (2, 64)])
def test_workers_who_take_the_next_one_end_at_about_the_same_time(workers: int, most: int) -> None:
    for total in range(4 * most, 40 * most, 7):
        busy = [0] * workers
        for one in portions(total, most):
            busy[busy.index(min(busy))] += one
        assert max(busy) - min(busy) <= most // 2, total
