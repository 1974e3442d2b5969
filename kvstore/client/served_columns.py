"""Columns of a served store: they become messages before they are sent, and columns of messages
that came.

Invariant: the same columns as those of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.pulled_columns import PulledColumns
from kvstore.errors import CallerError, MessageIllegal
from kvstore.message import Message, PulledBatch, PullResult, PutResult, PutStatus, StoredMessage

_RESULT_COLUMNS = ("queue", "offset", "position", "size", "message_id")


class SentColumns:
    """See `kvstore.ColumnsPut`."""

    def __init__(self, results: list[PutResult]) -> None:
        self._results = results
        self.count = len(results)
        self.size = sum(result.size for result in results)
        self.status = results[0].status if results else PutStatus.WRITTEN

    @property
    def first_position(self) -> int | None:
        """Where the first message stands in the log; None if there were no rows."""
        return self._results[0].position if self._results else None

    @property
    def last_position(self) -> int | None:
        """Where the last one stands."""
        return self._results[-1].position if self._results else None

    @property
    def columns(self) -> ColumnBatch:
        """A row for each message, in order: queue, offset, position, size, message_id."""
        found = PulledColumns(_RESULT_COLUMNS)
        found.extend(_placed(result) for result in self._results)
        return found.batch()

    def results(self) -> list[PutResult]:
        """The places as `put_batch` gives them."""
        return self._results

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        where = f"from {self.first_position} to {self.last_position}"
        return f"<kvstore.ColumnsPut: {self.count} rows {where}, {self.status}>"


def rows_to_put(topic: str, columns: object) -> list[Message]:
    """The rows of columns as messages; `MessageIllegal` for columns that are none."""
    given = GivenColumns(columns)
    found: list[Message] = []
    for row in range(len(given)):
        try:
            message = given.message("", row)
            message.topic = topic
            found.append(message)
        except MessageIllegal as e:
            e.args = (f"row {row} of {len(given)}: {e}",)
            raise
    return found


@contextmanager
def naming_rows(count: int) -> Iterator[None]:
    """Makes an error that names a message of a batch name a row."""
    try:
        yield
    except CallerError as e:
        text = str(e)
        e.args = (f"row 0 of 1: {text}" if count == 1 else text.replace("message", "row", 1),)
        raise


def pulled_columns(found: PullResult, names: Sequence[str] | None) -> PulledBatch:
    """The messages of a pull as columns; `CallerError` for an unknown name."""
    columns = PulledColumns(names)
    columns.extend(found.messages)
    return PulledBatch(
        columns.batch(),
        found.next_offset,
        found.min_offset,
        found.max_offset,
        found.status,
        found.expired,
    )


def _placed(result: PutResult) -> StoredMessage:
    """A message that has the place and the id of a result."""
    properties = f"UNIQ_KEY\x01{result.message_id}\x02".encode()
    place = (result.topic, result.queue, result.offset, result.position, result.size)
    return StoredMessage(*place, b"", properties, 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0)
