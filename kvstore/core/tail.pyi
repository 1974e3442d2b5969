"""Entries, keys and pending messages that were not yet checkpointed; see tail.pyx."""

from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.encoding import PreparedBatch
from kvstore.core.queue_offsets import QueueOffsets

Waiting = tuple[int, int, int, int]
"""A pending message: due time in ms, position, the id of its topic, and the bytes of its record."""

@final
class PendingTail:
    """The messages of one tail that wait, and the waits that ended in it. The due time of a
    prepared message is when it is asked about.
    """

    def __len__(self) -> int:
        """How many messages wait."""

    def add_found(self, rows: NDArray[np.int64]) -> None:
        """Adds pending messages that were found in the log: rows of due time, position, topic id
        and size. ValueError for rows of another width.
        """

    def end_found(self, rows: NDArray[np.int64]) -> None:
        """Ends waits by records that were found in the log: rows of position and due time of the
        pending message, topic id, and the position of the record that ends it. ValueError as above.
        """

    def first_due(self) -> int | None:
        """The due time, ms, of the next message; None if none waits."""

    def take_due(
        self, until: int, limit: int, end: int, later: PendingTail | None
    ) -> list[Waiting]:
        """Takes up to `limit` messages that are due at `until` or before, in due order, and whose
        records are below position `end`. `later` is the tail behind this one, in which waits may
        have ended. They are not taken again before `give_back`.
        """

    def give_back(self) -> None:
        """Lets messages be taken again that were taken and still wait."""

    def has_ended(self, position: int) -> bool:
        """Whether the wait of the message at a position ended in this tail."""

    def __contains__(self, position: int) -> bool:
        """Whether this tail has the message at a position, and it waits."""

    def pending(self, due: int, position: int, end: int, limit: int) -> list[Waiting]:
        """The first `limit` messages behind a due time and position, in that order, whose records
        are below `end`.
        """

    def counts(self) -> dict[int, int]:
        """By topic id, how many more messages wait than before this tail; it may be less than 0."""

    def rows(self) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the rows for the messages that wait (docs/keys.md)."""

    def ended_keys(self) -> list[bytes]:
        """The keys of rows whose messages wait no more, and that are in RocksDB, or in the tail
        before this one.
        """

def waiting_rows(rows: list[tuple[bytes, bytes]], tails: Iterable[PendingTail]) -> list[Waiting]:
    """The messages of rows of `timers`, given as keys and values, without those whose wait ended in
    one of the tails. ValueError for rows of another size.
    """

@final
class Tail:
    """One tail, which knows every record from log position `start` on. A queue is named by its key
    in memory, topic id << 32 | queue id; `end` is the log position below which the caller may see.
    """

    start: int
    timers: PendingTail
    """The delayed messages of this tail that wait, and the waits that ended in it."""
    prepared: PendingTail
    """As `timers`, of prepared messages of transactions."""

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
        """Undoes `add`, whether or not it was done: the entries, keys and pending messages from
        `position` on go, and `offsets` has those of the batch again. The records are not in the
        log.
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

    def topic_bytes(self) -> dict[int, int]:
        """The bytes of the records of each topic, by its id."""

    def entry_columns(self) -> NDArray[np.int64]:
        """The entries by queue, and each queue's by offset: six rows, in the order of `add_found`.
        Of a tail that gets no more entries; other threads run meanwhile.
        """

    def key_pairs(
        self, segment_size: int, topic_bytes: bytes
    ) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """The keys of each segment as they came: the segment, 40-bit hashes, and positions in it.
        `topic_bytes[topic id]` is the lowest byte of a hash. As `entry_columns`. Raises IndexError
        for a topic without a byte.
        """
