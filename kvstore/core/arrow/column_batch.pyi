"""Columns for an Arrow library; see column_batch.pyx."""

from typing import final

@final
class OutColumn:
    """One column, which the core fills."""

    name: str

@final
class ColumnBatch:
    """Columns of messages, for any Arrow library: `pyarrow.record_batch(columns)`,
    `polars.from_arrow` and so on take it as it is, without a copy. `len` is the number of rows.
    """

    @property
    def names(self) -> list[str]:
        """The names of the columns."""

    def __len__(self) -> int:
        """The number of rows."""

    def __arrow_c_schema__(self) -> object:
        """The columns' types, as a capsule of Arrow's C data interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Types and values, as two capsules; other types than these are not made."""

def columns_to_put(
    bodies: list[bytes | str],
    queues: list[int | None],
    tags: list[str | None],
    keys: list[list[str]],
    properties: list[dict[str, str]],
    groups: list[str | None],
    due_times: list[int | None],
    expiries: list[int | None],
    dedup_ids: list[str | None],
) -> ColumnBatch:
    """Columns for `put_columns`, of values of Python, one of each list for a row. Raises ValueError
    for lists of different lengths, TypeError for a value of another type, and OverflowError for a
    queue or a time that 63 bits cannot hold.
    """
