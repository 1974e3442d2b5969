"""What one step of the demo did, and what it found wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kvstore.clock import SystemClock

_PROBLEMS_KEPT: Final = 5
"""Of one step: enough to see what is wrong, however much is."""
_PROBLEM_LENGTH: Final = 300


def shorten(text: str) -> str:
    """A text cut where it gets too long to read."""
    return text if len(text) <= _PROBLEM_LENGTH else text[: _PROBLEM_LENGTH - 1] + "…"


class Step(msgspec.Struct):
    """One row of the demo's table. `seconds` is time spent in the store's calls."""

    name: str
    shown: str = ""
    count: int = 0
    seconds: float = 0.0
    faults: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    unit: str = "msg"

    @property
    def rate(self) -> float | None:
        """Items a second; None where that says nothing."""
        return self.count / self.seconds if self.count and self.seconds else None

    def expect(self, holds: bool, problem: str) -> bool:
        """Count a fault and note the problem unless something holds; returns whether it does."""
        if not holds:
            self.fault(problem)
        return holds

    def fault(self, problem: str) -> None:
        """Count a fault and note the problem, if there is still room for it."""
        self.faults += 1
        if len(self.problems) < _PROBLEMS_KEPT:
            self.problems.append(shorten(problem))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time the block takes."""
        clock = SystemClock()
        begin = clock.monotonic()
        try:
            yield
        finally:
            self.seconds += clock.monotonic() - begin
