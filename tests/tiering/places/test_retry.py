"""How often, how long and with what pauses something is tried again."""

from __future__ import annotations

import pytest

from tests.support.clock import VirtualClock
from tiering.errors import PlaceDenied, PlaceUnavailable
from tiering.places.failures import Retry, Transient


class Asked:
    """Fails the first `fails` times with `error`."""

    def __init__(self, fails: int, error: Exception) -> None:
        self.times = 0
        self._fails = fails
        self._error = error

    def __call__(self) -> int:
        self.times += 1
        if self.times <= self._fails:
            raise self._error
        return self.times


def test_pauses_double_up_to_a_limit(clock: VirtualClock) -> None:
    retry = Retry(clock, 100, first=1, most=5, draw=lambda: 1.0)
    assert retry.run(Asked(5, Transient("no")), "ask", "there") == 6
    assert clock.slept == [1, 2, 4, 5, 5]


def test_pauses_are_drawn_from_their_upper_half(clock: VirtualClock) -> None:
    Retry(clock, 100, first=1, draw=lambda: 0.0).run(Asked(2, Transient("no")), "ask", "there")
    assert clock.slept == [0.5, 1]
    clock.slept.clear()
    Retry(clock, 1e9, first=4, most=4).run(Asked(500, Transient("no")), "ask", "there")
    assert all(2 <= pause <= 4 for pause in clock.slept)
    assert len(set(clock.slept)) > 100


def test_no_try_begins_after_the_time_is_up(clock: VirtualClock) -> None:
    asked = Asked(1000, Transient("no answer"))
    with pytest.raises(PlaceUnavailable, match=r"there: could not ask: no answer; tried 4 times"):
        Retry(clock, 10, first=1, draw=lambda: 1.0).run(asked, "ask", "there")
    assert clock.slept == [1, 2, 4]


def test_what_will_not_pass_is_not_tried_again(clock: VirtualClock) -> None:
    asked = Asked(1, PlaceDenied("no"))
    with pytest.raises(PlaceDenied):
        Retry(clock, 10).run(asked, "ask", "there")
    assert asked.times == 1


def test_a_verdict_and_a_number_of_tries_may_come_with_what_failed(clock: VirtualClock) -> None:
    asked = Asked(1000, Transient("none found", PlaceDenied, 3))
    with pytest.raises(PlaceDenied, match="none found; tried 3 times"):
        Retry(clock, 1000).run(asked, "ask", "there")
    assert asked.times == 3
