"""Receipts, and the messages that are handed out with them; see receipts.pyx."""

from typing import final

from kvstore.core.messages import StoredMessage
from kvstore.errors import ReceiptIllegal

Key = tuple[int, int, int, int, int]
"""Group, topic, due time, queue and first offset of a row."""
RECEIPT_CHARS: int
"""Of a receipt."""

@final
class Receipts:
    """Makes and reads a store's receipts."""

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError for a secret that is empty, or longer than 128 bytes."""

    def read(self, text: object) -> tuple[Key, int, int]:
        """The key of a receipt's row, the nonce, and the bit in the row. Raises
        ReceiptIllegal.
        """

    def sort(self, receipts: list[str]) -> Asked:
        """The rows that receipts name."""

@final
class Asked:
    """Receipts by their rows."""

    rows: list[tuple[Key, int]]
    """Key and nonce of each row."""
    bits: list[int]
    """For each row the bits that its receipts name, as a bitmap."""
    tables: dict[tuple[int, int], list[int]]
    """Group and topic -> the numbers of its rows."""
    count: int
    """How many receipts there are."""
    errors: list[tuple[int, ReceiptIllegal]]
    """Indices of texts that are no receipts, and why."""

    def indices(self, refused: dict[int, int]) -> list[int]:
        """The indices of the receipts that name certain bits, given as bitmaps by the number of
        their row.
        """

@final
class Delivery:
    """A row that is handed out: its key, and the nonce of this delivery."""

    def __init__(
        self, by: Receipts, group: int, topic: int, due: int, queue: int, first: int, nonce: int
    ) -> None: ...
    def receipts(self, locked: int) -> list[str]:
        """The receipts of a row's messages, whose bits are given as a bitmap, in order. Raises
        ValueError for more than 256 bits.
        """

    def popped(
        self, messages: list[StoredMessage], locked: int, attempt: int, due_at: int
    ) -> list[Popped]:
        """The messages of a row, in order, whose bits are given as a bitmap. Raises ValueError
        for more than 256 bits, or another number of messages.
        """

class Popped:
    """A message under lock; `help(Popped)` says what its fields are."""

    __match_args__: tuple[str, ...]

    def __init__(self, message: StoredMessage, receipt: str, attempt: int, due_at: int) -> None: ...
    @property
    def message(self) -> StoredMessage: ...
    @property
    def receipt(self) -> str:
        """The text that proves the delivery; it is made when it is first asked for."""

    @property
    def attempt(self) -> int: ...
    @property
    def due_at(self) -> int: ...
    def __replace__(self, **changes: object) -> Popped:
        """A copy with some fields changed."""

def body_bytes(found: list[StoredMessage] | list[Popped]) -> int:
    """The bytes that the messages' bodies take in memory, in all."""
