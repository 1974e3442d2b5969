"""A set of ids: small numbers, one bit each.

The idea: groups and topics are numbered from 1 on, and no number is given twice. So deleted ones
can be remembered for good: a million of them take 128 KiB.

Invariant: a number that was added and not removed is in the set; a caller that adds or removes
holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable


class Ids:
    """A set of small numbers; see the module."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (number & 7) & 1)

    def update(self, numbers: Iterable[int]) -> None:
        """Add numbers."""
        for number in numbers:
            at = number >> 3
            if at >= len(self._bits):
                self._bits.extend(bytes(at + 1 - len(self._bits)))
            self._bits[at] |= 1 << (number & 7)

    def difference_update(self, numbers: Iterable[int]) -> None:
        """Removes numbers."""
        for number in numbers:
            if number in self:
                self._bits[number >> 3] &= ~(1 << (number & 7))
