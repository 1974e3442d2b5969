"""Delayed messages as values: one that waits, and a page of a list of them.

Invariant: a value says how a message waited when it was asked for; it may be delivered since.
"""

from __future__ import annotations

import msgspec

from kvstore.core.pending.pending_records import read_pending
from kvstore.message import StoredMessage
from kvstore.process.durations import DurationStats


class DelayedMessage(msgspec.Struct, frozen=True):
    """A message that waits: the queue of the topic it goes to, and when, in ms since the epoch.
    `message` is its record in the log, in the topic in which delayed messages wait; the fields
    `body`, `keys`, `tag` and `properties` are the message's own.
    """

    topic: str
    queue: int
    message_id: str
    deliver_at: int
    message: StoredMessage


class DelayedPage(msgspec.Struct, frozen=True):
    """Messages that wait, the next due first. `count` is how many wait in all, in the topic that
    was asked for; `next` is what the next page is asked for with, None if this is the last.
    A page that is not the last may have fewer messages than were asked for, or none: a call looks
    at 10,000 messages, of whatever topics, and returns up to 64 MiB of them, or one. `damaged` are
    not in `count`, see `DelayStats`.
    """

    messages: list[DelayedMessage]
    count: int
    next: tuple[int, int] | None
    damaged: int = 0


class DelayStats(msgspec.Struct, frozen=True):
    """Figures about delayed messages: how many wait, and when the next is due (ms since the epoch;
    None if none waits). `damaged` more are due, and can't be delivered, since their records can't
    be read; they come if the records can be read at a later opening. Since the store was opened:
    how many were delivered, also by a change to now; how many were cancelled, also with their topic
    or as a schedule's missed times; and by how many ms the last delivery was late. `lateness` is of
    all deliveries, each as late as the first of the messages that were put together. A store that
    is open read-only delivers nothing.
    """

    waiting: int = 0
    next_due: int | None = None
    delivered: int = 0
    cancelled: int = 0
    late_ms: int = 0
    lateness: DurationStats = DurationStats()
    damaged: int = 0


def delayed_of(message: StoredMessage) -> DelayedMessage | None:
    """The delayed message that a record is; None if it is none."""
    found = read_pending(message.raw_properties)
    if found is None:
        return None
    due, topic, queue = found
    return DelayedMessage(topic, queue, message.message_id, due, message)
