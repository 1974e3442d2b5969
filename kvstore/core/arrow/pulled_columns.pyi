"""Messages become columns; see pulled_columns.pyx."""

from collections.abc import Iterable, Sequence
from typing import Final, final

from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.messages import Collector, StoredMessage

COLUMN_NAMES: Final[tuple[str, ...]]
"""All columns that there are."""

@final
class PulledColumns(Collector):
    """Columns of messages of one queue, which grow; `len` is the number of messages."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """With these columns, in this order; None: all. Raises CallerError for an unknown name, or
        one that comes twice.
        """

    def __len__(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset behind the last message. Raises IndexError if there is none."""

    def append(self, message: StoredMessage) -> None:
        """Adds a message."""

    def extend(self, messages: Iterable[StoredMessage]) -> None:
        """Adds messages."""

    def batch(self) -> ColumnBatch:
        """The columns, to be handed over. No message is added after that."""
