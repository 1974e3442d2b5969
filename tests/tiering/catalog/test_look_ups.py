"""A look-up among all archives gives the same as a look at each of them."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.record.key_filter import Filter
from tests.record.test_keyfilter import filter_of
from tests.support import inside_tiering
from tiering.catalog.catalog import ArchiveRow
from tiering.catalog.key_filters import KeyFilters
from tiering.catalog.live import LiveArchives

State = Literal["live", "retired"]
HIGHEST: Final = (1 << 64) - 1


def row(number: int, first: int, length: int, state: State) -> ArchiveRow:
    """An archive whose messages were stored in the milliseconds of their positions."""
    return ArchiveRow(
        number=number, place="archive", key=f"{number}.kvma", tier="warm", size=1, crc=1,
        first_position=first, last_position=first + length,
        first_stored_at=first, last_stored_at=first + length,
        messages=1, raw_bytes=1, state=state,
    )  # fmt: skip


STATES: Final[st.SearchStrategy[State]] = st.sampled_from(["live", "live", "retired"])
ROWS: Final = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9), STATES),
    max_size=12,
).map(lambda spans: [row(number, *span) for number, span in enumerate(spans)])
BOUND: Final = st.none() | st.integers(-5, 75) | st.just(HIGHEST)


@given(ROWS, st.integers(0, 70) | st.just(HIGHEST))
def test_the_live_archives_around_a_position_are_found_however_they_overlap(
    rows: list[ArchiveRow], position: int
) -> None:
    around = {
        r.number
        for r in rows
        if r.state == "live" and r.first_position <= position <= r.last_position
    }
    found = list(LiveArchives(rows).at(position))
    assert set(found) == around
    assert len(found) == len(around)


@given(ROWS, BOUND, BOUND)
def test_the_live_archives_of_a_time_are_found(
    rows: list[ArchiveRow], begin: int | None, end: int | None
) -> None:
    of_time = {
        r.number
        for r in rows
        if r.state == "live"
        and (begin is None or r.last_stored_at >= begin)
        and (end is None or r.first_stored_at <= end)
    }
    assert set(LiveArchives(rows).of_time(begin, end).tolist()) == of_time


DIGESTS: Final = st.integers(0, (1 << 32) - 1)
FILTERS: Final = st.none() | st.tuples(
    st.sets(DIGESTS, min_size=1, max_size=40), st.integers(1, 2000)
).map(lambda made: filter_of(np.array(sorted(made[0]), np.uint32), made[1]))
STEPS: Final = st.lists(st.tuples(st.integers(0, 9), st.just("forget") | FILTERS), max_size=30)


@given(STEPS, st.lists(DIGESTS, max_size=5), st.sampled_from([0, 200, 600, 1 << 62]))
def test_kept_filters_deny_what_each_denies_within_their_room(
    steps: list[tuple[int, str | Filter | None]], digests: list[int], limit: int
) -> None:
    filters = KeyFilters(limit)
    kept: dict[int, Filter | None] = {}
    for number, step in steps:
        if isinstance(step, str):
            filters.forget(number)
            kept.pop(number, None)
        else:
            before = len(filters)
            filters.keep(number, step)
            if len(filters) > before:
                kept[number] = step
        assert len(filters) == len(kept)
        assert filters.memory_bytes <= limit
    if limit > 1 << 20:
        assert set(kept) == {n for n, _ in steps} - _forgotten(steps)
    asked = np.arange(10)[::-1]
    for digest in digests:
        may_hold = [
            n for n in asked.tolist()
            if n not in kept or ((one := kept[n]) is not None and one.may_hold(digest))
        ]  # fmt: skip
        left = filters.without_denied(asked, digest << 8, (digest << 8) + 255)
        assert left.tolist() == may_hold
    # More than one key: nothing is denied.
    assert filters.without_denied(asked, 0, 256).tolist() == asked.tolist()


def _forgotten(steps: list[tuple[int, str | Filter | None]]) -> set[int]:
    last = dict(steps)
    return {number for number, step in last.items() if isinstance(step, str)}


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_archives_that_come_and_go_leave_nothing_in_the_memory_of_filters(rounds: int) -> None:
    filters = KeyFilters(1 << 20)
    found = filter_of(np.arange(500, dtype=np.uint32), 8000)
    for number in range(rounds * 8):
        filters.keep(number, found)
        if number >= 4:
            filters.forget(number - 4)
    assert len(filters) == 4
    assert inside_tiering.filter_bytes(filters) < 16 * found.memory_bytes
