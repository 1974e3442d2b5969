"""Archive pool: the open archives, in bounded memory, each opened once for all who want it.

The idea: an open archive takes more memory as its directory, filter and fences are first needed. It
reports its growth, and is weighed again. Beyond the limit the archive that was not asked for
longest is dropped. Its filter is kept by itself (`key_filters`), also after the archive is dropped.

Invariants:

- The kept archives take no more than the limit, except that one may always be kept.
- A caller that holds an archive can use it as long as it likes.
- A failed opening is not kept, and all who waited for it get the same error.
- No lock is held while anything is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from tiering.archive.archive_reader import Archive
from tiering.catalog.single_flight import SingleFlight

_OBJECTS: Final = 8 << 10
"""Bytes of an open archive's own objects, beside those that it reports."""


class OpenArchives:
    """Open archives by number. `open_one` opens an archive by its number."""

    def __init__(self, open_one: Callable[[int], Archive], limit: int) -> None:
        self._open_one = open_one
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Archive] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._flight: SingleFlight[int, Archive] = SingleFlight(self._lock)

    def get(self, number: int) -> Archive:
        """An open archive; raises the errors of opening it."""
        with self._lock:
            found = self._found(number)
        if found is not None:
            return found
        return self._flight.do(
            number, partial(self._opened, number),
            find=partial(self._found, number), keep=partial(self._keep, number),
        )  # fmt: skip

    def at_hand(self, number: int) -> Archive | None:
        """An archive, if it is open already."""
        with self._lock:
            return self._found(number)

    def forget(self, number: int) -> None:
        """Drops an archive; the next caller gets it opened anew."""
        with self._lock:
            self._flight.forget([number])
            if number in self._open:
                self._drop(number)

    def sizes(self) -> dict[int, int]:
        """The bytes that each open archive takes."""
        with self._lock:
            return dict(self._sizes)

    def _opened(self, number: int) -> Archive:
        archive = self._open_one(number)
        # The number alone: an archive that knew itself would outlive its last reader.
        archive.on_growth = partial(self._grown, number)
        return archive

    def _grown(self, number: int) -> None:
        with self._lock:
            if number in self._open:
                self._weigh(number)

    # --- under the lock ---

    def _found(self, number: int) -> Archive | None:
        found = self._open.get(number)
        if found is not None:
            self._open.move_to_end(number)
        return found

    def _keep(self, number: int, archive: Archive) -> None:
        self._open[number] = archive
        self._weigh(number)

    def _weigh(self, number: int) -> None:
        size = self._open[number].memory_bytes + _OBJECTS
        self._bytes += size - self._sizes.get(number, 0)
        self._sizes[number] = size
        self._open.move_to_end(number)
        while self._bytes > self._limit and len(self._open) > 1:
            self._drop(next(iter(self._open)))

    def _drop(self, number: int) -> None:
        del self._open[number]
        self._bytes -= self._sizes.pop(number)
