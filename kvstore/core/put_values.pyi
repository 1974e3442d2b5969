"""A message to put, and the result of its put; see put_values.pyx."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final, Self

NO_PROPERTIES: Final[Mapping[str, str]]

class PutStatus(StrEnum):
    """How safe a message was when the put returned."""

    STAGED = "staged"
    """In this process's memory (staged mode): its end loses it until the buffer is written."""
    WRITTEN = "written"
    """In the log's mapped pages: survives the end of this process (kill -9), not a power cut."""
    FLUSHED = "flushed"
    """On the disk: survives a power cut."""

class Message:
    """One message to put.

    `topic` and `body` (any bytes-like object, 0 bytes to the store's limit) are required. `queue`
    None lets the store spread messages over the topic's write queues, or keep one `message_group`
    together. `tag` is one word for filters, `keys` are what `query` finds, `properties` are text
    pairs. `flags` is a 32-bit number of the caller's own. `message_id` None makes a unique one.
    `born_at` is in milliseconds since the epoch; None means now. From `expires_at` on, in
    milliseconds since the epoch, pulls and pops pass the message over; None means never. A time
    that is past is allowed: the message is stored, and has expired already.

    One of `deliver_at`, `delay` and `delay_level` delays the message: until a time (ms since the
    epoch), by so many seconds, or by a level of RocketMQ (1 to 18: 1 s to 2 h). It is not in its
    queue before that. A time that has passed is now; 40 years are the longest delay.

    A repeat of a `dedup_id` within the topic's `dedup_window` is not put again (see `PutResult`); a
    delayed message has none.
    """

    __match_args__: ClassVar[tuple[str, ...]]
    topic: str
    body: bytes | bytearray | memoryview
    queue: int | None
    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    message_group: str | None
    flags: int
    message_id: str | None
    born_at: int | None
    deliver_at: int | None
    delay: float | None
    delay_level: int | None
    expires_at: int | None
    dedup_id: str | None

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = ...,
        message_group: str | None = None,
        flags: int = 0,
        message_id: str | None = None,
        born_at: int | None = None,
        deliver_at: int | None = None,
        delay: float | None = None,
        delay_level: int | None = None,
        expires_at: int | None = None,
        dedup_id: str | None = None,
    ) -> None: ...
    def __replace__(self, **changes: object) -> Self:
        """The message with other values in some of its fields."""

class PutResult:
    """Where a message went: `position` and `size` are bytes in the log, `offset` its place in its
    queue; -1 for a delayed message, which gets its place there when it is delivered. With
    `duplicate` it was not put: all this is of the message with its dedup id.
    """

    __match_args__: ClassVar[tuple[str, ...]]
    message_id: str
    topic: str
    queue: int
    offset: int
    position: int
    size: int
    status: PutStatus
    duplicate: bool

    def __init__(
        self,
        message_id: str,
        topic: str,
        queue: int,
        offset: int,
        position: int,
        size: int,
        status: PutStatus,
        duplicate: bool = False,
    ) -> None: ...
