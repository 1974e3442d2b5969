"""Popped messages; see pop_values.pyx."""

from kvstore.core.messages import StoredMessage

class Popped:
    """A message under lock; `help(Popped)` says what its fields are."""

    __match_args__: tuple[str, ...]

    def __init__(self, message: StoredMessage, receipt: str, attempt: int, due_at: int) -> None: ...
    @property
    def message(self) -> StoredMessage: ...
    @property
    def receipt(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def due_at(self) -> int: ...
    def __replace__(self, **changes: object) -> Popped:
        """A copy of the message with some fields changed."""

def popped_row(
    messages: list[StoredMessage], receipts: list[str], attempt: int, due_at: int
) -> list[Popped]:
    """The messages of a lock row, in order, each with its receipt. Raises ValueError if there are
    not as many receipts.
    """
