"""Messages: the values of the public API, both arguments and results.

The idea: plain values without behaviour. `Message` and `StoredMessage` live with the codec that
turns them into bytes (`kvstore.record.values`); the results of calls are here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from kvstore.core.messages import StoredMessage
from kvstore.record.values import Message

__all__ = [
    "Bounds",
    "Message",
    "PullResult",
    "PullStatus",
    "PutResult",
    "PutStatus",
    "StoredMessage",
]


class PutStatus(StrEnum):
    """How safe a message was when the put returned."""

    STAGED = "staged"
    """In this process's memory (staged mode): its end loses it until the buffer is written."""
    WRITTEN = "written"
    """In the log's mapped pages: survives the end of this process (kill -9), not a power cut."""
    FLUSHED = "flushed"
    """On the disk: survives a power cut."""


class PutResult(msgspec.Struct, gc=False):
    """Where a message went: `position` and `size` are bytes in the log, `offset` its place in its
    queue.
    """

    message_id: str
    topic: str
    queue: int
    offset: int
    position: int
    size: int
    status: PutStatus


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
