"""Reads the messages at given offsets, of which some may be lost by now.

The idea: a locked message is read again long after it was locked; meanwhile damage or retention may
have taken it. A pop passes over a lost message, and says so in the log. A message in a missing
archive is not lost, since the object may be brought back: this is reported, and the message is not
passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kvstore.errors import ArchiveDamaged, ArchiveMissing, RecordDamaged
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.read.cold import AWAY_ERRORS, READ_ERRORS
from kvstore.read.pull import take
from kvstore.read.reader import Reader

_log = logging.getLogger("kvmq")


class Away:
    """The wanted messages that are in missing archives."""

    def __init__(self) -> None:
        self.error: ArchiveMissing | None = None
        """The error of the last missing archive."""
        self._stretches: list[range] = []

    def __contains__(self, offset: int) -> bool:
        return any(offset in stretch for stretch in self._stretches)

    @property
    def first(self) -> int:
        """The first offset of a missing message; only if there is one."""
        return self._stretches[0].start

    def note(self, error: ArchiveMissing, at: int, end: int) -> None:
        """Adds the offsets from `at` to before `end` as missing."""
        self.error = error
        self._stretches.append(range(at, end))


def messages_at(
    reader: Reader,
    topic: Topic,
    queue: int,
    offsets: list[int],
    group: str,
    away: Away | None = None,
    max_bytes: int | None = None,
) -> Iterator[StoredMessage]:
    """The messages at ascending offsets of a queue, without those that are lost or gone. If an
    archive is missing, `away` notes it and the other messages are given; without `away`, the error
    is raised. With `max_bytes` so many bytes are read at a time, or one message.
    """
    low, high = reader.bounds(topic.base + queue)
    for first, count in _stretches(offsets):
        at, end = max(first, low), min(first + count, high)
        while at < end:
            try:
                found = take(reader, topic, queue, at, end - at, max_bytes)
            except ArchiveMissing as e:
                if away is None:
                    raise
                following = _behind(e, at)
                away.note(e, at, following)
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
    except AWAY_ERRORS:
        raise
    except READ_ERRORS as e:
        return passed_over(e, -1, group)


def passed_over(error: RecordDamaged | ArchiveDamaged, at: int, group: str) -> int:
    """Logs that a group goes on behind damage met at an offset; returns the offset there."""
    _log.error("kvmq passed over messages that group %r popped: %s", group, str(error))
    return _behind(error, at)


def _behind(error: RecordDamaged | ArchiveDamaged, at: int) -> int:
    return max(at + 1, error.next_offset if error.next_offset is not None else 0)


def _stretches(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as stretches without a gap: (first, count)."""
    start = 0
    for i in range(1, len(offsets) + 1):
        if i == len(offsets) or offsets[i] != offsets[i - 1] + 1:
            yield offsets[start], i - start
            start = i
