"""Messages at given offsets, whatever became of them.

The idea: what was locked once is read again long after; meanwhile damage or retention may have
taken it. Whoever hands messages out goes on then, and says so in the log. What is in an archive
that is missing is not lost: the object may be brought back, so that is told, and nothing is passed
over for it.
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
    """What of the messages that were asked for is in archives that are missing."""

    def __init__(self) -> None:
        self.error: ArchiveMissing | None = None
        """Of the last of them."""
        self._stretches: list[range] = []

    def __contains__(self, offset: int) -> bool:
        return any(offset in stretch for stretch in self._stretches)

    @property
    def first(self) -> int:
        """The first offset of what is missing; only if something is."""
        return self._stretches[0].start

    def note(self, error: ArchiveMissing, at: int, end: int) -> None:
        """Add what is missing from `at` to before `end`."""
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
    """The messages at ascending offsets of a queue; without those that are lost or gone. Where an
    archive is missing, `away` takes note and the rest is given; without it, that is raised. With
    `max_bytes` so much is read at a time, or one message.
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
                return  # nothing is held from here on
            at = found[-1].offset + 1
            yield from found if at <= end else (m for m in found if m.offset < end)


def first_at(reader: Reader, topic: Topic, queue: int, time: int, group: str) -> int:
    """The first offset of a queue stored at or after a time; behind what is lost, if it would be
    among that.
    """
    try:
        return reader.offset_at(topic, queue, time, upper=False)
    except AWAY_ERRORS:
        raise
    except READ_ERRORS as e:
        return passed_over(e, -1, group)


def passed_over(error: RecordDamaged | ArchiveDamaged, at: int, group: str) -> int:
    """Say that a group goes on behind damage met at an offset; returns where."""
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
