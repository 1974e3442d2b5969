"""Lock rows as counters in memory; see inflight.pyx. Keys are those of rows of `locks`."""

from collections.abc import Callable, Sequence
from typing import Any, final

from kvstore.core.messages import StoredMessage
from kvstore.core.popping.offset_sets import QueueLocks, Shelf
from kvstore.core.popping.receipts import Asked, Key, Popped, Receipts

Row = tuple[int, int, int, int, int, bytes, bytes]
"""Attempts, recoveries, nonce, bitmaps of the messages that are locked and moved, attempt id, and
the reason for which the messages were given back last.
"""
PARKED: int
KNOWN_MAX: int

def pack_lock(lock: Row) -> bytes:
    """A row's value as bytes. Raises ValueError for bitmaps, attempt ids and reasons that no row
    has, and TypeError for what is no row.
    """

@final
class Change:
    """Rows of `locks` that are written together, and their effect on an in-flight table."""

    rows: list[tuple[bytes, bytes | None]]
    """Keys and values as bytes; None: without the row."""
    added: dict[Any, Any]
    removed: Sequence[tuple[Any, Any, int]]
    """Rows that go, as they were, and the bitmaps of their messages that can't be acked any
    more."""
    shrunk: Sequence[tuple[Any, Any, int]]
    """Rows as they are from now on, and the bitmaps of the messages that go from them."""
    parked: Sequence[tuple[Key, int]]
    """Rows of parked messages and the bitmaps they have from now on."""
    next: dict[int, int]
    """Queue -> its new next offset."""
    passed: dict[int, int]
    """Queue -> how many of its messages a filter has refused."""
    expired: dict[int, int]
    """Queue -> how many of its messages were passed over because they have expired."""

    def __init__(self) -> None: ...
    @property
    def has_expired(self) -> bool:
        """Whether any message was passed over because it has expired."""

    def park(self, key: Key, lock: Row) -> None:
        """Sets a row of parked messages as it is from now on; it goes if it has none."""

    def add(self, key: Key, lock: Row) -> None:
        """Adds a new row."""

    def shrink(self, key: Key, old: Row, new: Row) -> None:
        """Shrinks a row, which keeps only some of its messages; it goes if it keeps none.
        Its moved messages can't be acked any more.
        """

    def remove(self, key: Key, old: Row, bad: int) -> None:
        """Removes a row, of whose messages those in the bitmap `bad` can't be acked any more."""

    def take(self, receipts: Receipts, key: Key, lock: Row, messages: list[StoredMessage]) -> None:
        """Adds a new row whose messages are handed out."""

    def popped(self) -> list[Popped]:
        """The messages that are handed out; once the rows are written."""

    def count_added(self) -> int:
        """How many messages the new rows have."""

class InflightRows:
    """The part of an in-flight table that follows from its rows; see
    `kvstore.pop.inflight.table`.
    """

    group: int
    topic: int
    rows: int
    messages: int
    """How many messages are locked."""
    next: dict[int, int]
    """Queue -> its next offset, for the queues that were used and have one stored."""
    passed: dict[int, int]
    """Queue -> how many of its messages filters have refused, where its next offset is known and
    there are any.
    """
    expired: dict[int, int]
    """As `passed`, of the messages that were passed over because they had expired."""
    turn: int
    prefetched: dict[int, list[StoredMessage]]
    """Queue -> messages that were read ahead of any pop, the next one last; see `ahead`."""
    order: Any
    """The message groups of an ordered group; None: not made yet."""
    parked_count: int
    """How many messages are parked."""
    tally: Any
    """The group's tally, if it has one."""
    soonest: int
    """No row is due before this time, ms since the epoch."""
    known: dict[Any, Any]
    """Some of the rows as they are, of all tables: mostly a row is acked soon, and need not be read
    for that.
    """
    attempts: dict[bytes, list[bytes]]
    """Attempt id -> the keys of its rows, for all rows that have one."""
    _first: Any
    _buckets: Shelf
    """1/8 s -> how many messages are due in it."""
    _gone: dict[int, int]
    """1/8 s -> how many of the messages that are due in it the store no longer had at the last look
    at figures.
    """
    _queues: dict[int, QueueLocks]
    _knows_dues: bool
    """Whether rows are also counted by the time they are due in each queue."""

    def __init__(self, group: int, topic: int, known: dict[Any, Any]) -> None: ...
    def forget_rows(self) -> None:
        """Forgets all that follows from rows."""

    def may_be_due(self, now: int) -> bool:
        """Whether a row can be due; without a look at RocksDB."""

    def first_due(self) -> int:
        """The beginning of the first 1/8 s that has rows; there is one."""

    def ahead(self, queue: int, mark: int) -> list[StoredMessage] | None:
        """The messages of a queue that were read ahead, the next one last. `mark` is the reader's:
        once anything left the log or its place, all are dropped, because they may be erased.
        """

    def take(
        self,
        receipts: Receipts,
        queues: Sequence[int],
        limit: int,
        mark: int,
        now: int,
        due: int,
        recoveries: int,
        nonce: int,
        read: Callable[[Any, int, int, int], list[StoredMessage] | None],
    ) -> Change | None:
        """The change by which a pop takes `limit` unread messages of the queue whose turn it is, as
        a row that is `due` then; None if that is not all that such a pop has to do.

        `read` is asked for so many of a queue's messages from an offset on, as `ahead` gives them,
        where too few were read ahead; None if it can't give so many.
        """

    def ack(self, change: Change, asked: Asked, numbers: list[int]) -> list[int]:
        """Adds the acks of the rows with these numbers to a change. Returns the numbers of those
        that are not known as they are, or of which messages were moved, for the caller to see to.
        """

    def added(self, key: Key, locked: int) -> None:
        """Counts a row that was written, with the bitmap of its messages."""

    def removed(self, key: Key, locked: int) -> None:
        """Uncounts a row that was removed, with the bitmap of its messages."""

    def park(self, key: Key, parked: int) -> None:
        """Counts a row of parked messages as it is from now on."""

    def redeliver(self, key: Key, locked: int) -> None:
        """Counts messages of a row as handed out before."""

    def positions(self, change: Change) -> list[tuple[int, int, int, int]]:
        """The queues whose next offsets a change sets, with these, and how many of their messages
        filters will have refused, and how many will have expired, once it is written.
        """

    def apply(self, change: Change) -> None:
        """Counts a change that was written."""

    def note_attempt(self, attempt_id: bytes, key: Key) -> None:
        """Remembers that a row was made by an attempt."""

    def _count_gone(self, bucket: int, count: int) -> None: ...
