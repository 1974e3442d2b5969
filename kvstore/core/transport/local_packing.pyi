"""Values -> MessagePack of the local protocol; see local_packing.pyx."""

from collections.abc import Callable, Sequence

from kvstore.core.messages import StoredMessage
from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import PutResult
from kvstore.core.unique_ids import UniqueIds

def pack_messages(
    messages: Sequence[object], ids: UniqueIds, now_ms: int, other: Callable[[object, str], bytes]
) -> bytes:
    """An array with the fields of each message, in the order of `Message.__match_args__`; a message
    without an id gets one of `ids`. `other` is asked for the bytes of each that is no message, or
    has a field that is no plain value (text, number, bytes, a list of texts, a dict of texts); it
    is told the id that the message would get. Raises every error of `other`.
    """

def frame_of_results(kind: int, number: int, results: list[PutResult]) -> bytes:
    """A frame with its length: its kind, its number, and the fields of each result. Raises
    TypeError for what is none, OverflowError for a frame that is too long.
    """

def frame_of_stored(
    kind: int, number: int, messages: list[StoredMessage], before: bytes = b"", after: bytes = b""
) -> bytes:
    """A frame, likewise, of messages: the fields of each, in the order of
    `StoredMessage.__match_args__`. Its third element has the array of messages between the bytes
    before and after it.
    """

def frame_of_columns(
    kind: int, number: int, packed: list[object], before: bytes = b"", after: bytes = b""
) -> bytes:
    """A frame, likewise, of packed columns (`arrow.packed_columns`). Raises TypeError for a value
    that these do not have.
    """

def frame_of_popped(kind: int, number: int, popped: list[Popped]) -> bytes:
    """A frame, likewise, of popped messages: the fields of the message, the receipt, the attempt,
    and when the lock ends.
    """
