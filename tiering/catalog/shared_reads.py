"""Shared reads: reads of archives for threads, and for those that must not wait for a read.

The idea: blocks come from the cache, which reads each once; other parts come by `read`. A thread
that holds a lock must not wait for a read. It says so (`at_hand`), and is told to come again
instead.

Invariant: a thread that must not wait never reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kvstore.index.archived import AtHand
from tiering.archive.block import Block
from tiering.catalog.cache import BlockCache
from tiering.catalog.single_flight import SingleFlight

T = TypeVar("T")


class SharedReads:
    """Reads of archives that threads share; see the module."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._local = threading.local()
        self._flight: SingleFlight[object, Any] = SingleFlight(threading.Lock())

    @contextlib.contextmanager
    def at_hand(self, kept: AtHand) -> Iterator[None]:
        """See `kvstore.index.archived.Archived.at_hand`."""
        before = getattr(self._local, "kept", None)
        self._local.kept = kept
        try:
            yield
        finally:
            self._local.kept = before

    @property
    def kept(self) -> AtHand | None:
        """The values that this thread has at hand, if it must not wait for more."""
        kept: AtHand | None = getattr(self._local, "kept", None)
        return None if kept is None or kept.is_patient else kept

    def block(self, archive: int, number: int, *, is_scan: bool = False) -> Block:
        """A block; see `BlockCache.get`."""
        kept = self.kept
        if kept is None:
            return self._cache.get(archive, number, is_scan=is_scan)
        found = self._cache.at_hand(archive, number, is_scan=is_scan)
        if found is not None:
            return found
        return kept.get(("block", archive, number), lambda: self._cache.get(archive, number))

    def read(self, key: object, read: Callable[[], T]) -> T:
        """The result of the call `read`, which `key` identifies."""
        kept = self.kept
        if kept is None:
            return self._once(key, read)
        return kept.get(key, lambda: self._once(key, read))

    def _once(self, key: object, read: Callable[[], T]) -> T:
        found: T = self._flight.do(key, read)
        return found
