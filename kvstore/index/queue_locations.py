"""Queue locations: where a queue's entries are, as RocksDB knows it: locations, then runs.

The idea: `places` says in one seek which segment holds an offset, `runs` in one more which run;
decoded runs, and the location that a queue was last asked for, are kept in bounded memory, so a
reader that goes on pays for neither. A lookup reads a few locations, however many a queue has; only
a replay beside archives reads all locations of a queue.

Invariants: what is kept here is never wrong, only incomplete: runs don't change what they say, and
a location that may have a newer one behind it is read again before an offset is said not to exist.
Entries below the log's first segment are gone whether or not their rows are.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from itertools import dropwhile
from typing import Final, NamedTuple

from kvstore.core.packed_runs import DecodedRuns
from kvstore.index import runs
from kvstore.index.families import Families
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    NOWHERE,
    OFFSET_MAX,
    PLACES,
    QUEUE_MASK,
    RUNS,
    Location,
    behind,
    location_key,
    queue_prefix,
    read_location,
    read_run_key,
    run_key,
    topic_prefix,
)

RUNS_CACHED_MAX: Final = 8192
"""Decoded runs in memory: 8 KiB each at most."""
SPANS_CACHED_MAX: Final = 1 << 16
"""QueueLocations whose last location asked for is in memory, and whose first location is."""


class Head(NamedTuple):
    """The end of a queue: its next offset, and the segment of its last location (-1: none)."""

    next_offset: int
    segment: int


class Span(NamedTuple):
    """A location, and the offset at which the next one begins; None for a queue's last location."""

    location: Location
    behind: int | None


def locations_of(families: Families, topic: int, queue: int) -> list[Location]:
    """All locations of a queue, by first offset."""
    prefix = queue_prefix(topic, queue)
    rows = families.rows(PLACES, prefix, behind(prefix))
    return [read_location(key, value)[2] for key, value in rows]


def locations_in(
    families: Families, topics: Collection[int] | None
) -> Iterator[tuple[int, int, Location]]:
    """The locations of some topics, by id, with topic and queue; None: of all topics."""
    ranges = [(topic_prefix(topic), topic_prefix(topic + 1)) for topic in sorted(topics or ())]
    for bounds in [(b"",)] if topics is None else ranges:
        for key, value in families.rows(PLACES, *bounds):
            yield read_location(key, value)


class QueueLocations:
    """The locations and runs of all queues. A queue is named by its key in memory, topic id << 32 |
    queue id.
    """

    def __init__(self, families: Families, segment_size: int) -> None:
        self._families = families
        self._segment_size = segment_size
        self._spans: dict[int, Span] = {}
        self._firsts: dict[int, Location | None] = {}
        self.decoded = DecodedRuns()
        """Positions of runs that were read."""
        self._version = 0
        self._newest = families
        """The index that tells locations: a newer one, where a reader follows a writer."""
        self._removals = 0
        """Counts the times that rows were removed."""
        self._lock = threading.Lock()

    # --- ends ---

    def head(self, queue: int) -> Head:
        """A queue's end as of the last checkpoint; (0, -1) if it never had an entry."""
        prefix = queue_prefix(queue >> 32, queue & QUEUE_MASK)
        it = self._families.iter(PLACES)
        it.seek_for_prev(location_key(queue >> 32, queue & QUEUE_MASK, OFFSET_MAX))
        if not self._families.valid(it) or not it.key().startswith(prefix):
            return Head(0, -1)
        location = read_location(it.key(), it.value())[2]
        if location.segment == NOWHERE:
            return Head(location.first, -1)
        found = self._run_at(queue, location.segment, OFFSET_MAX)
        if found is None:
            return Head(location.first, location.segment)
        first, value = found
        return Head(first + runs.count_of(value), location.segment)

    def first_from(self, queue: int, segment: int, begin: int) -> int | None:
        """The first offset of a queue's first run in a segment that begins at `begin` or behind
        it.
        """
        topic, number = queue >> 32, queue & QUEUE_MASK
        low, high = (run_key(segment, topic, number, offset) for offset in (0, OFFSET_MAX))
        for key, value in self._families.rows(RUNS, low, high):
            if runs.first_position(value) >= begin:
                return read_run_key(key).first
        return None

    def location_at(
        self, queue: int, offset: int, first_segment: int, *, fresh: bool = False
    ) -> Span | None:
        """The location that an offset belongs to, in an archive or a live segment; a location that
        only keeps the next offset counts to the one behind it.
        """
        found = None if fresh else self._spans.get(queue)
        if (
            found is not None
            and found.location.first <= offset
            and (found.behind is None or offset < found.behind)
            and found.location.segment >= first_segment
        ):
            return found
        version = self._version
        location = self._find_location(queue, offset, first_segment)
        if location is None:
            return None
        following = next(self._behind(queue, offset, first_segment), None)
        span = Span(location, None if following is None else following.first)
        with self._lock:
            if version == self._version:
                if len(self._spans) >= SPANS_CACHED_MAX:
                    self._spans.clear()
                self._spans[queue] = span
        return span

    def first(self, queue: int, first_segment: int) -> Location | None:
        """The first location of a queue that holds anything."""
        version = self._version
        if queue in self._firsts:
            found = self._firsts.get(queue)
            if found is None or found.segment >= first_segment:
                return found
        locations = self._behind(queue, -1, first_segment)
        found = next((p for p in locations if p.segment != NOWHERE and not p.is_lost), None)
        with self._lock:
            if version == self._version:
                if len(self._firsts) >= SPANS_CACHED_MAX:
                    self._firsts.clear()
                self._firsts[queue] = found
        return found

    def locations_from(self, queue: int, offset: int, first_segment: int) -> Iterator[Location]:
        """The location that an offset belongs to, if there is one, and all behind it, in order."""
        span = self.location_at(queue, offset, first_segment, fresh=True)
        if span is not None:
            yield span.location
        locations = self._behind(queue, offset, first_segment)
        # A location without entries counts only between two others.
        yield from locations if span is not None else dropwhile(lambda p: p.is_lost, locations)

    def _find_location(self, queue: int, offset: int, first_segment: int) -> Location | None:
        nobodys: Location | None = None
        for location in self._down(queue, offset):
            if location.segment == NOWHERE:
                # A location that keeps the next offset counts only while it is the last.
                if next(self._up(queue, location.first), None) is None:
                    return location
            elif location.is_lost:
                nobodys = nobodys or location
            elif location.segment >= first_segment:
                return nobodys or location
        return None

    def _behind(self, queue: int, offset: int, first_segment: int) -> Iterator[Location]:
        """The locations that begin behind an offset, in order."""
        before: Location | None = None
        for location in self._up(queue, offset):
            if before is not None and before.segment != NOWHERE:
                yield before
            before = location if location.segment >= first_segment else None
        if before is not None:
            yield before

    def _up(self, queue: int, offset: int) -> Iterator[Location]:
        """Rows of a queue that begin behind an offset, rising."""
        topic, number = queue >> 32, queue & QUEUE_MASK
        prefix = queue_prefix(topic, number)
        rows = self._newest.rows(PLACES, location_key(topic, number, offset + 1), behind(prefix))
        for key, value in rows:
            yield read_location(key, value)[2]

    def _down(self, queue: int, offset: int) -> Iterator[Location]:
        """Rows of a queue that begin at an offset or before it, falling."""
        topic, number = queue >> 32, queue & QUEUE_MASK
        prefix = queue_prefix(topic, number)
        it = self._newest.iter(PLACES)
        it.seek_for_prev(location_key(topic, number, offset))
        while self._newest.valid(it) and it.key().startswith(prefix):
            yield read_location(it.key(), it.value())[2]
            it.prev()

    def archived(self, queue: int) -> list[int]:
        """First offsets of a queue's locations that name an archive, or say that the entries are in
        no tier any more.
        """
        locations = locations_of(self._families, queue >> 32, queue & QUEUE_MASK)
        return [location.first for location in locations if location.is_archived]

    def follow(self, newer: Families) -> None:
        """Looks locations up in an index that is newer than this one, whose runs and ends stay as
        they are. This comes before the log forgets the segments that moved, and `forget` after it.

        The newer index may have locations beyond this one's ends. They have no runs here.
        """
        self._newest = newer

    @property
    def newest(self) -> Families:
        """The index in which locations are looked up."""
        return self._newest

    def changing(self) -> None:
        """Notes that rows change about now: values that are read meanwhile are not kept."""
        with self._lock:
            self._version += 1

    def changed(self, queues: Iterable[int]) -> None:
        """Notes that these queues may have new locations."""
        with self._lock:
            for queue in queues:
                self._spans.pop(queue, None)
                self._firsts.pop(queue, None)

    def forget(self) -> None:
        """Notes that rows were removed."""
        with self._lock:
            self._spans.clear()
            self._firsts.clear()
            self._version += 1
            self.decoded.forget()
            self._removals += 1

    # --- entries ---

    def positions(self, queue: int, offset: int, limit: int, first_segment: int) -> list[int]:
        """Log positions of up to `limit` entries from `offset` on; fewer where the index, or a gap,
        ends them.
        """
        out: list[int] = []
        while len(out) < limit:
            at = offset + len(out)
            part = self.decoded.positions(queue, at, limit - len(out))
            out += part
            if not part and not self.decode_run(queue, at, first_segment):
                break
        return out

    def after(self, queue: int, offset: int, first_segment: int) -> int | None:
        """The first offset above `offset` that has an entry: the far side of a gap."""
        for location in self.locations_from(queue, offset, first_segment):
            if location.segment >= ARCHIVE_FIRST:
                if location.is_archived and location.first > offset:
                    return location.first
                continue
            topic, number = queue >> 32, queue & QUEUE_MASK
            it = self._families.iter(RUNS)
            it.seek(run_key(location.segment, topic, number, offset + 1))
            if self._families.valid(it):
                key = read_run_key(it.key())
                if (key.segment, key.topic, key.queue) == (location.segment, topic, number):
                    return key.first
        return None

    def decode_run(self, queue: int, offset: int, first_segment: int) -> bool:
        """Whether `decoded` has the run that has an offset; reads it if need be. Another thread may
        have read it a moment ago.
        """
        if self.decoded.positions(queue, offset, 1):
            return True
        while True:
            removals = self._removals
            found = self._find_run(queue, offset, first_segment)
            if found is None:
                return False
            first, value, segment = found
            with self._lock:
                # One that was read before its segment went must not be kept.
                if removals == self._removals:
                    if len(self.decoded) >= RUNS_CACHED_MAX:
                        self.decoded.forget()
                    self.decoded.add(queue, first, segment * self._segment_size, value)
                    return True

    def _find_run(
        self, queue: int, offset: int, first_segment: int
    ) -> tuple[int, bytes, int] | None:
        """The run that has an offset, with its first offset and its segment."""
        for fresh in (False, True):
            span = self.location_at(queue, offset, first_segment, fresh=fresh)
            if span is None:
                continue
            segment = span.location.segment
            if ARCHIVE_FIRST <= segment < NOWHERE:
                return None
            found = self._run_at(queue, segment, offset)
            if found is not None and offset < found[0] + runs.count_of(found[1]):
                return *found, segment
        return None

    def _run_at(self, queue: int, segment: int, offset: int) -> tuple[int, bytes] | None:
        topic, number = queue >> 32, queue & QUEUE_MASK
        it = self._families.iter(RUNS)
        it.seek_for_prev(run_key(segment, topic, number, offset))
        if not self._families.valid(it):
            return None
        key = read_run_key(it.key())
        if (key.segment, key.topic, key.queue) != (segment, topic, number):
            return None
        return key.first, it.value()
