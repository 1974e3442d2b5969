"""Reads consecutive messages of a queue: for `Store.pull`, with RocketMQ's statuses, and for pops.

The idea: bounds first, then positions from the index in one go, then records from their segments. A
filter is asked after the record is decoded; a refused message is passed over and counts towards
`SCAN_MAX`, so that a pull ends even when nothing matches. So does a message that has expired, which
the core passes over before it is decoded. Only a pull passes these over: a pop reads ahead, and
looks at the time when it hands out.

A locked message is read again long after it was locked; meanwhile damage or retention may have
taken it. A pop passes over a lost message, and says so in the log (`ReadResult`). A message in a
missing archive is not lost, since the object may be brought back: this is reported, and the message
is not passed over.

Invariants:

- At least one message is returned if there is one, whatever `max_bytes`.
- `next_offset` never jumps over a message that neither the caller nor the filter has seen, but does
  over messages that have expired, which are counted, or are not held any more.
- Damage is an error with the offset behind it (behind the whole segment, or the archive's block, if
  that can't be read), never a silent gap.
- A place that doesn't answer is an error, and nothing is passed over for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Self

import msgspec

from kvstore.core.arrow.pulled_columns import PulledColumns
from kvstore.core.messages import ExpiryCheck, record_bytes
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

_FOUND: Final = PullStatus.FOUND  # a member of an Enum takes 0.1 us to look up
SCAN_MAX: Final = 800
"""Messages a filtered pull looks at (RocketMQ's limit)."""
LIMIT_MAX: Final = 1 << 20
PAGE_BYTES: Final = 64 << 20
"""Bytes of the messages of a page of a list, beside its first message."""
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
    _, following, low, high, status, expired = msgspec.structs.astuple(found)
    return PulledBatch(columns.batch(), following, low, high, status, expired)


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
    count = min(limit, high - offset)
    if wanted is None and columns is None:
        # Most queues have no message that ever expires: theirs need no look at the time.
        lasting = reader.lasting(topic, queue, offset, count, max_bytes)
        if lasting is not None:
            return PullResult(lasting, offset + count, low, high, _FOUND)
    check, messages = ExpiryCheck(reader.now_ms(), max(SCAN_MAX, limit), high), []
    if wanted is not None:
        return _filtered(reader, topic, queue, offset, limit, max_bytes, wanted, check)
    if columns is not None:
        found = fetch_into(columns, reader, topic, queue, offset, count, max_bytes, check)
        last = columns.next_offset - 1 if found else -1
    else:
        messages = fetch(reader, topic, queue, offset, count, max_bytes, check)
        found, last = len(messages), messages[-1].offset if messages else -1
    last = max([last, *check.offsets[-1:]])
    status = _FOUND if found else PullStatus.NO_MATCHED_MESSAGE
    following = high if last < 0 else last + 1
    return PullResult(messages, following, low, high, status, len(check.offsets))


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
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    check: ExpiryCheck | None = None,
) -> list[StoredMessage]:
    """Messages from `offset`, which is inside the bounds: up to `limit`, and to damage; at least
    one, unless the queue holds none from there on any more, or `check` passes over those that there
    are. `RecordDamaged` or `ArchiveDamaged`, with the offset at which to go on, if the first
    message is lost.
    """
    messages: list[StoredMessage] = []
    fetch_into(messages, reader, topic, queue, offset, limit, max_bytes, check)
    # Sizes of records in the log were counted before they were read.
    if max_bytes is None or reader.cold is None:
        return messages
    found = _within(messages, max_bytes)
    if check is not None and len(found) < len(messages):
        check.forget_from(messages[len(found)].offset)
    return found


def fetch_into(
    messages: Messages,
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    check: ExpiryCheck | None = None,
) -> int:
    """As `fetch`, into `messages`, which are none yet; archives may give more than `max_bytes`.
    Returns how many there are.
    """
    mark = reader.mark()
    before = 0 if check is None else len(check.offsets)
    try:
        if reader.cold is None:
            reader.read_tiers(topic, queue, offset, limit, messages, max_bytes, check)
        else:
            _fetch_from_tiers(reader, topic, queue, offset, limit, max_bytes, messages, check)
    except READ_ERRORS as e:
        if not len(messages) and not _passed_since(check, before):
            if reader.moved_on(mark):
                return fetch_into(messages, reader, topic, queue, offset, limit, max_bytes, check)
            raise _told(e, topic, queue, offset) from e
    except ArchiveUnavailable:
        if not len(messages) and not _passed_since(check, before):
            raise
    return len(messages)


def _passed_since(check: ExpiryCheck | None, before: int) -> bool:
    """Whether a check passed messages over since it had so many: then a read may end there."""
    return check is not None and len(check.offsets) > before


def _fetch_from_tiers(
    reader: Reader,
    topic: Topic,
    queue: int,
    offset: int,
    limit: int,
    max_bytes: int | None,
    messages: Messages,
    check: ExpiryCheck | None,
) -> None:
    high = reader.next_offset(topic.base + queue)
    at = offset
    while at < high and len(messages) < limit:
        if check is not None and check.ends_at(at):
            break
        count = min(limit - len(messages), high - at)
        if max_bytes is not None:
            assert isinstance(messages, list), "columns have no number of bytes to keep to"
            count = min(count, _as_many(messages, max_bytes))
        if not count:
            break
        at = reader.read_tiers(topic, queue, at, count, messages, None, check)


def _as_many(messages: list[StoredMessage], max_bytes: int) -> int:
    """How many more messages may have room, if they are as large as those that were read: archives
    give sizes only with the messages themselves. 0 if there is no room.
    """
    if not messages:
        return 1
    taken = record_bytes(messages)
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
    check: ExpiryCheck,
) -> PullResult:
    low, high = reader.bounds(topic.key(queue))
    messages: list[StoredMessage] = []
    scanned, left = 0, max_bytes if max_bytes is not None else 1 << 62
    at = offset
    while at < high and scanned < max(SCAN_MAX, limit) and not check.ends_at(at):
        before = len(check.offsets)
        try:
            most = None if max_bytes is None else max(left, 1)
            batch = fetch(reader, topic, queue, at, min(limit, high - at), most, check)
        except (ArchiveUnavailable, *READ_ERRORS):
            if messages:
                break
            raise
        expired = check.offsets[before:]
        if not batch and not expired:
            at = high
        for message in batch:
            if wanted(message):
                left -= message.size
                if left < 0 and messages:
                    return _pulled(messages, message.offset, low, high, check)
                messages.append(message)
            at = message.offset + 1
            if len(messages) == limit:
                return _pulled(messages, at, low, high, check)
        scanned += len(batch) + len(expired)
        at = max(at, expired[-1] + 1 if expired else 0)
    return _pulled(messages, at, low, high, check)


def _pulled(
    messages: list[StoredMessage], following: int, low: int, high: int, check: ExpiryCheck
) -> PullResult:
    """The result of a pull that goes on at `following`, whatever else was read."""
    check.forget_from(following)
    status = _FOUND if messages else PullStatus.NO_MATCHED_MESSAGE
    return PullResult(messages, following, low, high, status, len(check.offsets))


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
