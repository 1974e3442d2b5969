"""Values: a message as it is put. (The log's are `kvstore.core.messages.StoredMessage`.)

The idea: a plain typed value, a msgspec Struct with `gc=False` (it can't be part of a cycle), which
makes it cheap to create by the hundred thousand.

Invariant: nothing is checked here; a put does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message(msgspec.Struct, gc=False):
    """One message to put.

    `topic` and `body` (any bytes-like object, 0 bytes to the store's limit) are required. `queue`
    None lets the store spread messages over the topic's write queues, or keep one `message_group`
    together. `tag` is one word for filters, `keys` are what `query` finds, `properties` are text
    pairs. `flags` is a 32-bit number of the caller's own. `message_id` None makes a unique one.
    `born_at` is in milliseconds since the epoch; None means now."""

    topic: str
    body: bytes | bytearray | memoryview
    queue: int | None = None
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = _NO_PROPERTIES
    message_group: str | None = None
    flags: int = 0
    message_id: str | None = None
    born_at: int | None = None
