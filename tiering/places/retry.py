"""Retry: repeats a request that failed for a passing reason, for how long and with what pauses.

The idea: a request to a place raises `Transient` for a failure that may pass by itself. Pauses
double from try to try and are drawn at random from their upper half, so that many callers that
failed together don't come back together.

Invariant: no try begins later than `total` seconds after the first one did.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from kvstore.clock import Clock
from tiering.errors import PlaceError, PlaceUnavailable

_GRAINS: Final = 1 << 20
_T = TypeVar("_T")


class Transient(Exception):
    """A failure that may pass. `verdict` is the error if it does not, `tries` the most tries."""

    def __init__(
        self, found: str, verdict: type[PlaceError] = PlaceUnavailable, tries: int = 1 << 30
    ) -> None:
        super().__init__(found)
        self.verdict = verdict
        self.tries = tries


def at_random() -> float:
    """A number from 0 to 1."""
    return secrets.randbelow(_GRAINS) / _GRAINS


class Retry:
    """The limits of retrying, in seconds: `total` for all tries, `first` and `most` for a pause."""

    def __init__(
        self,
        clock: Clock,
        total: float,
        *,
        first: float = 0.1,
        most: float = 5.0,
        draw: Callable[[], float] = at_random,
    ) -> None:
        self._clock = clock
        self._total = total
        self._first = first
        self._most = most
        self._draw = draw

    def run(self, ask: Callable[[], _T], what: str, place: str) -> _T:
        """The result of `ask`, in the end; else a `PlaceError` that says `what` was asked of
        `place`.
        """
        begun = self._clock.monotonic()
        pause = self._first
        tries = 0
        while True:
            tries += 1
            try:
                return ask()
            except Transient as e:
                waits = pause * (0.5 + self._draw() / 2)
                spent = self._clock.monotonic() - begun
                if tries >= e.tries or spent + waits > self._total:
                    # The cause may quote a request, and a request may quote a secret.
                    raise e.verdict(
                        f"{place}: could not {what}: {e}; tried {tries} times in {spent:.1f} s",
                        place,
                    ) from None
            self._clock.sleep(waits)
            pause = min(2 * pause, self._most)
