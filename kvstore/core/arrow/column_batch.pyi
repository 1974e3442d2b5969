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
