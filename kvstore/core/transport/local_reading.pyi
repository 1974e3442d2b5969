"""MessagePack of the local protocol -> values; see local_reading.pyx."""

from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import Message, PutResult

Buffer = bytes | bytearray | memoryview

def read_messages(data: Buffer) -> list[Message]:
    """The messages of an array of one array of their fields. Raises ValueError, TypeError and
    OverflowError for bytes that are none, or have extensions.
    """

def read_results(data: Buffer) -> list[PutResult]:
    """The results of an array of their fields; raises likewise."""

def read_popped(data: Buffer) -> list[Popped]:
    """The popped messages of an array of their fields; raises likewise."""
