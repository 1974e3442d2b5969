"""Durations: a histogram of how long something took, since the store was opened.

The idea: one addition to a list for each thing that was done, be it a sync or a checkpoint, and
never for each message. The limits are those of `LIMITS`.

Invariant: the counts only grow. A reader may see a count whose seconds are not added yet.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

LIMITS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""Seconds; of each count the largest duration."""


class DurationStats(msgspec.Struct, frozen=True):
    """How often something took up to each of `limits` seconds, and not up to the one before; the
    last count is of all that took longer. `seconds` are their sum.
    """

    limits: tuple[float, ...] = LIMITS
    counts: tuple[int, ...] = (0,) * (len(LIMITS) + 1)
    seconds: float = 0.0


class Durations:
    """A histogram; see the module. One thread adds at a time."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LIMITS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(LIMITS, seconds)] += 1
        self._seconds += seconds

    def stats(self) -> DurationStats:
        """The counts so far."""
        return DurationStats(counts=tuple(self._counts), seconds=self._seconds)
