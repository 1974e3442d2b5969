"""Attach: archives of a place get locations in the queues of a store that goes on, in one batch.

The idea: a location says from which offset on an archive has a queue. An attached range gets a
location where it begins. Where it ends, the archive before it may go on. Behind the log's entries a
location says that nobody has the offsets before the range. A queue that ends with a range gets
its next offset noted behind it.

Invariants:

- An attached range never overlaps offsets that a queue has in the log.
- The caller has checked that no archive has its offsets, since a location does not say where an
  archive has gaps.
- Existing locations say of their own offsets what they said before.
- Locations and catalog rows change in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvstore.errors import CallerError
from kvstore.index.archived import AttachedRange, HeldRange, Queue
from kvstore.index.families import Batch, Families
from kvstore.index.handover import next_number
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    COMING,
    META,
    NO_ARCHIVE,
    NOWHERE,
    OFFSET_MAX,
    PLACES,
    RUNS,
    U32,
    Location,
    location_key,
    location_value,
    read_run_key,
    run_key,
)
from kvstore.index.queue_locations import locations_of
from kvstore.index.runs import count_of, unpack_many


class _End(NamedTuple):
    """The end of a location's entries in the log, and the store time of the last one."""

    end: int
    stored_at: int


def held_ranges(families: Families, queue: Queue) -> list[HeldRange]:
    """The ranges of a queue, by first offset, as of the last checkpoint; for an archive, the
    range that its location stands for.
    """
    locations = locations_of(families, *queue)
    found: list[HeldRange] = []
    for i, location in enumerate(locations):
        end = locations[i + 1].first if i + 1 < len(locations) else OFFSET_MAX
        if location.segment < ARCHIVE_FIRST:
            found += _in_log(families, queue, location)
        elif location.is_archived and not location.is_lost:
            found.append(
                HeldRange(
                    location.first,
                    end - 1,
                    location.stored_at,
                    location.stored_at,
                    location.archive,
                )
            )
    return found


def _in_log(families: Families, queue: Queue, location: Location) -> Iterator[HeldRange]:
    """The entries of a location's segment, as one range."""
    low = run_key(location.segment, *queue, 0)
    high = run_key(location.segment, *queue, OFFSET_MAX)
    rows = list(families.rows(RUNS, low, high))
    if rows:
        columns, _ = unpack_many([value for _, value in rows])
        key, value = rows[-1]
        last = read_run_key(key).first + count_of(value) - 1
        first = read_run_key(rows[0][0]).first
        times = np.asarray(columns.stored_at)
        yield HeldRange(first, last, int(times.min()), int(times.max()), None)


def attach(families: Families, batch: Batch, ranges: Iterable[AttachedRange]) -> None:
    """Puts locations for ranges into a batch. Raises `CallerError` for a range that overlaps
    offsets of its queue.
    """
    queues: dict[Queue, list[AttachedRange]] = {}
    for one in ranges:
        queues.setdefault((one.topic, one.queue), []).append(one)
    for queue, mine in queues.items():
        _Attaching(families, batch, queue).run(sorted(mine, key=lambda one: one.first))


def mark_attaching(families: Families, batch: Batch) -> None:
    """Puts into a batch the note that archives are being attached, with numbers from here on."""
    batch.put(META, COMING, U32.pack(next_number(families)))


def forget(batch: Batch) -> None:
    """Puts into a batch the removal of that note."""
    batch.delete(META, COMING)


def first_attaching(families: Families) -> int:
    """The number from which on archives are being attached that may not be there yet."""
    noted = families.get(META, COMING)
    following = next_number(families)
    return following if noted is None else min(following, U32.unpack(noted)[0])


class _Attaching:
    """The attaching of ranges to one queue."""

    def __init__(self, families: Families, batch: Batch, queue: Queue) -> None:
        self._batch = batch
        self._queue = queue
        self._locations = locations_of(families, *queue)
        self._ends = {
            location.first: _End(held.last + 1, held.last_stored_at)
            for location in self._locations
            if location.segment < ARCHIVE_FIRST
            for held in _in_log(families, queue, location)
        }
        """First offset of a location -> the end of its entries in the log."""
        self._new: set[int] = set()
        """First offsets of the locations that were put: these replace the old ones."""

    def run(self, ranges: Sequence[AttachedRange]) -> None:
        """Puts the locations of rising ranges."""
        for before, one in pairwise(ranges):
            if one.first <= before.last:
                self._refuse(one)
        named = -1
        for i, one in enumerate(ranges):
            around = self._before(one)
            is_begin = i == 0 or named != one.archive or around is not None
            if is_begin or self._is_between(ranges[i - 1].last, one.first):
                self._put(one.first, location_value(ARCHIVE_FIRST + one.archive, one.stored_at))
            named = one.archive
            following = self._following(one, ranges[i + 1 : i + 2])
            if following == one.last + 1:
                continue
            if following is None:
                self._put(one.last + 1, location_value(NOWHERE, 0))
            elif around is not None:
                # The archive may hold offsets behind the range, too; if it does not, the location
                # does no harm.
                number = ARCHIVE_FIRST + around.archive
                self._put(one.last + 1, location_value(number, one.last_stored_at))
                named = around.archive

    def _before(self, one: AttachedRange) -> Location | None:
        """Makes room for a range; returns the location of the archive that it stands in, if there
        is one.
        """
        around: Location | None = None
        log: _End | None = None
        for location in self._locations:
            if location.first > one.last:
                break
            if location.segment == NOWHERE or (
                location.is_archived and location.archive == NO_ARCHIVE
            ):
                if location.segment == NOWHERE or location.first >= one.first:
                    self._drop(location)
                if location.segment != NOWHERE:
                    around = log = None
                continue
            if location.first >= one.first:
                if not location.is_archived:
                    self._refuse(one)
                # The archive has nothing before the range's end, and goes on behind it.
                self._drop(location)
            around, log = (location, None) if location.is_archived else (None, self._end(location))
        if log is not None:
            self._end_log(log, one)
        return around

    def _end_log(self, log: _End, one: AttachedRange) -> None:
        """Puts the location that ends the log's entries before a range."""
        if log.end > one.first:
            self._refuse(one)
        if log.end < one.first and log.end not in self._new:
            # It has the store time of the entries before it, so that a search by time looks there.
            self._put(log.end, location_value(ARCHIVE_FIRST + NO_ARCHIVE, log.stored_at))

    def _drop(self, location: Location) -> None:
        if location.first not in self._new:
            self._batch.delete(PLACES, location_key(*self._queue, location.first))

    def _is_between(self, last: int, first: int) -> bool:
        """Whether there is a location between two ranges."""
        return any(last < location.first <= first for location in self._locations)

    def _end(self, location: Location) -> _End:
        return self._ends.get(location.first, _End(location.first, location.stored_at))

    def _following(self, one: AttachedRange, behind_it: Sequence[AttachedRange]) -> int | None:
        """The first offset behind a range that another location is to have."""
        firsts = [location.first for location in self._locations if location.first > one.last]
        return min([*firsts, *(other.first for other in behind_it)], default=None)

    def _put(self, first: int, value: bytes) -> None:
        self._new.add(first)
        self._batch.put(PLACES, location_key(*self._queue, first), value)

    def _refuse(self, one: AttachedRange) -> None:
        raise CallerError(
            f"offsets {one.first} to {one.last} of queue {one.queue} of topic {one.topic} reach "
            "into what the queue has; nothing was attached"
        )
