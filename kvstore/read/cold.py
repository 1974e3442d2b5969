"""Reads archived messages, as the locations of the index name them.

The idea: the log is looked at first, so a reader of new messages never comes by here. For a message
that the log does not have, a location gives the archive's number, and the offset at which the next
location begins. Messages between the two that the archive does not hold were erased or superseded,
and are passed over: an archive that is not the catalog's, or lacks the whole queue, is damaged.

Invariants: only messages of the location's own stretch are returned, whatever else the archive
holds of the queue; lost messages are reported with the offset behind them; a stale location is
never taken for damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

from kvstore.core.arrow.pulled_columns import PulledColumns
from kvstore.core.messages import ExpiryCheck
from kvstore.errors import ArchiveDamaged, ArchiveMissing, ArchiveUnavailable, RecordDamaged
from kvstore.index.archived import Archived
from kvstore.index.index import Index
from kvstore.index.keys import NO_ARCHIVE, QUEUE_MASK
from kvstore.log.segments import Segments
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic

Messages = list[StoredMessage] | PulledColumns
"""Messages are read into one of these."""

READ_ERRORS: Final = (RecordDamaged, ArchiveDamaged)
"""Messages can't be read any more; `ArchiveDamaged` may say where to go on."""
UNAVAILABLE_ERRORS: Final = (ArchiveUnavailable, ArchiveMissing)
"""Messages can't be read now, but may be later: a group waits for them. Caught before
`READ_ERRORS`, because `ArchiveMissing` is one of them."""


class Cold:
    """Reads archives for the reader, see the module."""

    def __init__(self, index: Index, archived: Archived, segments: Segments) -> None:
        self.archived = archived
        self._index = index
        self._segments = segments

    def location(self, key: int, offset: int) -> tuple[int, int] | None:
        """The archive that has an offset, and where the next location begins (the queue's next
        offset, if there is none); None if the offset's location is no archive.
        """
        for fresh in (False, True):
            oldest = self._segments.oldest
            span = self._index.locations.location_at(key, offset, oldest, fresh=fresh)
            if span is not None and span.location.is_archived:
                # A reader beside a writer knows of locations beyond its queues' ends.
                end = self._index.end(key)
                behind = end if span.behind is None else min(span.behind, end)
                return span.location.archive, behind
        return None

    def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        limit: int,
        out: Messages,
        check: ExpiryCheck | None = None,
    ) -> int | None:
        """Appends up to `limit` messages from `offset` on to `out`, but for those that `check`
        passes over; returns the offset at which to go on, or None if no archive is to have that
        offset.
        """
        found = self.location(topic.base + queue, offset)
        if found is None:
            return None
        archive, behind = found
        if archive == NO_ARCHIVE:
            return behind
        try:
            messages = self.archived.messages(archive, topic.id, queue, offset, behind, limit)
        except ArchiveDamaged as e:
            following = behind if e.next_offset is None else e.next_offset
            raise with_next(e, str(e), max(offset + 1, min(following, behind))) from e
        if not messages:
            return behind
        out.extend(messages if check is None else check.keep(messages))
        return messages[-1].offset + 1

    def first_from(self, topic: Topic, queue: int, time: int, low: int, high: int) -> int | None:
        """The first held offset from `low` to before `high`, all of one location, that was stored
        at or after `time`. If it would be among lost messages, the error gives the offset behind
        them.
        """
        found = self.location(topic.base + queue, low)
        if found is None:
            return None
        archive, behind = found
        if archive == NO_ARCHIVE:
            return None
        end = min(high, behind)
        try:
            return self.archived.first_from(archive, topic.id, queue, time, low, end)
        except ArchiveDamaged as e:
            following = end if e.next_offset is None else min(e.next_offset, end)
            told = f"queue {queue} of {topic.name!r}, stored at {time} or later: {e}"
            raise with_next(e, f"{told}; go on at offset {following}", following) from e

    def below(self, key: int, offset: int, end: int) -> bool | None:
        """Whether the record of the first held message from `offset` on stood below a position of
        the log; None if no archive has one. Only an archive of both sides is read for it.
        """
        found = self.location(key, offset)
        if found is None:
            return None
        archive, behind = found
        if archive == NO_ARCHIVE:
            return None
        first, last = self.archived.span(archive)
        if last < end or first >= end:
            return last < end
        topic, queue = key >> 32, key & QUEUE_MASK
        messages = self.archived.messages(archive, topic, queue, offset, behind, 1)
        return messages[0].position < end if messages else None

    def candidates(
        self,
        low: int,
        high: int,
        begin: int | None,
        end: int | None,
        in_log: Iterator[int],
        lost: Callable[[int, ArchiveDamaged], None],
        since: int = 0,
    ) -> Iterator[tuple[int, int]]:
        """Positions from `since` on of messages that may have a key, newest first, each once, with
        the archive that has it (-1: the log). `in_log` are the log's, newest first. `lost` is told
        each archive that could not be asked, and the error.
        """
        covering = self.archived.covering(begin, end, low, high)
        archives = [one for one in covering if one.end_position > since]
        coming = {-1: in_log}
        waiting: list[tuple[int, int]] = []
        """The next candidate of the log, and of each archive that may have the newest one:
        -position, archive.
        """
        before = -1

        def wait_for(archive: int) -> None:
            position = next(coming[archive], None)
            if position is not None and position >= since:
                heappush(waiting, (-position, archive))

        def down_to(top: int) -> Iterator[tuple[int, int]]:
            nonlocal before
            while waiting and -waiting[0][0] >= top:
                below, archive = heappop(waiting)
                # While messages change locations, both may have them.
                if -below != before:
                    yield -below, archive
                before = -below
                wait_for(archive)

        wait_for(-1)
        for one in sorted(archives, key=lambda one: -one.end_position):
            yield from down_to(one.end_position)
            coming[one.archive] = self._candidates_in(one.archive, low, high, begin, end, lost)
            wait_for(one.archive)
        yield from down_to(0)

    def _candidates_in(
        self,
        archive: int,
        low: int,
        high: int,
        begin: int | None,
        end: int | None,
        lost: Callable[[int, ArchiveDamaged], None],
    ) -> Iterator[int]:
        try:
            yield from self.archived.candidates(archive, low, high, begin, end)
        except ArchiveDamaged as e:
            lost(archive, e)  # a key's other messages are still worth having


def with_next(error: ArchiveDamaged, message: str, following: int | None) -> ArchiveDamaged:
    """A copy of an error with another text and the offset at which to go on."""
    return error.placed(message, error.archive, error.block, following)
