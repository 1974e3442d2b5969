"""The clock: how kvmq reads the time, and how its threads sleep.

The idea: everything that reads the time, or waits for an interval to end, does so through a
`Clock`, so that tests can control it. (Waits for a lock, or for another thread's answer, are not
the clock's.) `now_ms` is the wall clock in milliseconds since the epoch (what records carry),
`monotonic` is in seconds and never goes back (what waits and intervals use).

Invariant: a time that is promised never ends early. So only `whole_ms`, which rounds up, makes
whole milliseconds of a duration, and a promise that begins now begins `cut_ms` after `now_ms`.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final, Protocol

_NOISE_DIGITS: Final = 6
"""Digits behind the millisecond that count: 0.069 s, times 1,000, is 69.00000000000001."""


class Clock(Protocol):
    """The time, as kvmq needs it."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch; may be stepped by an operator."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until `event` is set, `seconds` at most; True if it is set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Lets `seconds` pass."""
        ...

    def local_hour(self) -> int:
        """The hour of the day, 0-23, in local time."""
        ...


class SystemClock:
    """The machine's own clocks."""

    cut_ms: Final = 1

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since the epoch, as times of spans are."""
        return time.time_ns()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """See `Clock.wait`."""
        return event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

    def local_hour(self) -> int:
        """See `Clock.local_hour`."""
        return time.localtime().tm_hour


def whole_ms(seconds: float) -> int:
    """A duration in whole milliseconds, rounded up."""
    return math.ceil(round(seconds * 1000, _NOISE_DIGITS))


def cut_ms(clock: Clock) -> int:
    """How many milliseconds the time may be ahead of the clock's `now_ms`: 1 where a fraction is
    cut off; 0 for a clock of a test that moves by whole milliseconds.
    """
    return int(getattr(clock, "cut_ms", 0))
