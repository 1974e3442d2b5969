"""Foreign messages: those that RocketMQ let wait, and that wait in this store from its adoption on.

The idea: each that still has to wait is put once more, as a pending message of this store, with its
unique id; from then on it waits like all others. `foreign_delays` and `foreign_transactions` say
which these are, by the log alone. This module reads RocketMQ's queues and puts the messages for
both.

Messages of this store may be among RocketMQ's records: those that waited when the store was
exported for a broker, which goes on with them. They say of themselves that they wait here, also
where the broker delivered them, ended them, or put them once more; `Returned` says how the wait of
such a record ends.

Invariants: a note in the index stays until all of them are on the disk, and a second turn finds
the records of the first; the source's records stay as they are; a message without a unique id gets
one that is made of its position, so a second turn knows it as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from kvstore.config import QUEUES_MAX
from kvstore.core.names import (
    DELAY_LEVEL,
    PROPERTY_CRC,
    REAL_QUEUE,
    REAL_TOPIC,
    ROCKETMQ_PREFIX,
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
    TRANSACTION_BEFORE_MS,
    TRANSACTION_CHECK_MS,
    TRANSACTION_PREPARED_OFFSET,
    TRANSACTION_ROLLBACK,
    TRANSACTION_SET,
    TRANSACTION_SINCE_MS,
    UNIQUE_ID,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.errors import RecordDamaged, SegmentDamaged
from kvstore.index.keys import ADOPTED, META
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.opening.adopting import Adopted
from kvstore.timing.pending_messages import AT_ONCE, PendingMessages, TimingContext

if TYPE_CHECKING:
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.records import Buffer

_log = logging.getLogger("kvmq")
_PAGE: Final = 1024
_TIMES_END: Final = 10**13 - 1
_DIGITS_MAX: Final = 13
_SIZE: Final = Struct(">I")
_PROPERTIES_SIZE: Final = Struct(">H")
_LEFT_OUT: Final = frozenset(
    name.encode()
    for name in (
        DELAY_LEVEL, PROPERTY_CRC, REAL_QUEUE, REAL_TOPIC, TIMER_BEFORE_MS, TIMER_DELAY_MS,
        TIMER_DELAY_SECONDS, TIMER_DELETE_ID, TIMER_DELIVER_MS, TIMER_DEQUEUE_MS, TIMER_ENQUEUE_MS,
        TIMER_OUT_MS, TIMER_ROLL_TIMES, TRANSACTION_BEFORE_MS, TRANSACTION_CHECK_MS,
        TRANSACTION_PREPARED_OFFSET, TRANSACTION_ROLLBACK, TRANSACTION_SET, TRANSACTION_SINCE_MS,
        UNIQUE_ID,
    )
)  # fmt: skip
"""Properties of a message that say how it waited, and its id."""
Progress = Callable[[Topic, int], int]
"""The first offset of a queue that RocketMQ may not have done with."""


class Foreign(NamedTuple):
    """A message that RocketMQ let wait; they sort by due time, in ms. RocketMQ ends the wait with a
    record behind the position `since`, stored at `stored_at` or later.
    """

    due: int
    position: int
    message_id: str
    topic: str
    queue: int
    since: int
    stored_at: int


class Returned(NamedTuple):
    """A record of this store that waits, and no longer has to: RocketMQ did with its message as
    `how` says. `moved`: it was delivered, committed, or put once more; `dropped`: it goes to no
    queue; `alone`: it waits on by itself, not with the others of its set.
    """

    one: Foreign
    how: Literal["moved", "dropped", "alone"]
    due: int = 0
    """Of one that waits on: until when, in ms."""


ByQueue = dict[tuple[str, int], dict[str, Foreign]]
"""By the topic and the queue that they go to, and their ids."""


Ends = Callable[[StoredMessage, Foreign], bool]
"""Whether a record, whose prepared position is that of the message, ends its wait."""


class ForeignMessages:
    """Reads RocketMQ's queues, and puts messages; see the module."""

    def __init__(
        self,
        context: TimingContext,
        pending: PendingMessages,
        note: bytes,
        due_name: str,
        added: bytes = b"",
    ) -> None:
        """`note` is the row of `meta` that says that they are still to be put, `due_name` the
        property that has the due time here, and `added` are more properties of a note that a wait
        has ended.
        """
        self._context = context
        self._pending = pending
        self._note = note
        self._due_name = due_name
        self._added = added

    def put(
        self,
        waiting: Callable[[], Iterable[Foreign]],
        returned: Callable[[], Iterable[Returned]],
        did: str,
    ) -> int:
        """Puts those that `waiting` gives, so that they wait here, and ends the waits that
        `returned` gives, unless that was done; `did` says in a word what RocketMQ did to them.
        Returns how many were put.
        """
        context = self._context
        families = context.index.families
        if families.get(META, self._note) is None:
            return 0
        adopted, ended = families.get(META, ADOPTED), 0
        if adopted is not None and _was_run(adopted):
            ended = self._end_waits(list(returned()))
        found = sorted(waiting())
        count = 0
        for at in range(0, len(found), AT_ONCE):
            count += self._put_some(found[at : at + AT_ONCE])
        if count or ended:
            context.log.sync_to_end()
        batch = families.batch()
        batch.delete(META, self._note)
        families.write(batch, sync=True)
        if count:
            _log.info(
                "%s: %d messages that RocketMQ %s wait here now",
                context.log.folder.parent, count, did,
            )  # fmt: skip
        return count

    # --- reading ---

    def of_topic(self, name: str) -> Iterator[StoredMessage]:
        """The messages of all queues of a topic, if there is one, that can be read."""
        topic = self._context.topics.find(name)
        for queue in range(0 if topic is None else topic.read_queues):
            assert topic is not None
            yield from self.of_queue(topic, queue, 0)

    def of_queue(self, topic: Topic, queue: int, first: int) -> Iterator[StoredMessage]:
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

    def own(self, message: StoredMessage) -> Foreign | None:
        """The message that a record of this store lets wait; None if it does not, or is no such."""
        pending = read_pending(message.raw_properties)
        if pending is None or not self._pending.is_waiting(pending[0], message.position):
            return None
        (due, topic, queue), at = pending, message.position
        return Foreign(due, at, message.message_id, topic, queue, at, message.stored_at)

    def drop_delivered(self, by_queue: ByQueue, ends: Ends = lambda message, one: False) -> None:
        """Drops messages that the queues they go to have already: by their ids, or by the position
        that a record names and `ends` says yes to.
        """
        for (name, queue), found in by_queue.items():
            topic = self._context.topics.find(name)
            if topic is None or queue >= topic.read_queues or not found:
                continue
            since = min(one.stored_at for one in found.values())
            first = self._context.reader.offset_at(topic, queue, since, upper=False)
            at = {one.position: one for one in found.values()}
            for message in self.of_queue(topic, queue, first):
                drop(found, message)
                named = at.get(message.prepared_position)
                if named is not None and ends(message, named):
                    found.pop(named.message_id, None)

    # --- putting ---

    def _end_waits(self, returned: list[Returned]) -> int:
        """Ends the waits of records, and returns how many they are."""
        for at in range(0, len(returned), AT_ONCE):
            some = returned[at : at + AT_ONCE]
            with self._pending.lock:
                held = [(r, found) for r in some if (found := self._held(r)) is not None]
                notes = [found for r, found in held if r.how != "alone"]
                if notes:
                    added = [self._added] * len(notes) if self._added else None
                    self._pending.note(notes, added, is_needed=True)
                alone = [(found, r.due) for r, found in held if r.how == "alone"]
                due = [due for _, due in alone]
                self._pending.copy([found for found, _ in alone], due, is_needed=True)
        return len(returned)

    def _held(self, returned: Returned) -> Held | None:
        """A record whose wait ends. The note about a message that is elsewhere has an id of its
        own: the last record with the message's id is the one that is there.
        """
        one = returned.one
        held = self._pending.held_of(one.due, one.position, one.topic)
        if held is None:
            return None
        message = self._context.reader.record(one.position)
        message_id = one.message_id + "-moved" if returned.how == "moved" else one.message_id
        raw = _as_ours(message, one, self._due_name, self._context.log.span, message_id)
        return raw, 0, len(raw), *held[3:]

    def _put_some(self, some: list[Foreign]) -> int:
        log, topics = self._context.log, self._context.topics
        held: list[Held] = []
        for one in some:
            topic = topics.for_replay(one.topic.encode(), one.queue, one.position, make=True)
            if topic is not None:
                message = self._context.reader.record(one.position)
                raw = _as_ours(message, one, self._due_name, log.span, one.message_id)
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
                "%s: the message at %d, which waited in RocketMQ, can't be delivered: %s",
                self._context.log.folder.parent, one[3], str(e),
            )  # fmt: skip
            return 0


def foreign_of(message: StoredMessage, due: int) -> Foreign | None:
    """The message that a record of RocketMQ lets wait until `due`, in ms; None if it is none."""
    topic, queue = message.properties.get(REAL_TOPIC), number_of(message, REAL_QUEUE)
    # Of RocketMQ's own topics, one has the locks of pops, which wait in the timer's for their ends.
    if not topic or topic in SYSTEM_TOPICS or topic.startswith(ROCKETMQ_PREFIX):
        return None
    if not 0 <= queue < QUEUES_MAX or not 0 < due < _TIMES_END:
        return None
    position, message_id = message.position, message.message_id
    if UNIQUE_ID not in message.properties:
        # The id of its position leads to RocketMQ's record.
        message_id += "-pending"
    return Foreign(due, position, message_id, topic, queue, position, message.stored_at)


def number_of(message: StoredMessage, name: str) -> int:
    """The number that a property has; -1 if it has none."""
    digits = message.properties.get(name, "")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX
    return int(digits) if is_number else -1


def drop(found: dict[str, Foreign], message: StoredMessage) -> None:
    """Drops the message whose wait this record with its id ended."""
    one = found.get(message.message_id)
    if one is not None and one.since < message.position:
        del found[one.message_id]


def _was_run(adopted: bytes) -> bool:
    """Whether a broker ran on the folder that was adopted, by the row that says what it had; a
    store that only lost its index has no configuration of RocketMQ's.
    """
    return msgspec.json.decode(adopted, type=Adopted).config_kind != "none"


def _as_ours(
    message: StoredMessage,
    one: Foreign,
    due_name: str,
    span: Callable[[int], tuple[Buffer, int, int]],
    message_id: str,
) -> bytes:
    """The bytes of a record, with the properties that say how a message waits here, under an id."""
    pairs = message.raw_properties.split(b"\x02")
    kept = [pair for pair in pairs if pair and pair.split(b"\x01", 1)[0] not in _LEFT_OUT]
    kept.insert(0, f"{UNIQUE_ID}\x01{message_id}".encode())
    kept += [
        f"{due_name}\x01{one.due:013d}".encode(),
        f"{REAL_TOPIC}\x01{one.topic}".encode(),
        f"{REAL_QUEUE}\x01{one.queue:010d}".encode(),
    ]
    properties = b"\x02".join((*kept, b""))
    buffer, at, _ = span(one.position)
    end = at + message.size - len(message.raw_properties) - _PROPERTIES_SIZE.size
    raw = bytes(buffer[at:end]) + _PROPERTIES_SIZE.pack(len(properties)) + properties
    return _SIZE.pack(len(raw)) + raw[_SIZE.size :]
