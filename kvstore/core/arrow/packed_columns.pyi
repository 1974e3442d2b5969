"""Column batches as plain values, to be sent; see packed_columns.pyx."""

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.put_values import PutResult, PutStatus

def pack_columns(batch: ColumnBatch) -> list[object]:
    """The number of rows, and for each column its name, Arrow's format, whether it may have nulls,
    its number of rows, its buffers (validity, empty if there is no null; numbers or bounds; bytes
    of texts), and the columns within it.
    """

def unpack_columns(given: object) -> ColumnBatch:
    """The columns that were packed. Raises FormatError for any other value."""

def columns_to_send(given: GivenColumns, ids: list[str]) -> ColumnBatch:
    """The rows of given columns in one layout, with an id of the same place for each that has none.
    Other threads run meanwhile. Raises ValueError for another number of ids, and MessageIllegal for
    a row that its columns do not have.
    """

def results_in(batch: ColumnBatch, topic: str, status: PutStatus) -> list[PutResult]:
    """The results of a put to a topic, of their columns (`put_rows.result_columns`). Raises
    FormatError for other columns.
    """
