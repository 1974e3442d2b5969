"""Sets of the ids of topics and groups.

The idea: a store gives ids in order, each once, so a set of them is a bit for each that was given.
An opening may remember all that it deleted.
"""

from __future__ import annotations

from collections.abc import Iterable


class IdSet:
    """A set of ids; see the module."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (number & 7) & 1)

    def update(self, numbers: Iterable[int]) -> None:
        """Adds ids."""
        for number in numbers:
            at = number >> 3
            if at >= len(self._bits):
                self._bits.extend(bytes(at + 1 - len(self._bits)))
            self._bits[at] |= 1 << (number & 7)

    def difference_update(self, numbers: Iterable[int]) -> None:
        """Removes ids."""
        for number in numbers:
            if number in self:
                self._bits[number >> 3] &= ~(1 << (number & 7))
