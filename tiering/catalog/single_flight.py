"""Single flight: one read of an archive for all who want the same; none by a caller under a lock.

The idea: blocks come from the cache, which reads each once; other parts come by `read`. A thread
that holds a lock must not wait for a read. It says so (`at_hand`), and is told to come again
instead.

Invariants: no lock is held while anything is read; a failed read is not kept, and all who waited
for it get the same error.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from kvstore.index.archived import AtHand
from tiering.archive.block import Block
from tiering.catalog.cache import BlockCache

T = TypeVar("T")


class Shared:
    """Reads that threads share; see the module."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._local = threading.local()
        self._lock = threading.Lock()
        self._under_way: dict[object, Future[Any]] = {}

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
        with self._lock:
            future: Future[T] | None = self._under_way.get(key)
            mine = future is None
            if future is None:
                future = self._under_way[key] = Future()
        if mine:
            try:
                found = read()
            except BaseException as e:
                del self._under_way[key]
                future.set_exception(e)
            else:
                del self._under_way[key]
                future.set_result(found)
        return future.result()
