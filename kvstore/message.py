"""Messages: the values of the public API, both arguments and results.

The idea: plain values without behaviour. `Message`, `PutResult` and `StoredMessage` live with the
code that turns them into bytes or makes them of bytes (`kvstore.core.put_values`,
`kvstore.core.messages`); the other results of calls are here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.put_rows import columns_of_results, result_columns, row_results
from kvstore.core.encoding import PreparedBatch
from kvstore.core.messages import StoredMessage
from kvstore.core.put_values import Message, PutResult, PutStatus

__all__ = [
    "Bounds",
    "ColumnBatch",
    "ColumnsPut",
    "Message",
    "PullResult",
    "PullStatus",
    "PulledBatch",
    "PutResult",
    "PutStatus",
    "StoredMessage",
]


class PullStatus(StrEnum):
    """The outcome of a pull, in the words of the field (RocketMQ's GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"


class PullResult(msgspec.Struct, gc=False):
    """The messages of a pull, and the offset to pull next; the other offsets are the queue's bounds
    at that moment. `expired` messages between them, or behind them, were passed over.
    """

    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    status: PullStatus
    expired: int = 0


class PulledBatch(msgspec.Struct, gc=False):
    """As `PullResult`, with the messages as columns: `columns` is for any Arrow library."""

    columns: ColumnBatch
    next_offset: int
    min_offset: int
    max_offset: int
    status: PullStatus
    expired: int = 0


Firsts = dict[int, StoredMessage | int]
"""By row of a batch: the first message of its dedup id, or the row before it that has the id."""


def with_firsts(placed: list[PutResult], firsts: Firsts, status: PutStatus) -> list[PutResult]:
    """The results of a batch, given those of the messages that were put, in order."""
    if not firsts:
        return placed
    found: list[PutResult] = []
    rest = iter(placed)
    for row in range(len(placed) + len(firsts)):
        first = firsts.get(row)
        if first is None:
            found.append(next(rest))
            continue
        its = found[first] if isinstance(first, int) else first
        place = (its.message_id, its.topic, its.queue, its.offset, its.position, its.size)
        found.append(PutResult(*place, status, True))
    return found


class ColumnsPut:
    """Where the rows of a `put_columns` went: how many there are (`count`), how many of them repeat
    a dedup id and were not put (`duplicates`), the bytes of the others' records (`size`), and how
    safe all are. It keeps the ids of the messages as long as it lives, but not their bodies.
    """

    def __init__(
        self, batch: PreparedBatch, status: PutStatus, firsts: Firsts | None = None
    ) -> None:
        self._batch = batch
        self.duplicates = len(firsts or ())
        self.count = len(batch) + self.duplicates
        self.size = len(batch.records) if len(batch) else 0
        batch.forget_bodies()
        self.status = status
        self._topic: str | None = None
        self._results: list[PutResult] | None = None
        """With repeats, which are not in the batch."""
        if firsts:
            self._results = with_firsts(row_results(batch, status), firsts, status)

    @property
    def first_position(self) -> int | None:
        """Where the first message that was put stands in the log; None if none was."""
        return self._batch.position(0) if len(self._batch) else None

    @property
    def last_position(self) -> int | None:
        """Where the last one stands; all of them lie side by side, but for the end of a segment."""
        return self._batch.position(len(self._batch) - 1) if len(self._batch) else None

    @property
    def columns(self) -> ColumnBatch:
        """A row for each that was given, in order: queue, offset, position, size, message_id (of a
        repeat those of the first message), and whether it is a duplicate. Made anew each time it is
        asked for.
        """
        found = self._results
        return result_columns(self._batch) if found is None else columns_of_results(found)

    def results(self) -> list[PutResult]:
        """The places as `put_batch` gives them, for callers without an Arrow library."""
        found = self._results
        found = row_results(self._batch, self.status) if found is None else list(found)
        if self._topic is not None:
            for result in found:
                result.topic = self._topic
        return found

    def see_as(self, topic: str) -> None:
        """Gives the rows' topic another name: the one it has in a namespace."""
        self._topic = topic

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        where = f"from {self.first_position} to {self.last_position}"
        return f"<kvstore.ColumnsPut: {self.count} rows {where}, {self.status}>"


class Bounds(NamedTuple):
    """A queue's first held offset and its next offset; equal when it holds nothing."""

    min_offset: int
    next_offset: int
