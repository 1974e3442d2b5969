"""Key filters: the filters of archives in memory, to rule out archives that can't have a key.

The idea: an archive must be opened before it can be asked for a key. The filter of an opened
archive is kept here by itself, also after the archive is dropped. A key's bits are worked out once;
each filter then takes one look at 64 bytes. When there is no more room, the kept filters stay: a
query asks all archives in turn, so the filter that was asked longest ago is the next to be asked.

Invariants: the kept filters take no more than the limit; an archive that may have a key is never
left out.
"""

from __future__ import annotations

import threading
from typing import Final

from kvstore.record.key_filter import Filter, masks_of

_OBJECTS: Final = 300
"""Bytes of a filter's objects, beside its own bytes."""
_TOPIC_BITS: Final = 8


class KeyFilters:
    """Filters by the numbers of archives. None stands for an archive without keys."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._filters: dict[int, Filter | None] = {}
        self._lock = threading.Lock()

    def keep(self, number: int, found: Filter | None) -> None:
        """Keeps an archive's filter, if there is room."""
        size = _OBJECTS + (0 if found is None else found.memory_bytes)
        with self._lock:
            if number not in self._filters and self._bytes + size <= self._limit:
                self._filters[number] = found
                self._bytes += size

    def forget(self, number: int) -> None:
        """Drops an archive's filter."""
        with self._lock:
            found = self._filters.pop(number, self)
            if found is not self:
                self._bytes -= _OBJECTS
                self._bytes -= found.memory_bytes if isinstance(found, Filter) else 0

    def without_denied(self, numbers: list[int], low: int, high: int) -> list[int]:
        """The archives that may have a key whose hash is between `low` and `high`, as far as the
        kept filters know.
        """
        digest = low >> _TOPIC_BITS
        if digest != high >> _TOPIC_BITS:
            return numbers
        masks = masks_of(digest)
        nothing: Filter | KeyFilters | None = self
        left = []
        for number in numbers:
            found = self._filters.get(number, nothing)
            if found is nothing or (isinstance(found, Filter) and found.has_all(digest, masks)):
                left.append(number)
        return left

    @property
    def memory_bytes(self) -> int:
        """The bytes that the kept filters take."""
        return self._bytes
