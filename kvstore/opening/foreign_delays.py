"""Foreign delays: messages that RocketMQ delayed and had not delivered when its store was adopted.

The idea: RocketMQ has them in two topics, by delay level and by time. Each that was not delivered
is put once more, as a delayed message of this store, with its unique id; from then on it waits like
all others. The log alone tells which were delivered, cancelled, or put so before: a record behind
it, with the id, in the topic that it goes to or in the one in which delayed messages wait. (The
progress of a delay level is written seldom, so it tells only what was delivered for certain.)

Invariants: a note in the index stays until all of them are on the disk, and a second turn finds the
records of the first; the source's records stay as they are; a message without a unique id gets
that of its position, so a second turn knows it as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kvstore.config import QUEUES_MAX
from kvstore.core.names import (
    DELAY_LEVEL,
    DELAY_LEVELS_MS,
    PROPERTY_CRC,
    REAL_QUEUE,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    TIMER_BEFORE_MS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS,
    TIMER_DELETE_ID,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    UNIQUE_ID,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.errors import RecordDamaged, SegmentDamaged
from kvstore.index.keys import FOREIGN_DELAYS, META
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.timing.pending_messages import AT_ONCE, PendingMessages, TimingContext

if TYPE_CHECKING:
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.records import Buffer

_log = logging.getLogger("kvmq")
_PAGE: Final = 1024
_TIMES_END: Final = 10**13
_DIGITS_MAX: Final = 13
_SIZE: Final = Struct(">I")
_PROPERTIES_SIZE: Final = Struct(">H")
_LEFT_OUT: Final = frozenset(
    name.encode()
    for name in (
        DELAY_LEVEL, PROPERTY_CRC, REAL_QUEUE, REAL_TOPIC, TIMER_BEFORE_MS, TIMER_DELAY_MS,
        TIMER_DELAY_SECONDS, TIMER_DELIVER_MS, TIMER_DEQUEUE_MS, TIMER_ENQUEUE_MS, TIMER_OUT_MS,
        TIMER_ROLL_TIMES,
    )
)  # fmt: skip
"""Properties of a message that say how it waited."""
Progress = Callable[[Topic, int], int]
"""The first offset of a queue of the delay levels that may not have been delivered."""


class Foreign(NamedTuple):
    """A message that RocketMQ delayed; they sort by due time, in ms."""

    due: int
    position: int
    message_id: str
    topic: str
    queue: int
    stored_at: int


class ForeignDelays:
    """Puts the messages; see the module."""

    def __init__(
        self, context: TimingContext, pending: PendingMessages, progress: Progress
    ) -> None:
        self._context = context
        self._pending = pending
        self._progress = progress

    def put(self) -> int:
        """Puts those that were not delivered, so that they wait here, unless that was done. Returns
        how many.
        """
        context = self._context
        families = context.index.families
        if families.get(META, FOREIGN_DELAYS) is None:
            return 0
        waiting = sorted(self._waiting())
        count = 0
        for at in range(0, len(waiting), AT_ONCE):
            count += self._put_some(waiting[at : at + AT_ONCE])
        if count:
            context.log.sync_to_end()
        batch = families.batch()
        batch.delete(META, FOREIGN_DELAYS)
        families.write(batch, sync=True)
        if count:
            _log.info(
                "%s: %d messages that RocketMQ delayed wait here now",
                context.log.folder.parent, count,
            )  # fmt: skip
        return count

    # --- which of them wait ---

    def _waiting(self) -> set[Foreign]:
        """The messages that RocketMQ still has to deliver."""
        by_place: dict[tuple[str, int], dict[str, Foreign]] = {}
        for one in (*self._levels(), *self._timers()):
            of_queue = by_place.setdefault((one.topic, one.queue), {})
            # Of one that RocketMQ put to wait again, the last record counts.
            before = of_queue.get(one.message_id)
            if before is None or before.position < one.position:
                of_queue[one.message_id] = one
        self._drop_continued(by_place)
        for (name, queue), of_queue in by_place.items():
            self._drop_delivered(name, queue, of_queue)
        return {one for of_queue in by_place.values() for one in of_queue.values()}

    def _levels(self) -> Iterator[Foreign]:
        """Messages that wait for a delay level, as far as the progress goes."""
        topic = self._context.topics.find(SCHEDULE_TOPIC)
        if topic is None:
            return
        for queue, delay in enumerate(DELAY_LEVELS_MS[: topic.read_queues]):
            for message in self._messages(topic, queue, self._progress(topic, queue)):
                found = _foreign(message, message.stored_at + delay)
                if found is not None:
                    yield found

    def _timers(self) -> Iterator[Foreign]:
        """Messages that wait for a time, without those that were cancelled."""
        found: list[Foreign] = []
        cancels: dict[str, int] = {}
        for message in self._timer_messages():
            cancelled = message.properties.get(TIMER_DELETE_ID)
            if cancelled is not None:
                cancels[cancelled] = message.position
            elif read_pending(message.raw_properties) is None:
                one = _foreign(message, _number(message, TIMER_OUT_MS))
                found += () if one is None else (one,)
        for one in found:
            # Older versions name the unique id alone.
            names = f"{one.topic}+{one.message_id}", one.message_id
            if all(cancels.get(name, -1) < one.position for name in names):
                yield one

    def _timer_messages(self) -> Iterator[StoredMessage]:
        topic = self._context.topics.find(TIMER_TOPIC)
        return iter(()) if topic is None else self._messages(topic, 0, 0)

    def _drop_continued(self, by_place: dict[tuple[str, int], dict[str, Foreign]]) -> None:
        """Drops messages that were put to wait here before."""
        if not by_place:
            return
        for message in self._timer_messages():
            pending = read_pending(message.raw_properties)
            if pending is not None:
                _drop(by_place.get(pending[1:], {}), message)

    def _drop_delivered(self, name: str, queue: int, found: dict[str, Foreign]) -> None:
        """Drops messages of a queue that it has already."""
        topic = self._context.topics.find(name)
        if topic is None or queue >= topic.read_queues:
            return
        since = min(one.stored_at for one in found.values()) if found else 0
        first = self._context.reader.offset_at(topic, queue, since, upper=False)
        for message in self._messages(topic, queue, first):
            _drop(found, message)

    def _messages(self, topic: Topic, queue: int, first: int) -> Iterator[StoredMessage]:
        """The messages of a queue from an offset on that can be read."""
        reader = self._context.reader
        low, end = reader.bounds(topic.key(queue))
        at = max(first, low)
        while at < end:
            found: list[StoredMessage] = []
            try:
                reader.read(topic, queue, at, _PAGE, found)
            except (RecordDamaged, SegmentDamaged) as e:
                if not found:
                    at = max(at + 1, getattr(e, "next_offset", None) or 0)
                    continue
            yield from found
            at = found[-1].offset + 1 if found else at + 1

    # --- putting them ---

    def _put_some(self, some: list[Foreign]) -> int:
        log, topics = self._context.log, self._context.topics
        held: list[Held] = []
        for one in some:
            topic = topics.for_replay(one.topic.encode(), one.queue, one.position, make=True)
            if topic is not None:
                raw = _as_ours(self._context.reader.record(one.position), one, log.span)
                held.append((raw, 0, len(raw), one.position, one.due, one.topic, topic.base >> 32))
        try:
            return self._copy(held)
        except ValueError:
            # One of them is more than a record of this store may be.
            return sum(self._copy_alone(one) for one in held)

    def _copy(self, held: list[Held]) -> int:
        with self._pending.lock:
            due = [one[4] for one in held]
            return self._pending.copy(held, due, is_needed=True, ends=False)

    def _copy_alone(self, one: Held) -> int:
        try:
            return self._copy([one])
        except ValueError as e:
            _log.error(
                "%s: the message at %d, which RocketMQ delayed, can't be delivered: %s",
                self._context.log.folder.parent, one[3], str(e),
            )  # fmt: skip
            return 0


def _foreign(message: StoredMessage, due: int) -> Foreign | None:
    """The delayed message that a record of RocketMQ is; None if it is none."""
    topic, queue = message.properties.get(REAL_TOPIC), _number(message, REAL_QUEUE)
    if not topic or topic in SYSTEM_TOPICS:
        return None
    if not 0 <= queue < QUEUES_MAX or not 0 < due < _TIMES_END:
        return None
    return Foreign(due, message.position, message.message_id, topic, queue, message.stored_at)


def _number(message: StoredMessage, name: str) -> int:
    """The number that a property has; -1 if it has none."""
    digits = message.properties.get(name, "")
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else -1


def _drop(found: dict[str, Foreign], message: StoredMessage) -> None:
    """Drops the delayed message behind which this record with its id comes."""
    one = found.get(message.message_id)
    if one is not None and one.position < message.position:
        del found[one.message_id]


def _as_ours(
    message: StoredMessage, one: Foreign, span: Callable[[int], tuple[Buffer, int, int]]
) -> bytes:
    """The bytes of a record of RocketMQ, with the properties that say how a message waits here."""
    pairs = message.raw_properties.split(b"\x02")
    kept = [pair for pair in pairs if pair and pair.split(b"\x01", 1)[0] not in _LEFT_OUT]
    if UNIQUE_ID not in message.properties:
        kept.insert(0, f"{UNIQUE_ID}\x01{one.message_id}".encode())
    kept += [
        f"{TIMER_OUT_MS}\x01{one.due:013d}".encode(),
        f"{REAL_TOPIC}\x01{one.topic}".encode(),
        f"{REAL_QUEUE}\x01{one.queue:010d}".encode(),
    ]
    properties = b"\x02".join((*kept, b""))
    buffer, at, _ = span(one.position)
    end = at + message.size - len(message.raw_properties) - _PROPERTIES_SIZE.size
    raw = bytes(buffer[at:end]) + _PROPERTIES_SIZE.pack(len(properties)) + properties
    return _SIZE.pack(len(raw)) + raw[_SIZE.size :]
