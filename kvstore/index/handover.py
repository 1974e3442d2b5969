"""Hand-over: locations of queues move from segments to archives, in one batch.

The idea: the runs of a segment tell its queues. Each queue's location gets the number of the
archive that has its messages now, and the runs are deleted as one range (for keys see
`message_keys`). A merge of archives and the expiry of an archive are the same change of locations:
numbers are replaced, a location that repeats the one before it is deleted, and so is a location
without a replacement.

Invariants: behind a queue's last archive stands a NOWHERE row, which keeps its next offset, so that
a queue's end never needs an archive; the caller writes the batch with the rows of the catalog,
before a segment's file or an object goes; a message that the index knows leaves with an archive, or
because the caller said that it is not kept, never by oversight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import RdictIter

from kvstore.errors import CallerError, IndexDamaged
from kvstore.index.archived import ArchivedRange, Arriving, Queue, Row
from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    ARCHIVES,
    GONE,
    LOG_START,
    META,
    NEXT_ARCHIVE,
    NO_ARCHIVE,
    NOWHERE,
    PLACES,
    RUNS,
    U32,
    U64,
    UNPLACED,
    archive_key,
    location_key,
    location_value,
    queue_prefix,
    read_archive_key,
    read_location,
    read_run_key,
    segment_range,
    topic_prefix,
)
from kvstore.index.queue_locations import locations_in, locations_of
from kvstore.index.runs import count_of


def kept_locations(families: Families) -> Iterator[tuple[bytes, bytes]]:
    """The rows of `places` that the log can't tell, so that a rebuild keeps them."""
    for key, value in families.rows(PLACES, b""):
        location = read_location(key, value)[2]
        if location.segment == NOWHERE or location.is_archived:
            yield key, value


def mark_unlocated(batch: Batch) -> None:
    """Puts into a batch that the locations of archived messages have to be made anew."""
    batch.put(META, UNPLACED, b"\x01")


def _put_end(
    families: Families, it: RdictIter, batch: Batch, topic: int, queue: int, last: int, end: int
) -> None:
    """Puts the row that keeps a queue's next offset, `end`, into a batch, if the queue has no
    location behind offset `last`.
    """
    it.seek(location_key(topic, queue, last + 1))
    if not families.valid(it) or not it.key().startswith(queue_prefix(topic, queue)):
        batch.put(PLACES, location_key(topic, queue, end), location_value(NOWHERE, 0))


def retire(families: Families, batch: Batch, segment: int) -> int:
    """Puts the removal of a segment's index into a batch; returns how many queues the segment
    had.
    """
    low, high = segment_range(segment, segment + 1)
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for key, value in families.rows(RUNS, low, high):
        run = read_run_key(key)
        first = ends.get((run.topic, run.queue), (run.first, 0))[0]
        ends[run.topic, run.queue] = first, run.first + count_of(value)
    it = families.iter(PLACES)
    for (topic, queue), (first, end) in ends.items():
        batch.delete(PLACES, location_key(topic, queue, first))
        _put_end(families, it, batch, topic, queue, first, end)
    batch.delete_range(RUNS, low, high)
    return len(ends)


def retire_topic(families: Families, batch: Batch, topic: int) -> None:
    """Puts the removal of a topic's runs and locations into a batch. Its keys stay until their
    segments go, and find nothing.
    """
    # The topic's locations say in which segments it has runs: a topic that never had a message
    # leaves no tombstone.
    first, end = topic_prefix(topic), topic_prefix(topic + 1)
    segments = {
        read_location(key, value)[2].segment for key, value in families.rows(PLACES, first, end)
    }
    if segments:
        batch.delete_range(PLACES, first, end)
    for segment in sorted(segment for segment in segments if segment < ARCHIVE_FIRST):
        start = segment.to_bytes(4, "big")
        batch.delete_range(RUNS, start + first, start + end)


_NOBODY: Final = location_value(ARCHIVE_FIRST + NO_ARCHIVE, 0)
"""The location of offsets that are in no tier, behind entries in the log."""


class Gone(NamedTuple):
    """The parts that left the log: everything below a position, and some segments above it."""

    below: int
    segments: frozenset[int]

    def has(self, segment: int, segment_size: int) -> bool:
        """Whether a segment is among them."""
        return segment in self.segments or (segment + 1) * segment_size <= self.below


class _Range(NamedTuple):
    """A queue's entries in one segment."""

    first: int
    end: int


def put_handover(
    families: Families,
    batch: Batch,
    segments: Sequence[int],
    arriving: Sequence[Arriving],
    unkept: Collection[Queue],
) -> int:
    """Puts the hand-over of segments to archives into a batch; returns how many queues the segments
    had.

    `unkept` are the queues whose messages in these segments are to be in no archive. Raises
    `CallerError` for a queue that is neither there nor in an archive.
    """
    homes = {(t, q): a.number for a in arriving for t, q, _, _ in a.queues}
    found = _ranges(families, segments)
    lost = [queue for queue in found if queue not in homes and queue not in unkept]
    if lost:
        raise CallerError(
            f"no archive has what queue {lost[0][1]} of topic {lost[0][0]} holds in segments "
            f"{list(segments)} ({len(lost)} queues like it): nothing was handed over"
        )
    put_rows(batch, arriving)
    it = families.iter(PLACES)
    for (topic, queue), ranges in found.items():
        home = homes.get((topic, queue)) if (topic, queue) not in unkept else None
        before: bytes | None = None
        is_last = False
        for first, _ in ranges:
            key = location_key(topic, queue, first)
            it.seek(key)
            if not families.valid(it) or it.key() != key:
                raise IndexDamaged(
                    f"{families.path} has entries of queue {queue} of topic {topic} from offset "
                    f"{first} on, and no location for them; `kvmq rebuild` makes it anew"
                )
            stored_at = read_location(key, it.value())[2].stored_at
            if home is not None and before != key:
                batch.put(PLACES, key, location_value(ARCHIVE_FIRST + home, stored_at))
            elif home is None and _is_behind_log(families, topic, queue, first, segments):
                batch.put(PLACES, key, _NOBODY)
            else:
                batch.delete(PLACES, key)
            it.next()
            before = it.key() if families.valid(it) else None
            is_last = before is None or not before.startswith(queue_prefix(topic, queue))
        if is_last:
            end = location_key(topic, queue, ranges[-1].end)
            batch.put(PLACES, end, location_value(NOWHERE, 0))
    for segment in segments:
        low, high = segment_range(segment, segment + 1)
        batch.delete_range(RUNS, low, high)
    return len(found)


def _is_behind_log(
    families: Families, topic: int, queue: int, first: int, leaving: Collection[int]
) -> bool:
    """Whether the location before is a segment's that stays: without a location of their own the
    offsets behind it would look like entries of that segment.
    """
    if first == 0:
        return False
    it = families.iter(PLACES)
    it.seek_for_prev(location_key(topic, queue, first - 1))
    if not families.valid(it) or not it.key().startswith(queue_prefix(topic, queue)):
        return False
    segment = read_location(it.key(), it.value())[2].segment
    return segment < ARCHIVE_FIRST and segment not in leaving


def _ranges(families: Families, segments: Sequence[int]) -> dict[Queue, list[_Range]]:
    """The ranges in the runs of rising segments: queue -> its ranges, one a segment."""
    found: dict[Queue, list[_Range]] = {}
    for segment in segments:
        low, high = segment_range(segment, segment + 1)
        before: Queue | None = None
        for key, value in families.rows(RUNS, low, high):
            run = read_run_key(key)
            queue, end = (run.topic, run.queue), run.first + count_of(value)
            mine = found.setdefault(queue, [])
            if queue == before:
                mine[-1] = _Range(mine[-1].first, end)
            else:
                mine.append(_Range(run.first, end))
            before = queue
    return found


def swap(
    families: Families,
    batch: Batch,
    old: Collection[int],
    arriving: Sequence[Arriving],
    queues: Iterable[Queue] | None,
    topics: Collection[int] | None = None,
) -> None:
    """Puts into a batch that arriving archives take the places of `old` ones. A queue that no
    arriving archive has loses its locations in the old ones.

    `queues` are all queues of which the old archives hold anything; with None they are looked for
    in all locations of the `topics` of these archives (None: of all topics).
    """
    homes = {(t, q): (a.number, f, s) for a in arriving for t, q, f, s in a.queues}
    gone = frozenset(ARCHIVE_FIRST + number for number in old)
    put_rows(batch, arriving)
    for queue in _holding(families, gone, topics) if queues is None else dict.fromkeys(queues):
        _swap_queue(families, batch, queue, gone, homes)


def _swap_queue(
    families: Families,
    batch: Batch,
    queue: Queue,
    gone: frozenset[int],
    homes: Mapping[Queue, tuple[int, int, int]],
) -> None:
    home = homes.get(queue)
    rows = locations_of(families, *queue)
    kept: dict[int, int] = {}
    """First offset -> its store time, for the locations that name the arriving archive."""
    for i, location in enumerate(rows):
        is_begin = location.segment in gone and (i == 0 or rows[i - 1].segment not in gone)
        if home is None or not is_begin:
            continue
        behind_it = next((p.first for p in rows[i:] if p.segment not in gone), None)
        # The offsets before the archive's first were erased or superseded. Behind another location
        # they must not look as if that location had them.
        is_later = i == 0 and home[1] > location.first
        first, stored_at = home[1:] if is_later else (location.first, location.stored_at)
        if behind_it is None or first < behind_it:
            kept[first] = stored_at
    for i, location in enumerate(rows):
        if location.segment in gone and location.first not in kept:
            key = location_key(*queue, location.first)
            if i and rows[i - 1].segment < ARCHIVE_FIRST:
                batch.put(PLACES, key, _NOBODY)
            else:
                batch.delete(PLACES, key)
    for first, stored_at in kept.items():
        assert home is not None, "without an archive nothing is kept"
        value = location_value(ARCHIVE_FIRST + home[0], stored_at)
        batch.put(PLACES, location_key(*queue, first), value)


def _holding(
    families: Families, numbers: frozenset[int], topics: Collection[int] | None
) -> Iterable[Queue]:
    found: dict[Queue, None] = {}
    for topic, queue, location in locations_in(families, topics):
        if location.segment in numbers:
            found[topic, queue] = None
    return found


def put_changed(batch: Batch, rows: Iterable[Row]) -> None:
    """Puts changed rows of the catalog into a batch; None deletes the row."""
    for key, value in rows:
        if value is None:
            batch.delete(ARCHIVES, key)
        else:
            batch.put(ARCHIVES, key, value)


def put_rows(batch: Batch, arriving: Sequence[Arriving]) -> None:
    """Puts the rows of archives that arrive into a batch."""
    for archive in arriving:
        batch.put(ARCHIVES, archive_key(archive.first_position, archive.number), archive.row)


def read_gone(families: Families) -> Gone:
    """The parts that left the log, to archives or for good."""
    below = families.get(META, LOG_START)
    segments = families.get(META, GONE) or b""
    return Gone(
        U64.unpack(below)[0] if below else 0,
        frozenset(number for (number,) in U32.iter_unpack(segments)),
    )


def gone_now(path: Path) -> Gone:
    """`read_gone` of the index at a path, as its writer has it now; an index that is open for
    reading only shows the moment of its opening.
    """
    families = Families(path, read_only=True, create=False)
    try:
        return read_gone(families)
    finally:
        families.close()


def put_gone(
    batch: Batch, before: Gone, leaving: Iterable[int], there: Iterable[int], segment_size: int
) -> None:
    """Puts into a batch that segments leave the log; `there` are all segments that it has now."""
    gone = {*before.segments, *leaving}
    oldest = min((n for n in there if n not in gone), default=max(gone) + 1)
    start = max([before.below // segment_size, *(n + 1 for n in gone if n < oldest)])
    batch.put(META, LOG_START, U64.pack(start * segment_size))
    batch.put(META, GONE, b"".join(U32.pack(n) for n in sorted(gone) if n >= start))


def put_next_number(batch: Batch, known: int, arriving: Sequence[Arriving]) -> int:
    """Puts the number of the next archive into a batch, and returns it. Also used where no archive
    arrives: a row that was moved or retired has taken a number.
    """
    following = max([known, *(a.number + 1 for a in arriving)])
    batch.put(META, NEXT_ARCHIVE, U32.pack(following))
    return following


def next_number(families: Families) -> int:
    """The number of the next archive."""
    noted = families.get(META, NEXT_ARCHIVE)
    # Older versions did not note all the numbers that were taken.
    taken = (read_archive_key(key)[1] + 1 for key, _ in families.rows(ARCHIVES, b""))
    return max([U32.unpack(noted)[0] if noted else 0, *taken])


def locate_again(
    families: Families, batch: Batch, archives: Collection[int], held: Iterable[ArchivedRange]
) -> None:
    """Puts the locations that archives themselves give into a batch, instead of their locations so
    far.
    """
    swap(families, batch, archives, [], None)
    queues: dict[Queue, list[ArchivedRange]] = {}
    for one in held:
        queues.setdefault((one.topic, one.queue), []).append(one)
    it = families.iter(PLACES)
    for (topic, queue), ranges in queues.items():
        ranges.sort(key=lambda h: (h.first, -h.last))
        for first in (p.first for p in locations_of(families, topic, queue) if p.is_lost):
            if any(h.first <= first <= h.last for h in ranges):
                batch.delete(PLACES, location_key(topic, queue, first))
        for first, archive, stored_at in _borders(ranges):
            key = location_key(topic, queue, first)
            batch.put(PLACES, key, location_value(ARCHIVE_FIRST + archive, stored_at))
        last = max(h.last for h in ranges)
        _put_end(families, it, batch, topic, queue, last, last + 1)


def _borders(ranges: Sequence[ArchivedRange]) -> Iterator[tuple[int, int, int]]:
    """The borders at which the archive changes: first offset, archive, store time."""
    around: list[ArchivedRange] = []
    """The ranges that go on behind the present one, outermost first."""
    before = -1
    for one in ranges:
        while around and around[-1].last < one.first:
            inner = around.pop()
            if around and around[-1].last > inner.last and inner.last + 1 < one.first:
                yield inner.last + 1, around[-1].archive, inner.stored_at
                before = around[-1].archive
        if one.archive != before:
            yield one.first, one.archive, one.stored_at
        before = one.archive
        around.append(one)
    while len(around) > 1:
        inner = around.pop()
        if around[-1].last > inner.last:
            yield inner.last + 1, around[-1].archive, inner.stored_at
