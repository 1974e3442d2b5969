"""Sleepers sleep until they are woken, until their time is over, or until a signal comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from kvstore.core.threads.sleepers import Sleeper, wake_all
from tests.support.waiting import until

LONG = 60.0


@contextmanager
def asleep(count: int) -> Iterator[tuple[list[Sleeper], list[bool]]]:
    """Threads that sleep, and the answers of those that have ended."""
    sleepers, answers = [Sleeper() for _ in range(count)], list[bool]()
    threads = [
        threading.Thread(target=lambda one=one: answers.append(one.sleep(LONG)), daemon=True)
        for one in sleepers
    ]
    for thread in threads:
        thread.start()
    yield sleepers, answers
    for thread in threads:
        thread.join(LONG / 2)
    assert answers == [True] * count


@pytest.mark.parametrize("count", [1, 2, 64, 65, 130])
def test_all_are_woken(count: int) -> None:
    with asleep(count) as (sleepers, _):
        wake_all(sleepers)


def test_those_that_are_not_named_sleep_on() -> None:
    with asleep(4) as (sleepers, answers):
        wake_all(sleepers[:2])
        until(lambda: len(answers) == 2)
        assert not any(one.sleep(0) for one in sleepers[2:])
        wake_all(sleepers[2:])


def test_who_was_woken_before_does_not_sleep_and_may_be_woken_again() -> None:
    one = Sleeper()
    wake_all([one, one])
    wake_all([one])
    assert one.sleep(LONG)
    assert one.sleep(LONG)


def test_who_is_not_woken_sleeps_as_long_as_was_asked() -> None:
    assert not Sleeper().sleep(0.01)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 2.0**31])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds, not"):
        Sleeper().sleep(seconds)


def test_something_else_among_the_sleepers_leaves_all_asleep() -> None:
    one = Sleeper()
    with pytest.raises(TypeError, match="not str"):
        wake_all([one, "two"])  # type: ignore[list-item]  # the wrong type is the test
    assert not one.sleep(0)


def test_an_interrupt_ends_a_sleep_and_the_sleeper_can_still_be_woken() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    one = Sleeper()
    was = signal.signal(signal.SIGUSR1, interrupt)
    here = threading.get_ident()
    sender = threading.Timer(0.05, lambda: signal.pthread_kill(here, signal.SIGUSR1))
    try:
        sender.start()
        with pytest.raises(Interrupted):
            one.sleep(LONG)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, was)
    assert not one.sleep(0)
    wake_all([one])
    assert one.sleep(LONG)
