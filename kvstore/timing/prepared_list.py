"""Prepared list: which prepared messages wait, and how transactions ended.

The idea: each record of a message names its transaction: by the message's id, and, where several
have that, by the position at which the message was prepared. The state of a transaction is that of
its last record: it waits, or it ended the wait. The messages of a set stand behind one another in
the queue in which they wait, so each of them leads to the others. All this is answered of a store
that is open for reading only as well.

Invariants: a message that is found waiting waits in this store, not only in its record; the result
of a put is answered for its own transaction alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from kvstore.core.names import (
    TRANSACTION_CHECK_MS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_ROLLBACK,
)
from kvstore.core.records import facts
from kvstore.errors import (
    ArchiveUnavailable,
    CallerError,
    Damaged,
    MessageNotFound,
    RecordDamaged,
    SegmentDamaged,
    TransactionEnded,
    shown,
)
from kvstore.message import PutResult, StoredMessage
from kvstore.record.validate import check_group
from kvstore.timing.pending_messages import (
    Owns,
    TimingContext,
    newest_of,
    records_of,
    size_at,
)
from kvstore.timing.prepared_message import (
    SET_MAX,
    WITH_THE_FIRST,
    Member,
    PreparedMessage,
    PreparedPage,
    committed_result,
    due_of,
    first_position,
    group_in,
    member_of,
    prepared_of,
)
from kvstore.timing.timer_rows import Place, TimerRows, check_page

if TYPE_CHECKING:
    from kvstore.core.tail import Waiting

_TOPICS: Final = (TRANSACTION_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC)
"""The topics in which prepared messages wait, and in which those stay that were given up."""
_AT_ONCE: Final = 1000
Handle = PutResult | str
"""A prepared message: the result of its put, or its id."""


class Ended(NamedTuple):
    """A transaction that has ended: whether it was committed, and its record."""

    is_committed: bool
    message: StoredMessage

    def check(self, *, is_commit: bool) -> None:
        """`TransactionEnded` if it is to be ended in the other way."""
        if self.is_committed is not is_commit:
            raise TransactionEnded(
                f"the transaction of {shown(self.message.message_id)} was "
                f"{'committed' if self.is_committed else 'rolled back'}; it can't be "
                f"{'committed' if is_commit else 'rolled back'} any more",
                self.is_committed,
            )


class Unreadable(NamedTuple):
    """A message that waits, and whose record is damaged: its row, and the id by which it was found,
    None if it was found by its position.
    """

    row: Waiting
    message_id: str | None


class Together(NamedTuple):
    """The messages of one transaction that wait, in their order. `damage` is the reason for which
    they can't be committed, if there is one; `is_lost` says that a message of them can't be read,
    and `lost` has the positions of such messages, as far as they are known. `end` is the end that
    the others of the set had already, if it is half: these can end in the same way only.
    """

    messages: list[PreparedMessage]
    damage: RecordDamaged | None = None
    is_lost: bool = False
    lost: tuple[int, ...] = ()
    end: Ended | None = None

    def id_by(self, found: PreparedMessage | Unreadable) -> str:
        """The id for the notes of messages that can't be read: that of the set, or that by which
        one was found.
        """
        if self.messages:
            return self.messages[0].set_id or self.messages[0].message_id
        known = found.message_id
        return secrets.token_hex(16).upper() if known is None else known


State = PreparedMessage | Unreadable | Ended


class PreparedList:
    """Answers which prepared messages wait; also of a store that is open for reading only."""

    def __init__(self, context: TimingContext, rows: TimerRows) -> None:
        self._context = context
        self._rows = rows

    def page(
        self, group: str | None, limit: int, after: Place | None, owns: Owns | None
    ) -> PreparedPage:
        """See `Store.transactions`."""
        if group is not None:
            check_group(group)
        place = check_page(limit, after)
        log, name_of = self._context.log, self._context.topics.name_of

        def take(row: Waiting) -> PreparedMessage | None:
            if owns is not None and not owns(name_of(row[2]) or ""):
                return None
            # A message of another group is not decoded for it: its body may be large.
            if group is not None and group != self._group_at(row[1]):
                return None
            message = self.record(row[1])
            return None if message is None else prepared_of(message)

        messages, following = self._rows.look_through(place, limit, log.end, take)
        return PreparedPage(messages, self._count(owns), following)

    def _group_at(self, position: int) -> str | None:
        """The producer group of the message at a position; None if its record can't be read."""
        try:
            buffer, at, _ = self._context.log.span(position)
            properties = facts(buffer, at, size_at(buffer, at))[5]
        except Damaged:
            return None
        return group_in(properties)

    def count(self, topic: str) -> int:
        """How many messages to a topic wait. It reads none of them."""
        found = self._context.topics.find(topic)
        return 0 if found is None else self._rows.count(found.id)

    # --- transactions ---

    def state(self, asked: Handle, owns: Owns | None) -> PreparedMessage | Ended:
        """The last of `states`; of a set that waits its first message that can be read."""
        found = self.states(asked, owns)[-1]
        if isinstance(found, Ended):
            return found
        whole = self.together(found, owns)
        if whole.damage is not None and not whole.messages:
            raise whole.damage
        return whole.messages[0]

    def states(self, asked: Handle, owns: Owns | None) -> list[State]:
        """The messages that wait with an id, oldest first; if none does, the end of the last one
        that had it. Given the result of a put, that message alone, or its end. `MessageNotFound`.
        """
        if isinstance(asked, PutResult):
            return [self._state_of_put(asked, owns)]
        found = self._open(asked, owns)
        if found:
            return found
        newest = self._newest(asked, owns)
        if newest.message_id != asked:  # a position id leads to any of its records
            return [self._state_of_put(committed_result(newest), owns)]
        return [self._state(newest)]

    def _state_of_put(self, asked: PutResult, owns: Owns | None) -> State:
        """The message that a put prepared, if it waits, or its end."""
        first = asked.position
        there = self.record(first)
        for one in self._damaged(asked.message_id, owns) if there is None else ():
            if one.row[1] == first:
                return one
        if there is not None and there.message_id == asked.message_id:
            waits = self.waiting(there)
            if waits is not None and sees(owns, waits):
                return waits
            first = first_position(there)
        try:
            newest = self._newest(
                asked.message_id, owns, lambda message: first_position(message) == first
            )
        except MessageNotFound:
            raise MessageNotFound(
                f"no transaction has the message {shown(asked.message_id)} that was put at "
                f"{shown(asked.position)}, or its records have left the log"
            ) from None
        found = self._state(newest)
        # Its last record that can be read says that it waited, and what ended that is not found.
        is_unsure = newest.topic == TRANSACTION_HALF_TOPIC and prepared_of(newest) is not None
        if isinstance(found, Ended) and is_unsure:
            for one in self._damaged(asked.message_id, owns):
                position = one.row[1]
                raise RecordDamaged(
                    f"the message {shown(asked.message_id)} that was put at {asked.position} may "
                    f"wait at {position}, where the record is damaged; its id ends that",
                    position,
                )
        return found

    def together(self, found: PreparedMessage | Unreadable, owns: Owns | None) -> Together:
        """The messages that end with one that waits; `MessageNotFound` if a caller may not see the
        first of them.
        """
        if isinstance(found, Unreadable):
            return self._with_unreadable(found)
        member = None if found.set_id is None else member_of(found.message)
        whole = Together([found]) if member is None else self._set(found.message, member)
        position = found.message.position
        if member is not None and position not in [one.message.position for one in whole.messages]:
            whole = Together([found], _not_whole(member, member.number, position))
        elif member is not None and whole.damage is None and len(whole.messages) < member.total:
            whole = self._half(whole, found.message, member)
        if not sees(owns, whole.messages[0]):
            raise MessageNotFound(f"no message has the id {shown(found.message_id)}")
        return whole

    def _set(self, of: StoredMessage, member: Member) -> Together:
        """The messages of a set that wait, given the record of one that waits, or has waited."""
        messages: list[PreparedMessage] = []
        damage: RecordDamaged | None = None
        lost: list[int] = []
        set_id = member.set_id
        places = self._places(of, member)
        for number in range(member.total):
            position = places.get(number, -1)
            message = self.record(position)
            lost += [position] if message is None else []
            is_its = (
                message is not None
                and message.topic == TRANSACTION_HALF_TOPIC
                and message.offset == of.offset - member.number + number
                and member_of(message) == (set_id, number, member.total)
            )
            if message is None or not is_its or (not number and message.message_id != set_id):
                damage = damage or _not_whole(member, number, position)
            found = self.waiting(message) if message is not None and is_its else None
            messages += () if found is None else (found,)
        return Together(messages, damage, bool(lost), tuple(p for p in lost if p >= 0))

    def _half(self, whole: Together, of: StoredMessage, member: Member) -> Together:
        """A set of which some messages wait, with the end that the others had. A version of this
        store left such sets.
        """
        first = self.record(self._places(of, member)[0])
        if first is None or not self._is_waiting(whole.messages[0]):
            return whole  # all of them ended meanwhile
        known = first_position(first)
        with suppress(CallerError, MessageNotFound, Damaged, ArchiveUnavailable):
            newest = self._newest(member.set_id, None, lambda one: first_position(one) == known)
            state = self._state(newest)
            if isinstance(state, Ended):
                return whole._replace(end=state)
        # The first ones wait behind the others, since they were asked about, or their end can't be
        # told: only a rollback ends both.
        return whole._replace(damage=_not_whole(member, 0, first.position))

    def halves(self) -> Iterator[Together]:
        """The sets of which some messages wait, and others do not, though none is damaged."""
        place, behind = (WITH_THE_FIRST, -1), -1
        while rows := self._rows.page(place, self._context.log.end, _AT_ONCE, None):
            for row in rows:
                place = row[:2]
                found = self.at(row[1]) if row[1] > behind else None
                if found is not None:
                    whole = self.together(found, None)
                    behind = whole.messages[-1].message.position
                    if whole.end is not None:
                        yield whole

    def rest(self, ended: Ended) -> list[PreparedMessage]:
        """The messages of a set that wait, given the end of one before them."""
        member = member_of(ended.message)
        if member is None:
            return []
        return self.behind(
            (ended.message.prepared_position or ended.message.position + 1) - 1, member
        )

    def _places(self, of: StoredMessage, member: Member) -> dict[int, int]:
        """The positions of a set's records by their numbers, as far as the index has them."""
        context, index = self._context, self._context.index
        topic = context.topics.find(TRANSACTION_HALF_TOPIC)
        first = of.offset - member.number
        at, behind = max(first, 0), first + member.total
        oldest, found = context.reader.first_segment(), dict[int, int]()
        while topic is not None and at < behind:
            key = topic.base + of.queue
            part = self._positions(key, at, behind - at)
            found.update(enumerate(part, at - first))
            following = at + len(part) if part else index.after(key, at, oldest)
            if following is None:
                break
            at = following
        return found

    # --- damaged records ---

    def unreadable(
        self, positions: Collection[int], likely: int = WITH_THE_FIRST
    ) -> list[Unreadable]:
        """The messages that wait at some positions, whose records can't be read; `likely` is when
        they may be due, in ms.
        """
        found = [position for position in positions if self.record(position) is None]
        topic = self._context.topics.find(TRANSACTION_HALF_TOPIC) if found else None
        if topic is None:
            return []
        # Only the index knows that a damaged record is one of the topic.
        damaged = [one for one in found if self._offset_of(topic.base, one) is not None]
        rows = self._rows.waiting_at(damaged, likely) if damaged else []
        return [Unreadable(row, None) for row in rows]

    def id_of(self, row: Waiting) -> str | None:
        """See `TimingContext.id_of_damaged`."""
        return self._context.id_of_damaged(TRANSACTION_HALF_TOPIC, row)

    def _damaged(self, message_id: str, owns: Owns | None) -> list[Unreadable]:
        """The messages that wait with a unique id, by the keys of records that can't be read."""
        damaged: list[int] = []
        self._context.finder.in_log(TRANSACTION_HALF_TOPIC, message_id, 0, damaged)
        found = self.unreadable(damaged) if damaged else []
        return [one._replace(message_id=message_id) for one in found if self._may_see(one, owns)]

    def _may_see(self, one: Unreadable, owns: Owns | None) -> bool:
        return owns is None or owns(self._context.topics.name_of(one.row[2]) or "")

    def _with_unreadable(self, one: Unreadable) -> Together:
        """The messages that end with one whose record is damaged: those of its set, as the next
        record before or behind it says. Without such a set, those directly behind it that wait with
        a first message and can't be read either.
        """
        position = one.row[1]
        key = self._context.topics.get(TRANSACTION_HALF_TOPIC).base
        at = self._offset_of(key, position)
        for step in (-1, 1):
            whole = None if at is None else self._set_beside(key, at, step)
            if whole is not None and position in whole.lost:
                return whole
        told = RecordDamaged(
            f"the prepared message at {position} can't be committed: its record is damaged; roll "
            "it back, or put back the segment from a copy and open the store again",
            position,
        )
        behind = () if at is None else self._lost_behind(key, at)
        return Together([], told, is_lost=True, lost=(position, *behind))

    def _set_beside(self, key: int, at: int, step: int) -> Together | None:
        """The set of the next record before an offset, or behind it, that can be read."""
        for offset in range(at + step, max(at + step * SET_MAX, -1), step):
            places = self._positions(key, offset, 1)
            record = self.record(places[0]) if places else None
            if record is not None:
                member = member_of(record)
                return None if member is None else self._set(record, member)
        return None

    def _lost_behind(self, key: int, at: int) -> Iterator[int]:
        """The positions of messages directly behind an offset that wait with the first of their
        set, and can't be read.
        """
        for offset in range(at + 1, at + SET_MAX):
            found = self.unreadable(self._positions(key, offset, 1))
            if not found or found[0].row[0] != WITH_THE_FIRST:
                return
            yield found[0].row[1]

    def _offset_of(self, key: int, position: int) -> int | None:
        """The offset of the record at a position in a queue, by the index; None if that lacks it.
        Positions rise with offsets.
        """
        index, end = self._context.index, self._context.log.end
        oldest, high = self._context.reader.first_segment(), index.next_offset(key, end)
        low = min(index.min_offset(key, oldest, end), high)
        while low < high:
            middle = (low + high) // 2
            at, found = middle, self._positions(key, middle, 1)
            if not found:
                behind = index.after(key, middle, oldest)
                at = high if behind is None else behind
                found = self._positions(key, at, 1) if at < high else []
            if found and found[0] == position:
                return at
            if found and found[0] < position:
                low = at + 1
            else:
                high = middle
        return None

    def _positions(self, key: int, offset: int, limit: int) -> list[int]:
        context = self._context
        oldest, end = context.reader.first_segment(), context.log.end
        return context.index.positions(key, offset, limit, oldest, end)

    # --- records ---

    def _open(self, message_id: str, owns: Owns | None) -> list[State]:
        """The messages that wait with a unique id, oldest first."""
        damaged: list[int] = []
        finder, topic = self._context.finder, TRANSACTION_HALF_TOPIC
        records = records_of(finder, topic, message_id, owns, damaged)
        found: list[State] = [one for one in map(self.waiting, records) if one is not None]
        return found + (self._damaged(message_id, owns) if damaged else [])

    def _newest(
        self,
        message_id: str,
        owns: Owns | None,
        is_its: Callable[[StoredMessage], bool] = lambda message: True,
    ) -> StoredMessage:
        """The last record with an id of those that `is_its` says yes to; `MessageNotFound`."""
        return newest_of(self._context.finder.find, _TOPICS, message_id, owns, is_its)

    def _state(self, message: StoredMessage) -> PreparedMessage | Ended:
        """The message whose last record this is, if it waits, or its end; `MessageNotFound` if it
        was put without a transaction.
        """
        told = shown(message.message_id)
        if message.topic == TRANSACTION_DISCARD_TOPIC:
            return Ended(False, message)
        if message.topic != TRANSACTION_HALF_TOPIC:
            if TRANSACTION_CHECK_MS not in message.properties:
                raise MessageNotFound(f"the message {told} was put without a transaction")
            return Ended(True, message)
        found = prepared_of(message)
        if found is None and TRANSACTION_ROLLBACK not in message.properties:
            raise CallerError(
                f"the transaction of {told} ended in RocketMQ, or its message can't be kept here; "
                "it can't be ended any more"
            )
        if found is None:
            return Ended(False, message)
        if not self._is_waiting(found):
            # All other ends have notes: its copy went with its topic, or its id is not indexed.
            return Ended(True, message)
        return found

    def _is_waiting(self, found: PreparedMessage) -> bool:
        return self._rows.is_waiting(due_of(found), found.message.position)

    def waiting(self, message: StoredMessage) -> PreparedMessage | None:
        """The prepared message whose record this is, if it still waits; None else."""
        found = prepared_of(message) if message.topic == TRANSACTION_HALF_TOPIC else None
        return found if found is not None and self._is_waiting(found) else None

    def at(self, position: int) -> PreparedMessage | None:
        """The prepared message at a position, if it still waits; None else."""
        message = self.record(position)
        return None if message is None else self.waiting(message)

    def waits_at(
        self, position: int, likely: int = WITH_THE_FIRST
    ) -> list[PreparedMessage | Unreadable]:
        """The message at a position, if it still waits, whether or not it can be read; `likely` as
        in `unreadable`.
        """
        found = self.at(position)
        return [*self.unreadable([position], likely)] if found is None else [found]

    def begin_of_cut(self, last: StoredMessage) -> int | None:
        """Where the last put of the log begins, if it was of a set and a part of it is missing;
        `last` is the log's last record. None if it is whole, or its first record can't be found.
        """
        member = member_of(last)
        if member is None or member.number == member.total - 1:
            return None
        try:
            first = self._newest(member.set_id, None)
        except (MessageNotFound, RecordDamaged, SegmentDamaged):
            return None
        if first.topic == TRANSACTION_HALF_TOPIC:
            return None
        return first.position if self.behind(last.prepared_position - 1, member) else None

    def behind(self, position: int, member: Member) -> list[PreparedMessage]:
        """The messages of a set that wait behind one of them, given the position of a record of
        that one, which waits or has waited.
        """
        message = self.record(position)
        if message is None or message.topic != TRANSACTION_HALF_TOPIC:
            return []
        found = self._set(message, member).messages
        return [one for one in found if one.message.position > position]

    def _count(self, owns: Owns | None) -> int:
        name_of = self._context.topics.name_of
        counts = self._rows.counts()
        return sum(n for t, n in counts.items() if owns is None or owns(name_of(t) or ""))

    def record(self, position: int) -> StoredMessage | None:
        """The record at a position; None if it can't be read."""
        try:
            return self._context.finder.read_at(position)
        except (RecordDamaged, SegmentDamaged, MessageNotFound):
            return None


def _not_whole(member: Member, number: int, position: int) -> RecordDamaged:
    """The error for a set of which a message is lost, or is of another set."""
    where = "is not in the log" if position < 0 else f"at {position} is damaged, or of another set"
    return RecordDamaged(
        f"the messages of the transaction {shown(member.set_id)} can't become visible together: "
        f"of its {member.total} messages the record of number {number} {where}; roll it back, or "
        "put back the segment from a copy and open the store again",
        position,
    )


def position_of(found: PreparedMessage | Unreadable) -> int:
    """Where the record of a message that waits stands."""
    return found.row[1] if isinstance(found, Unreadable) else found.message.position


def sees(owns: Owns | None, found: PreparedMessage) -> bool:
    """Whether a caller may see a message."""
    return owns is None or owns(found.topic)


def result_of(prepared: Handle, results: Sequence[PutResult]) -> PutResult:
    """Of the results of a commit that of one message: of several with its id the newest to its
    queue.
    """
    wanted = prepared if isinstance(prepared, str) else prepared.message_id
    found = [one for one in results if one.message_id == wanted] or results[:1]
    if isinstance(prepared, PutResult):
        place = prepared.topic, prepared.queue
        found = [one for one in found if (one.topic, one.queue) == place] or found
    return found[-1]
