"""Timers: delivers messages when they are due, cancels them, and changes when they are due.

The idea: a delayed message is a record in the topic in which such messages wait. One record ends
the wait: its copy in the topic it goes to, a note that it was cancelled, or a copy that waits for
another time. The tail notes both with the append, so one checkpoint has the copy and the end of the
wait, and a replay finds both in the log (docs/timing.md).

A message that waits keeps its body in the log: before a segment leaves, its messages that still
wait are put to the log's end (docs/decisions/0020).

Invariants:

- Each wait is ended under one lock, by one record: a message is delivered once, or cancelled.
- Messages are delivered in the order in which they are due, none before its time.
- A message that can't be delivered (the disk is full) stays due.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from kvstore.clock import Clock, cut_ms, whole_ms
from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.names import TIMER_TOPIC
from kvstore.core.pending.pending_records import (
    prepare_cancels,
    prepare_copies,
    read_end,
    read_pending,
)
from kvstore.core.records import facts
from kvstore.errors import (
    CallerError,
    DelayEnded,
    FormatError,
    MessageNotFound,
    RecordDamaged,
    SegmentDamaged,
    shown,
)
from kvstore.index.index import Index
from kvstore.index.keys import RUNS, run_key
from kvstore.index.runs import unpack_many
from kvstore.log.commitlog import CommitLog
from kvstore.message import PutStatus, StoredMessage
from kvstore.meta.topics import Topics
from kvstore.read.find import Finder
from kvstore.read.reader import Reader
from kvstore.record.put.explain import check_delay
from kvstore.timing.delayed_message import (
    DelayedMessage,
    DelayedPage,
    DelayStats,
    delayed_of,
)
from kvstore.timing.timer_rows import START, Place, TimerRows

if TYPE_CHECKING:
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.records import Buffer
    from kvstore.core.tail import Waiting

_log = logging.getLogger("kvmq")
_NEVER: Final = 1 << 63
AT_ONCE: Final = 1024
"""Messages delivered in one put."""
_BYTES_AT_ONCE: Final = 4 << 20
_PAGE_MAX: Final = 10_000
Owns = Callable[[str], bool]
"""Whether a topic is one of those that a caller may see."""


class Putting(Protocol):
    """`kvstore.engine.writer.Writer`."""

    encoder: Encoder

    def begin_put(self) -> int:
        """See there."""
        ...

    def put(self, batch: PreparedBatch, now: int) -> PutStatus:
        """See there."""
        ...


@dataclass(frozen=True, slots=True)
class TimingContext:
    """The parts of an open store that delayed messages need."""

    log: CommitLog
    index: Index
    topics: Topics
    reader: Reader
    finder: Finder
    clock: Clock
    check_crc: bool


class WaitingList:
    """Answers which messages wait; also of a store that is open for reading only."""

    def __init__(self, context: TimingContext, rows: TimerRows) -> None:
        self._context = context
        self._rows = rows

    def page(
        self, topic: str | None, limit: int, after: Place | None, owns: Owns | None
    ) -> DelayedPage:
        """See `Store.timers`."""
        if type(limit) is not int or not 1 <= limit <= _PAGE_MAX:
            raise CallerError(f"limit is {shown(limit)}; it must be 1 to {_PAGE_MAX}")
        place = START if after is None else _place_of(after)
        context = self._context
        number = None if topic is None else context.topics.get(topic).id
        names = {} if owns is None else {n: context.topics.name_of(n) for n in self._rows.counts()}
        owned = {n for n, name in names.items() if owns is not None and name and owns(name)}
        messages = list[DelayedMessage]()
        while len(messages) < limit:
            found = self._rows.page(place, context.log.end, limit - len(messages), number)
            if not found:
                return DelayedPage(messages, self._count(number, owned, owns), None)
            for due, position, its_topic, _ in found:
                place = due, position
                if owns is not None and its_topic not in owned:
                    continue
                shown_message = self._read(position)
                if shown_message is not None:
                    messages.append(shown_message)
        return DelayedPage(messages, self._count(number, owned, owns), place)

    def _count(self, topic: int | None, owned: Collection[int], owns: Owns | None) -> int:
        if topic is not None:
            return self._rows.count(topic)
        counts = self._rows.counts()
        return sum(n for topic, n in counts.items() if owns is None or topic in owned)

    def _read(self, position: int) -> DelayedMessage | None:
        """The message at a position; None if it is damaged, which `verify` reports."""
        try:
            return delayed_of(self._context.reader.read_at(position))
        except (RecordDamaged, SegmentDamaged, MessageNotFound):
            return None

    def find(self, message_id: str, owns: Owns | None) -> tuple[StoredMessage, DelayedMessage]:
        """The message with an id, if it waits; `MessageNotFound`, `DelayEnded`."""
        message = self.newest(message_id, owns)
        found = delayed_of(message) if message.topic == TIMER_TOPIC else None
        if found is None or not self._rows.is_waiting(found.deliver_at, message.position):
            was_cancelled = message.topic == TIMER_TOPIC and found is None
            raise DelayEnded(
                f"the message {shown(message_id)} does not wait: it was "
                f"{'cancelled' if was_cancelled else 'delivered'}",
                was_cancelled,
            )
        return message, found

    def newest(self, message_id: str, owns: Owns | None) -> StoredMessage:
        """The last record of a message: the one that waits, or that ended the wait."""
        if owns is None:
            return self._context.finder.find(message_id)
        message = self._context.finder.find(message_id, lambda t: t == TIMER_TOPIC or owns(t))
        real = message.properties.get("REAL_TOPIC", "")
        if message.topic == TIMER_TOPIC and not owns(real):
            raise MessageNotFound(f"no message has the id {shown(message_id)}")
        return message


def _place_of(after: object) -> Place:
    if isinstance(after, tuple | list) and len(after) == 2 and all(type(n) is int for n in after):
        return after[0], after[1]
    raise CallerError(f"after is {shown(after)}; it must be the `next` of a page before, or None")


class Timers:
    """Ends the waits of messages; see the module."""

    def __init__(
        self,
        context: TimingContext,
        rows: TimerRows,
        waiting: WaitingList,
        writer: Putting,
        checkpoint: Callable[[], object],
    ) -> None:
        self._context = context
        self._log = context.log
        self._index = context.index
        self._topics = context.topics
        self._clock = context.clock
        self._rows = rows
        self._waiting = waiting
        self._writer = writer
        self._checkpoint = checkpoint
        self._lock = threading.RLock()
        self._carried: list[Waiting] = []
        """Messages that were taken from the tails and not delivered yet."""
        self._is_unsure = False
        """Whether a delivery failed at some step: what was taken is taken again."""
        self._undeliverable: set[int] = set()
        """Positions of messages whose records are damaged: each is reported once an opening."""
        self._delivered = self._cancelled = self._late_ms = 0
        self.wake: Callable[[], object] = lambda: None
        """Wakes the thread that delivers."""
        self._wake_before = 0
        """A message that is due before this time, ms, wakes it."""

    def stats(self) -> DelayStats:
        """Figures about delayed messages."""
        return msgspec.structs.replace(
            self._rows.stats(),
            delivered=self._delivered,
            cancelled=self._cancelled,
            late_ms=self._late_ms,
        )

    def added(self, due: int) -> None:
        """Notes that messages were put that wait, the first of them until `due`."""
        self._rows.added(due)
        if due < self._wake_before:
            self.wake()

    # --- delivering ---

    def deliver(self) -> float | None:
        """Delivers some of the messages that are due. Returns in how many seconds the next one is
        due, 0 if it is now; None if none waits, or nothing can be written any more.
        """
        with self._lock:
            if self._log.closed or self._log.failure is not None:
                return None
            if self._is_unsure:
                self._rows.give_back()
                self._carried = []
            self._is_unsure = True
            self._wake_before = _NEVER
            now = self._clock.now_ms()
            if self._deliver_due(now):
                self._is_unsure = False
                return 0.0
            first = self._rows.first_due()
            self._wake_before = _NEVER if first is None else first
            self._is_unsure = False
            return None if first is None else max(1, first - now) / 1000

    def _deliver_due(self, now: int) -> bool:
        """Delivers the first of the messages that are due; whether there was one."""
        looks = self._rows.take_due(now, AT_ONCE, self._log.end)
        kept = [one for one in self._carried if self._rows.is_waiting(*one[:2])]
        self._carried = [*kept, *looks.taken, *looks.taken_before]
        # Behind the last of a look that was full there may be messages that are due before others.
        full = [look[-1] for look in looks if len(look) == AT_ONCE]
        found = sorted({*self._carried, *looks.rows})
        due = found[: bisect_right(found, min(full))] if full else found
        due = _bounded(due)
        if not due:
            return False
        self._put_copies(due, now)
        delivered = set(due)
        self._carried = [one for one in self._carried if one not in delivered]
        self._rows.delivered(due[-1][:2])
        return True

    def _put_copies(self, due: list[Waiting], now: int) -> None:
        """Puts messages to their topics; those whose topic was deleted are cancelled."""
        held: list[Held] = []
        gone: list[Held] = []
        topics: list[int] = []
        for one in due:
            name = self._topics.name_of(one[2])
            record = self._held(one[0], one[1], name or "")
            if record is None:
                continue
            if name is None:
                gone.append(record)
                topics.append(one[2])
            else:
                held.append(record)
        if gone:
            batch = prepare_cancels(self._writer.encoder, gone, topics)
            self._writer.put(batch, self._writer.begin_put())
        count = self._copy(held, [0] * len(held))
        self._delivered += count
        if count:
            self._late_ms = now - held[0][4]

    def _held(self, due: int, position: int, topic: str) -> Held | None:
        """The record of a message that waits; None if it is damaged."""
        if position in self._undeliverable:
            return None
        try:
            return *self._log.span(position), position, due, topic
        except SegmentDamaged as e:
            self._cannot(position, e)
            return None

    def _cannot(self, position: int, why: Exception) -> None:
        self._undeliverable.add(position)
        _log.error(
            "%s: the message at %d waits and can't be delivered: %s; `kvmq verify` lists damage",
            self._log.folder.parent, position, str(why),
        )  # fmt: skip

    def _copy(self, held: list[Held], due: list[int], *, is_needed: bool = False) -> int:
        """Puts copies of messages that wait, each to its topic or (due: not 0) to wait again; those
        that are damaged are left out. Returns how many were put. Copies that are needed go to a
        disk above the write watermark as well.
        """
        while held:
            try:
                batch = prepare_copies(
                    self._writer.encoder, held, due, check_crc=self._context.check_crc
                )
            except RecordDamaged as e:
                at = next((i for i, one in enumerate(held) if one[3] == e.position), None)
                if at is None:
                    raise
                self._cannot(held[at][3], e)
                held, due = held[:at] + held[at + 1 :], due[:at] + due[at + 1 :]
                continue
            now = self._clock.now_ms() if is_needed else self._writer.begin_put()
            self._writer.put(batch, now)
            return len(held)
        return 0

    # --- changing ---

    def cancel(self, message_id: str, owns: Owns | None) -> bool:
        """See `Store.cancel`."""
        with self._lock:
            message = self._waiting.newest(message_id, owns)
            if message.topic != TIMER_TOPIC:
                return False
            found = delayed_of(message)
            if found is None:
                if read_end(message.raw_properties) is None:
                    raise CallerError(
                        f"the message {shown(message_id)} was delayed by another program; it is "
                        "not delivered by this store, so it can't be cancelled"
                    )
                return True
            topic = self._topics.find(found.topic)
            if topic is None or not self._rows.is_waiting(found.deliver_at, message.position):
                return False
            position = message.position
            held = *self._log.span(position), position, found.deliver_at, found.topic
            batch = prepare_cancels(self._writer.encoder, [held], [topic.id])
            self._writer.put(batch, self._writer.begin_put())
            self._cancelled += 1
            return True

    def change(
        self, message_id: str, deliver_at: int | None, delay: float | None, owns: Owns | None
    ) -> int:
        """See `Store.change_delay`."""
        now = self._clock.now_ms()
        check_delay(deliver_at, delay, None, now)
        if delay is not None:
            deliver_at = now + (whole_ms(delay) + cut_ms(self._clock) if delay else 0)
        if deliver_at is None:
            raise CallerError("change_delay needs deliver_at or delay: when is it to be delivered?")
        with self._lock:
            message, found = self._waiting.find(message_id, owns)
            position = message.position
            held = *self._log.span(position), position, found.deliver_at, found.topic
            due = [deliver_at if deliver_at > now else 0]
            batch = prepare_copies(
                self._writer.encoder, [held], due, check_crc=self._context.check_crc
            )
            self._writer.put(batch, self._writer.begin_put())
            return deliver_at

    def leave(self, segments: Iterable[int]) -> None:
        """Puts messages that still wait to the log's end, before segments with their records leave
        the log. The disk has them, and the ends of all waits, when it returns.
        """
        topic = self._topics.find(TIMER_TOPIC)
        if topic is None:
            return
        was_any = False
        for segment in segments:
            positions = self._positions(segment, topic.id)
            was_any |= bool(positions)
            for at in range(0, len(positions), AT_ONCE):
                self._move(positions[at : at + AT_ONCE])
        if was_any:
            self._checkpoint()

    def _positions(self, segment: int, topic: int) -> list[int]:
        """The positions of records of delayed messages in a segment."""
        low, high = run_key(segment, topic, 0, 0), run_key(segment, topic, 1, 0)
        found: list[int] = []
        for _, value in self._index.families.rows(RUNS, low, high):
            with suppress(FormatError):  # `verify` reports it
                columns, _ = unpack_many([value])
                found += (columns.positions + segment * self._log.segment_size).tolist()
        return found

    def _move(self, positions: list[int]) -> None:
        with self._lock:
            now = self._clock.now_ms()
            held: list[Held] = []
            due: list[int] = []
            for position in positions:
                one = self._waiting_at(position)
                if one is not None:
                    held.append(one)
                    due.append(one[4] if one[4] > now else 0)
            self._copy(held, due, is_needed=True)

    def _waiting_at(self, position: int) -> Held | None:
        """The record at a position, if it is of a message that waits."""
        try:
            buffer, at, stop = self._log.span(position)
            properties = facts(buffer, at, size_at(buffer, at))[5]
        except (RecordDamaged, SegmentDamaged) as e:
            self._cannot(position, e)
            return None
        found = read_pending(properties)
        if found is None or not self._rows.is_waiting(found[0], position):
            return None
        return buffer, at, stop, position, found[0], found[1]


def size_at(buffer: Buffer, at: int) -> int:
    """The bytes of the record at an index of a buffer."""
    return int.from_bytes(buffer[at : at + 4], "big")


def _bounded(due: list[Waiting]) -> list[Waiting]:
    """The first of some messages, as many as are put at once, one at least."""
    total, count = 0, 0
    for one in due[:AT_ONCE]:
        total += one[3]
        if count and total > _BYTES_AT_ONCE:
            break
        count += 1
    return due[:count]
