"""Opened: the archives that are open, in bounded memory, each opened once however many want it.

The idea: what an open archive takes (directory, filter, fences) grows as parts of it
are first needed; it says when, and is weighed again. Beyond the limit the one goes that was asked
for longest ago.

Invariants: what is kept takes no more than the limit, but for one archive; whoever has one in hand
keeps it for as long; a failed opening is not kept, and everybody who waited for it gets the same
error; no lock is held while anything is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from tiering.archive.archive_reader import Archive

_OBJECTS: Final = 8 << 10
"""What an open archive takes besides what it says: its own objects."""


class OpenArchives:
    """See the module. `open_one` opens an archive by its number; each takes `more` bytes besides
    what it says.
    """

    def __init__(self, open_one: Callable[[int], Archive], limit: int, more: int = 0) -> None:
        self._open_one = open_one
        self._more = more + _OBJECTS
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Archive] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._under_way: dict[int, Future[Archive]] = {}

    def get(self, number: int) -> Archive:
        """An archive, open; raises what opening it raises."""
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
            future = self._under_way.get(number)
            mine = future is None
            if future is None:
                future = self._under_way[number] = Future()
        if mine:
            self._begin(number, future)
        return future.result()

    def at_hand(self, number: int) -> Archive | None:
        """An archive, if it is open."""
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
            return found

    def forget(self, number: int) -> None:
        """Let go of an archive; who asks from now on gets it opened anew."""
        with self._lock:
            self._under_way.pop(number, None)
            if number in self._open:
                self._drop(number)

    def sizes(self) -> dict[int, int]:
        """What each archive takes that is open, in bytes."""
        with self._lock:
            return dict(self._sizes)

    def _begin(self, number: int, future: Future[Archive]) -> None:
        try:
            archive = self._open_one(number)
            # The number alone: an archive that knew itself would outlive its last reader.
            archive.on_growth = partial(self._grown, number)
            with self._lock:
                # If it is not, it was forgotten meanwhile, and is only for who waited.
                if self._under_way.get(number) is future:
                    self._open[number] = archive
                    self._weigh(number)
                    del self._under_way[number]
        except BaseException as e:
            with self._lock:
                if self._under_way.get(number) is future:
                    del self._under_way[number]
            future.set_exception(e)
            return
        future.set_result(archive)

    def _grown(self, number: int) -> None:
        with self._lock:
            if number in self._open:
                self._weigh(number)

    # --- under the lock ---

    def _weigh(self, number: int) -> None:
        size = self._open[number].memory_bytes + self._more
        self._bytes += size - self._sizes.get(number, 0)
        self._sizes[number] = size
        self._open.move_to_end(number)
        while self._bytes > self._limit and len(self._open) > 1:
            self._drop(next(iter(self._open)))

    def _drop(self, number: int) -> None:
        del self._open[number]
        self._bytes -= self._sizes.pop(number)
