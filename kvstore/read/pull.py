"""Reads consecutive messages of a queue: for `Store.pull`, with RocketMQ's statuses, and for pops.

The idea: bounds first, then positions from the index in one go, then records from their segments. A
filter is asked after the record is decoded; a refused message is passed over and counts towards
`SCAN_MAX`, so that a pull ends even when nothing matches.

A locked message is read again long after it was locked; meanwhile damage or retention may have
taken it. A pop passes over a lost message, and says so in the log (`ReadResult`). A message in a
missing archive is not lost, since the object may be brought back: this is reported, and the message
is not passed over.

Invariants:

- At least one message is returned if there is one, whatever `max_bytes`.
- `next_offset` never jumps over a message that neither the caller nor the filter has seen, but does
  over messages that are not held any more.
- Damage is an error with the offset behind it (behind the whole segment, or the archive's block, if
  that can't be read), never a silent gap.
- A place that doesn't answer is an error, and nothing is passed over for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Self

from kvstore.core.arrow.pulled_columns import PulledColumns
from kvstore.errors import (
    ArchiveDamaged,
    ArchiveMissing,
    ArchiveUnavailable,
    CallerError,
    RecordDamaged,
    shown,
)
from kvstore.message import Bounds, PulledBatch, PullResult, PullStatus, StoredMessage
from kvstore.meta.topics import Topic
from kvstore.read.cold import READ_ERRORS, UNAVAILABLE_ERRORS, Messages, with_next
from kvstore.read.filters import Filter
from kvstore.read.reader import Reader

SCAN_MAX: Final = 800
"""Messages a filtered pull looks at (RocketMQ's limit)."""
LIMIT_MAX: Final = 1 << 20
_log = logging.getLogger("kvmq")


def check_limits(limit: object, max_bytes: object) -> None:
    """Raises `CallerError` for limits that no read can have."""
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise CallerError(f"limit is {shown(limit)}; it must be 1 to {LIMIT_MAX} messages")
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
        raise CallerError(f"max_bytes is {shown(max_bytes)}; it must be None or at least 1 byte")


def pull(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    wanted: Filter | None,
    columns: PulledColumns | None = None,
) -> PullResult:
    """See `Store.pull`. The messages go into `columns` instead, if these are given."""
    check_limits(limit, max_bytes)
    if type(offset) is not int:
        raise CallerError(f"offset is {shown(offset)}; it must be a whole number")
    mark = reader.mark()
    try:
        return _pull(reader, topic, queue, offset, limit, max_bytes, wanted, columns)
    except READ_ERRORS:
        if not reader.moved_on(mark):
            raise
    # Messages that looked damaged are gone: now the queue's bounds say so.
    return pull(reader, topic, queue, offset, limit, max_bytes, wanted, columns)


def pull_columns(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    wanted: Filter | None,
    names: Sequence[str] | None,
) -> PulledBatch:
    """See `Store.pull_columns`. A filter sees messages, and archives that are read up to a number
    of bytes give them; in all other cases records become columns at once.
    """
    columns = PulledColumns(names)
    if wanted is not None or (max_bytes is not None and reader.cold is not None):
        found = pull(reader, topic, queue, offset, limit, max_bytes, wanted)
        columns.extend(found.messages)
    else:
        found = pull(reader, topic, queue, offset, limit, max_bytes, None, columns)
    return PulledBatch(
        columns.batch(), found.next_offset, found.min_offset, found.max_offset, found.status
    )


def _pull(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    wanted: Filter | None,
    columns: PulledColumns | None,
) -> PullResult:
    key = topic.key(queue)
    low, high = reader.bounds(key)
    refused = _outside(offset, low, high)
    if refused is not None:
        status, following = refused
        return PullResult([], following, low, high, status)
    if columns is not None:
        count = min(limit, high - offset)
        if not fetch_into(columns, reader, topic, queue, offset, count, max_bytes):
            return PullResult([], high, low, high, PullStatus.NO_MATCHED_MESSAGE)
        return PullResult([], columns.next_offset, low, high, PullStatus.FOUND)
    if wanted is None:
        messages = fetch(reader, topic, queue, offset, min(limit, high - offset), max_bytes)
        if not messages:
            return PullResult([], high, low, high, PullStatus.NO_MATCHED_MESSAGE)
        return PullResult(messages, messages[-1].offset + 1, low, high, PullStatus.FOUND)
    return _filtered(reader, topic, queue, offset, limit, max_bytes, wanted)


def _outside(offset: int, low: int, high: int) -> tuple[PullStatus, int] | None:
    if high == 0:
        return PullStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return PullStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return PullStatus.OFFSET_OVERFLOW_ONE, high
    if offset > high:
        return PullStatus.OFFSET_OVERFLOW_BADLY, high
    return None


def fetch(
    reader: Reader, topic: Topic, queue: int, offset: int, limit: int, max_bytes: int | None
) -> list[StoredMessage]:
    """Messages from `offset`, which is inside the bounds: up to `limit`, and to damage; at least
    one, unless the queue holds none from there on any more. `RecordDamaged` or `ArchiveDamaged`,
    with the offset at which to go on, if the first message is lost.
    """
    messages: list[StoredMessage] = []
    fetch_into(messages, reader, topic, queue, offset, limit, max_bytes)
    # Sizes of records in the log were counted before they were read.
    return messages if max_bytes is None or reader.cold is None else _within(messages, max_bytes)


def fetch_into(
    messages: Messages,
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
) -> int:
    """As `fetch`, into `messages`, which are none yet; archives may give more than `max_bytes`.
    Returns how many there are.
    """
    mark = reader.mark()
    try:
        if reader.cold is None:
            reader.read_tiers(topic, queue, offset, limit, messages, max_bytes)
        else:
            _fetch_from_tiers(reader, topic, queue, offset, limit, max_bytes, messages)
    except READ_ERRORS as e:
        if not len(messages):
            if reader.moved_on(mark):
                return fetch_into(messages, reader, topic, queue, offset, limit, max_bytes)
            raise _told(e, topic, queue, offset) from e
    except ArchiveUnavailable:
        if not len(messages):
            raise
    return len(messages)


def _fetch_from_tiers(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    messages: Messages,
) -> None:
    high = reader.next_offset(topic.base + queue)
    at = offset
    while at < high and len(messages) < limit:
        count = min(limit - len(messages), high - at)
        if max_bytes is not None:
            assert isinstance(messages, list), "columns have no number of bytes to keep to"
            count = min(count, _as_many(messages, max_bytes))
        if not count:
            break
        at = reader.read_tiers(topic, queue, at, count, messages)


def _as_many(messages: list[StoredMessage], max_bytes: int) -> int:
    """How many more messages may have room, if they are as large as those that were read: archives
    give sizes only with the messages themselves. 0 if there is no room.
    """
    if not messages:
        return 1
    taken = sum(message.size for message in messages)
    return 0 if taken >= max_bytes else max(1, (max_bytes - taken) * len(messages) // taken)


def _told(
    e: RecordDamaged | ArchiveDamaged, topic: Topic, queue: int, offset: int
) -> RecordDamaged | ArchiveDamaged:
    following = e.next_offset if e.next_offset is not None else offset + 1
    told = f"offset {offset} of queue {queue} of {topic.name!r}: {e}; go on at offset {following}"
    if isinstance(e, ArchiveDamaged):
        return with_next(e, told, following)
    return RecordDamaged(told, e.position, following)


def _within(messages: list[StoredMessage], max_bytes: int) -> list[StoredMessage]:
    """The leading messages that have `max_bytes` together; one at least, if there is one."""
    for i, total in enumerate(accumulate(m.size for m in messages)):
        if i and total > max_bytes:
            return messages[:i]
    return messages


def _filtered(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    wanted: Filter,
) -> PullResult:
    low, high = reader.bounds(topic.key(queue))
    messages: list[StoredMessage] = []
    scanned, left = 0, max_bytes if max_bytes is not None else 1 << 62
    at = offset
    while at < high and scanned < max(SCAN_MAX, limit) and len(messages) < limit:
        try:
            most = None if max_bytes is None else max(left, 1)
            batch = fetch(reader, topic, queue, at, min(limit, high - at), most)
        except (ArchiveUnavailable, *READ_ERRORS):
            if messages:
                break
            raise
        if not batch:
            at = high
        for message in batch:
            if wanted(message):
                left -= message.size
                if left < 0 and messages:
                    return PullResult(messages, message.offset, low, high, PullStatus.FOUND)
                messages.append(message)
            at = message.offset + 1
            scanned += 1
            if len(messages) == limit:
                break
    status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MESSAGE
    return PullResult(messages, at, low, high, status)


class ReadResult:
    """The messages that a read found; they are read as they are iterated. Once that is done, `end`
    is the offset at which to go on, `missing` are the offsets whose archive is missing, and
    `unavailable` is the last error that kept messages from being read for now.
    """

    __slots__ = ("_messages", "end", "missing", "unavailable")

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.missing: list[range] = []
        self.unavailable: ArchiveUnavailable | ArchiveMissing | None = None
        self._messages: Iterable[StoredMessage] = ()

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self._messages)

    def is_missing(self, offset: int) -> bool:
        """Whether a message's archive is missing."""
        return any(offset in gap for gap in self.missing)

    def raise_if_missing(self) -> Self:
        """The result, read to its end, for a caller that can't do without a message."""
        self._messages = list(self._messages)
        if self.unavailable is not None:
            raise self.unavailable
        return self

    @classmethod
    def at_offsets(
        cls,
        reader: Reader,
        topic: Topic,
        queue: int,
        offsets: list[int],
        group: str,
        max_bytes: int | None = None,
    ) -> ReadResult:
        """The messages at ascending offsets of a queue, without those that are lost or gone, and
        without those of missing archives. With `max_bytes` so many bytes are read at a time, or one
        message. `ArchiveUnavailable` comes while it is iterated.
        """
        result = cls()
        result._messages = result._read(reader, topic, queue, offsets, group, max_bytes)
        return result

    @classmethod
    def of_queue(
        cls,
        read: Callable[[], list[StoredMessage]],
        at: int,
        high: int,
        group: str,
        bounds: Callable[[], Bounds],
    ) -> ReadResult:
        """The messages that `read` reads from an offset on, of a queue that ends at `high` and has
        these `bounds`. None if they are lost or gone; none, and the same offset, if they can't be
        read now.
        """
        result = cls(at)
        try:
            found = read()
        except UNAVAILABLE_ERRORS as e:
            result.unavailable = e
        except READ_ERRORS as e:
            result.end = _going_on(e, at, group, bounds())
        else:
            result._messages = found
            result.end = found[-1].offset + 1 if found else high
        return result

    def _read(
        self,
        reader: Reader,
        topic: Topic,
        queue: int,
        offsets: list[int],
        group: str,
        max_bytes: int | None,
    ) -> Iterator[StoredMessage]:
        low, high = reader.bounds(topic.base + queue)
        for first, count in _consecutive(offsets):
            at, end = max(first, low), min(first + count, high)
            while at < end:
                try:
                    found = fetch(reader, topic, queue, at, end - at, max_bytes)
                except ArchiveMissing as e:
                    following = _behind(e, at)
                    self.unavailable = e
                    self.missing.append(range(at, following))
                    at = following
                    continue
                except READ_ERRORS as e:
                    at = _going_on(e, at, group, reader.bounds(topic.base + queue))
                    continue
                if not found:
                    return  # the queue holds no message from here on
                at = found[-1].offset + 1
                yield from found if at <= end else (m for m in found if m.offset < end)


def first_at(reader: Reader, topic: Topic, queue: int, time: int, group: str) -> int:
    """The first offset of a queue stored at or after a time; behind lost messages, if it would be
    among them.
    """
    try:
        return reader.offset_at(topic, queue, time, upper=False)
    except UNAVAILABLE_ERRORS:
        raise
    except READ_ERRORS as e:
        return passed_over(e, -1, group)


def passed_over(error: RecordDamaged | ArchiveDamaged, at: int, group: str) -> int:
    """Logs that a group goes on behind damage met at an offset; returns the offset there."""
    _log.error("kvmq passed over messages that group %r popped: %s", group, str(error))
    return _behind(error, at)


def _going_on(error: RecordDamaged | ArchiveDamaged, at: int, group: str, bounds: Bounds) -> int:
    """The offset at which a group goes on behind messages that can't be read. Where the queue has
    begun behind them meanwhile, retention took them, and nothing is damaged.
    """
    return bounds.min_offset if at < bounds.min_offset else passed_over(error, at, group)


def _behind(error: RecordDamaged | ArchiveDamaged, at: int) -> int:
    return max(at + 1, error.next_offset if error.next_offset is not None else 0)


def _consecutive(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as ranges without a gap: (first, count)."""
    start = 0
    for i in range(1, len(offsets) + 1):
        if i == len(offsets) or offsets[i] != offsets[i - 1] + 1:
            yield offsets[start], i - start
            start = i
