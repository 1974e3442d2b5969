"""Records that end the wait of a pending message; see pending_records.pyx."""

from collections.abc import Sequence

from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.records import Buffer

Held = tuple[Buffer, int, int, int, int, str, int]
"""The record of a pending message: the buffer that has it, the indexes at which it begins and
before which it ends, its position, its due time in ms, and the name and the id of its topic."""

def prepare_copies(
    encoder: Encoder,
    held: Sequence[Held],
    due: Sequence[int],
    *,
    check_crc: bool,
    is_prepared: bool = False,
    added: Sequence[bytes] | None = None,
    ends: bool = True,
) -> PreparedBatch:
    """Copies of pending messages, each of which ends the wait of its message: to its topic, where
    `due` is 0, else to wait until that time, in ms.

    The messages are delayed ones, or prepared ones if `is_prepared`. `added` has more properties
    for each copy, as they stand in a record, in the place of those that say how a prepared message
    was asked about. With `ends` False the copies end no wait: their messages are not
    counted among those that wait. Raises RecordDamaged, with the position, for a record
    that is not whole, not a pending message, or whose body's CRC is wrong if that is checked; and
    the errors of `Encoder.prepare`.
    """

def prepare_notes(
    encoder: Encoder,
    held: Sequence[Held],
    *,
    is_prepared: bool = False,
    added: Sequence[bytes] | None = None,
    ids: Sequence[str | None] | None = None,
) -> PreparedBatch:
    """Notes that pending messages wait no more and go to no topic; the arguments are those of
    `prepare_copies`. `ids` has the id for the note of a message whose record can't be read, and
    is not looked at; None for the others. Raises RecordDamaged for another record that is no
    pending message.
    """

def read_pending(properties: bytes) -> tuple[int, str, int] | None:
    """Due time in ms, topic and queue of a pending message, given its properties; None if they are
    not those of one.
    """

def read_end(properties: bytes) -> tuple[int, str | None] | None:
    """The due time in ms of the message whose wait a record with these properties ends, and its
    topic, None if that is the record's own; None if they don't say so.
    """
