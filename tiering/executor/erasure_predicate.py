"""Erasure predicate: the messages that an erasure is about, and the search for them in records.

The idea: a topic, a key, a time, or several of these, which must all be true. Messages live on as
copies in other topics: messages to be retried, dead letters, delayed ones. Their properties say
where they come from. The copies are meant too: an erasure of a topic's data is of that data
wherever it lies.

Invariants: a record in a segment and one in an archive are judged alike; a message at or behind
position `below`, the log's end when an erasure began, is never meant. Nor is a note that a message
which waited was erased, unless it has the key, as its unique id: that message's end is known by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.core.names import (
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    PENDING_TOPICS,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SYSTEM_TOPICS,
    TIMER_BEFORE_MS,
    TIMER_DELETE_REASON,
    TRANSACTION_ROLLBACK,
    TRANSACTION_SINCE_MS,
    UNIQUE_ID,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.core.records import facts, find_property, keys_of
from kvstore.errors import CallerError
from tiering.archive.columns.records import Fields, RecordBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

Mask = NDArray[np.bool_]
_FROM: Final = tuple(name.encode() for name in (REAL_TOPIC, RETRY_TOPIC, DLQ_ORIGIN_TOPIC))
_UNIQUE: Final = UNIQUE_ID.encode()
_PENDING: Final = frozenset(name.encode() for name in PENDING_TOPICS)
_REASONS: Final = (TIMER_DELETE_REASON.encode(), TRANSACTION_ROLLBACK.encode())
_SINCE: Final = TRANSACTION_SINCE_MS.encode()
_REPLACES: Final = TIMER_BEFORE_MS.encode()
_DIGITS: Final = 18
_EVER: Final = 1 << 62


class ErasurePredicate(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of `topic` (and copies of them elsewhere), that have `key` among their keys or as
    their unique id, stored before `before` (ms), at a position of the log below `below`. A field
    that is None does not matter; one of the first three must be given.

    `copies_in` are the names of topics where copies may lie, besides system topics and those whose
    names say so (`%RETRY%…`, `%DLQ%…`): the dead-letter topics of groups. None: in any topic.
    """

    topic: str | None = None
    key: str | None = None
    before: int | None = None
    below: int | None = None
    copies_in: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.topic is None and self.key is None and self.before is None:
            raise CallerError("nothing says what is to be erased: give a topic, a key or a time")
        if self.topic == "" or self.key == "":
            raise CallerError("the topic, or the key, that is to be erased is empty")
        if self.key is not None and " " in self.key:
            raise CallerError(f"{self.key!r} is several keys, which a space separates; erase each")

    def __str__(self) -> str:
        parts = []
        if self.topic is not None:
            parts.append(f"topic {self.topic}")
        if self.key is not None:
            parts.append(f"key {self.key}")
        if self.before is not None:
            parts.append(f"stored before {self.before}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        # The key is in jobs, which logs may print.
        return f"ErasurePredicate({self.for_notes})"

    @property
    def for_notes(self) -> str:
        """The predicate's text without the key, which is to be erased: for notes in the store's
        folder.
        """
        return str(self if self.key is None else msgspec.structs.replace(self, key="..."))

    def may_be_in(self, topic: str) -> bool:
        """Whether messages of a topic of that name may be meant."""
        if self.topic is None or topic == self.topic or self.copies_in is None:
            return True
        is_copying = topic in SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return is_copying or topic in self.copies_in

    def is_all_of(self, topic: str, last_stored_at: int, last_position: int) -> bool:
        """Whether every message of a topic is meant, of which none is later than that."""
        return (
            self.key is None
            and self.topic in (None, topic)
            and last_stored_at < (self.before if self.before is not None else _EVER)
            and last_position < (self.below if self.below is not None else _EVER)
        )

    def rows(self, records: Sequence[bytes]) -> Mask:
        """Which of some records are meant."""
        return self.rows_of(RecordBatch.of_records(records))

    def rows_of(self, batch: RecordBatch) -> Mask:
        """Which records of a batch are meant."""
        fields = Fields(batch)
        meant = np.ones(fields.count, np.bool_)
        if self.before is not None:
            meant &= _is_before(fields, self.before)
        if self.below is not None:
            meant &= fields.position < self.below
        if self.key is None:
            for row in np.flatnonzero(meant & _are_pending(fields)).tolist():
                meant[row] = not _is_note(fields.property_field(row))
        if self.topic is None and self.key is None:
            return meant
        meant &= self._may_be(fields)
        for row in np.flatnonzero(meant).tolist():
            raw = fields.records(row, row + 1)
            topic, *_, properties = facts(raw, 0, len(raw))
            meant[row] = self._is_of(topic, properties) and self._has_key(properties)
        return meant

    def _may_be(self, fields: Fields) -> Mask:
        """Which records may be meant: by their topics, and by whether their bytes hold the texts
        that are searched for at all. Few are left to be decoded one by one.
        """
        may = np.ones(fields.count, np.bool_)
        if self.topic is not None:
            wanted = _bytes_of(self.topic)
            names, topic_of = fields.topics()
            texts = [name.decode("utf-8", "surrogateescape") for name in names]
            is_it = np.array([name == wanted for name in names], np.bool_)[topic_of]
            may &= is_it | np.array(list(map(self.may_be_in, texts)), np.bool_)[topic_of]
            for row in np.flatnonzero(may & ~is_it).tolist():
                may[row] = wanted in fields.property_field(row)
        if self.key is not None:
            wanted = _bytes_of(self.key)
            for row in np.flatnonzero(may).tolist():
                may[row] = wanted in fields.property_field(row)
        # A record whose lengths contradict each other is looked at whole.
        return may | ~fields.regular

    def _is_of(self, topic: bytes, properties: bytes) -> bool:
        if self.topic is None:
            return True
        wanted = _bytes_of(self.topic)
        if topic == wanted:
            return True
        is_copy = any(find_property(properties, name) == wanted for name in _FROM)
        return is_copy and self.may_be_in(topic.decode("utf-8", "surrogateescape"))

    def _has_key(self, properties: bytes) -> bool:
        if self.key is None:
            return True
        wanted = _bytes_of(self.key)
        return wanted in keys_of(properties) or wanted == find_property(properties, _UNIQUE)


def _is_before(fields: Fields, time: int) -> Mask:
    """Which records are of messages that were stored before a time. A message that waits may have
    been put to the log's end since: a prepared one says since when it waits, a delayed one when it
    was born.
    """
    found: Mask = fields.stored_at < time
    for row in np.flatnonzero(~found & _are_pending(fields)).tolist():
        properties = fields.property_field(row)
        since = find_property(properties, _SINCE)
        if since is not None:
            found[row] = len(since) <= _DIGITS and since.isdigit() and int(since) < time
        elif find_property(properties, _REPLACES) is not None:
            found[row] = fields.born_at[row] < time
    return found


def _are_pending(fields: Fields) -> Mask:
    """Which records are in topics in which messages wait."""
    names, topic_of = fields.topics()
    return np.array([name in _PENDING for name in names], np.bool_)[topic_of]


def _is_note(properties: bytes) -> bool:
    """Whether a record of such a topic says that a message was erased while it waited."""
    reasons = (find_property(properties, name) for name in _REASONS)
    return b"erased" in reasons and read_pending(properties) is None


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
