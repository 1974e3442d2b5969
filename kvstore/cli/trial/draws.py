"""Draws: repeatable choices of the messages that a demo or a benchmark looks at.

The idea: a linear congruential generator. The same seed gives the same draws on every machine, so
a check that failed can be run again as it was. Nothing secret depends on it.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MULTIPLIER: Final = 6364136223846793005
_INCREMENT: Final = 1442695040888963407
_MASK: Final = (1 << 64) - 1


class Draws:
    """A sequence of whole numbers without a visible pattern."""

    def __init__(self, seed: int = 1) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        """The next number, from 0 to `limit` - 1."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        # The low bits of such a generator have short periods; the high ones are good.
        return (self._state >> 33) % limit


class Sample(Generic[T]):
    """A fair sample of a stream whose length is not known beforehand (a reservoir)."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.items: list[T] = []
        self._size = size
        self._seen = 0
        self._draws = Draws(seed)

    def slot(self) -> int | None:
        """Where the stream's next item belongs in `items`; None if it is not drawn."""
        self._seen += 1
        if self._seen <= self._size:
            return self._seen - 1
        drawn = self._draws.below(self._seen)
        return drawn if drawn < self._size else None

    def put(self, slot: int, item: T) -> None:
        """Keep an item in the slot that was named for it."""
        if slot == len(self.items):
            self.items.append(item)
        else:
            self.items[slot] = item
