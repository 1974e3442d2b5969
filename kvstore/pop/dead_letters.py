"""Dead letters: copies of the messages that a group gave up on, and the way back to the group.

The idea: a row that was handed out too often is copied, message by message, to the group's
dead-letter topic, and then removed. The copy's unique id is made from the original and its last
delivery. Before a copy is put, that id is looked for. So a crash between the copy and the removal
makes no second copy. A message that has expired is copied by the claim that passes it over, in the
same way; if it had no lock then, its place alone names it, and so it has one copy for ever.

A dead letter says which message it is a copy of. A redrive locks that message for the group once
more, in a row that is due at once and was never handed out: so only this group gets it, with its
old offset and id. For an ordered group it is parked instead, and comes when it is its message
group's turn. The group's offset in its dead-letter topic says which letters were taken. If the
original is gone or has expired (or its place has another message now), the letter itself is put to
the topic it came from, under the letter's id, which is how a second try finds that it was done.

Invariants: a copy is on the disk before the row it replaces goes. The rows of a redrive and the
group's offset in the dead-letter topic are one WriteBatch; a letter that is put back is on the disk
before that; a message that is unread or locked already gets no second row.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from struct import Struct
from typing import Final, NamedTuple

from kvstore.core.names import (
    DLQ_ATTEMPTS,
    DLQ_LEFT_OUT,
    DLQ_NACK_REASON,
    DLQ_ORIGIN_GROUP,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_OFFSET,
    DLQ_ORIGIN_QUEUE,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    DLQ_REASON,
    REASON_ATTEMPTS,
    REASON_EXPIRED,
)
from kvstore.core.popping.inflight import Change
from kvstore.errors import (
    ArchiveDamaged,
    ArchiveMissing,
    ArchiveUnavailable,
    CallerError,
    MessageTooLarge,
    OffsetNotFound,
    RecordDamaged,
    TopicExists,
    TopicNotFound,
    shown,
)
from kvstore.index.archived import AtHand
from kvstore.index.families import Batch
from kvstore.index.keys import LOCKS, PARKED, LockKey
from kvstore.message import Message, StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic, TopicConfig
from kvstore.pop.context import PopContext
from kvstore.pop.expired import Expired, has_expired
from kvstore.pop.inflight.lock_rows import SPAN, Lock, bits_of, offsets_of, spans
from kvstore.pop.inflight.queue_order import group_hash
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.progress import letter_queues
from kvstore.read.cold import UNAVAILABLE_ERRORS
from kvstore.read.pull import ReadResult

_NAMING: Final = frozenset(
    {
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_GROUP,
        DLQ_ORIGIN_MESSAGE_ID,
        DLQ_ORIGIN_QUEUE,
        DLQ_ORIGIN_OFFSET,
        DLQ_ATTEMPTS,
        DLQ_REASON,
        DLQ_NACK_REASON,
    }
)
_ID: Final = Struct(">IIIQQ")
_AT_ONCE: Final = 512
"""Dead letters that are looked at, and put back, by one WriteBatch."""
_OF_THE_LETTER: Final = _NAMING - {DLQ_ORIGIN_MESSAGE_ID}
"""Properties that a letter doesn't keep when it is put back; it keeps the id of its original."""


class DeadLetters:
    """Buries rows, see the module."""

    def __init__(self, context: PopContext) -> None:
        self._reader = context.reader
        self._finder = context.finder
        self._topics = context.topics
        self._groups = context.groups
        self._put = context.put

    def bury(
        self, change: Change, topic: Topic, group: GroupInfo, rows: list[tuple[LockKey, Lock]]
    ) -> dict[LockKey, ArchiveMissing]:
        """Copies the messages of rows to the dead letters, and adds the rows' removal to the
        change. Returns the rows that stay because an archive with one of their messages is missing.
        """
        target = self._topic(group)
        copies = []
        stuck: dict[LockKey, ArchiveMissing] = {}
        for key, lock in rows:
            offsets = offsets_of(key.first, lock.locked)
            found = ReadResult.at_offsets(self._reader, topic, key.queue, offsets, group.name)
            messages = list(found)
            if isinstance(found.unavailable, ArchiveMissing):
                stuck[key] = found.unavailable
                continue
            for message in messages:
                copies += self._missing(
                    target, topic, group, Expired(message, lock), REASON_ATTEMPTS
                )
        self._put_what_fits(copies)
        for key, lock in rows:
            if key not in stuck:
                change.remove(key, lock, lock.locked | lock.moved)
        return stuck

    def bury_expired(self, topic: Topic, group: GroupInfo, expired: list[Expired]) -> None:
        """Copies messages that have expired to the dead letters."""
        target = self._topic(group)
        copies = []
        for one in expired:
            copies += self._missing(target, topic, group, one, REASON_EXPIRED)
        self._put_what_fits(copies)

    def _missing(
        self, target: Topic, topic: Topic, group: GroupInfo, dead: Expired, reason: str
    ) -> list[Message]:
        """The copy of a message, if there is none yet."""
        message, lock = dead
        name = _ID.pack(group.id, topic.id, message.queue, message.offset, lock.nonce).hex().upper()
        # A copy is no older than its original.
        if self._finder.query(target, name, message.stored_at, None, 1):
            return []
        return [_letter_of(message, group.name, target.name, name, lock, reason)]

    def _put_what_fits(self, copies: list[Message]) -> None:
        """Puts copies. One that is too large, because of the original's size and the properties
        added to it, is put with only the properties that name the original: a message that can't be
        copied must not hold up a group.
        """
        if not copies:
            return
        try:
            self._put(copies)
        except MessageTooLarge:
            if len(copies) > 1:
                for copy in copies:
                    self._put_what_fits([copy])
                return
            self._put([_without_content(copies[0])])

    def _topic(self, group: GroupInfo) -> Topic:
        # As it is now: a thread that alters it waits for its present pops, and for no later ones.
        name = self._groups.get(group.name).dead_letters
        # By its id in the index a copy that was made is told from one that was not.
        try:
            found = self._topics.get(name)
        except TopicNotFound:
            with suppress(TopicExists):
                self._topics.create([TopicConfig(name=name, queues=1, key_index="all")])
            found = self._topics.get(name)
        if not found.keys_unique:
            self._topics.alter(name, {"key_index": "unique"})
            found = self._topics.get(name)
        return found


def _letter_of(
    message: StoredMessage, group: str, topic: str, message_id: str, lock: Lock, reason: str
) -> Message:
    origin = {
        DLQ_ORIGIN_TOPIC: message.topic,
        DLQ_ORIGIN_GROUP: group,
        DLQ_ORIGIN_MESSAGE_ID: message.message_id,
        DLQ_ORIGIN_QUEUE: str(message.queue),
        DLQ_ORIGIN_OFFSET: str(message.offset),
        DLQ_ATTEMPTS: str(lock.attempts),
        DLQ_REASON: reason,
    }
    if lock.reason:
        origin[DLQ_NACK_REASON] = lock.reason.decode("utf-8", "replace")
    return Message(
        topic,
        message.body,
        0,
        message.tag,
        message.keys,
        message.user_properties | origin,
        message.message_group,
        message.flags,
        message_id,
        message.born_at,
    )


def _without_content(copy: Message) -> Message:
    """A copy that has only the properties that name the original, and says so."""
    origin = {name: value for name, value in copy.properties.items() if name in _NAMING}
    return Message(
        copy.topic,
        b"",
        copy.queue,
        properties=origin | {DLQ_LEFT_OUT: str(len(copy.body))},
        message_id=copy.message_id,
        born_at=copy.born_at,
    )


class _Letter(NamedTuple):
    """A dead letter, and the place of its original; -1 where the letter doesn't say it."""

    message: StoredMessage
    topic: Topic
    queue: int
    offset: int


class _Plan(NamedTuple):
    """The change to one table; `parked` has queue, offset and message group of each message."""

    change: Change
    parked: list[tuple[int, int, int]]


class Redrive:
    """Gives dead letters back, see the module."""

    def __init__(self, context: PopContext) -> None:
        self._context = context
        self._reader = context.reader
        self._offsets = context.offsets

    def redrive(self, group: GroupInfo, limit: int | None) -> int:
        """See `Store.redrive`."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise CallerError(f"limit is {shown(limit)}; it must be None or at least 1 dead letter")
        done = 0
        # Letters that arrive while this runs are left for the next call.
        for letters, queue, bounds in list(
            letter_queues(group, self._reader, self._context.topics, self._offsets)
        ):
            while limit is None or done < limit:
                self._reader.check_going_on()
                most = _AT_ONCE if limit is None else min(_AT_ONCE, limit - done)
                found = self._step(group, letters, queue, bounds.next_offset, most)
                if found is None:
                    break
                done += found
        return done

    # --- some letters ---

    def _step(
        self, group: GroupInfo, letters: Topic, queue: int, end: int, most: int
    ) -> int | None:
        """Puts back some letters, in order; how many, or None if there are no more."""
        at = self._first(group, letters, queue)
        if at >= end:
            return None
        mine, behind = self._look(group, letters, queue, range(at, min(end, at + _AT_ONCE)), most)
        kept = AtHand()
        if self._reader.cold is not None:
            for n, letter in enumerate(mine):
                try:
                    self._original(letter)  # so that it is at hand
                except UNAVAILABLE_ERRORS:
                    if not n:
                        raise
                    mine, behind = mine[:n], letter.message.offset
                    break
        while True:
            try:
                return self._lock_all(group, letters, queue, at, mine, behind, kept)
            except ArchiveUnavailable:
                if not kept.misses:
                    raise
                kept.fetch()

    def _lock_all(
        self,
        group: GroupInfo,
        letters: Topic,
        queue: int,
        at: int,
        mine: list[_Letter],
        behind: int,
        kept: AtHand,
    ) -> int:
        """Locks the originals of letters, or puts letters back whose original is gone.
        `ArchiveUnavailable`, with nothing changed, if that takes a read.
        """
        topics = {letter.topic.id: letter.topic for letter in mine}
        with ExitStack() as held:
            held.enter_context(self._reader.at_hand(kept))
            tables = {
                # In the order in which commits take them.
                topic: held.enter_context(self._context.tables.locked(group.id, topic))
                for topic in sorted({letters.id, *topics})
            }
            if self._first(group, letters, queue) != at:
                return 0  # another redrive took them meanwhile: look again
            batch = self._context.families.batch()
            lost: list[_Letter] = []
            changes = [
                (tables[topic], self._lock(group, tables[topic], batch, mine, lost))
                for topic in topics
            ]
            if lost:
                self._put_back(lost)
            self._offsets.put_offset(batch, group.id, letters.id, queue, behind)
            self._context.families.write(batch, sync=True)
            self._offsets.written()
            tables[letters.id].forget_next(queue)
            for table, plan in changes:
                table.apply(plan.change)
                self._offsets.may_move(group.id, table.topic)
                if plan.parked:
                    _park_in_order(table, plan.parked)
                freed = plan.change.count_added() + len(plan.parked)
                self._context.waiting.freed(table, freed)
        return len(mine)

    def _first(self, group: GroupInfo, letters: Topic, queue: int) -> int:
        """The first letter that was not taken yet, either by a pop of the group or by a redrive."""
        bounds = self._reader.bounds(letters.base + queue)
        table = self._context.tables.find(group.id, letters.id)
        known = None if table is None else table.next.get(queue)
        if known is None:
            known = self._offsets.get(group.id, letters.id, queue, bounds)
        return max(known or 0, bounds.min_offset)

    def _look(
        self, group: GroupInfo, letters: Topic, queue: int, offsets: range, most: int
    ) -> tuple[list[_Letter], int]:
        """The group's letters among some, and the offset behind the last one that was looked at."""
        mine: list[_Letter] = []
        found = ReadResult.at_offsets(self._reader, letters, queue, list(offsets), group.name)
        for message in found:
            if found.unavailable is not None:
                break
            if not _is_of(message, group):
                continue
            try:
                mine.append(self._letter(message))
            except TopicNotFound as e:
                if mine:
                    return mine, message.offset
                raise TopicNotFound(
                    f"the dead letter at offset {message.offset} of queue {queue} of "
                    f"{letters.name!r} can't be put back: {e}; or commit offset "
                    f"{message.offset + 1} there for group {group.name!r}, to leave it where it is"
                ) from e
            if len(mine) == most:
                return mine, message.offset + 1
        if found.unavailable is None:
            return mine, offsets.stop
        if found.missing[0].start == offsets.start:
            raise found.unavailable
        return mine, found.missing[0].start

    def _letter(self, message: StoredMessage) -> _Letter:
        """A letter's values about its original, as far as they can be right."""
        said = message.properties
        topic = self._context.topics.get(said[DLQ_ORIGIN_TOPIC])
        queue, offset = _number(said.get(DLQ_ORIGIN_QUEUE)), _number(said.get(DLQ_ORIGIN_OFFSET))
        if not 0 <= queue < topic.read_queues or offset < 0:
            queue = offset = -1
        return _Letter(message, topic, queue, offset)

    # --- locking originals ---

    def _lock(
        self,
        group: GroupInfo,
        table: InflightTable,
        batch: Batch,
        mine: list[_Letter],
        lost: list[_Letter],
    ) -> _Plan:
        """Adds the rows of one topic's originals to a batch; letters whose original is gone are
        added to `lost`.
        """
        change = Change()
        wanted: dict[int, set[int]] = {}
        hashes: dict[tuple[int, int], int] = {}
        for letter in mine:
            if letter.topic.id != table.topic:
                continue
            original = self._original(letter)
            if original is None:
                lost.append(letter)
            elif letter.offset < self._context.next_offset(
                table, group, letter.topic, letter.queue
            ):
                wanted.setdefault(letter.queue, set()).add(letter.offset)
                hashes[letter.queue, letter.offset] = group_hash(original)
        _drop_locked(table, wanted)
        due = self._context.clock.now_ms()
        parked: list[tuple[int, int, int]] = []
        for queue, found in wanted.items():
            self._hold_next(group, table, batch, change, queue)
            offsets = sorted(found)
            if group.ordered:
                self._park(table, change, queue, offsets)
                parked += [(queue, offset, hashes[queue, offset]) for offset in offsets]
                continue
            for begin, stop in spans(offsets):
                first = offsets[begin]
                bits = bits_of(first, offsets[begin:stop])
                lock = Lock(0, self._offsets.recoveries, next(self._context.nonces), bits)
                change.add(table.free_key(change, queue, first, due), lock)
        batch.add(LOCKS, change.rows)
        return _Plan(change, parked)

    def _park(self, table: InflightTable, change: Change, queue: int, offsets: list[int]) -> None:
        """Adds messages of a queue to its rows of parked ones."""
        blocks: dict[int, list[int]] = {}
        for offset in offsets:
            blocks.setdefault(offset - offset % SPAN, []).append(offset)
        for first, found in blocks.items():
            key = LockKey(table.group, table.topic, PARKED, queue, first)
            kept = table.get(key)
            bits = bits_of(first, found) | (0 if kept is None else kept.locked)
            change.park(key, Lock(0, self._offsets.recoveries, 0, bits))

    def _original(self, letter: _Letter) -> StoredMessage | None:
        """The message a letter is a copy of, if it is still where it was, and a pop may hand it
        out.
        """
        if letter.queue < 0:
            return None
        try:
            found = self._reader.get(letter.topic, letter.queue, letter.offset)
        except ArchiveMissing:
            raise
        except (OffsetNotFound, RecordDamaged, ArchiveDamaged):
            return None
        said = letter.message.properties.get(DLQ_ORIGIN_MESSAGE_ID)
        if found.message_id != said or has_expired(found, self._context.clock.now_ms()):
            return None
        return found

    def _hold_next(
        self, group: GroupInfo, table: InflightTable, batch: Batch, change: Change, queue: int
    ) -> None:
        """Stores the beginning of a queue's unread messages with the rows of the messages before
        it: another start of the group must not make those unread as well.
        """
        if queue not in table.next:
            change.next[queue] = table.starts[queue][2]
            self._offsets.put_offset(batch, group.id, table.topic, queue, change.next[queue])

    # --- putting letters back ---

    def _put_back(self, lost: list[_Letter]) -> None:
        copies = []
        for letter in lost:
            known = self._context.finder.query(
                letter.topic, letter.message.message_id, None, None, 1
            )
            if not known:
                copies.append(_original_of(letter))
        if copies:
            self._context.put(copies)


def _park_in_order(table: InflightTable, parked: list[tuple[int, int, int]]) -> None:
    if table.order is not None:
        for queue, offset, hashed in parked:
            table.order.park(queue, offset, hashed)


def _is_of(message: StoredMessage, group: GroupInfo) -> bool:
    """Whether a message is a dead letter of a group: several may share a topic."""
    said = message.properties
    if DLQ_ORIGIN_TOPIC not in said:
        return False
    owner = said.get(DLQ_ORIGIN_GROUP)
    if owner is None:
        # RocketMQ's own letters: their topic says whose they are.
        return message.topic == DLQ_PREFIX + group.name
    return owner == group.name


def _number(text: str | None) -> int:
    """A number of a property, -1 if it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else -1


def _drop_locked(table: InflightTable, wanted: dict[int, set[int]]) -> None:
    """Drops messages that a row has already: a reset may have made them unread since, and a pop
    locked them.
    """
    for queue, offsets in wanted.items():
        offsets.difference_update([o for o in offsets if table.held(queue, o, 1)])


def _original_of(letter: _Letter) -> Message:
    message, topic = letter.message, letter.topic
    kept = {k: v for k, v in message.user_properties.items() if k not in _OF_THE_LETTER}
    return Message(
        topic.name,
        message.body,
        letter.queue if 0 <= letter.queue < topic.write_queues else None,
        message.tag,
        message.keys,
        kept,
        message.message_group,
        message.flags,
        message.message_id,
        message.born_at,
    )
