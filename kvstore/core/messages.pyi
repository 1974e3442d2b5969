"""Messages as the log holds them; see messages.pyx."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.packed_runs import DecodedRuns
from kvstore.core.records import Buffer
from kvstore.core.tail import Tail

Unpack = Callable[[bytes, int], bytes]
"""Gives the body, of its compressed form and the system flags; raises RecordDamaged."""

class StoredMessage:
    """A message as the log holds it; `help(StoredMessage)` says what its fields are."""

    __match_args__: tuple[str, ...]
    topic: str
    queue: int
    offset: int
    position: int
    size: int
    body: bytes
    raw_properties: bytes
    flags: int
    system_flags: int
    born_at: int
    stored_at: int
    raw_born_host: bytes
    raw_store_host: bytes
    reconsume_times: int
    prepared_position: int
    body_crc: int
    version: int

    def __init__(
        self,
        topic: str,
        queue: int,
        offset: int,
        position: int,
        size: int,
        body: bytes,
        raw_properties: bytes,
        flags: int,
        system_flags: int,
        born_at: int,
        stored_at: int,
        raw_born_host: bytes,
        raw_store_host: bytes,
        reconsume_times: int,
        prepared_position: int,
        body_crc: int,
        version: int = 1,
    ) -> None:
        """Raises MessageIllegal for a number that does not fit its field of a record."""

    def __replace__(self, **changes: object) -> StoredMessage:
        """A copy of the message with some fields changed."""

    def see_as(self, topic: str, properties: dict[str, str] | None) -> None:
        """Shows the message under another topic, and with other properties if some are given."""

    @property
    def body_view(self) -> memoryview:
        """A read-only view of the body, which can be sliced without a copy. The view keeps the body
        in memory, also when the message is gone and its segment left the log.
        """

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the record, by name."""

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the caller set: all but those with a reserved name."""

    @property
    def tag(self) -> str | None:
        """The tag, or None."""

    @property
    def keys(self) -> list[str]:
        """The keys, in order."""

    @property
    def message_id(self) -> str:
        """The unique id given at the put; the position id if the record carries none."""

    @property
    def message_group(self) -> str | None:
        """The group whose messages are kept in order, or None."""

    @property
    def expires_at(self) -> int | None:
        """When the message expires, in milliseconds since the epoch; None if it never does."""

    @property
    def position_id(self) -> str:
        """RocketMQ's offset message id: store host and position in upper-case hex, 32 or 56
        characters.
        """

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer."""

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the store that wrote the record."""

def stored_of(row: Sequence[object]) -> StoredMessage:
    """The message of its fields, in the order of `StoredMessage.__match_args__`. Raises TypeError,
    ValueError and OverflowError for a row that is none.
    """

def any_expired(messages: list[StoredMessage], now: int) -> bool:
    """Whether one of the messages has expired at a time, in ms since the epoch."""

def record_bytes(messages: list[StoredMessage]) -> int:
    """The bytes that the messages' records take in the log, in all."""

@final
class ExpiryCheck:
    """Has a reader of a queue pass over the messages that have expired at `now`, in ms since the
    epoch, up to `most` in all, and end before the offset `end`. `offsets` are those of the messages
    that were passed over.
    """

    now: int
    offsets: list[int]

    def __init__(self, now: int, most: int, end: int) -> None: ...
    def ends_at(self, offset: int) -> bool:
        """Whether a reader goes on no more from an offset on."""

    def forget_from(self, offset: int) -> None:
        """Forgets the messages from an offset on: a reader comes to them again."""

    def keep(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Those of the messages that have not expired; the others are passed over, be they more
        than `most`.
        """

def unpack_host(raw: bytes) -> tuple[str, int]:
    """Address (dotted, or IPv6 in its short form) and port.

    The port is the 4 bytes as they are, so bytes written elsewhere can give more than 65535. Raises
    FormatError if `raw` is not 8 or 20 bytes long.
    """

def decode(
    buffer: Buffer,
    at: int,
    end: int,
    position: int,
    check_crc: bool = True,
    unpack: Unpack | None = None,
    property_crc: bool = False,
) -> StoredMessage:
    """The record that begins at index `at` of `buffer` and ends at or before `end`.

    `position` is the log position that the record must state. `check_crc` False leaves out the
    body's CRC, for bytes that were checked before; `property_crc` True checks the one over the
    whole record, too. A compressed body is given as it is stored, or as `unpack` returns it. Raises
    RecordDamaged, with the position and what was expected and found; a blank record and unwritten
    zeros are no records either.
    """

def decode_rows(
    buffer: Buffer,
    bounds: NDArray[np.int64],
    positions: NDArray[np.int64],
    start: int,
    stop: int,
    check_crc: bool = True,
    unpack: Unpack | None = None,
) -> list[StoredMessage]:
    """The results of `decode` for the records of rows `start` to `stop`: the record of row i begins
    at index `bounds[i] - bounds[0]`, and ends where the next begins, or before. Raises
    RecordDamaged, and ValueError for rows that are not there.
    """

class Collector:
    """Takes records that a `QueueReader` finds."""

    def __len__(self) -> int:
        """How many it has."""

class Mapped(Protocol):
    """A segment's map."""

    @property
    def buffer(self) -> Buffer: ...

@final
class QueueReader:
    """Reads messages of queues whose positions are in tails, or in `runs`. `maps` has maps of
    segments by number. For a position in another one `span` gives the buffer that has it, the index
    in it, and the index behind its last byte, or raises SegmentDamaged. The rest is as for
    `decode`.
    """

    def __init__(
        self,
        runs: DecodedRuns,
        maps: Mapping[int, Mapped],
        segment_size: int,
        span: Callable[[int], tuple[Buffer, int, int]],
        check_crc: bool = True,
        unpack: Unpack | None = None,
        property_crc: bool = False,
    ) -> None: ...
    def read(
        self,
        active: Tail,
        frozen: Tail | None,
        topic: str,
        key: int,
        offset: int,
        limit: int,
        end: int,
        max_bytes: int,
        out: list[StoredMessage] | Collector,
        check: ExpiryCheck | None = None,
    ) -> int:
        """Appends up to `limit` messages from `offset` on to `out`, of the queue `key` (topic id <<
        32 | queue id). It ends before the first one whose position is not known, or is not below
        `end`, and whose record can't be read, is damaged, or is not the expected one. Messages that
        `check` passes over are not among them; it also ends before the first that is too many.

        Their records have `max_bytes` together, but one message may be larger if `out` is empty.
        Returns the rest of `max_bytes`; less than 0 if there is no room for the next one.
        """

    def get(
        self,
        active: Tail,
        frozen: Tail | None,
        topic: str,
        base: int,
        queues: int,
        queue: object,
        offset: object,
        end: int,
    ) -> StoredMessage | None:
        """The message that `read` would append first, of one of the `queues` of a topic whose first
        one is `base`. None if `read` would append none, for a queue that there is not, and for what
        is no int.
        """
