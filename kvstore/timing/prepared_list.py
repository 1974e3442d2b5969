"""Prepared list: which prepared messages wait, and how transactions ended.

The idea: the state of a transaction is that of its first message, and that stands in a record with
its id: one that waits, or the last, which ended the wait. The messages of a set stand behind one
another in the log, so the first leads to the others. All this is answered of a store that is open
for reading only as well.

Invariant: a message that is found waiting waits in this store, not only in its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from kvstore.core.names import (
    TRANSACTION_CHECK_MS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_ROLLBACK,
)
from kvstore.core.records import check_record
from kvstore.errors import (
    CallerError,
    MessageNotFound,
    RecordDamaged,
    SegmentDamaged,
    shown,
)
from kvstore.message import StoredMessage
from kvstore.timing.pending_messages import Owns, TimingContext, newest_of, records_of, size_at
from kvstore.timing.prepared_message import (
    Member,
    PreparedMessage,
    PreparedPage,
    due_of,
    member_of,
    prepared_of,
)
from kvstore.timing.timer_rows import START, Place, TimerRows, check_page

_TOPICS: Final = (TRANSACTION_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC)
"""The topics in which prepared messages wait, and in which those stay that were given up."""
_AT_ONCE: Final = 1000


class Ended(NamedTuple):
    """A transaction that has ended: whether it was committed, and its record."""

    is_committed: bool
    message: StoredMessage


class PreparedList:
    """Answers which prepared messages wait; also of a store that is open for reading only."""

    def __init__(self, context: TimingContext, rows: TimerRows) -> None:
        self._context = context
        self._rows = rows

    def page(
        self, group: str | None, limit: int, after: Place | None, owns: Owns | None
    ) -> PreparedPage:
        """See `Store.transactions`."""
        place = check_page(limit, after)
        messages = list[PreparedMessage]()
        while len(messages) < limit:
            rows = self._rows.page(place, self._context.log.end, limit, None)
            for due, position, _, _ in rows:
                place = due, position
                found = self._read(position)
                if found is None or not sees(owns, found) or group not in (None, found.group):
                    continue
                messages.append(found)
                if len(messages) == limit:
                    break
            if len(rows) < limit and len(messages) < limit:
                return PreparedPage(messages, self._count(owns), None)
        return PreparedPage(messages, self._count(owns), place)

    def count(self, topic: str) -> int:
        """How many messages to a topic wait. It reads none of them."""
        found = self._context.topics.find(topic)
        return 0 if found is None else self._rows.count(found.id)

    def in_sets(self, topics: Iterable[int]) -> Iterator[PreparedMessage]:
        """The messages to topics, by their ids, that wait as one of a set."""
        for topic in topics:
            place = START
            while rows := self._rows.page(place, self._context.log.end, _AT_ONCE, topic):
                place = rows[-1][:2]
                for _, position, _, _ in rows:
                    found = self.at(position)
                    if found is not None and found.set_id is not None:
                        yield found

    # --- transactions ---

    def state(self, message_id: str, owns: Owns | None) -> PreparedMessage | Ended:
        """The last of `states`."""
        return self.states(message_id, owns)[-1]

    def states(self, message_id: str, owns: Owns | None) -> list[PreparedMessage | Ended]:
        """The first messages of the open transactions that have a message of that id, oldest first;
        if none is open, the end of the last one. `MessageNotFound`, and the errors of `first`.
        """
        found = self._open(message_id, owns)
        if found:
            return [self.first(one, owns) for one in found]
        return [self.last(message_id, owns)]

    def last(self, message_id: str, owns: Owns | None) -> PreparedMessage | Ended:
        """The first message of the transaction that has the last record with that id, or its end;
        `MessageNotFound`, and the errors of `first`.
        """
        found = self._newest(message_id, owns)
        return found if isinstance(found, Ended) else self.first(found, owns)

    def first(self, found: PreparedMessage, owns: Owns | None) -> PreparedMessage | Ended:
        """As `state`, given a message that waits. `RecordDamaged` if the message that its set is
        named after is of another set.
        """
        if found.set_id in (None, found.message_id):
            return found
        first = self._newest(found.set_id or "", owns)
        member = member_of(found.message)
        is_first = member is None or member.number == 0
        if isinstance(first, PreparedMessage) and (is_first or first.set_id != found.set_id):
            position = found.message.position
            raise RecordDamaged(
                f"the message {shown(found.message_id)} at {position} waits as one of the set "
                f"{shown(found.set_id)}, whose first message is not the newest with that id: an id "
                "was given twice, or the log is damaged",
                position,
            )
        return first

    def _open(self, message_id: str, owns: Owns | None) -> list[PreparedMessage]:
        """The messages that wait with a unique id, oldest first."""
        records = records_of(self._context.finder, TRANSACTION_HALF_TOPIC, message_id, owns)
        found = map(prepared_of, records)
        return [one for one in found if one is not None and self._is_waiting(one)]

    def _newest(self, message_id: str, owns: Owns | None) -> PreparedMessage | Ended:
        """The message that waits with an id, or its end; `MessageNotFound`."""
        message = newest_of(self._context.finder.find, _TOPICS, message_id, owns)
        if message.topic == TRANSACTION_DISCARD_TOPIC:
            return Ended(False, message)
        if message.topic != TRANSACTION_HALF_TOPIC:
            if TRANSACTION_CHECK_MS not in message.properties:
                raise MessageNotFound(
                    f"the message {shown(message_id)} was put without a transaction"
                )
            return Ended(True, message)
        found = prepared_of(message)
        if found is None and TRANSACTION_ROLLBACK not in message.properties:
            raise CallerError(
                f"the transaction of {shown(message_id)} ended in RocketMQ, or its message can't "
                "be kept here; it can't be ended any more"
            )
        if found is None:
            return Ended(False, message)
        if not self._is_waiting(found):
            # A commit to a topic whose ids are not indexed; or the topic was deleted meanwhile.
            topic = self._context.topics.find(found.topic)
            return Ended(topic is not None and topic.since <= message.position, message)
        return found

    def _is_waiting(self, found: PreparedMessage) -> bool:
        return self._rows.is_waiting(due_of(found), found.message.position)

    def at(self, position: int) -> PreparedMessage | None:
        """The prepared message at a position, if it still waits; None else."""
        try:
            message = self._context.reader.read_at(position)
        except (MessageNotFound, RecordDamaged, SegmentDamaged):
            return None
        if message.topic != TRANSACTION_HALF_TOPIC:
            return None
        found = prepared_of(message)
        return found if found is not None and self._is_waiting(found) else None

    def members(self, first: PreparedMessage) -> list[PreparedMessage]:
        """All messages of a transaction, given the first; as far as they are there."""
        member = member_of(first.message)
        if member is None:
            return [first]
        return [first, *self.behind(first.message, member)]

    def begin_of_cut(self, last: StoredMessage) -> int | None:
        """Where the last put of the log begins, if it was of a set and a part of it is missing;
        `last` is the log's last record. None if it is whole, or its first record can't be found.
        """
        member = member_of(last)
        if member is None or member.number == member.total - 1:
            return None
        find, read_at = self._context.finder.find, self._context.reader.read_at
        try:
            first = newest_of(find, _TOPICS, member.set_id, None)
            if first.topic == TRANSACTION_HALF_TOPIC:
                return None
            before = read_at(last.prepared_position - 1)
        except (MessageNotFound, RecordDamaged, SegmentDamaged):
            return None
        return first.position if self.behind(before, member) else None

    def behind(self, message: StoredMessage, member: Member) -> list[PreparedMessage]:
        """The messages of a set that wait behind a record of one of them, which has waited or does
        so. Those that can't be read, or whose topic was deleted, are not among them.
        """
        found: list[PreparedMessage] = []
        position = message.position
        for number in range(member.number + 1, member.total):
            following = self._following(position)
            if following is None:
                break
            position = following
            with suppress(MessageNotFound, RecordDamaged, SegmentDamaged):
                if member_of(self._context.reader.read_at(position)) != (
                    member.set_id, number, member.total,
                ):  # fmt: skip
                    break
                one = self.at(position)
                found += () if one is None else (one,)
        return found

    def _following(self, position: int) -> int | None:
        """Where the record begins that follows another in the log, which may be damaged but for its
        size; None behind the last.
        """
        log = self._context.log
        try:
            buffer, at, stop = log.span(position)
            size = size_at(buffer, at)
            behind = position + size
            if not 0 < size <= stop - at or behind >= log.end:
                return None
            if behind % log.segment_size:
                buffer, at, stop = log.span(behind)
                with suppress(RecordDamaged):
                    if check_record(buffer, at, stop, behind) <= 0:
                        # A blank record, or nothing, is behind it in this segment.
                        behind = (behind // log.segment_size + 1) * log.segment_size
        except (SegmentDamaged, ValueError):
            return None
        return behind if behind < log.end else None

    def _count(self, owns: Owns | None) -> int:
        name_of = self._context.topics.name_of
        counts = self._rows.counts()
        return sum(n for t, n in counts.items() if owns is None or owns(name_of(t) or ""))

    def _read(self, position: int) -> PreparedMessage | None:
        try:
            return prepared_of(self._context.reader.read_at(position))
        except (RecordDamaged, SegmentDamaged, MessageNotFound):
            return None


def sees(owns: Owns | None, found: PreparedMessage) -> bool:
    """Whether a caller may see a message."""
    return owns is None or owns(found.topic)
