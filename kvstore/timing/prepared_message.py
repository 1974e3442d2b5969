"""Prepared messages as values: one that waits for its transaction to end, and a page of a list.

The idea: all that a transaction needs later stands in the record: its group, how often it was asked
about, and which of a set of messages it is (docs/transactions.md).

Invariant: a value says how a message waited when it was asked for; its transaction may have ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from kvstore.core.names import (
    PRODUCER_GROUP,
    TRANSACTION_CHECKS,
    TRANSACTION_FIRST_POSITION,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    TRANSACTION_SET,
    TRANSACTION_SINCE_MS,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.core.records import find_property
from kvstore.message import PutResult, PutStatus, StoredMessage

WITH_THE_FIRST: Final = 9_999_999_999_999
"""The check time of the messages of a set behind the first: they are not asked about."""


SET_MAX: Final = 4096
"""Messages of one set."""
_DIGITS_MAX: Final = 18


class Member(NamedTuple):
    """Which message of a set one is: the set's id, its number from 0, and how many there are."""

    set_id: str
    number: int
    total: int


class PreparedMessage(msgspec.Struct, frozen=True):
    """A message that waits for its transaction to end: the queue of the topic it would go to, its
    producer group, when it is asked about next (ms since the epoch; None: with the first of its
    set), how often it was asked about, and since when it waits. `set_id` is the id of the first
    message of several that end together, None for a message by itself. `message` is its record, in
    the topic in which such messages wait.
    """

    topic: str
    queue: int
    message_id: str
    group: str
    check_at: int | None
    checks: int
    since: int
    set_id: str | None
    message: StoredMessage


class PreparedPage(msgspec.Struct, frozen=True):
    """Prepared messages, the next to be asked about first. `count` is how many wait in all, of all
    groups; `next` is what the next page is asked for with, None if this is the last. A page that is
    not the last may have fewer messages than were asked for, or none: a call looks at 10,000
    messages, of whatever groups, and returns up to 64 MiB of them, or one.
    """

    messages: list[PreparedMessage]
    count: int
    next: tuple[int, int] | None


def prepared_of(message: StoredMessage) -> PreparedMessage | None:
    """The prepared message that a record is; None if it is none."""
    found = read_pending(message.raw_properties)
    if found is None:
        return None
    due, topic, queue = found
    properties = message.properties
    member = member_of(message)
    return PreparedMessage(
        topic,
        queue,
        message.message_id,
        properties.get(PRODUCER_GROUP, ""),
        None if due == WITH_THE_FIRST else due,
        _number(properties.get(TRANSACTION_CHECKS), 0),
        _number(properties.get(TRANSACTION_SINCE_MS), message.stored_at),
        None if member is None else member.set_id,
        message,
    )


def group_in(properties: bytes) -> str:
    """The producer group that the properties of a record have, "" without one."""
    found = find_property(properties, PRODUCER_GROUP.encode())
    return "" if found is None else found.decode("utf-8", "replace")


def due_of(found: PreparedMessage) -> int:
    """The due time, in ms, under which a prepared message waits."""
    return WITH_THE_FIRST if found.check_at is None else found.check_at


def _number(text: str | None, otherwise: int) -> int:
    """The number that a text of at most 18 digits is; the other one for any other text."""
    is_number = text is not None and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if text is not None and is_number else otherwise


def member_of(message: StoredMessage) -> Member | None:
    """Which message of a set a record is, or was; None if it is of none."""
    parts = message.properties.get(TRANSACTION_SET, "").split(" ")
    numbers = [_number(part, -1) for part in parts[1:]]
    if len(numbers) != 2 or not parts[0] or not 0 <= numbers[0] < numbers[1] <= SET_MAX:
        return None
    return Member(parts[0], *numbers)


def first_position(message: StoredMessage) -> int:
    """The position at which a message was prepared, given any record of the message. It names the
    transaction, where several have messages with one id.
    """
    before = message.prepared_position
    known = before - 1 if before else message.position
    return _number(message.properties.get(TRANSACTION_FIRST_POSITION), known)


def committed_result(message: StoredMessage) -> PutResult:
    """Where a committed message went, given its last record that can be found: its copy, or the
    prepared one. The copy may have gone with its topic, or has no key.
    """
    found = prepared_of(message) if message.topic == TRANSACTION_HALF_TOPIC else None
    if found is not None:
        place = found.topic, found.queue, -1, message.position, message.size
        return PutResult(found.message_id, *place, PutStatus.WRITTEN)
    return PutResult(
        message.message_id,
        message.topic,
        message.queue,
        message.offset,
        message.position,
        message.size,
        PutStatus.WRITTEN,
    )


# --- properties, as they stand in a record ---


def _pairs(**values: object) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()


def prepared_properties(group: str, member: Member | None) -> bytes:
    """The properties of a prepared message, without its check time and topic."""
    of_set = {} if member is None else {TRANSACTION_SET: " ".join(map(str, member))}
    return _pairs(**{TRANSACTION_PREPARED: "true", PRODUCER_GROUP: group}, **of_set)


def waiting_properties(found: PreparedMessage, checks: int) -> bytes:
    """The properties of a copy that waits on, after so many checks."""
    asked = {TRANSACTION_CHECKS: checks} if checks else {}
    since = {TRANSACTION_SINCE_MS: found.since}
    first = {}
    if TRANSACTION_FIRST_POSITION not in found.message.properties:  # else the copy keeps it
        first[TRANSACTION_FIRST_POSITION] = first_position(found.message)
    return _pairs(**{TRANSACTION_PREPARED: "true"}, **asked, **since, **first)


def rollback_properties(message: StoredMessage, why: str) -> bytes:
    """The properties of the note that a message was rolled back."""
    kept = (TRANSACTION_SET, TRANSACTION_FIRST_POSITION)
    own = {name: message.properties[name] for name in kept if name in message.properties}
    return _pairs(**{TRANSACTION_ROLLBACK: why}, **own)


def lost_properties(why: str) -> bytes:
    """The properties of the note that a message was rolled back whose record can't be read."""
    return _pairs(**{TRANSACTION_ROLLBACK: why})


def topic_property(topic: str) -> bytes:
    """The property of a message that was given up: the topic it would have gone to."""
    return _pairs(REAL_TOPIC=topic)
