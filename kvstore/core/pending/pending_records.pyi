"""Records that end the wait of a pending message; see pending_records.pyx."""

from collections.abc import Sequence

from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.records import Buffer

Held = tuple[Buffer, int, int, int, int, str]
"""The record of a pending message: the buffer that has it, the indexes at which it begins and
before which it ends, its position, its due time in ms, and the name of its topic."""

def prepare_copies(
    encoder: Encoder, held: Sequence[Held], due: Sequence[int], *, check_crc: bool
) -> PreparedBatch:
    """Copies of pending messages, each of which ends the wait of its message: to its topic, where
    `due` is 0, else to wait until that time, in ms.

    Raises RecordDamaged, with the position, for a record that is not whole, not a pending message,
    or whose body's CRC is wrong if that is checked; and the errors of `Encoder.prepare`.
    """

def prepare_cancels(encoder: Encoder, held: Sequence[Held], topics: Sequence[int]) -> PreparedBatch:
    """Notes that pending messages are cancelled; `topics` are the ids of their topics. Raises
    RecordDamaged for a record that is no pending message.
    """

def read_pending(properties: bytes) -> tuple[int, str, int] | None:
    """Due time in ms, topic and queue of a pending message, given its properties; None if they are
    not those of one.
    """

def read_end(properties: bytes) -> tuple[int, str | None] | None:
    """The due time in ms of the message whose wait a record with these properties ends, and its
    topic, None if that is the record's own; None if they don't say so.
    """
