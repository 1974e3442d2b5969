"""Records: the bytes of many records -> columns, with numpy.

The idea: where a record's fields are depends on few of its bytes, so all records of a batch are
taken apart at once, column by column, whatever queues they belong to.

Invariant: nothing outside a record's own bytes is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvstore.record.check import Buffer


class RecordBatch(NamedTuple):
    """Records in a buffer, in any order: each takes `sizes[i]` bytes from index `starts[i]`.

    They were checked before (`kvstore.record.check`).
    """

    buffer: Buffer
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of_records(cls, records: Sequence[bytes]) -> RecordBatch:
        """A batch of records that each are `bytes`."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(b"".join(records), np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def join(cls, batches: Sequence[RecordBatch]) -> RecordBatch:
        """The records of all batches, in that order; copied only where buffers differ."""
        raise NotImplementedError


class Fields:
    """The fields of a batch's records, in columns; one row a record, in the batch's order."""

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        self.count = len(batch.starts)
        self.sizes = batch.sizes
        self.offsets: NDArray[np.int64]
        self.positions: NDArray[np.int64]
        self.stored_at: NDArray[np.int64]

    def properties(self, row: int) -> bytes:
        """The bytes of the properties field of one record (for the key index)."""
        raise NotImplementedError
