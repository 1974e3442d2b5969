"""Waiting for a thread of a store, in real time.

The idea: a thread does its work soon, but nobody is told when. A test looks again and again; a
thread that hangs fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.clock import SystemClock

PATIENCE: Final = 20
"""Seconds after which somebody hangs."""
_LOOK: Final = 0.002
"""Seconds between two looks."""


def until(met: Callable[..., object], patience: float = PATIENCE) -> None:
    """Waits until something is so, so many seconds at most."""
    for _ in range(int(patience / _LOOK)):
        if met():
            return
        SystemClock().sleep(_LOOK)
    raise AssertionError("it never came")
