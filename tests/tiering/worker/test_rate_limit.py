"""The rate at which bytes are let through, on a clock that the tests set."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ConfigError
from tests.support.clock import VirtualClock
from tiering.errors import TieringStopped
from tiering.executor.rate_limit import RateLimit


class StridingClock(VirtualClock):
    """A clock on which a wait is over at once, and its time has passed."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()


def in_thread(work: Callable[[], None]) -> Future[None]:
    with_one = ThreadPoolExecutor(1)
    try:
        return with_one.submit(work)
    finally:
        with_one.shutdown(wait=False)


def test_a_burst_goes_through_at_once_and_what_is_behind_it_waits() -> None:
    clock = StridingClock()
    limit = RateLimit(100, clock, burst=50)
    limit.take(50)
    assert clock.slept == []
    limit.take(10)
    assert clock.slept == [pytest.approx(0.1)]


def test_what_is_larger_than_the_burst_waits_for_itself() -> None:
    clock = StridingClock()
    RateLimit(100, clock, burst=50).take(1050)
    assert clock.slept == [pytest.approx(10)]


def test_time_without_use_earns_a_burst_and_no_more() -> None:
    clock = StridingClock()
    limit = RateLimit(100, clock)
    clock.advance(1000)
    limit.take(100)
    assert clock.slept == []
    limit.take(100)
    assert clock.slept == [pytest.approx(1)]


@given(
    rate=st.integers(1, 10**9),
    burst=st.integers(0, 10**9),
    steps=st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 100)), max_size=30),
)
def test_over_no_stretch_of_time_more_is_let_through_than_is_due(
    rate: int, burst: int, steps: list[tuple[int, float]]
) -> None:
    clock = StridingClock()
    limit = RateLimit(rate, clock, burst=burst)
    passed: list[tuple[float, int]] = []
    for size, idle in steps:
        limit.take(size)
        passed.append((clock.monotonic(), size))
        clock.advance(idle)
    for first, (begun, _) in enumerate(passed):
        for last in range(first, len(passed)):
            stretch = passed[last][0] - begun
            through = sum(size for _, size in passed[first + 1 : last + 1])
            assert through <= (burst + rate * stretch) * (1 + 1e-6) + 1


def test_threads_share_one_rate() -> None:
    clock = VirtualClock()
    limit = RateLimit(100, clock, burst=0)
    waiting = [in_thread(lambda: limit.take(100)) for _ in range(4)]
    for _ in range(4):
        clock.advance(1)
    for one in waiting:
        one.result(30)
    assert clock.monotonic() == 4


def test_a_limit_that_is_stopped_lets_nobody_wait() -> None:
    limit = RateLimit(1, VirtualClock(), burst=0)
    waiting = in_thread(lambda: limit.take(1000))
    limit.stop()
    with pytest.raises(TieringStopped):
        waiting.result(30)
    with pytest.raises(TieringStopped):
        limit.take(0)


def test_no_limit_lets_everything_through_until_it_is_stopped() -> None:
    clock = VirtualClock()
    limit = RateLimit(None, clock)
    limit.take(1 << 60)
    assert clock.slept == []
    limit.stop()
    with pytest.raises(TieringStopped):
        limit.take(1)


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError):
        RateLimit(rate, VirtualClock())
    with pytest.raises(ConfigError):
        RateLimit(1, VirtualClock(), burst=-1 if rate <= 0 else rate)
