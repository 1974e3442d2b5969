"""The only way to touch the time.

The idea: everything that asks the time, or waits, does so through a `Clock`, so that tests can bend
it. `now_ms` is the wall clock in milliseconds since the epoch (what records carry), `monotonic` is
in seconds and never goes back (what waits and intervals use)."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What kvmq needs of time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch; may be stepped by an operator."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set, `seconds` at most; True if it is set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...

    def local_hour(self) -> int:
        """The hour of the day, 0-23, in local time."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

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
