"""The index tail: entries and keys appended to the log but not yet checkpointed.

The idea: columns, appended in log order, and nothing else: a put pays for a few array appends (60
ns a message), a checkpoint takes the whole tail away and turns it into runs with numpy. What
readers want, each queue's positions and the dict that finds keys, is made when somebody asks, from
where it was left.

Invariants: columns are in log order, positions rise; a queue's offsets in one tail are dense; rows
are added under the log's lock, read without it: what a reader may see is bounded by the log's
visible end, not by what is in here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from threading import Lock
from typing import Final

import numpy as np

__all__ = ["QueueTail", "Tail"]

_MANY: Final = 4096
"""Rows from which numpy sorts them to their queues faster than a loop does."""
# Eight bytes wherever kvmq runs, and filled from a list at twice the speed of "Q".
_WIDE: Final = "L"
assert array(_WIDE).itemsize == 8


class QueueTail:
    """One queue's entries in the tail: `positions[i]` is where offset `first + i` stands."""

    __slots__ = ("first", "positions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.positions: list[int] = []

    @property
    def next(self) -> int:
        """The offset behind the last entry."""
        return self.first + len(self.positions)


class Tail:
    """See the module."""

    __slots__ = (
        "_keys", "_keys_known", "_lock", "_queues", "_rows_known", "key_digests", "key_positions",
        "key_queues", "offsets", "positions", "queue_keys", "rows", "sizes", "start", "stored_at",
        "tag_hashes",
    )  # fmt: skip

    def __init__(self, start: int) -> None:
        self.start = start
        """The log position from which this tail knows every record."""
        self.rows = 0
        self.queue_keys = array(_WIDE)
        self.offsets = array(_WIDE)
        self.positions = array(_WIDE)
        self.sizes = array("I")
        self.tag_hashes = array("q")
        self.stored_at = array(_WIDE)
        self.key_digests = array("I")
        self.key_positions = array(_WIDE)
        self.key_queues = array(_WIDE)
        self._queues: dict[int, QueueTail] = {}
        self._rows_known = 0
        self._keys: dict[int, list[int]] = {}
        self._keys_known = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return self.rows

    def add(
        self,
        queue_keys: list[int],
        offsets: list[int],
        positions: list[int],
        sizes: list[int],
        tag_hashes: list[int],
        stored_at: int | list[int],
    ) -> None:
        """Add entries; `stored_at` may be the same for all."""
        if not sizes:
            return
        self.queue_keys.fromlist(queue_keys)
        self.offsets.fromlist(offsets)
        self.positions.fromlist(positions)
        self.sizes.fromlist(sizes)
        count = len(sizes)
        if tag_hashes.count(tag_hashes[0]) == count:
            self.tag_hashes.extend(array("q", tag_hashes[:1]) * count)
        else:
            self.tag_hashes.fromlist(tag_hashes)
        if isinstance(stored_at, int):
            self.stored_at.extend(array(_WIDE, (stored_at,)) * count)
        else:
            self.stored_at.fromlist(stored_at)
        # Last: readers look at no row behind it.
        self.rows += count

    def add_keys(
        self,
        queue_keys: list[int],
        positions: list[int],
        digests: list[int],
        owners: list[int] | None,
    ) -> None:
        """Add keys of records at `positions`: digests, and whose they are (None: round robin)."""
        if not digests:
            return
        if owners is None:
            # What was just added as rows is copied from there: no number is looked at again.
            times, count = len(digests) // len(positions), len(positions)
            self.key_queues.extend(self.queue_keys[-count:] * times)
            self.key_positions.extend(self.positions[-count:] * times)
        else:
            self.key_queues.fromlist([queue_keys[i] for i in owners])
            self.key_positions.fromlist([positions[i] for i in owners])
        self.key_digests.fromlist(digests)

    def add_one(
        self, key: int, offset: int, position: int, size: int, tag_hash: int, stored_at: int,
        digests: list[int],
    ) -> None:  # fmt: skip
        """Add an entry and its keys."""
        self.queue_keys.append(key)
        self.offsets.append(offset)
        self.positions.append(position)
        self.sizes.append(size)
        self.tag_hashes.append(tag_hash)
        self.stored_at.append(stored_at)
        self.rows += 1
        for digest in digests:
            self.key_queues.append(key)
            self.key_positions.append(position)
            self.key_digests.append(digest)

    def queue(self, key: int) -> QueueTail | None:
        """A queue's entries; None if it has none here."""
        if self._rows_known < self.rows:
            with self._lock:
                known, end = self._rows_known, self.rows
                if end - known >= _MANY:
                    self._sort_in_bulk(known, end)
                elif known < end:
                    self._sort(known, end)
                self._rows_known = end
        return self._queues.get(key)

    def _sort(self, known: int, end: int) -> None:
        queues = self._queues
        for key, offset, position in zip(
            self.queue_keys[known:end],
            self.offsets[known:end],
            self.positions[known:end],
            strict=True,
        ):
            found = queues.get(key)
            if found is None:
                found = queues[key] = QueueTail(offset)
            found.positions.append(position)

    def _sort_in_bulk(self, known: int, end: int) -> None:
        keys = np.array(self.queue_keys[known:end])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.flatnonzero(np.diff(keys, prepend=keys[0] + np.uint64(1)))
        ends = np.append(begins[1:], len(keys))
        positions = np.array(self.positions[known:end])[order].tolist()
        firsts = np.array(self.offsets[known:end])[order[begins]]
        queues = self._queues
        for key, first, a, b in zip(
            keys[begins].tolist(), firsts.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            found = queues.get(key)
            if found is None:
                found = queues[key] = QueueTail(first)
            found.positions += positions[a:b]

    def find_key(self, key_hash: int) -> list[int]:
        """Positions of records with a key of this hash, whatever their topic, oldest first."""
        with self._lock:
            known, end = self._keys_known, len(self.key_digests)
            if known < end:
                keys = self._keys
                for d, p in zip(
                    self.key_digests[known:end], self.key_positions[known:end], strict=True
                ):
                    keys.setdefault(d, []).append(p)
                self._keys_known = end
            return list(self._keys.get(key_hash >> 8, ()))

    def visible(self, key: int, end: int) -> tuple[int, int] | None:
        """First and next offset of a queue's entries that stand below log position `end`; None if
        it has none here.
        """
        tail = self.queue(key)
        if tail is None:
            return None
        positions = tail.positions
        if positions and positions[-1] < end:
            return tail.first, tail.first + len(positions)
        return tail.first, tail.first + bisect_left(positions, end)
