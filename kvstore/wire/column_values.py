"""Values of the calls with columns: rows that are put, the places they went, and rows that were
pulled.

The idea: a client gives the columns of any Arrow library one layout before it sends them, and their
rows an id; what the server makes of their bytes are columns again, which the store puts and pulls
without an object for each message.

Invariant: the same columns, results and errors as those of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.packed_columns import columns_to_send, pack_columns, results_in
from kvstore.errors import MessageIllegal, StoreError
from kvstore.message import ColumnsPut, PulledBatch, PutResult, PutStatus


class SentColumns(msgspec.Struct, gc=False):
    """See `kvstore.ColumnsPut`. `topic` is the rows'."""

    topic: str
    count: int
    duplicates: int
    size: int
    status: PutStatus
    first_position: int | None
    last_position: int | None
    columns: ColumnBatch

    def results(self) -> list[PutResult]:
        """The places as `put_batch` gives them."""
        return results_in(self.columns, self.topic, self.status)

    def see_as(self, topic: str) -> None:
        """See `kvstore.ColumnsPut`."""
        self.topic = topic

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        where = f"from {self.first_position} to {self.last_position}"
        return f"<kvstore.ColumnsPut: {self.count} rows {where}, {self.status}>"


def sendable(columns: object, ids: Callable[[int], list[str]]) -> ColumnBatch:
    """The rows of an Arrow library's columns, each with an id, of which `ids` makes some;
    `MessageIllegal`.
    """
    try:
        given = GivenColumns(columns)
        return columns_to_send(given, ids(len(given)))
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        if isinstance(e, StoreError):
            raise
        raise MessageIllegal(f"the columns can't be read: {type(e).__name__}: {e}") from e


def sent_columns(topic: str, put: ColumnsPut) -> SentColumns:
    """A result of the store, to be sent: its columns are packed."""
    return SentColumns(
        topic, put.count, put.duplicates, put.size, put.status, put.first_position,
        put.last_position, _packed(put.columns),
    )  # fmt: skip


def columns_of(topic: str, results: list[PutResult], columns: ColumnBatch) -> SentColumns:
    """As `sent_columns`, of results of messages, whose places are in the columns."""
    new = [result for result in results if not result.duplicate]
    first, last = (new[0].position, new[-1].position) if new else (None, None)
    status = results[0].status if results else PutStatus.WRITTEN
    size = sum(result.size for result in new)
    repeats = len(results) - len(new)
    return SentColumns(topic, len(results), repeats, size, status, first, last, _packed(columns))


def pulled_columns(found: PulledBatch) -> PulledBatch:
    """A result of the store, to be sent: its columns are packed."""
    return msgspec.structs.replace(found, columns=_packed(found.columns))


def packed_bytes(packed: Any) -> int:
    """The bytes of the buffers of packed columns, or of a list of such."""
    if type(packed) is bytes:
        return len(packed)
    return sum(map(packed_bytes, packed)) if type(packed) is list else 0


def _packed(columns: ColumnBatch) -> Any:
    """Packed columns, in the place of columns: they are made in the thread that makes the call."""
    return pack_columns(columns)
