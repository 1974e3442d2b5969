"""The index tail: entries and keys appended to the log but not yet checkpointed.

The idea: columns, appended in log order; each queue knows the positions of its own entries. A checkpoint
takes the whole tail away (`Store` puts a new one in its place) and turns it into runs with numpy, so a put pays
for a few array appends only. The dict that finds keys is filled when somebody asks, from where it was left.

Invariants: columns are in log order, positions rise; a queue's `positions` are dense from `first`; rows are
added under the log's lock, read without it: what a reader may see is bounded by the log's visible end,
not by what is in here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from threading import Lock

from kvstore.record.batch import QueueTail

__all__ = ["QueueTail", "Tail"]


class Tail:
    """See the module."""

    __slots__ = (
        "_key_lock", "_keys", "_keys_known", "key_hashes", "key_positions", "positions", "queues",
        "sizes", "start", "stored_at", "tag_hashes",
    )  # fmt: skip

    def __init__(self, start: int) -> None:
        self.start = start
        """The log position from which this tail knows every record."""
        self.queues: dict[int, QueueTail] = {}
        self.positions = array("Q")
        self.sizes = array("I")
        self.tag_hashes = array("q")
        self.stored_at = array("Q")
        self.key_hashes = array("Q")
        self.key_positions = array("Q")
        self._keys: dict[int, list[int]] = {}
        self._keys_known = 0
        self._key_lock = Lock()

    def __len__(self) -> int:
        return len(self.positions)

    def add(
        self,
        positions: Iterable[int],
        sizes: Sequence[int],
        tag_hashes: Sequence[int],
        stored_at: int,
    ) -> None:
        """Add entries; their queues' tails have their positions already."""
        self.positions.extend(positions)
        self.sizes.extend(sizes)
        self.tag_hashes.extend(tag_hashes)
        self.stored_at.extend([stored_at] * len(sizes))

    def add_keys(self, positions: Sequence[int], hashes: Sequence[tuple[int, ...]]) -> None:
        """Add the key hashes of records at these positions."""
        self.key_hashes.extend(chain.from_iterable(hashes))
        if len(set(map(len, hashes))) == 1:
            # Every message with as many keys as the next: the usual case, and all in C.
            self.key_positions.extend(
                chain.from_iterable(zip(*repeat(positions, len(hashes[0])), strict=True))
            )
        else:
            self.key_positions.extend(
                chain.from_iterable(
                    repeat(p, len(h)) for p, h in zip(positions, hashes, strict=True)
                )
            )

    def find_key(self, key_hash: int) -> list[int]:
        """Positions of records with a key of this hash, whatever their topic, oldest first."""
        with self._key_lock:
            known, end = self._keys_known, len(self.key_positions)
            if known < end:
                keys = self._keys
                for h, p in zip(
                    self.key_hashes[known:end], self.key_positions[known:end], strict=True
                ):
                    keys.setdefault(h >> 8, []).append(p)
                self._keys_known = end
            return list(self._keys.get(key_hash >> 8, ()))

    def visible(self, key: int, end: int) -> tuple[int, int] | None:
        """First and next offset of a queue's entries that stand below log position `end`; None if it has none here."""
        tail = self.queues.get(key)
        if tail is None:
            return None
        positions = tail.positions
        if positions and positions[-1] < end:
            return tail.first, tail.first + len(positions)
        return tail.first, tail.first + bisect_left(positions, end)
