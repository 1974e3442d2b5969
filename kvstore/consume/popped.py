"""What a pop asks for, and what it gives."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvstore.consume.filters import Filter
from kvstore.message import StoredMessage


class Popped(msgspec.Struct, gc=False, frozen=True):
    """A message under lock. `receipt` is what acks it or changes its lock; `attempt` says how often
    the group got it, this time included; `due_at` is when the lock ends, ms since the epoch.
    """

    message: StoredMessage
    receipt: str
    attempt: int
    due_at: int


class Wanted(NamedTuple):
    """What one pop asks for, checked. `queue` None is all; `attempt_id` is hashed, or empty."""

    limit: int
    max_bytes: int
    invisible_ms: int
    queue: int | None
    matches: Filter | None
    attempt_id: bytes
    plain: bool
    """Neither bytes nor filter nor attempt id matter, and one row is enough."""
