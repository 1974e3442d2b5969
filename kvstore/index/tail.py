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
        "_key_lock", "_keys", "_keys_known", "key_bytes", "key_digests", "key_positions", "positions", "queues", "sizes", "start", "stored_at", "tag_hashes",
    )  # fmt: skip

    def __init__(self, start: int) -> None:
        self.start = start
        """The log position from which this tail knows every record."""
        self.queues: dict[int, QueueTail] = {}
        self.positions = array("Q")
        self.sizes = array("I")
        self.tag_hashes = array("q")
        self.stored_at = array("Q")
        self.key_digests = array("I")
        self.key_bytes = array("B")
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
        self.stored_at.extend(array("Q", (stored_at,)) * len(sizes))

    def add_keys(
        self,
        positions: Sequence[int],
        digests: Sequence[int],
        owners: Sequence[int] | None,
        hash_bytes: bytes,
    ) -> None:
        """Add keys of records at `positions`: digests, whose they are (None: round robin), topics' hash bytes."""
        if owners is None:
            times = len(digests) // len(positions) if positions else 0
            self.key_positions.extend(chain.from_iterable(repeat(positions, times)))
        else:
            self.key_positions.extend([positions[i] for i in owners])
        self.key_bytes.frombytes(hash_bytes)
        self.key_digests.extend(digests)

    def find_key(self, key_hash: int) -> list[int]:
        """Positions of records with a key of this hash, whatever their topic, oldest first."""
        with self._key_lock:
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
        """First and next offset of a queue's entries that stand below log position `end`; None if it has none here."""
        tail = self.queues.get(key)
        if tail is None:
            return None
        positions = tail.positions
        if positions and positions[-1] < end:
            return tail.first, tail.first + len(positions)
        return tail.first, tail.first + bisect_left(positions, end)
