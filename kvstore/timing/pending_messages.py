"""Pending messages: the records that wait in one topic, and the records that end their waits.

The idea: delayed and prepared messages wait in the same way, each kind in a topic of its own. One
record ends a wait: a copy in the topic that the message goes to, a note that it goes to none, or a
copy that waits for another time. The tail notes both with the append, so one checkpoint has the
record and the end of the wait, and a replay finds both in the log (docs/timing.md). `Timers` and
`Transactions` decide which record ends a wait, under `lock`.

A message that waits keeps its body in the log: before a segment leaves, its messages that still
wait are put to the log's end (docs/decisions/0020).

Invariants: each wait is ended by one record, put under `lock`; messages are taken in the order in
which they are due; what a failed turn took is taken again.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kvstore.clock import Clock
from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.names import (
    BORN_HOST_V6,
    PENDING_TOPICS,
    REAL_TOPIC,
    TRANSACTION_DISCARD_TOPIC,
    UNIQUE_ID,
)
from kvstore.core.pending.pending_records import prepare_copies, prepare_notes, read_pending
from kvstore.core.records import facts
from kvstore.errors import DiskFull, FormatError, RecordDamaged, SegmentDamaged, TopicNotFound
from kvstore.index.archived import Meant
from kvstore.index.index import Index
from kvstore.index.keys import RUNS, run_key
from kvstore.index.runs import unpack_many
from kvstore.log.commitlog import CommitLog
from kvstore.message import Message, PutResult, PutStatus, StoredMessage
from kvstore.meta.topics import Topics
from kvstore.read.find import Finder
from kvstore.read.reader import Reader
from kvstore.record.layout import (
    BLANK_SIZE,
    POSITION,
    STORED_AT,
    SYSTEM_FLAGS_LOW_AT,
    V6_EXTRA,
)
from kvstore.timing.prepared_message import WITH_THE_FIRST
from kvstore.timing.timer_rows import START, Place, TimerRows

if TYPE_CHECKING:
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.records import Buffer
    from kvstore.core.tail import Waiting

_log = logging.getLogger("kvmq")
AT_ONCE: Final = 2048
"""Messages whose waits one put ends. A turn waits a few times for Python's lock, which a busy
thread keeps for 5 ms: with fewer messages a turn, less than 100,000 a second would be delivered.
"""
_BYTES_AT_ONCE: Final = 4 << 20
_ID: Final = f"{UNIQUE_ID}\x01".encode()
_VALUE_END: Final = b"\x02"
Owns = Callable[[str], bool]
"""Whether a topic is one of those that a caller may see."""
GOING_ON: Final = PENDING_TOPICS | {TRANSACTION_DISCARD_TOPIC}
"""The topics in which messages wait, and in which those stay that were given up: their records name
the topic that they go to, or would have gone to.
"""


class Putting(Protocol):
    """`kvstore.engine.writer.Writer`."""

    encoder: Encoder

    def begin_put(self) -> int:
        """See there."""
        ...

    def encode(self, messages: Sequence[Message], now: int) -> PreparedBatch:
        """See there."""
        ...

    def put(self, batch: PreparedBatch, now: int) -> PutStatus:
        """See there."""
        ...


@dataclass(frozen=True, slots=True)
class TimingContext:
    """The parts of an open store that messages in time need. Messages that wait are found by
    `finder`, which sees all that was put, also where readers may not see it yet.
    """

    log: CommitLog
    index: Index
    topics: Topics
    reader: Reader
    finder: Finder
    clock: Clock
    check_crc: bool
    any_time: bool

    def id_of_damaged(self, topic: str, row: Waiting) -> str | None:
        """The id of a message that waits in a topic and whose record is damaged, if that still says
        it and the index agrees; None if it is not known any more.
        """
        position, size = row[1], row[3]
        damaged: list[int] = []
        with suppress(RecordDamaged, SegmentDamaged, ValueError, IndexError):
            buffer, at, _ = self.log.span(position)
            message_id = unique_id_in(facts(buffer, at, size)[5])
            if message_id:
                self.finder.in_log(topic, message_id, 0, damaged)
            return message_id if position in damaged else None
        return None


class PlannedNotes:
    """The notes that an erasure would put at a log's end, made as those that are put, and judged as
    the erasure would judge them. `meant_count` of them it is about as well, which would stand in
    `segments`.
    """

    def __init__(self, meant: Meant, end: int, segment_size: int) -> None:
        self.meant = meant
        self.meant_count = 0
        self.segments = set[int]()
        self._sets_until = -1
        """Up to here sets were gone through by their messages behind the first."""
        self._end = end
        self._segment_size = segment_size

    def add(self, batch: PreparedBatch, now: int) -> None:
        """Plans the put of a batch of notes at a time, ms."""
        records, notes, at = bytearray(batch.records), list[bytes](), 0
        while at < len(records):
            behind = at + size_at(records, at)
            is_v6 = records[at + SYSTEM_FLAGS_LOW_AT] & BORN_HOST_V6
            POSITION.pack_into(records, at + STORED_AT + (V6_EXTRA if is_v6 else 0), now)
            notes.append(bytes(records[at:behind]))
            at = behind
        for note, is_meant in zip(notes, self.meant(notes).tolist(), strict=True):
            rest = self._segment_size - self._end % self._segment_size
            if len(note) + BLANK_SIZE > rest:
                self._end += rest
            if is_meant:
                self.meant_count += 1
                self.segments.add(self._end // self._segment_size)
            self._end += len(note)

    def has_set(self, row: Waiting, members: Sequence[Place], pending: PendingMessages) -> bool:
        """Whether the notes of a set are planned already, given a message of the set that is meant,
        and the places of all that wait. The messages behind the first wait behind the first ones of
        all sets, in the order of their positions.
        """
        due, position = row[:2]
        if due != WITH_THE_FIRST:
            return False
        if position <= self._sets_until:
            return True
        self._sets_until = members[-1][1] if members else position
        first = [(*place, 0, 0) for place in members[:1] if place[0] != WITH_THE_FIRST]
        return bool(pending.meant_of(first, self.meant))


class PendingMessages:
    """The messages that wait in `topic`; see the module."""

    def __init__(
        self,
        context: TimingContext,
        rows: TimerRows,
        writer: Putting,
        checkpoint: Callable[[], object],
        *,
        topic: str,
        is_prepared: bool,
    ) -> None:
        self._context = context
        self._log = context.log
        self._index = context.index
        self._topics = context.topics
        self._rows = rows
        self._writer = writer
        self.checkpoint = checkpoint
        self._topic = topic
        self._is_prepared = is_prepared
        self.lock = threading.RLock()
        self._carried: list[Waiting] = []
        """Messages that were taken from the tails, and are not settled yet."""
        self.is_unsure = False
        """Whether a turn failed at some step: what was taken is taken again."""
        self.unreadable: set[int] = set()
        """Positions of messages whose records are damaged: each is reported once an opening."""

    # --- what is due; under the lock, by one caller ---

    def due(self, now: int) -> list[Waiting]:
        """The first of the messages that are due, in order. `settled` comes next, or the turn has
        failed.
        """
        if self.is_unsure:
            self._rows.give_back()
            self._carried = []
        self.is_unsure = True
        looks = self._rows.take_due(now, AT_ONCE, self._log.end)
        kept = [one for one in self._carried if self._rows.is_waiting(*one[:2])]
        self._carried = [*kept, *looks.taken, *looks.taken_before]
        # Behind the last of a look that was full there may be messages that are due before others.
        full = [look[-1] for look in looks if len(look) == AT_ONCE]
        found = sorted({*self._carried, *looks.rows}) if self._carried else looks.rows
        return _bounded(found[: bisect_right(found, min(full))] if full else found)

    def settled(self, due: list[Waiting]) -> None:
        """Notes that the messages of `due` were seen to."""
        if due:
            if self._carried:
                settled = set(due)
                self._carried = [one for one in self._carried if one not in settled]
            self._rows.delivered(due[-1][:2])
        self.is_unsure = False

    def look_again(self) -> None:
        """Lets messages be due again that were settled and still wait."""
        self.is_unsure = True

    # --- records ---

    def held(self, due: Sequence[Waiting], names: dict[int, str]) -> list[Held]:
        """The records of messages that wait, in their order, without those in damaged segments;
        `names` has the names of topics by their ids.
        """
        found: list[Held] = []
        buffer: Buffer = b""
        low = stop = 0
        # A segment is one buffer, but for what is not written yet.
        is_one = self._log.staging is None
        for time, position, topic, _ in due:
            if position in self.unreadable:
                continue
            if not (is_one and 0 <= position - low < stop):
                try:
                    buffer, at, stop = self._log.span(position)
                except SegmentDamaged as e:
                    self._cannot(position, e)
                    continue
                low = position - at
            found.append((buffer, position - low, stop, position, time, names[topic], topic))
        return found

    def is_waiting(self, due: int, position: int) -> bool:
        """Whether the message whose record is at a position waits until that time."""
        return self._rows.is_waiting(due, position)

    def held_of(self, due: int, position: int, name: str) -> Held | None:
        """As `held`, if the message still waits and its topic is there, else None; raises the error
        of a damaged segment.
        """
        return self.record_of(due, position, name) if self._rows.is_waiting(due, position) else None

    def record_of(self, due: int, position: int, name: str) -> Held | None:
        """As `held_of`, of a message that was seen to wait under the lock."""
        topic = self._topics.find(name)
        return None if topic is None else (*self._log.span(position), position, due, name, topic.id)

    def _cannot(self, position: int, why: Exception) -> None:
        self.unreadable.add(position)
        _log.error(
            "%s: the message at %d waits and can't be read: %s; `kvmq verify` lists damage",
            self._log.folder.parent, position, str(why),
        )  # fmt: skip

    def copy(
        self,
        held: list[Held],
        due: list[int],
        added: list[bytes] | None = None,
        *,
        is_needed: bool = False,
        ends: bool = True,
    ) -> int:
        """Puts copies of messages that wait, each to its topic or (due: not 0) to wait again; those
        that are damaged are left out. Returns how many were put. Copies that are needed go to a
        disk above the write watermark as well. Without `ends`, the messages did not wait before.
        """
        while held:
            try:
                batch = self.copies(held, due, added, ends=ends)
            except RecordDamaged as e:
                at = next((i for i, one in enumerate(held) if one[3] == e.position), None)
                if at is None:
                    raise
                self._cannot(held[at][3], e)
                held, due = held[:at] + held[at + 1 :], due[:at] + due[at + 1 :]
                added = None if added is None else added[:at] + added[at + 1 :]
                continue
            now = self._context.clock.now_ms() if is_needed else self._writer.begin_put()
            self._writer.put(batch, now)
            return len(held)
        return 0

    def copies(
        self,
        held: list[Held],
        due: list[int],
        added: list[bytes] | None = None,
        *,
        ends: bool = True,
    ) -> PreparedBatch:
        """The records of copies; `added` are more properties of each. Raises `RecordDamaged`."""
        return prepare_copies(
            self._writer.encoder,
            held,
            due,
            check_crc=self._context.check_crc,
            is_prepared=self._is_prepared,
            added=added,
            ends=ends,
        )

    def note(
        self,
        held: list[Held],
        added: list[bytes] | None = None,
        *,
        ids: list[str | None] | None = None,
        is_needed: bool = False,
        planned: PlannedNotes | None = None,
    ) -> None:
        """Puts notes that messages wait no more and go to no topic; `ids` has those of messages
        whose records can't be read, and `is_needed` is as with `copy`. If they are `planned`, they
        are only added to these. Raises `RecordDamaged`.
        """
        encoder, is_prepared = self._writer.encoder, self._is_prepared
        notes = prepare_notes(encoder, held, is_prepared=is_prepared, added=added, ids=ids)
        now = self._context.clock.now_ms()
        if planned is not None:
            planned.add(notes, now)
        else:
            self.put(notes, now if is_needed else None)

    def note_readable(
        self, held: list[Held], added: bytes, planned: PlannedNotes | None = None
    ) -> int:
        """As `note` for messages that must end, each with these properties; those that are damaged
        are left out. Returns how many notes these are.
        """
        while held:
            try:
                self.note(held, [added] * len(held), is_needed=True, planned=planned)
            except RecordDamaged as e:
                readable = [one for one in held if one[3] != e.position]
                if len(readable) == len(held):
                    raise
                self._cannot(e.position, e)
                held = readable
                continue
            return len(held)
        return 0

    def end_all_to(self, topics: Iterable[int], end: Callable[[list[Waiting]], int]) -> int:
        """Lets `end` end the waits of all messages to topics, by their ids, that are in the log
        now: of some at once, under the lock. Returns how many it says it ended in all.
        """
        count, log_end = 0, self._log.end
        for topic in topics:
            place = START
            while self._rows.count(topic):
                # So that the tail is bounded. Waits must end on a full disk as well.
                with suppress(DiskFull):
                    self._writer.begin_put()
                with self.lock:
                    rows = self._rows.page(place, log_end, AT_ONCE, topic)
                    count += end(rows)
                if len(rows) < AT_ONCE:
                    break
                place = rows[-1][:2]
        return count

    def end_meant(
        self, meant: Meant, end: Callable[[list[Waiting]], int], *, is_planned: bool
    ) -> int:
        """As `end_all_to`, of the messages that an erasure is about. When it returns none of those
        waits that were put before the call, unless that is only planned.
        """
        count, log_end = 0, self._log.end
        for rows in self._pieces(0, log_end):
            with suppress(DiskFull):
                self._writer.begin_put()
            with self.lock:
                count += end(self.meant_of(rows, meant))
        if is_planned:
            return count
        with self.lock:
            # Those that were moved, or made to wait for another time, meanwhile.
            return count + sum(
                end(self.meant_of(rows, meant)) for rows in self._pieces(log_end, self._log.end)
            )

    def _pieces(self, first: int, end: int) -> Iterator[list[Waiting]]:
        """The messages that wait whose records are from a position on, below `end`; as many as are
        read at once.
        """
        place = START
        while found := self._rows.page(place, end, AT_ONCE, None):
            place = found[-1][:2]
            rows = [one for one in found if one[1] >= first]
            while rows:
                some = _bounded(rows)
                yield some
                rows = rows[len(some) :]

    def meant_of(self, rows: list[Waiting], meant: Meant) -> list[Waiting]:
        """Those that still wait, can be read, and are meant."""
        found: list[Waiting] = []
        records: list[bytes] = []
        for one in rows:
            held = self._waiting_at(one[1])
            if held is not None:
                buffer, at = held[:2]
                found.append(one)
                records.append(bytes(buffer[at : at + size_at(buffer, at)]))
        return [found[n] for n in np.flatnonzero(meant(records)).tolist()] if found else []

    def begin(self) -> int:
        """Checks that the store takes a put now; the time, ms."""
        return self._writer.begin_put()

    def put(self, batch: PreparedBatch, now: int | None = None) -> list[PutResult]:
        """Puts records that wait, or that end waits."""
        begun = self._writer.begin_put() if now is None else now
        return batch.results(self._writer.put(batch, begun))

    def newest(self, message_id: str, owns: Owns | None) -> StoredMessage:
        """The last record of a message: the one that waits, or that ended the wait."""
        find = self._context.finder.find
        return newest_of(find, (self._topic,), message_id, owns)

    # --- leaving ---

    def leave(
        self,
        segments: Iterable[int],
        with_others: Callable[[list[int]], list[int]] = lambda positions: positions,
        kept: Callable[[int], bytes] | None = None,
    ) -> None:
        """Puts messages that still wait to the log's end, before segments with their records leave
        the log. The disk has them, and the ends of all waits, when it returns. `with_others` gives
        positions, and those of messages that are moved with them; `kept` the properties that say
        how the prepared message at a position was asked about.
        """
        topic = self._topics.find(self._topic)
        if topic is None:
            return
        was_any = False
        for segment in segments:
            positions = self._positions(segment, topic.id)
            was_any |= bool(positions)
            for at in range(0, len(positions), AT_ONCE):
                part = positions[at : at + AT_ONCE]
                with self.lock:
                    while not self._move(with_others(part), kept):
                        pass
        if was_any:
            self.checkpoint()

    def _positions(self, segment: int, topic: int) -> list[int]:
        """The positions of records of delayed messages in a segment."""
        low, high = run_key(segment, topic, 0, 0), run_key(segment, topic, 1, 0)
        found: list[int] = []
        for _, value in self._index.families.rows(RUNS, low, high):
            with suppress(FormatError):  # `verify` reports it
                columns, _ = unpack_many([value])
                found += (columns.positions + segment * self._log.segment_size).tolist()
        return found

    def _move(self, positions: list[int], kept: Callable[[int], bytes] | None) -> bool:
        """Puts those messages to the log's end that stand at these positions and still wait. False,
        with nothing put, if the topic of one was deleted meanwhile.
        """
        now = self._context.clock.now_ms()
        held: list[Held] = []
        due: list[int] = []
        for position in positions:
            one = self._waiting_at(position)
            if one is not None:
                held.append(one)
                # A delayed message that is due is delivered in its turn; one that is to be asked
                # about waits on.
                due.append(max(one[4], now + 1) if self._is_prepared else one[4])
        added = None if kept is None else [kept(one[3]) for one in held]
        try:
            self.copy(held, due, added, is_needed=True)
        except TopicNotFound:
            return False
        if due and self._is_prepared:
            self._rows.added(min(due))
        return True

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
        topic = self._topics.find(found[1])
        if topic is None:
            return None
        return buffer, at, stop, position, found[0], found[1], topic.id


def newest_of(
    find: Callable[..., StoredMessage],
    topics: Container[str],
    message_id: str,
    owns: Owns | None,
    is_its: Callable[[StoredMessage], bool] = lambda message: True,
) -> StoredMessage:
    """The last record with an id, of the topics that a caller may see and of messages to these that
    wait, or stay, in `topics`, if `is_its` says yes to it; `MessageNotFound`.
    """

    def is_own(message: StoredMessage) -> bool:
        return is_its(message) and (owns is None or owns(topic_of(message, topics)))

    return find(message_id, is_own)


def records_of(
    finder: Finder,
    topic: str,
    message_id: str,
    owns: Owns | None,
    damaged: list[int] | None = None,
) -> list[StoredMessage]:
    """The records with an id in a topic in which messages wait, oldest first, of those that a
    caller may see; `damaged` as with `Finder.in_log`.
    """
    found = finder.in_log(topic, message_id, 0, damaged) if isinstance(message_id, str) else []
    return [one for one in found if owns is None or owns(topic_of(one, (topic,)))]


def topic_of(message: StoredMessage, topics: Container[str] = GOING_ON) -> str:
    """The topic of a message; of one in `topics` that which it goes to, or would have gone to."""
    return message.properties.get(REAL_TOPIC, "") if message.topic in topics else message.topic


def unique_id_in(properties: bytes) -> str:
    """The unique id that the properties of a record have, "" without one."""
    return properties.partition(_ID)[2].partition(_VALUE_END)[0].decode("utf-8", "replace")


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
