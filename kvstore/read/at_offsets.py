"""Reads the messages at given offsets, of which some may be lost by now.

The idea: a locked message is read again long after it was locked; meanwhile damage or retention may
have taken it. A pop passes over a lost message, and says so in the log. A message in a missing
archive is not lost, since the object may be brought back: this is reported, and the message is not
passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from kvstore.errors import ArchiveDamaged, ArchiveMissing, ArchiveUnavailable, RecordDamaged
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.read.cold import READ_ERRORS, UNAVAILABLE_ERRORS
from kvstore.read.pull import take
from kvstore.read.reader import Reader

_log = logging.getLogger("kvmq")


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
        cls, read: Callable[[], list[StoredMessage]], at: int, high: int, group: str
    ) -> ReadResult:
        """The messages that `read` reads from an offset on, of a queue that ends at `high`. None if
        they are lost; none, and the same offset, if they can't be read now.
        """
        result = cls(at)
        try:
            found = read()
        except UNAVAILABLE_ERRORS as e:
            result.unavailable = e
        except READ_ERRORS as e:
            result.end = passed_over(e, at, group)
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
                    found = take(reader, topic, queue, at, end - at, max_bytes)
                except ArchiveMissing as e:
                    following = _behind(e, at)
                    self.unavailable = e
                    self.missing.append(range(at, following))
                    at = following
                    continue
                except READ_ERRORS as e:
                    at = passed_over(e, at, group)
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


def _behind(error: RecordDamaged | ArchiveDamaged, at: int) -> int:
    return max(at + 1, error.next_offset if error.next_offset is not None else 0)


def _consecutive(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as ranges without a gap: (first, count)."""
    start = 0
    for i in range(1, len(offsets) + 1):
        if i == len(offsets) or offsets[i] != offsets[i - 1] + 1:
            yield offsets[start], i - start
            start = i
