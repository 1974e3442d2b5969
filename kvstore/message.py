"""Messages: the values of the public API, both arguments and results.

The idea: plain values without behaviour. `Message`, `PutResult` and `StoredMessage` live with the
code that turns them into bytes or makes them of bytes (`kvstore.core.put_values`,
`kvstore.core.messages`); the other results of calls are here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from kvstore.core.messages import StoredMessage
from kvstore.core.put_values import Message, PutResult, PutStatus

__all__ = [
    "Bounds",
    "Message",
    "PullResult",
    "PullStatus",
    "PutResult",
    "PutStatus",
    "StoredMessage",
]


class PullStatus(StrEnum):
    """The outcome of a pull, in the words of the field (RocketMQ's GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"


class PullResult(msgspec.Struct, gc=False):
    """The messages of a pull, and the offset to pull next; the other offsets are the queue's bounds
    at that moment.
    """

    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    status: PullStatus


class Bounds(NamedTuple):
    """A queue's first held offset and its next offset; equal when it holds nothing."""

    min_offset: int
    next_offset: int
