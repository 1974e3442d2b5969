"""Messages to pop, and what of popped ones is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore import Message, Popped, PutResult, Store


def put(
    store: Store, count: int, queue: int = 0, topic: str = "t", **fields: Any
) -> list[PutResult]:
    """Messages with bodies b"0", b"1" ... in one batch and one queue."""
    return store.put_batch([Message(topic, b"%d" % n, queue, **fields) for n in range(count)])


def bodies(popped: Sequence[Popped]) -> list[bytes]:
    return [p.message.body for p in popped]


def offsets(popped: Sequence[Popped]) -> list[int]:
    return [p.message.offset for p in popped]
