"""Timers: delivers messages when they are due, cancels them, and changes when they are due.

The idea: a delayed message is a pending message (`pending_messages`) that goes to its topic at its
time. `WaitingList` answers which messages wait, also of a store that is open for reading only.

Invariants:

- A message is delivered once, or cancelled.
- Messages are delivered in the order in which they are due, none before its time.
- A message that can't be delivered (the disk is full) stays due.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from kvstore.clock import cut_ms, whole_ms
from kvstore.core.names import (
    REAL_TOPIC,
    TIMER_DELETE_REASON,
    TIMER_TOPIC,
    TRANSACTION_CHECK_MS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from kvstore.core.pending.pending_records import read_end
from kvstore.core.records import facts
from kvstore.errors import (
    ArchiveUnavailable,
    CallerError,
    Damaged,
    DelayEnded,
    MessageNotFound,
    RecordDamaged,
    SegmentDamaged,
    TopicNotFound,
    shown,
)
from kvstore.index.archived import Meant
from kvstore.message import StoredMessage
from kvstore.process.durations import Durations
from kvstore.record.put.explain import check_delay
from kvstore.timing.delayed_message import (
    DelayedMessage,
    DelayedPage,
    DelayStats,
    delayed_of,
)
from kvstore.timing.pending_messages import (
    Owns,
    PendingMessages,
    PlannedNotes,
    TimingContext,
    newest_of,
    records_of,
    size_at,
    unique_id_in,
)
from kvstore.timing.timer_rows import START, Place, TimerRows, check_page

if TYPE_CHECKING:
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.tail import Waiting

_REST_MS: Final = 8
"""So long at least is between two turns: where many are due, each turn has many of them."""
_NEVER: Final = 1 << 63
_OF_TRANSACTIONS: Final = (TRANSACTION_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC)
_ERASED: Final = f"{TIMER_DELETE_REASON}\x01erased\x02".encode()
_DAMAGED: Final = f"{TIMER_DELETE_REASON}\x01damaged\x02".encode()
_DAMAGED_MAX: Final = 1000
"""So many damaged messages are looked for where nobody delivers, in looks of `_FEW` rows."""
_FEW: Final = 8
_TOPIC_DELETED: Final = f"{TIMER_DELETE_REASON}\x01topic deleted\x02".encode()


class Firings(Protocol):
    """`kvstore.timing.schedules.Schedules`."""

    def settle(self) -> None:
        """See there."""
        ...

    def fire(self, due: Sequence[Waiting], now: int) -> Collection[int]:
        """See there."""
        ...

    def fired(self) -> None:
        """See there."""
        ...

    def owner(self, message: DelayedMessage) -> str | None:
        """See there."""
        ...

    @property
    def next_look(self) -> int | None:
        """See there."""
        ...


class WaitingList:
    """Answers which messages wait; also of a store that is open for reading only."""

    def __init__(self, context: TimingContext, rows: TimerRows) -> None:
        self._context = context
        self._rows = rows
        self.undelivered: dict[int, Waiting] | None = None
        """The messages, by position, that a delivery could not read; None if nobody delivers."""

    def stats(self) -> DelayStats:
        """How many messages wait, and when the next is due."""
        damaged, first = self.damaged(), self._rows.first_due()
        if damaged and self.undelivered is None:
            following = self._rows.page(damaged[-1][:2], self._context.log.end, 1, None)
            first = following[0][0] if following else None
        waiting = sum(self._rows.counts().values()) - len(damaged)
        return DelayStats(max(0, waiting), first, damaged=len(damaged))

    def damaged(self) -> list[Waiting]:
        """The messages that are due and can't be read: those that a delivery met. Where nobody
        delivers, those in front of all others, as far as they are looked for.
        """
        if self.undelivered is not None:
            for position, row in [*self.undelivered.items()]:
                if not self._rows.is_waiting(row[0], position):
                    self.undelivered.pop(position, None)
            return [*self.undelivered.values()]
        found: list[Waiting] = []
        place, now = START, self._context.clock.now_ms()
        while len(found) < _DAMAGED_MAX:
            rows = self._rows.page(place, self._context.log.end, _FEW, None)
            for row in rows:
                if row[0] > now or self.at(row[1]) is not None:
                    return found
                found.append(row)
            if not rows:
                break
            place = rows[-1][:2]
        return found

    def page(
        self, topic: str | None, limit: int, after: Place | None, owns: Owns | None
    ) -> DelayedPage:
        """See `Store.timers`."""
        place = check_page(limit, after)
        context = self._context
        number = None if topic is None else context.topics.get(topic).id
        names = {} if owns is None else {n: context.topics.name_of(n) for n in self._rows.counts()}
        owned = {n for n, name in names.items() if owns is not None and name and owns(name)}

        def is_asked(its_topic: int) -> bool:
            return number in (None, its_topic) and (owns is None or its_topic in owned)

        messages, following = self._rows.look_through(
            place, limit, context.log.end, lambda row: self.at(row[1]) if is_asked(row[2]) else None
        )
        damaged = sum(is_asked(row[2]) for row in self.damaged())
        if number is not None:
            count = self._rows.count(number) if is_asked(number) else 0
        else:
            count = sum(n for its_topic, n in self._rows.counts().items() if is_asked(its_topic))
        return DelayedPage(messages, max(0, count - damaged), following, damaged)

    def at(self, position: int) -> DelayedMessage | None:
        """The message at a position; None if it is damaged, which `verify` reports."""
        try:
            return delayed_of(self._context.finder.read_at(position))
        except (RecordDamaged, SegmentDamaged, MessageNotFound):
            return None

    def find(self, message_id: str, owns: Owns | None) -> DelayedMessage:
        """The newest message with an id that waits; `MessageNotFound`, `DelayEnded`."""
        return self.all_waiting(message_id, owns)[-1]

    def all_waiting(self, message_id: str, owns: Owns | None) -> list[DelayedMessage]:
        """The messages with an id that wait, oldest first; `MessageNotFound`, and `DelayEnded` if
        none waits.
        """
        found = self.look(message_id, owns)
        if isinstance(found, StoredMessage):
            is_delivered, how = self.ended(found)
            told = f"the message {shown(message_id)} does not wait: {how}"
            raise DelayEnded(told, not is_delivered)
        return found

    def look(self, message_id: str, owns: Owns | None) -> list[DelayedMessage] | StoredMessage:
        """As `all_waiting`; if none waits, the last record with the id. The unique id is looked for
        among the messages that wait: one look for each part of the key index, where `newest` has to
        look at the keys of all topics. `MessageNotFound` also for a message of a transaction.
        """
        records = records_of(self._context.finder, TIMER_TOPIC, message_id, owns)
        found = [one for one in map(self._waits, records) if one is not None]
        if found:
            return found
        message = self.newest(message_id, owns)
        if message.message_id != message_id:
            message = self._last_of(message)  # a position id leads to any of its records
        one = self._waits(message)
        if one is not None:
            return [one]
        _check_delayed(message)
        return message

    def _last_of(self, message: StoredMessage) -> StoredMessage:
        """The last record of a delayed message, given any of its records: each of the others is
        ended by the next one.
        """
        if message.topic != TIMER_TOPIC:
            return message
        found = self._context.finder.in_log(TIMER_TOPIC, message.message_id, message.position)
        ended_by = {one.prepared_position - 1: one for one in found}
        while (one := ended_by.pop(message.position, None)) is not None:
            message = one
        return message

    def _waits(self, message: StoredMessage) -> DelayedMessage | None:
        """The message whose record this is, if it waits."""
        found = delayed_of(message) if message.topic == TIMER_TOPIC else None
        if found is None or not self._rows.is_waiting(found.deliver_at, message.position):
            return None
        return found

    def ended(self, message: StoredMessage) -> tuple[bool, str]:
        """Whether a message that does not wait was delivered, and how its wait ended, given the
        last record with its id. Each wait that does not end with a delivery has a note, so this
        needs no copy, which may be gone with its topic.
        """
        if message.topic != TIMER_TOPIC or delayed_of(message) is not None:
            return True, "it was delivered"
        reason = message.properties.get(TIMER_DELETE_REASON)
        if reason == "erased":
            return False, "it was erased"
        if reason == "damaged":
            return False, "its record was damaged"
        if reason is not None:
            topic = message.properties.get(REAL_TOPIC, "")
            return False, f"its topic {shown(topic)} was deleted, and it went with that"
        return False, "it was cancelled"

    def newest(self, message_id: str, owns: Owns | None) -> StoredMessage:
        """The last record of a message: the one that waits, or that ended the wait."""
        return newest_of(self._context.finder.find, (TIMER_TOPIC,), message_id, owns)


def _check_delayed(message: StoredMessage) -> None:
    """`MessageNotFound` for a message that was prepared, which never was a delayed one."""
    if message.topic in _OF_TRANSACTIONS or TRANSACTION_CHECK_MS in message.properties:
        raise MessageNotFound(
            f"the message {shown(message.message_id)} was put in a transaction, without a delay"
        )


def _check_cancelled(message: StoredMessage) -> None:
    """`CallerError` for a record that ends a wait, but is no note that it was cancelled here."""
    if read_end(message.raw_properties) is None:
        raise CallerError(
            f"the message {shown(message.message_id)} was delayed by another program; it is not "
            "delivered by this store, so it can't be cancelled"
        )


class Timers:
    """Ends the waits of delayed messages; see the module."""

    def __init__(
        self,
        context: TimingContext,
        rows: TimerRows,
        waiting: WaitingList,
        pending: PendingMessages,
    ) -> None:
        self._context = context
        self._topics = context.topics
        self._clock = context.clock
        self._rows = rows
        self._waiting = waiting
        self._undelivered: dict[int, Waiting] = {}
        waiting.undelivered = self._undelivered
        self.pending = pending
        self._delivered = self._cancelled = self._late_ms = 0
        self._lateness = Durations()
        self.firings: Firings | None = None
        """The schedules, whose messages wait among the others."""
        self.wake: Callable[[], object] = lambda: None
        """Wakes the thread that delivers."""
        self._wake_before = 0
        """A message that is due before this time, ms, wakes it."""

    def stats(self) -> DelayStats:
        """Figures about delayed messages."""
        return msgspec.structs.replace(
            self._waiting.stats(),
            delivered=self._delivered,
            cancelled=self._cancelled,
            late_ms=self._late_ms,
            lateness=self._lateness.stats(),
        )

    def added(self, due: int) -> None:
        """Notes that messages were put that wait, the first of them until `due`."""
        self._rows.added(due)
        if due < self._wake_before:
            self.wake()

    def deliver(self) -> float | None:
        """Delivers some of the messages that are due. Returns in how many seconds the next one is
        due, 0 if it is now; None if none waits, or nothing can be written any more.
        """
        with self.pending.lock:
            log = self._context.log
            if log.closed or log.failure is not None:
                return None
            self._wake_before = _NEVER
            if self.firings is not None:
                self.firings.settle()
            now = self._clock.now_ms()
            due = self.pending.due(now)
            if due:
                self._put_copies(due, now)
            self.pending.settled(due)
            if due:
                unreadable = self.pending.unreadable
                if unreadable:
                    self._undelivered |= {row[1]: row for row in due if row[1] in unreadable}
                return 0.0
            first = self._rows.next_due()
            if self.firings is not None and self.firings.next_look is not None:
                first = min(_NEVER if first is None else first, self.firings.next_look)
                first = None if first == _NEVER else first
            self._wake_before = _NEVER if first is None else first
            return None if first is None else max(_REST_MS, first - now) / 1000

    def _put_copies(self, due: list[Waiting], now: int) -> None:
        """Puts messages to their topics; those whose topic was deleted are cancelled, and those of
        schedules that were missed.
        """
        passed_over = () if self.firings is None else self.firings.fire(due, now)
        found = {topic: self._topics.name_of(topic) for topic in {one[2] for one in due}}
        held = self.pending.held(due, {topic: name or "" for topic, name in found.items()})
        if None in found.values():
            gone = [one for one in held if found[one[6]] is None]
            self._cancelled += self.pending.note_readable(gone, _TOPIC_DELETED)
            held = [one for one in held if found[one[6]] is not None]
        missed = [one for one in held if one[3] in passed_over]
        if missed:
            self.pending.note(missed)
            self._cancelled += len(missed)
            held = [one for one in held if one[3] not in passed_over]
        count = self.pending.copy(held, [0] * len(held))
        if count:
            self._count_delivery(count, now - held[0][4])
        if self.firings is not None:
            self.firings.fired()

    def _count_delivery(self, count: int, late_ms: int) -> None:
        self._delivered += count
        self._late_ms = late_ms
        self._lateness.add(late_ms / 1000)

    def cancel(self, message_id: str, owns: Owns | None) -> bool:
        """See `Store.cancel`."""
        return self.end_wait(message_id, owns, is_schedules=False)

    def end_wait(self, message_id: str, owns: Owns | None, *, is_schedules: bool = True) -> bool:
        """As `cancel`; of a schedule's own messages as well, if `is_schedules`."""
        with self.pending.lock:
            found = self._waiting.look(message_id, owns)
            if isinstance(found, StoredMessage):
                if found.topic == TIMER_TOPIC and delayed_of(found) is None:
                    _check_cancelled(found)
                is_delivered, _ = self._waiting.ended(found)
                return not is_delivered
            if not is_schedules:
                for one in found:
                    self._check_owner(one)
            held = self._held(found)
            if held:  # else their topic was deleted, and they go with it
                self.pending.note(held)
                self._cancelled += len(held)
            return True

    def go_with_topics(self, names: dict[int, str]) -> int:
        """Ends the waits of messages to topics that are to be deleted, given their names by their
        ids, each with a note: from it, not from rows, a rebuild too learns that it was not
        delivered. Returns how many these were; messages that are damaged stay.
        """

        def end(rows: list[Waiting]) -> int:
            held = self.pending.held(rows, names)
            ended = self.pending.note_readable(held, _TOPIC_DELETED)
            self._cancelled += ended
            return ended

        return self.pending.end_all_to(names, end)

    def leave(self, segments: Sequence[int]) -> None:
        """See `PendingMessages.leave`. The waits of messages in the segments that can't be read end
        with notes: nothing can put them back any more.
        """
        self.pending.leave(segments)
        with self.pending.lock:
            size = self._context.log.segment_size
            lost = {p for p in self.pending.unreadable if p // size in segments}
            known = (self._undelivered[p][0] for p in lost if p in self._undelivered)
            rows = self._rows.waiting_at(lost, min(known, default=0)) if lost else []
            if not rows:
                return
            names = [self._topics.name_of(row[2]) or "" for row in rows]
            held: list[Held] = [
                (b"", 0, 0, position, due, name, topic)
                for (due, position, topic, _), name in zip(rows, names, strict=True)
            ]
            ids = [self._context.id_of_damaged(TIMER_TOPIC, row) for row in rows]
            self.pending.note(
                held,
                [_DAMAGED] * len(held),
                ids=[known_id or secrets.token_hex(16).upper() for known_id in ids],
                is_needed=True,
            )
            self.pending.checkpoint()

    def erase(self, meant: Meant, planned: PlannedNotes | None) -> tuple[int, list[str]]:
        """Ends the waits of the messages that an erasure is about. Returns how many these were, and
        the schedules whose next message is meant: that one waits on, since it is put at its time.
        If the notes are only `planned`, no wait ends.
        """
        schedules = set[str]()

        def end(rows: list[Waiting]) -> int:
            found: list[DelayedMessage] = []
            for _, position, _, _ in rows:
                one = self._waiting.at(position)
                owner = self._owner(one) if one is not None else None
                schedules.update(() if owner is None else (owner,))
                found += () if one is None or owner is not None else (one,)
            ended = self.pending.note_readable(self._held(found), _ERASED, planned)
            self._cancelled += ended if planned is None else 0
            return ended

        count = self.pending.end_meant(meant, end, is_planned=planned is not None)
        return count, sorted(schedules)

    def _held(self, found: Sequence[DelayedMessage]) -> list[Held]:
        """The records of messages seen to wait under the lock, if their topics are there."""
        looks = (
            self.pending.record_of(one.deliver_at, one.message.position, one.topic) for one in found
        )
        return [held for held in looks if held is not None]

    def is_waiting(self, message_id: str, due: int) -> bool:
        """Whether the message with an id waits until a time. One whose record can't be read, and
        which may be that, counts as one.
        """
        with suppress(MessageNotFound, Damaged, ArchiveUnavailable):
            message = self.newest(message_id)
            found = delayed_of(message) if message.topic == TIMER_TOPIC else None
            if found is not None and self._rows.is_waiting(due, message.position):
                return True
        ids = (self.id_at(one[1]) for one in self._rows.due_at(due))
        return any(found in (None, message_id) for found in ids)

    def id_at(self, position: int) -> str | None:
        """The id of the message that waits whose record is at a position; None if that can't be
        read.
        """
        try:
            buffer, at, _ = self._context.log.span(position)
            properties = facts(buffer, at, size_at(buffer, at))[5]
        except Damaged:
            return None
        return unique_id_in(properties)

    def newest(self, message_id: str) -> StoredMessage:
        """The last record of a message; `MessageNotFound`."""
        return self._waiting.newest(message_id, None)

    def _owner(self, found: DelayedMessage) -> str | None:
        """The schedule to which a message that waits belongs, or None."""
        return None if self.firings is None else self.firings.owner(found)

    def _check_owner(self, found: DelayedMessage) -> None:
        owner = self._owner(found)
        if owner is not None:
            raise CallerError(
                f"the message {shown(found.message_id)} is the next one of schedule "
                f"{shown(owner)}, and waits as long as that says; pause the schedule, or delete it"
            )

    def change(
        self, message_id: str, deliver_at: int | None, delay: float | None, owns: Owns | None
    ) -> int:
        """See `Store.change_delay`."""
        now = self._clock.now_ms()
        latest = now + cut_ms(self._clock)
        check_delay(deliver_at, delay, None, latest, any_time=self._context.any_time)
        if delay is not None:
            deliver_at = latest + whole_ms(delay) if delay else now
        if deliver_at is None:
            raise CallerError("change_delay needs deliver_at or delay: when is it to be delivered?")
        with self.pending.lock:
            found = self._waiting.all_waiting(message_id, owns)
            for one in found:
                self._check_owner(one)
            held = self._held(found)
            due = deliver_at if deliver_at > now else 0
            with suppress(TopicNotFound):
                if held:
                    self.pending.put(self.pending.copies(held, [due] * len(held)))
                    if not due:
                        self._count_delivery(len(held), 0)
                    return deliver_at
            told = f"the message {shown(message_id)} does not wait: its topic was deleted"
            raise DelayEnded(told, is_cancelled=True)
