"""Committed offsets: how far each group is in each queue.

The idea: one small row per group and queue, written when it changes. RocksDB may be ahead of the
log after a power cut (an offset was committed, the message it stands behind was lost), so an offset
is clamped to the queue's end the first time it is used after opening.

Invariant: what `get` returns is never above the queue's next offset.
"""

from __future__ import annotations

import threading

from kvstore.errors import CallerError
from kvstore.index.families import Families
from kvstore.index.keys import OFFSETS, U64, offset_key


class Offsets:
    """See the module."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._known: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def get(self, group: int, topic: int, queue: int, next_offset: int) -> int | None:
        """A group's committed offset; None if it never committed. `next_offset` is the queue's."""
        key = offset_key(group, topic, queue)
        found = self._known.get(key)
        if found is None:
            row = self._families.get(OFFSETS, key)
            if row is None:
                return None
            found = U64.unpack(row)[0]
            if found > next_offset:
                found = next_offset
                self._write(key, found)
            with self._lock:
                if len(self._known) > 1 << 18:
                    self._known.clear()
                found = self._known.setdefault(key, found)
        return found

    def commit(self, group: int, topic: int, queue: int, offset: int, next_offset: int) -> None:
        """Set a group's offset: the next message it wants; 0 up to the queue's next offset."""
        if type(offset) is not int or not 0 <= offset <= next_offset:
            raise CallerError(f"offset is {offset!r}; this queue takes 0 to {next_offset}")
        key = offset_key(group, topic, queue)
        with self._lock:
            self._write(key, offset)
            self._known[key] = offset

    def _write(self, key: bytes, offset: int) -> None:
        batch = self._families.batch()
        batch.put(OFFSETS, key, U64.pack(offset))
        self._families.write(batch)
