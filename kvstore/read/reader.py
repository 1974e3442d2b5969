"""Reads messages by offset, position and time.

The idea: the index has positions, the log has records. Every record read through the index is
compared with it (topic, queue, offset), so an index that lies, or a record whose fields rotted, is
found out at the first read.

Invariants: nothing above the visible end is ever returned; a message that can't be read by offset
is a `RecordDamaged` with the record's position and the offset at which to go on, be it one record
or a whole segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, Protocol

from kvstore.config import StoreConfig
from kvstore.core.messages import ExpiryCheck, QueueReader, decode
from kvstore.core.records import facts
from kvstore.errors import (
    CallerError,
    MessageNotFound,
    OffsetNotFound,
    RecordDamaged,
    SegmentDamaged,
    StoreClosed,
    shown,
)
from kvstore.index.archived import Archived, AtHand
from kvstore.index.index import Index
from kvstore.index.keys import NOWHERE
from kvstore.log.commitlog import CommitLog
from kvstore.message import Bounds, StoredMessage
from kvstore.meta.topics import Topic
from kvstore.read.cold import READ_ERRORS, Cold, Messages
from kvstore.record.compression import decompress
from kvstore.record.layout import BLANK, BLANK_MAGIC, MAGIC_V1, MAGIC_V2

_free: Final = nullcontext()
NO_BOUND: Final = 1 << 62
"""More bytes than there are, and a later time and offset than any."""
_FIRST_PART: Final = 32
_PART_BYTES: Final = 2 << 20
"""Messages that are read first of many, and bytes of those that are read at a time from then on."""
_LASTING: Final = ExpiryCheck(NO_BOUND, 0, NO_BOUND)
"""Ends a read before the first message that ever expires."""
_LOOKED_THROUGH: Final = 8192
"""Positions asked for at a time where the end of a segment is searched."""


class Follow(Protocol):
    """`kvstore.engine.following.Follower.look`."""

    def __call__(self, *, is_missing: bool) -> None:
        """See there."""


class Reader:
    """Reads the log, and archives through `cold`; see the module."""

    def __init__(
        self,
        log: CommitLog,
        index: Index,
        config: StoreConfig,
    ) -> None:
        self._log = log
        self._index = index
        self._check_crc = config.check_crc
        self._check_property_crc = config.check_property_crc
        self._flushed_only = config.visibility == "flushed"
        self.now_ms = config.clock.now_ms
        """The time by which messages have expired, or not."""
        self._unpack = partial(decompress, limit=max(config.max_body, 64 << 20))
        self._in_memory = QueueReader(
            index.locations.decoded,
            # A staged record is not in the map that its segment may have.
            {} if config.write_mode == "staged" else log.segments.maps,
            log.segment_size,
            log.span,
            config.check_crc,
            self._unpack,
            config.check_property_crc,
        )
        """Reads what can be found without a look into RocksDB."""
        self.cold: Cold | None = None
        """Reads archives; None while there are none."""
        self.follow: Follow | None = None
        """Finds the messages that the writer has moved, if this store is open for reading only."""

    # --- positions ---

    def visible_end(self) -> int:
        """The log position up to which readers may read."""
        return self._log.durable if self._flushed_only else self._log.end

    def first_segment(self) -> int:
        """The oldest segment there is."""
        return self._log.segments.oldest

    def look_again(self, *, is_missing: bool = False) -> None:
        """Learns which messages left the log, if another process writes it. `is_missing`: a message
        was not where it should be.
        """
        if self.follow is not None:
            self.follow(is_missing=is_missing)

    def read_from(self, archived: Archived) -> None:
        """Reads messages whose locations name archives through `archived` from now on."""
        self.cold = Cold(self._index, archived, self._log.segments)
        self._index.archived_below = self.cold.below

    def at_hand(self, kept: AtHand) -> AbstractContextManager[object]:
        """Around a look under a lock that others want: see `AtHand`."""
        return _free if self.cold is None else self.cold.archived.at_hand(kept)

    def mark(self) -> int:
        """A mark for `moved_on`: taken before a look."""
        return self._log.segments.removals + self._index.moves

    def moved_on(self, mark: int) -> bool:
        """Whether segments went, or messages moved to another tier, since `mark`: a message that
        looked damaged may only be gone, or elsewhere.
        """
        self.look_again(is_missing=True)
        return self.mark() != mark

    def bounds(self, key: int) -> Bounds:
        """A queue's first held offset and its next one."""
        self.check_open()
        end = self.visible_end()
        high = self._index.next_offset(key, end)
        return Bounds(min(self._index.min_offset(key, self.first_segment(), end), high), high)

    def next_offset(self, key: int) -> int:
        """A queue's next offset alone."""
        return self._index.next_offset(key, self.visible_end())

    def positions(self, topic: Topic, queue: int, offset: int, limit: int) -> list[int]:
        """Positions of up to `limit` entries from `offset`, which is inside the bounds; at least
        one.

        `RecordDamaged` where damage that was passed over has left a gap.
        """
        key = topic.base + queue
        end, first = self.visible_end(), self.first_segment()
        found = self._index.positions(key, offset, limit, first, end)
        if not found:
            last = self._index.next_offset(key, end)
            behind = self._index.after(key, offset, first)
            behind = last if behind is None else min(behind, last)
            raise RecordDamaged(
                f"offsets {offset} to {behind - 1} of queue {queue} of {topic.name!r} were lost to "
                f"damage of the log; go on at offset {behind}",
                next_offset=behind,
            )
        return found

    def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        limit: int,
        out: Messages,
        max_bytes: int | None = None,
        check: ExpiryCheck | None = None,
    ) -> int:
        """Appends up to `limit` messages from `offset` on to `out`: those that the log has, up to
        damage, whose records have `max_bytes` together (one may have more, if `out` is empty).
        Those that `check` passes over are not among them. Returns the offset at which to go on.
        """
        key, index, end = topic.base + queue, self._index, self.visible_end()
        left = NO_BOUND if max_bytes is None else max_bytes
        stop, at, decoded_at = len(out) + limit, offset, -1
        while True:
            at, left = self._read_in_parts(topic, key, at, stop - len(out), end, left, out, check)
            if len(out) == stop or left < 0 or (check is not None and check.ends_at(at)):
                return at
            # Nothing is looked up for a reader that has come to the queue's end.
            if at >= index.next_offset(key, end):
                return at
            # Nothing more comes of a run whose next record is damaged.
            if at == decoded_at or not index.locations.decode_run(key, at, self.first_segment()):
                return at
            decoded_at = at

    def lasting(
        self, topic: Topic, queue: int, offset: int, count: int, max_bytes: int | None
    ) -> list[StoredMessage] | None:
        """`count` messages from `offset` on, if memory has them all, none of them ever expires, and
        their records have `max_bytes` together; None if that is not so.
        """
        found: list[StoredMessage] = []
        self._read_in_parts(
            topic, topic.base + queue, offset, count, self.visible_end(),
            NO_BOUND if max_bytes is None else max_bytes, found, _LASTING,
        )  # fmt: skip
        return found if len(found) == count else None

    def _read_in_parts(
        self,
        topic: Topic,
        key: int,
        at: int,
        limit: int,
        end: int,
        left: int,
        out: Messages,
        check: ExpiryCheck | None,
    ) -> tuple[int, int]:
        """As `QueueReader.read`, a part at a time: within one no other thread goes on. Returns the
        offset at which to go on, and the rest of `left`.
        """
        active, frozen = self._index.tails
        count = min(limit, _FIRST_PART)
        while True:
            before, expired = len(out), 0 if check is None else len(check.offsets)
            rest = self._in_memory.read(
                active, frozen, topic.name, key, at, count, end, left, out, check
            )
            taken = len(out) - before
            at += taken
            if check is not None:
                at += len(check.offsets) - expired
            limit -= taken
            if taken < count or not limit or rest < 0:
                return at, rest
            count = min(limit, max(1, _PART_BYTES * taken // (left - rest)))
            left = rest

    def read_tiers(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        limit: int,
        out: Messages,
        max_bytes: int | None = None,
        check: ExpiryCheck | None = None,
    ) -> int:
        """Appends messages as `read` does, but from whichever tier has them, to `out`; returns the
        offset at which to go on, which jumps over messages that are not held any more. `offset` is
        inside the bounds. An archive's messages are not counted against `max_bytes`.
        """
        following = self.read(topic, queue, offset, limit, out, max_bytes, check)
        if following > offset:
            return following
        if self.cold is not None:
            behind = self.cold.read(topic, queue, offset, limit, out, check)
            if behind is not None:
                return behind
        # This raises an error if no tier has the offset.
        position = self.positions(topic, queue, offset, 1)[0]
        found = [self.entry(position, topic, queue, offset)]
        out.extend(found if check is None else check.keep(found))
        return offset + 1

    def _behind_segment(self, topic: Topic, queue: int, offset: int, position: int) -> int:
        """The first offset above `offset` whose record is in a later segment; the queue's
        next one if there is none.
        """
        key = topic.base + queue
        end, first = self.visible_end(), self.first_segment()
        number = position // self._log.segment_size
        for location in self._index.locations.locations_from(key, offset, first):
            if location.first > offset and number < location.segment < NOWHERE:
                return location.first
        # No entry has a location yet: it may still be in the tail.
        stop = (number + 1) * self._log.segment_size
        at: int | None = offset
        while at is not None:
            found = self._index.positions(key, at, _LOOKED_THROUGH, first, end)
            if found and found[-1] >= stop:
                return at + bisect_left(found, stop)
            at = at + len(found) if found else self._index.after(key, at, first)
        return self._index.next_offset(key, end)

    # --- records ---

    def record(self, position: int) -> StoredMessage:
        """The record at a position of the log."""
        buffer, at, end = self._log.span(position)
        return decode(
            buffer, at, end, position, self._check_crc, self._unpack, self._check_property_crc
        )

    def entry(self, position: int, topic: Topic, queue: int, offset: int) -> StoredMessage:
        """The record at a position, which the index says is this offset of this queue."""
        try:
            message = self.record(position)
        except SegmentDamaged as e:
            raise self._lost_with_segment(e, position, topic, queue, offset) from e
        if message.offset != offset or message.queue != queue or message.topic != topic.name:
            raise RecordDamaged(
                f"record and index disagree: by the index offset {offset} of queue {queue} of "
                f"{topic.name!r} is at {position}, where there is offset {message.offset} of queue "
                f"{message.queue} of {message.topic!r}; `kvmq verify` tells which is wrong, "
                "`kvmq rebuild` mends an index",
                position,
                offset + 1,
            )
        return message

    def _lost_with_segment(
        self, why: SegmentDamaged, position: int, topic: Topic, queue: int, offset: int
    ) -> RecordDamaged:
        """The error for an offset whose whole segment can't be read: it goes on behind the segment,
        or a reader would meet the same error once a message.
        """
        behind = self._behind_segment(topic, queue, offset, position)
        return RecordDamaged(
            f"the record at {position} can't be read: {why}; the segment holds offsets {offset} to "
            f"{behind - 1} of queue {queue} of {topic.name!r}",
            position,
            behind,
        )

    def get(self, topic: Topic, queue: int, offset: int) -> StoredMessage:
        """See `Store.get`."""
        active, frozen = self._index.tails
        found = self._in_memory.get(
            active, frozen, topic.name, topic.base, topic.read_queues, queue, offset,
            self.visible_end(),
        )  # fmt: skip
        return self._get(topic, queue, offset) if found is None else found

    def _get(self, topic: Topic, queue: int, offset: int) -> StoredMessage:
        """`get` of a message that memory alone does not find."""
        key = topic.key(queue)
        if type(offset) is not int:
            raise CallerError(f"offset is {shown(offset)}; it must be a whole number")
        mark = self.mark()
        low, high = self.bounds(key)
        held = f"it has {low} to {high - 1}" if high > low else "it has none"
        if low <= offset < high:
            found: list[StoredMessage] = []
            try:
                self.read_tiers(topic, queue, offset, 1, found)
            except READ_ERRORS:
                if not self.moved_on(mark):
                    raise
                return self.get(topic, queue, offset)
            if found and found[0].offset == offset:
                return found[0]
            held = (
                "no tier has it any more: retention deleted it, it was erased, it was lost to "
                "damage of the log, or a newer message of its key took its place"
            )
        raise OffsetNotFound(
            f"queue {queue} of {topic.name!r} has no offset {shown(offset)}; {held}", low, high
        )

    def read_at(self, position: int, end: int | None = None) -> StoredMessage:
        """See `Store.read_at`; below a position `end` of the log, None: as readers see it."""
        self.check_open()
        if type(position) is not int:
            raise CallerError(f"position is {shown(position)}; it must be a whole number")
        mark = self.mark()
        try:
            return self._read_at(position, self.visible_end() if end is None else end)
        except (MessageNotFound, SegmentDamaged, *READ_ERRORS):
            if not self.moved_on(mark):
                raise
        return self.read_at(position, end)

    def _read_at(self, position: int, high: int) -> StoredMessage:
        low = self._log.first
        number = position // self._log.segment_size
        if self.cold is not None and 0 <= position < high and not self._log.segments.has(number):
            found = self.cold.archived.at(position)
            if found is not None:
                return found
            if number in self._log.segments.left or number in self._index.gone().segments:
                raise MessageNotFound(
                    f"no record began at {position}: what stood there is in archives"
                )
        if not low <= position < high:
            raise MessageNotFound(
                f"no record begins at {shown(position)}; the log reaches from {low} to {high}"
            )
        try:
            return self.record(position)
        except RecordDamaged as e:
            buffer, at, end = self._log.span(position)
            # Where not even a magic number has room, no record ever began.
            magic = BLANK.unpack_from(buffer, at)[1] if at + BLANK.size <= end else None
            if magic == BLANK_MAGIC:
                raise MessageNotFound(
                    f"at {position} is the blank record that ends a segment"
                ) from e
            if magic not in (MAGIC_V1, MAGIC_V2):
                raise MessageNotFound(f"no record begins at {position}: {e}") from e
            raise

    # --- by time ---

    def segment_newest(self, number: int) -> int | None:
        """Store time of a sealed, checkpointed segment's last message, ms: that of the first
        message behind it, or of the nearest that can be told; never less than the message's own.
        """
        numbers = self._log.segments.numbers
        for at in range(bisect_right(numbers, number), len(numbers)):
            found = self.segment_time(numbers[at])
            if found is not None:
                return found
        # No message came since: then the newest store time the index knows of is this segment's.
        # Its first record may be far older than its last, and nobody may lose a message for that.
        return self._index.checkpoint.stored_at or None

    def segment_time(self, number: int) -> int | None:
        """Store time of a segment's first record, if that can be told."""
        position = number * self._log.segment_size
        if position >= self._log.end:
            return None
        try:
            buffer, at, _ = self._log.span(position)
            if BLANK.unpack_from(buffer, at)[1] not in (MAGIC_V1, MAGIC_V2):
                return None
            return self.stored_at(position)
        except (SegmentDamaged, RecordDamaged):
            return None

    def offset_at(self, topic: Topic, queue: int, time: int, *, upper: bool) -> int:
        """See `Store.offset_at`."""
        mark = self.mark()
        try:
            return self._offset_at(topic, queue, time, upper=upper)
        except (SegmentDamaged, *READ_ERRORS):
            if not self.moved_on(mark):
                raise
        return self.offset_at(topic, queue, time, upper=upper)

    def _offset_at(self, topic: Topic, queue: int, time: int, *, upper: bool) -> int:
        key = topic.key(queue)
        if type(time) is not int:
            raise CallerError(f"time is {shown(time)}; it must be milliseconds since the epoch")
        low, high = self.bounds(key)
        if low == high:
            return 0 if upper else high
        if not upper:
            return self._first_from(topic, queue, time, low, high)
        behind = self._first_from(topic, queue, time + 1, low, high)
        return 0 if behind == low else behind - 1

    def _first_from(self, topic: Topic, queue: int, time: int, low: int, high: int) -> int:
        """The first offset stored at or after `time`, `high` if there is none."""
        is_archived, behind = False, high
        gap: int | None = None
        start = self._before(topic.base + queue, time, low, high)
        for location in self._index.locations.locations_from(
            topic.base + queue, start, self.first_segment()
        ):
            # Locations narrow it to one segment or archive, so that no other one is touched.
            if location.first < low or location.first >= high:
                is_archived = is_archived or (location.first < low and location.is_archived)
                continue
            if location.segment == NOWHERE:
                # Messages behind it are not in a location yet, so no archive has them.
                behind = location.first
            elif location.is_lost:
                # Its store time is unknown: the stretch before it is searched by itself.
                gap = location.first if gap is None else gap
            elif location.stored_at < time:
                low, is_archived, behind, gap = location.first, location.is_archived, high, None
            else:
                high = location.first
                break
        end = high if gap is None else gap
        if is_archived and self.cold is not None:
            found = self.cold.first_from(topic, queue, time, low, min(behind, end))
            if found is not None:
                return found
            low = min(behind, end)
        low = self._first_in_log(topic, queue, time, low, end)
        if gap is None or low < gap:
            return low
        beyond = self._index.after(topic.base + queue, gap, self.first_segment())
        return self._first_in_log(topic, queue, time, min(beyond or high, high), high)

    def _before(self, key: int, time: int, low: int, high: int) -> int:
        """An offset from `low` on, before all messages stored at or after a time, from which a look
        at the locations comes there soon.
        """
        start = low
        while low < high:
            middle = (low + high) // 2
            span = self._index.locations.location_at(key, middle, self.first_segment())
            if span is None:
                low = middle + 1
                continue
            location = span.location
            is_told = location.segment != NOWHERE and not location.is_lost
            if is_told and location.stored_at < time:
                start = max(start, location.first)
                low = high if span.behind is None else span.behind
            else:
                high = max(low, location.first)
        return start

    def _first_in_log(self, topic: Topic, queue: int, time: int, low: int, high: int) -> int:
        """The first offset from `low` on whose message was stored at or after a time; `high` if
        there is none. The log has all of these entries.
        """
        while low < high:
            middle = (low + high) // 2
            if self.stored_at(self.positions(topic, queue, middle, 1)[0]) < time:
                low = middle + 1
            else:
                high = middle
        return low

    def stored_at(self, position: int) -> int:
        """The store time of the record at a position of the log; the rest is not decoded."""
        buffer, at, end = self._log.span(position)
        size: int = BLANK.unpack_from(buffer, at)[0]
        if size > end - at:
            raise RecordDamaged(
                f"record at {position} is damaged: it says it has {size} bytes", position
            )
        return facts(buffer, at, size)[4]

    def stored_from(self, topic: Topic, queue: int, offset: int) -> int | None:
        """The store time of an entry, ms; of one that is archived that of the first of the queue in
        its archive, for which no archive is read. None if it can't be told.
        """
        key, first = topic.base + queue, self.first_segment()
        try:
            found = self._index.positions(key, offset, 1, first, self.visible_end())
            if found:
                return self.stored_at(found[0])
        except (SegmentDamaged, *READ_ERRORS):
            return None
        span = self._index.locations.location_at(key, offset, first)
        return span.location.stored_at if span is not None and span.location.is_archived else None

    def check_going_on(self) -> None:
        """See `CommitLog.check_going_on`."""
        self._log.check_going_on()

    def check_open(self) -> None:
        """Raises `StoreClosed` after the log was closed."""
        if self._log.closed:
            raise StoreClosed(f"{self._log.folder.parent} was closed; open it again")
