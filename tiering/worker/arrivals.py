"""Arrivals: keeps compactions and removals from overlooking old messages that an attach brings in.

The idea: an attach brings messages that may be older than the store's messages of a key. A
compaction drops a tombstone because nothing older is there. Each looks, and then changes the store.
A step that holds the store's lock from the look to the change has not missed the other. Objects
that an attach has put are in no catalog until it ends, however long it takes. So a step that
removes such objects as orphans asks first whether an attach is under way.

Invariants: one lock and one count for each open store, which go with it; one attach at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kvstore.process.forking import module_lock
from tiering.errors import TieringBusy
from tiering.worker.store_side import HandOver


class Attaches(NamedTuple):
    """How many attaches have begun, and ended, since the store was opened."""

    begun: int = 0
    ended: int = 0


_locks: WeakKeyDictionary[HandOver, threading.Lock] = WeakKeyDictionary()
_attaches: WeakKeyDictionary[HandOver, Attaches] = WeakKeyDictionary()
_registry_lock = module_lock()


def arrivals_lock(side: HandOver) -> threading.Lock:
    """The lock of a store."""
    with _registry_lock:
        return _locks.setdefault(side, threading.Lock())


def attaches(side: HandOver) -> Attaches:
    """How many attaches there were so far."""
    with _registry_lock:
        return _attaches.get(side, Attaches())


def none_since(before: Attaches, now: Attaches) -> bool:
    """Whether no attach was under way at any time between the two."""
    return before == now and now.begun == now.ended


@contextmanager
def attaching(side: HandOver) -> Iterator[None]:
    """Holds the only turn to attach for the block. Raises `TieringBusy` if another is under way."""
    with _registry_lock:
        begun, ended = _attaches.get(side, Attaches())
        if begun != ended:
            raise TieringBusy(f"something is being attached to {side.folder}; wait for its end")
        _attaches[side] = Attaches(begun + 1, ended)
    try:
        yield
    finally:
        with _registry_lock:
            _attaches[side] = Attaches(begun + 1, ended + 1)


Counted = Callable[[], Attaches]
