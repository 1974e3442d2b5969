"""A clock that a test sets: nothing waits, time passes when the test says so."""

from __future__ import annotations

import threading
from typing import Final

from kvstore.clock import SystemClock
from kvstore.process.locks import Signal
from tests.support import inside

START_MS: Final = 1_700_000_000_000
"""Where the virtual clock begins."""
_HOUR_MS: Final = 3_600_000
_LOOK: Final = 0.002
"""Real seconds between two looks of somebody who waits for an event of Python's."""
_LOOK_AGAIN: Final = 0.05
"""Real seconds between two looks of a thread that time wakes: time may have passed just before the
wait.
"""


class VirtualClock:
    """See `kvstore.clock.Clock`. `slept` lists the sleeps asked for; each moved the time."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._wall = now_ms
        self._elapsed = 0.0
        self._waits: list[tuple[Signal, float]] = []
        """The signals that threads wait for, and until when."""
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed

    def local_hour(self) -> int:
        return self._wall // _HOUR_MS % 24

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Until the event is set, or the test has let that much time pass."""
        until = self._elapsed + seconds
        if not isinstance(event, Signal):
            while not event.wait(_LOOK):
                if self._elapsed >= until:
                    return False
            return True
        mine = event, until
        self._waits.append(mine)
        try:
            while not event.is_set():
                if self._elapsed >= until:
                    return False
                event.wait(_LOOK_AGAIN)
            return True
        finally:
            self._waits.remove(mine)

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        with self._lock:
            self._wall += round(seconds * 1000)
            self._elapsed += seconds
        self._wake()

    def _wake(self) -> None:
        for event, until in tuple(self._waits):
            if self._elapsed >= until:
                inside.wake_threads_at(event)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator does."""
        with self._lock:
            self._wall += round(seconds * 1000)

    def set_hour(self, hour: int) -> None:
        """Let time pass until the local hour is `hour`."""
        self.advance((hour - self.local_hour()) % 24 * 3600)


class SteppedClock(SystemClock):
    """The machine's clocks, with the wall clock set off by as much as a test says."""

    def __init__(self) -> None:
        self._off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._off_ms

    def set_off(self, seconds: float) -> None:
        """Sets the wall clock to so many seconds ahead of the right time."""
        self._off_ms = round(seconds * 1000)


class FineClock(VirtualClock):
    """A clock whose time moves by microseconds, and which says whole milliseconds only."""

    cut_ms = 1

    def __init__(self) -> None:
        super().__init__()
        self._micros = self._wall * 1000

    def now_ms(self) -> int:
        return self._micros // 1000

    def pass_us(self, micros: int) -> None:
        self._micros += micros
        self._elapsed += micros / 1e6
        self._wake()
