"""Waits: which records of a scan are messages that wait, and which end the wait of one.

The idea: a message waits if its record stands in a topic of such messages and says until when. A
record ends a wait if its header names a position and its properties say when that message was due
(docs/timing.md). The two kinds, delayed and prepared messages, are told apart by a property.

Invariant: a pure function of the records' bytes; whether a topic is there is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.names import PENDING_TOPICS, TRANSACTION_CHECK_MS
from kvstore.core.pending.pending_records import read_end, read_pending
from kvstore.core.records import facts
from kvstore.core.scan import Scan

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_PENDING_TOPICS: Final = frozenset(topic.encode() for topic in PENDING_TOPICS)
_OF_TRANSACTION: Final = f"{TRANSACTION_CHECK_MS}\x01".encode()


class WaitEnd(NamedTuple):
    """The wait that a record ends: the position of its message, when that was due in ms, and the
    topic that it goes to.
    """

    position: int
    due: int
    topic: str


class WaitBegin(NamedTuple):
    """The wait that a record begins: until when, in ms, and the topic that its message goes to."""

    due: int
    topic: str


class Wait(NamedTuple):
    """A record that ends a wait, begins one, or both."""

    position: int
    size: int
    is_prepared: bool
    ended: WaitEnd | None
    begun: WaitBegin | None


def waits_in(
    buffer: Buffer, base: int, found: Scan, topics: list[bytes], wanted: NDArray[np.bool_] | None
) -> Iterator[Wait]:
    """The waits of a scan whose buffer begins at the position `base`; `topics` are those of its
    queues. Only of the rows that are `wanted`, if that is given.
    """
    waiting = [n for n, topic in enumerate(topics) if topic in _PENDING_TOPICS]
    ends = found.prepared_positions
    chosen = np.isin(found.owners, waiting) | (ends > 0)
    if wanted is not None:
        chosen &= wanted
    for row in np.flatnonzero(chosen).tolist():
        position, size = int(found.positions[row]), int(found.sizes[row])
        raw, *_, properties = facts(buffer, position - base, size)
        ended = begun = None
        end = read_end(properties) if ends[row] > 0 else None
        if end is not None:
            topic = raw.decode("utf-8", "replace") if end[1] is None else end[1]
            ended = WaitEnd(int(ends[row]) - 1, end[0], topic)
        pending = read_pending(properties) if raw in _PENDING_TOPICS else None
        if pending is not None:
            begun = WaitBegin(*pending[:2])
        if ended is not None or begun is not None:
            yield Wait(position, size, _OF_TRANSACTION in properties, ended, begun)
