"""Limits of a served store's clients, on a clock that the tests move."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ConfigError, LimitExceeded, MessageTooLarge
from kvstore.serve.access.limits import AccessLimits, ClientLimits, TokenBucket
from tests.support.clock import VirtualClock


def test_a_client_above_its_rate_is_told_when_to_come_again(clock: VirtualClock) -> None:
    limits = ClientLimits(AccessLimits(client_requests=10), clock)
    for _ in range(10):
        limits.charge("a", 1)
    with pytest.raises(LimitExceeded, match=r"client a is above its rate") as caught:
        limits.charge("a", 1)
    assert caught.value.retry_after == pytest.approx(0.1)
    limits.charge("b", 1)
    clock.advance(caught.value.retry_after)
    limits.charge("a", 1)


def test_a_request_larger_than_the_bucket_goes_through_and_is_paid_by_time(
    clock: VirtualClock,
) -> None:
    limits = ClientLimits(AccessLimits(client_bytes=100), clock)
    limits.charge("a", 1000)
    with pytest.raises(LimitExceeded):
        limits.charge("a", 1)
    clock.advance(8.9)
    with pytest.raises(LimitExceeded):
        limits.charge("a", 1)
    clock.advance(0.2)
    limits.charge("a", 1)


def test_connections_are_bounded_for_one_client_and_for_all(clock: VirtualClock) -> None:
    limits = ClientLimits(AccessLimits(connections=3, client_connections=2), clock)
    with ExitStack() as ended, ExitStack() as held:
        ended.enter_context(limits.connected("a"))
        held.enter_context(limits.connected("a"))
        with pytest.raises(LimitExceeded, match="client a has 2 connections"):
            held.enter_context(limits.connected("a"))
        held.enter_context(limits.connected("b"))
        with pytest.raises(LimitExceeded, match="the server has 3 connections"):
            held.enter_context(limits.connected("c"))
        ended.close()
        held.enter_context(limits.connected("c"))


def test_a_request_above_the_limit_of_size_is_refused_for_good(clock: VirtualClock) -> None:
    limits = ClientLimits(AccessLimits(request_bytes=100), clock)
    limits.charge("a", 100)
    with pytest.raises(MessageTooLarge, match="101 bytes, and never fits") as caught:
        limits.charge("a", 101)
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_a_client_does_not_fill_its_bucket_by_connecting_anew(clock: VirtualClock) -> None:
    limits = ClientLimits(AccessLimits(client_requests=1), clock)
    with limits.connected("a"):
        limits.charge("a", 1)
    with limits.connected("a"), pytest.raises(LimitExceeded):
        limits.charge("a", 1)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), max_size=60))
def test_over_any_time_no_more_than_rate_burst_and_one_request_go_through(
    steps: list[tuple[float, float]],
) -> None:
    clock = VirtualClock()
    bucket = TokenBucket(10.0, 20.0, clock)
    passed = largest = 0.0
    for pause, amount in steps:
        clock.advance(pause)
        if bucket.wait() == 0:
            bucket.take(amount)
            passed += amount
            largest = max(largest, amount)
    assert passed <= 20 + 10 * clock.monotonic() + largest + 1e-6


@pytest.mark.parametrize(
    ("name", "value"),
    [("connections", 0), ("connections", None), ("client_bytes", math.nan),
     ("client_requests", -1), ("client_requests", True), ("request_bytes", "1")],
)  # fmt: skip
def test_an_illegal_limit_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"limits\.{name} is"):
        AccessLimits(**{name: value})  # type: ignore[arg-type]  # a caller without a type checker
