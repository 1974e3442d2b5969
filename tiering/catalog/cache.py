"""The block cache: decoded blocks in bounded memory, each read once for all who want it.

The idea: a block is asked for by archive and number. The first caller has it read, in one of a few
reader threads; callers that come meanwhile wait for the same read. A queue that is read on gets its
next blocks before it asks, as far as readers are free. New blocks go on probation, where they push
out each other; a block that is asked for a second time is protected. So a scan of a whole archive,
which wants every block once, leaves the blocks that others come back for. A thread that holds a
lock must not wait for a read: `SharedReads` tells it to come again instead.

Invariants:

- The cached blocks never take more than the cache's bytes, but for the one block just read.
- A failed read is not kept, and all who waited for it get the same error.
- A read that began before its archive was forgotten is for those who waited, and is not kept.
- No lock is held while anything is read.
- At most `readers` reads of blocks run at a time.
- A thread that must not wait never reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kvstore.errors import StoreClosed
from kvstore.index.archived import AtHand
from kvstore.process.locks import result_of
from tiering.archive.block import Block
from tiering.catalog.single_flight import SingleFlight

_PROTECTED: Final = 0.8
"""The share of the bytes for blocks that were asked for a second time."""

Key = tuple[int, int]
"""Archive and block."""


class CacheStats(NamedTuple):
    """The cache's counts since it was made, and its present contents."""

    hits: int
    reads: int
    waits: int
    ahead: int
    blocks: int
    bytes: int


class BlockCache:
    """Blocks by archive and number; see the module. `read` reads a block. It is called in a reader
    thread, of which there are few: more would only take the processor from those who read the log.
    A reader thread costs more than making a small block from bytes in memory: `at_once` does that
    in the caller's thread, or returns None.
    """

    def __init__(
        self,
        read: Callable[[int, int], Block],
        *,
        limit: int,
        readers: int,
        at_once: Callable[[int, int], Block | None] = lambda archive, block: None,
    ) -> None:
        self._read = read
        self._at_once = at_once
        self._limit = limit
        self._readers = readers
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="kvmq-cold")
        self._lock = threading.Lock()
        self._probation: OrderedDict[Key, Block] = OrderedDict()
        self._protected: OrderedDict[Key, Block] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._bytes = self._protected_bytes = 0
        self._flight: SingleFlight[Key, Block] = SingleFlight(self._lock)
        self._forgotten = 0
        """The number of calls of `forget`."""
        self._hits = self._reads = self._waits = self._ahead = 0

    def get(self, archive: int, block: int, *, is_scan: bool = False) -> Block:
        """A block; raises the errors of reading it. A caller that reads on, in this block too,
        passes `is_scan`: its next call does not count as a second wish for the block.
        """
        key = (archive, block)
        with self._lock:
            found = self._cached(key, is_scan)
            if found is not None:
                return found
        made = self._from_memory(key)
        if made is not None:
            return made
        with self._lock:
            found = self._cached(key, is_scan)
            if found is not None:
                return found
            future = self._flight.future(key)
            if future is None:
                future = self._begin(key)
            else:
                self._waits += 1
        try:
            return result_of(future)
        except CancelledError:
            raise StoreClosed("the store was closed before the archive was read") from None

    def at_hand(self, archive: int, block: int, *, is_scan: bool = False) -> Block | None:
        """A block if it is cached. Otherwise it is read, if a reader is free, for a later call."""
        key = (archive, block)
        with self._lock:
            found = self._cached(key, is_scan)
        if found is None:
            found = self._from_memory(key)
        if found is not None:
            return found
        with self._lock:
            found = self._cached(key, is_scan)
            under_way = self._flight.under_way()
            is_free = key not in under_way and len(under_way) < self._readers
            if found is None and is_free:
                self._begin(key)
            return found

    def ahead(self, archive: int, first: int, stop: int) -> None:
        """Announces that blocks from `first` to before `stop` will be asked for next: they are read
        if a reader is free.
        """
        with self._lock:
            for block in range(first, stop):
                under_way = self._flight.under_way()
                if len(under_way) >= self._readers:
                    return
                key = (archive, block)
                if key not in self._sizes and key not in under_way:
                    self._ahead += 1
                    self._begin(key)

    def _from_memory(self, key: Key) -> Block | None:
        """A block that needs no read."""
        before = self._forgotten
        block = self._at_once(*key)
        if block is not None:
            with self._lock:
                if before == self._forgotten:
                    self._keep(key, block)
        return block

    def forget(self, archive: int) -> None:
        """Drops an archive's blocks; the next callers have them read anew."""
        with self._lock:
            self._forgotten += 1
            self._flight.forget([key for key in self._flight.under_way() if key[0] == archive])
            for key in [key for key in self._sizes if key[0] == archive]:
                self._drop(key)

    def stats(self) -> CacheStats:
        """See `CacheStats`."""
        with self._lock:
            return CacheStats(
                self._hits, self._reads, self._waits, self._ahead, len(self._sizes), self._bytes
            )

    def close(self) -> None:
        """Reads nothing any more; waiting callers still get the reads that are under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._flight.forget(list(self._flight.under_way()))

    # --- under the lock ---

    def _cached(self, key: Key, is_scan: bool) -> Block | None:
        found = self._protected.get(key)
        if found is None:
            found = self._probation.get(key)
            if found is not None and not is_scan:
                self._protect(key, found)
        else:
            self._protected.move_to_end(key)
        if found is not None:
            self._hits += 1
        return found

    def _protect(self, key: Key, block: Block) -> None:
        del self._probation[key]
        self._protected[key] = block
        self._protected_bytes += self._sizes[key]
        while self._protected_bytes > self._limit * _PROTECTED and len(self._protected) > 1:
            old, back = self._protected.popitem(last=False)
            self._protected_bytes -= self._sizes[old]
            self._probation[old] = back

    def _begin(self, key: Key) -> Future[Block]:
        try:
            return self._flight.begin(
                key, partial(self._fetch, key), self._pool.submit, partial(self._keep, key)
            )
        except RuntimeError as e:  # the readers have ended, or no thread can begin
            raise StoreClosed(f"nothing can be read from archives any more: {e}") from e

    def _drop(self, key: Key) -> None:
        size = self._sizes.pop(key)
        self._bytes -= size
        if self._probation.pop(key, None) is None:
            del self._protected[key]
            self._protected_bytes -= size

    def _keep(self, key: Key, block: Block) -> None:
        if key in self._sizes:
            return  # another thread kept it meanwhile
        size = block.memory_bytes
        self._probation[key] = block
        self._sizes[key] = size
        self._bytes += size
        while self._bytes > self._limit and len(self._sizes) > 1:
            oldest = next(iter(self._probation))
            self._drop(next(iter(self._protected)) if oldest == key else oldest)

    # --- in a reader thread ---

    def _fetch(self, key: Key) -> Block:
        block = self._read(*key)
        with self._lock:
            self._reads += 1
        return block


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
