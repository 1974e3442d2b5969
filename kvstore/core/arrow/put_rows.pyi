"""Rows become records; see put_rows.pyx."""

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.put_values import PutResult, PutStatus

def prepare_columns(
    encoder: Encoder, topic: str, given: GivenColumns, now_ms: int
) -> PreparedBatch:
    """The records of some rows, put to one topic; the same as `Encoder.prepare` makes of their
    messages. Other threads run meanwhile. Raises as that does.
    """

def result_columns(batch: PreparedBatch) -> ColumnBatch:
    """Places as columns: queue, offset, position, size, message_id, duplicate; after `Tail.add`."""

def columns_of_results(results: list[PutResult]) -> ColumnBatch:
    """The same columns, of results. Raises AttributeError, TypeError and OverflowError for what is
    none.
    """

def row_results(batch: PreparedBatch, status: PutStatus) -> list[PutResult]:
    """Places as objects, as `PreparedBatch.results` has them of messages; after `Tail.add`."""
