"""Arrivals: old messages come into a store, or tombstones leave it, one after the other.

The idea: an attach brings messages that may be older than what the store has of a key; a compaction
drops a tombstone because nothing older is there. Each looks, and then changes the store: whoever
holds the store's lock from the look to the change has not missed the other.

Invariant: one lock for each open store, which goes with it.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from tiering.storeside import HandOver

_locks: WeakKeyDictionary[HandOver, threading.Lock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


def arrivals_lock(side: HandOver) -> threading.Lock:
    """The lock of a store."""
    with _locks_lock:
        return _locks.setdefault(side, threading.Lock())
