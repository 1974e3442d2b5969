"""Entries and keys that were not yet checkpointed; see tail.pyx."""

from typing import final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.encoding import PreparedBatch
from kvstore.core.queue_offsets import QueueOffsets

@final
class Tail:
    """One tail, which knows every record from log position `start` on. A queue is named by its key
    in memory, topic id << 32 | queue id; `end` is the log position below which the caller may see.
    """

    start: int

    def __init__(self, start: int) -> None: ...
    def __len__(self) -> int:
        """The number of entries."""

    @property
    def keys_held(self) -> int:
        """The number of keys, unique ids included."""

    def add(
        self,
        batch: PreparedBatch,
        offsets: QueueOffsets,
        position: int,
        segment_size: int,
        stored_at: int,
    ) -> list[tuple[int, bytes]]:
        """Gives the messages of a batch their places, from a position of the log on, and adds them.
        Returns the records as pieces of the log, each with its position: behind each piece but the
        last is no room for the next record and a blank one, so the next piece begins the next
        segment. ValueError, as for a segment that is too small, and the errors of `offsets` leave
        the tail as it was.
        """

    def add_found(self, entries: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        """Adds entries and keys that were found in the log: rows of queue, offset, position, size,
        tag hash and store time, and rows of queue, position and XXH32. Raises ValueError for rows
        of another width.
        """

    def take_back(self, batch: PreparedBatch, offsets: QueueOffsets, position: int) -> None:
        """Undoes `add`, whether or not it was done: the entries and keys from `position` on go, and
        `offsets` has those of the batch again. The records are not in the log.
        """

    def tell_ends(self, offsets: QueueOffsets) -> None:
        """Tells `offsets` the next offset of each queue that has entries here."""

    def __contains__(self, queue: int) -> bool:
        """Whether a queue has entries here."""

    def bounds(self, queue: int, end: int) -> tuple[int, int] | None:
        """First and next offset of a queue's entries below `end`; None if it has none here."""

    def first_within(self, queue: int, begin: int, end: int) -> int | None:
        """The first offset of a queue whose entry stands at position `begin` to `end` - 1."""

    def positions(self, queue: int, offset: int, limit: int) -> list[int]:
        """Positions of up to `limit` entries of a queue from `offset` on."""

    def find_key(self, key_hash: int) -> list[int]:
        """Positions of records with a key of this 40-bit hash, whatever their topic, oldest
        first.
        """

    def entry_columns(self) -> NDArray[np.int64]:
        """The entries by queue, and each queue's by offset: six rows, in the order of `add_found`.
        Of a tail that gets no more entries; other threads run meanwhile.
        """

    def key_columns(self) -> NDArray[np.int64]:
        """The keys as they came: three rows, in the order of `add_found`. As `entry_columns`."""
