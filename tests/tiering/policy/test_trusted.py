"""The trusted time: what leaps moves it only once it has lasted; it is never ahead of the clock."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.policy.givens import DAY, DAY_MS, HOUR, HOUR_MS, START_MS
from tiering.policy.trusted_clock import JITTER_MS, Trusted, observe

YEAR_MS = 365 * DAY_MS
SEEN = Trusted(START_MS, START_MS)


def look(before: Trusted | None, wall: int, elapsed: float | None) -> Trusted:
    return observe(before, START_MS + wall, elapsed, DAY)


def test_time_that_passes_on_both_clocks_is_believed() -> None:
    assert look(SEEN, HOUR_MS, HOUR).now_ms == START_MS + HOUR_MS


def test_the_first_look_ever_is_believed() -> None:
    assert look(None, 0, None).now_ms == START_MS


def test_a_leap_forward_is_believed_only_after_it_has_lasted() -> None:
    seen = look(SEEN, YEAR_MS, 10)
    assert seen.now_ms == START_MS + 10_000
    for hours in range(1, 24):
        seen = look(seen, YEAR_MS + hours * HOUR_MS, HOUR)
        assert seen.now_ms == START_MS + 10_000 + hours * HOUR_MS
    seen = look(seen, YEAR_MS + DAY_MS, HOUR)
    assert seen.now_ms == START_MS + YEAR_MS + DAY_MS


def test_a_leap_that_was_taken_back_in_time_leaves_no_trace() -> None:
    seen = look(SEEN, YEAR_MS, 1)
    seen = look(seen, YEAR_MS + 20 * HOUR_MS, 20 * HOUR)
    seen = look(seen, 21 * HOUR_MS, HOUR)
    assert seen == Trusted(START_MS + 21 * HOUR_MS, START_MS + 21 * HOUR_MS)


def test_a_second_leap_must_last_for_itself() -> None:
    seen = look(SEEN, HOUR_MS, 1)
    seen = look(seen, 23 * HOUR_MS, 22 * HOUR)
    seen = look(seen, YEAR_MS, 1)
    seen = look(seen, YEAR_MS + 23 * HOUR_MS, 23 * HOUR)
    assert seen.now_ms < START_MS + 3 * DAY_MS


def test_a_clock_that_goes_back_takes_the_trusted_time_with_it() -> None:
    assert look(SEEN, -HOUR_MS, 60).now_ms == START_MS - HOUR_MS


def test_a_stop_of_a_week_is_believed_after_a_day_of_running() -> None:
    seen = look(SEEN, 7 * DAY_MS, None)
    assert seen.now_ms == START_MS
    seen = look(seen, 8 * DAY_MS, DAY)
    assert seen.now_ms == START_MS + 8 * DAY_MS


def test_short_runs_once_a_day_get_on() -> None:
    seen = SEEN
    behind = []
    for day in range(1, 30):
        seen = look(seen, day * DAY_MS, None)
        behind.append(START_MS + day * DAY_MS - seen.now_ms)
    assert max(behind) <= 4 * DAY_MS


def test_without_doubt_every_clock_is_believed() -> None:
    assert observe(SEEN, START_MS + YEAR_MS, 1, 0).now_ms == START_MS + YEAR_MS


steps = st.lists(
    st.tuples(
        st.floats(1, 6 * HOUR),
        st.sampled_from([0, 0, HOUR_MS, -HOUR_MS, YEAR_MS, 5 * DAY_MS]),
        st.booleans(),
    ),
    max_size=30,
)
looks_at_it = st.lists(st.tuples(st.floats(1, 6 * HOUR), st.booleans()), min_size=1, max_size=4)
episodes = st.lists(
    st.tuples(st.sampled_from([HOUR_MS, -HOUR_MS, YEAR_MS, 5 * DAY_MS]), looks_at_it, looks_at_it),
    max_size=8,
)


@given(episodes)
def test_leaps_that_are_taken_back_within_a_day_never_move_it_ahead_of_true_time(
    told: list[tuple[int, list[tuple[float, bool]], list[tuple[float, bool]]]],
) -> None:
    """The clock is off at a few looks and right at a few; a process may begin at each."""
    seen, true, count = SEEN, START_MS, 0
    for off, wrong, right in told:
        for by, looks in ((off, wrong), (0, right)):
            for passed, begins in looks:
                count += 1
                true += int(passed * 1000)
                seen = observe(seen, true + by, None if begins else passed, DAY)
                assert seen.now_ms <= true + by
                assert seen.now_ms <= true + count * JITTER_MS


@given(steps)
def test_it_is_never_ahead_of_the_clock_and_goes_back_only_with_it(
    looks: list[tuple[float, int, bool]],
) -> None:
    found = [SEEN]
    true = START_MS
    for passed, off, begins in looks:
        true += int(passed * 1000)
        found.append(observe(found[-1], true + off, None if begins else passed, DAY))
    for before, after in pairwise(found):
        assert after.now_ms <= after.wall_ms
        assert after.now_ms >= min(before.now_ms, after.wall_ms)
