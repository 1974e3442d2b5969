"""Finds messages by keys and ids.

The idea: the log's key index, and the index of each archive, give candidates by hash, newest first;
the key itself is compared with the record's own. Segments and archives outside the wanted time are
not looked at.

A finder for readers sees messages up to the visible end. One for calls about messages that wait
sees all that was put: `visibility` says what readers of queues see, not what a program knows of its
own timers, transactions and schedules.

Invariants: a message is returned once, even if it moves between tiers meanwhile. An unreadable
message keeps none of the others from being found, but a place that doesn't answer is reported. An
id is said not to exist only if every archive that may have it could be asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from kvstore.core.names import DEDUP_ID
from kvstore.errors import (
    ArchiveDamaged,
    CallerError,
    KeyMissing,
    MessageNotFound,
    MessageTooLarge,
    RecordDamaged,
    SegmentDamaged,
    shown,
)
from kvstore.index.archived import Archived
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.read.cold import READ_ERRORS, with_next
from kvstore.read.reader import Reader
from kvstore.record.hashes import key_hash, key_hash_range
from kvstore.record.ids import parse_position_id
from kvstore.record.properties import NAME_END

T = TypeVar("T")
_LOOKS_MAX: Final = 8
_log = logging.getLogger("kvmq")


class Finder:
    """Finds messages by keys and ids; see the module."""

    def __init__(
        self,
        reader: Reader,
        log: CommitLog,
        index: Index,
        topic_named: Callable[[str], Topic | None],
        *,
        sees_all: bool = False,
    ) -> None:
        """Up to the visible end, or, if it `sees_all`, up to the log's end."""
        self._reader = reader
        self._log = log
        self._index = index
        self._topic_named = topic_named
        self._sees_all = sees_all

    def _end(self) -> int:
        """The position of the log up to which messages are found."""
        return self._log.end if self._sees_all else self._reader.visible_end()

    def read_at(self, position: int) -> StoredMessage:
        """The message whose record begins at a position, as `Reader.read_at`."""
        return self._reader.read_at(position, self._end())

    def find(
        self, message_id: str, is_own: Callable[[StoredMessage], bool] = lambda message: True
    ) -> StoredMessage:
        """See `Store.find`; only messages that `is_own` says yes to."""
        self._reader.check_open()
        if not isinstance(message_id, str) or not message_id:
            raise CallerError(
                f"message_id is {shown(message_id)}; it must be a text of at least one character"
            )
        at: list[ArchiveDamaged] = []
        found, lost = self._by_position_id(message_id, at), at
        if found is None or not is_own(found):
            found, lost = self._between_moves(lambda: self._by_unique_id(message_id, is_own))
        if found is not None:
            return found
        for e in at + lost:
            told = f"whether a message has the id {shown(message_id)} can't be told: {e}"
            raise with_next(e, told, e.next_offset) from e
        raise MessageNotFound(f"no message has the id {shown(message_id)}")

    def _by_unique_id(
        self, message_id: str, is_own: Callable[[StoredMessage], bool]
    ) -> tuple[StoredMessage | None, list[ArchiveDamaged]]:
        """The message, or the errors of archives that could not be asked."""
        raw = message_id.encode("utf-8", "surrogatepass")
        lost: list[ArchiveDamaged] = []
        for position, archive in self._candidates(*key_hash_range(raw), None, None, lost):
            message = self._candidate(position, archive, lost)
            if (
                message is not None
                and message.message_id == message_id
                and is_own(message)
                and self._is_live(message)
            ):
                return message, []
        return None, lost

    def in_log(
        self, topic: str, message_id: str, since: int, damaged: list[int] | None = None
    ) -> list[StoredMessage]:
        """The messages of a topic with a unique id that are in the log from a position on, oldest
        first; also of a topic that was deleted, as long as its keys are there. The positions of
        records that may be of such messages, and can't be read, go to `damaged`.
        """
        self._reader.check_open()
        low = key_hash(topic.encode(), message_id.encode("utf-8", "surrogatepass"))

        def look() -> list[StoredMessage]:
            visible = self._end()
            # A checkpoint may move a position from tail to RocksDB between the two looks.
            in_tails = self._index.find_in_tails(low, visible)
            positions = {*in_tails, *self._in_log(low, low, None, None, visible, since)}
            found = {p: self._candidate(p, -1, []) for p in sorted(positions) if p >= since}
            if damaged is not None:
                damaged[:] = [p for p, message in found.items() if message is None]
            return [
                message
                for message in found.values()
                if message is not None
                and message.message_id == message_id
                and message.topic == topic
            ]

        return self._between_moves(look)

    def _by_position_id(self, message_id: str, lost: list[ArchiveDamaged]) -> StoredMessage | None:
        try:
            _, position = parse_position_id(message_id)
        except CallerError:
            return None
        try:
            message = self.read_at(position)
        except ArchiveDamaged as e:
            lost.append(e)
            return None
        except (MessageNotFound, SegmentDamaged, RecordDamaged):
            return None
        same = message.position_id == message_id.upper()
        return message if same and self._is_live(message) else None

    def query(
        self,
        topic: Topic,
        key: str,
        begin: int | None,
        end: int | None,
        limit: int,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """See `Store.query`."""
        self._reader.check_open()
        if not isinstance(key, str) or not key:
            raise CallerError(f"key is {shown(key)}; it must be a text of at least one character")
        if type(limit) is not int or limit < 1:
            raise CallerError(f"limit is {shown(limit)}; it must be at least 1")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise CallerError(
                f"max_bytes is {shown(max_bytes)}; it must be None or at least 1 byte"
            )
        if begin is not None or end is not None:
            _check_times(begin, end)
        return self._between_moves(partial(self._query, topic, key, begin, end, limit, max_bytes))

    def _has_moved(self, mark: int) -> bool:
        reader = self._reader
        return mark != reader.mark() or (reader.cold is not None and reader.moved_on(mark))

    def _between_moves(self, look: Callable[[], T]) -> T:
        """The result of a look during which nothing moved to another tier: a moving message might
        be missed, or come in another order.
        """
        for _ in range(_LOOKS_MAX):
            mark = self._reader.mark()
            found = look()
            if not self._has_moved(mark):
                return found
        return look()

    def _query(
        self,
        topic: Topic,
        key: str,
        begin: int | None,
        end: int | None,
        limit: int,
        max_bytes: int | None,
    ) -> list[StoredMessage]:
        taken = 0
        low = key_hash_range(key.encode("utf-8", "surrogatepass"))[0] | topic.hash_byte
        found: list[StoredMessage] = []
        lost: list[ArchiveDamaged] = []
        is_timed = begin is not None or end is not None
        for position, archive in self._candidates(low, low, begin, end, lost, since=topic.since):
            self._reader.check_going_on()
            # A record that is passed over for its time is not decoded for it.
            if is_timed and archive < 0 and self._is_of_other_time(position, begin, end):
                continue
            message = self._candidate(position, archive, lost)
            if message is None or message.topic != topic.name:
                continue
            if is_timed and not _is_between(message.stored_at, begin, end):
                continue
            # Another key may have led here, which says nothing of keys that are not indexed.
            level = topic.key_level_at(position)
            if (level > 1 and key in message.keys) or (level and message.message_id == key):
                if max_bytes is not None and taken >= max_bytes:
                    raise MessageTooLarge(
                        f"{len(found)} messages with the key {shown(key)} have {taken} bytes, and "
                        f"there are more; ask for {len(found)}, and for others by their time",
                        taken,
                        max_bytes,
                    )
                found.append(message)
                taken += message.size
                if len(found) == limit:
                    break
        return found

    def first_put(
        self, topic: Topic, dedup_id: str, at: int, begin: int, before: int
    ) -> StoredMessage | None:
        """The newest message of a topic that was put with a dedup id, if it was stored at or after
        `begin`, also where readers may not see it yet. It is looked for at position `at`, unless
        that is -1, and then before position `before`; if another message is at `at`, in all of the
        log. The error of an archive that may have it and can't be asked.
        """
        lost: list[ArchiveDamaged] = []

        def is_it(message: StoredMessage | None) -> bool:
            return (
                message is not None
                and message.topic == topic.name
                and message.position >= topic.since
                and message.properties.get(DEDUP_ID) == dedup_id
            )

        def look() -> StoredMessage | None:
            lost.clear()
            end = self._log.end
            if at >= 0:
                message = self._candidate(at, -1, lost)
                if is_it(message):
                    return message
            else:
                end = before
            key = f"{DEDUP_ID}{NAME_END}{dedup_id}".encode()
            low = key_hash(topic.name.encode(), key)
            for position, archive in self._candidates(
                low, low, begin, None, lost, since=topic.since, visible=end
            ):
                message = self._candidate(position, archive, lost)
                if is_it(message):
                    return message
            return None

        found = self._between_moves(look)
        if found is None and lost:
            e = lost[0]
            told = f"whether dedup id {shown(dedup_id)} was put before can't be told: {e}"
            raise with_next(e, told, e.next_offset) from e
        return found if found is not None and found.stored_at >= begin else None

    def _is_of_other_time(self, position: int, begin: int | None, end: int | None) -> bool:
        try:
            time = self._reader.stored_at(position)
        except (SegmentDamaged, RecordDamaged):
            return False  # the reading of the record says why
        return not _is_between(time, begin, end)

    def _candidate(
        self, position: int, archive: int, lost: list[ArchiveDamaged]
    ) -> StoredMessage | None:
        reader = self._reader
        mark = reader.mark()
        try:
            if archive >= 0 and reader.cold is not None:
                message = reader.cold.archived.record(archive, position)
                return message if message is not None and self._is_in_view(message) else None
            # A reader's tail may have messages that were handed over since.
            if reader.cold is None or self._log.segments.has(position // self._log.segment_size):
                return reader.record(position)
        except (SegmentDamaged, *READ_ERRORS):
            if not reader.moved_on(mark) and reader.cold is None:
                return None
        # Perhaps it was handed over, or merged, since it was found.
        try:
            return self.read_at(position)
        except KeyMissing:
            raise  # the caller can mend it: by giving the key
        except ArchiveDamaged as e:
            # A key's other messages are still worth having; get and verify report this one.
            lost.append(e)
            return None
        except (MessageNotFound, SegmentDamaged, RecordDamaged):
            return None

    def _is_live(self, message: StoredMessage) -> bool:
        """Whether a message belongs to a topic that exists."""
        topic = self._topic_named(message.topic)
        return topic is not None and message.position >= topic.since

    def _is_in_view(self, message: StoredMessage) -> bool:
        """Whether an archived message was put before the store was opened. A store that is open for
        reading only beside a writer learns of archives with messages that came later.
        """
        reader = self._reader
        # Messages of other stores that were attached have positions of their own.
        if reader.follow is None or message.position < self._end():
            return True
        topic = self._topic_named(message.topic)
        return topic is not None and message.offset < reader.next_offset(topic.base + message.queue)

    def _candidates(
        self,
        low: int,
        high: int,
        begin: int | None,
        end: int | None,
        lost: list[ArchiveDamaged],
        *,
        since: int = 0,
        visible: int | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Positions from `since` on of records that may have a key, newest first, with the archive
        that has each (-1: the log). The errors of archives that could not be asked go to `lost`.
        `visible` is the log's end; None: the end up to which this one finds messages.
        """
        if visible is None:
            visible = self._end()
        in_tails = self._index.find_in_tails(low, visible)
        found = self._in_log(low, high, begin, end, visible, since)
        cold = self._reader.cold
        if cold is not None:
            note_lost = partial(self._note_lost, cold.archived, lost)
            with_archive = cold.candidates(low, high, begin, end, found, note_lost, since)
        else:
            with_archive = ((position, -1) for position in found)
        if not in_tails:
            return with_archive
        newest = [(p, -1) for p in in_tails if p >= since]
        # A position that a checkpoint moves from tail to RocksDB between the two looks must not
        # come twice.
        seen = frozenset(in_tails)
        return chain(newest, (one for one in with_archive if one[0] not in seen))

    def _note_lost(
        self, archived: Archived, lost: list[ArchiveDamaged], archive: int, error: ArchiveDamaged
    ) -> None:
        """Keeps the error of an archive that could not be asked. If the archive was replaced
        meanwhile, the caller looks again, or already has the messages of its successor.
        """
        self._reader.look_again(is_missing=True)
        if archive in archived.numbers():
            _log.error("kvmq finds no older message by key there: %s", str(error))
            lost.append(error)

    def _in_log(
        self, low: int, high: int, begin: int | None, end: int | None, visible: int, since: int
    ) -> Iterator[int]:
        """Positions from `since` on of checkpointed records that may have a key, newest first, in
        segments that may have messages of a time.
        """
        segments, size = self._log.segments, self._log.segment_size
        first, last = segments.oldest, visible // size
        if begin is not None or end is not None:
            first, last = self._of_time(begin, end)

        found = self._index.keys.find(low, high, first, last, since)
        # The keys of a segment that left the log may be among those of others.
        return (p for p in found if p < visible and segments.has(p // size))

    def _of_time(self, begin: int | None, end: int | None) -> tuple[int, int]:
        """The first and the last of the log's segments that may have messages of a time."""
        numbers = list(self._log.segments.numbers)
        if not numbers:
            return 0, -1
        # A segment may begin with the millisecond that the one before ends with, so that one too.
        first = 0 if begin is None else max(self._first_from(numbers, begin, is_later=True) - 1, 0)
        behind = len(numbers) if end is None else self._first_from(numbers, end + 1, is_later=False)
        return numbers[first], numbers[behind - 1] if behind else -1

    def _first_from(self, numbers: list[int], time: int, *, is_later: bool) -> int:
        """The first of some segments whose first message was stored at or after a time; `is_later`
        is assumed of segments whose time can't be told.
        """
        low, high = 0, len(numbers)
        while low < high:
            middle = at = (low + high) // 2
            found = self._reader.segment_time(numbers[at])
            while found is None and at + 1 < high:
                at += 1  # an unreadable segment says nothing: the next one behind it does
                found = self._reader.segment_time(numbers[at])
            if is_later if found is None else found >= time:
                high = middle
            else:
                low = at + 1
        return low


def _is_between(time: int, begin: int | None, end: int | None) -> bool:
    return (begin is None or time >= begin) and (end is None or time <= end)


def _check_times(begin: int | None, end: int | None) -> None:
    """`CallerError` unless each is a time or None, in order."""
    for name, time in (("begin", begin), ("end", end)):
        if time is not None and type(time) is not int:
            raise CallerError(
                f"{name} is {shown(time)}; it must be milliseconds since the epoch, or None"
            )
    if begin is not None and end is not None and begin > end:
        raise CallerError(f"the time range {begin} to {end} is empty; begin must not be after end")
