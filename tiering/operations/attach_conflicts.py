"""Finds conflicts of new archives with a store's queues, and the ranges that they take there.

The idea: the offsets that a queue holds come from the index, for the log, and from the directories
of the store's archives. Ranges that are apart fit. Where they overlap, the offsets are read,
without bodies. Where the store's archives and the new ones have offsets by turns, the ranges of
each are worked out.

Invariants: nothing is changed here; an offset that is there twice, and a time out of order, is an
`AttachConflict` that names topic, queue and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.index.archived import ArchivedRange, AttachedRange, HeldRange, Queue
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.manifest import ArchivedTopic
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.catalog import ArchiveRow, contents, decode_rows
from tiering.catalog.overlaps import OffsetRange, first_duplicate, offsets_of, split_overlaps
from tiering.errors import AttachConflict
from tiering.operations.source_place import OPEN_BYTES, SourceContext
from tiering.places.place import open_kept
from tiering.worker.store_protocols import Store, TopicFacts

I64 = NDArray[np.int64]
_KEPT: Final = 64
"""Blocks, and archives, whose times are kept."""


class ConflictChecker:
    """Compares the archives of a source with a store's queues; `rows` are those of the store's own
    archives, by number.
    """

    def __init__(self, store: Store, source: SourceContext, rows: Mapping[int, ArchiveRow]) -> None:
        self._store = store
        self._handover = store.handover
        self._config = store.config
        self._source = source
        self._rows = rows
        self._ours = OpenArchives(self._open, OPEN_BYTES)
        self._times = BlockTimes()

    def _open(self, number: int) -> Archive:
        row = self._rows.get(number)
        if row is None:
            # A worker has made it since the rows were read.
            row = next(r for r in decode_rows(self._handover.rows()) if r.number == number)
        place = open_kept(
            row.place, self._store.path, options=self._config.archives.options,
            files=self._config.files, clock=self._config.clock,
        )  # fmt: skip
        return open_lazily(place.source(row.key, row.size), keys=self._source.keys)

    def check_topics(
        self,
        ranges: Sequence[OffsetRange],
        described: Mapping[str, ArchivedTopic],
        known: Mapping[str, TopicFacts],
    ) -> None:
        """Raises for topics that are of another kind here, or have too few queues."""
        for one in ranges:
            info = known.get(one.topic)
            if info is None:
                continue
            if info.kind != described[one.topic].kind:
                raise AttachConflict(
                    f"topic {one.topic!r} is of kind {info.kind} here and "
                    f"{described[one.topic].kind} in the archives; leave it out, or `kvmq restore` "
                    "them to a store of their own",
                    one.topic,
                )
            if one.queue >= info.read_queues:
                raise AttachConflict(
                    f"topic {one.topic!r} has {info.read_queues} queues, and {one.archive} has "
                    f"messages of queue {one.queue}: give it {one.queue + 1} queues first "
                    f"(`kvmq topic alter --queues {one.queue + 1}`)",
                    one.topic,
                    one.queue,
                    one.first,
                    one.last,
                )

    def check_offsets(
        self,
        archives: Mapping[str, Callable[[], Archive]],
        ranges: Sequence[OffsetRange],
        known: Mapping[str, TopicFacts],
    ) -> None:
        """Raises for an offset that two of the archives have, or the store and one of them. The
        archives are opened by name.
        """
        others: list[OffsetRange] = []
        for one in ranges:
            info = known.get(one.topic)
            for here in (
                self._handover.held_ranges(info.id, one.queue)[0] if info is not None else ()
            ):
                low, high = max(one.first, here.first), min(one.last, here.last)
                if low > high:
                    continue
                if here.archive is not None:
                    others.append(
                        OffsetRange(one.topic, one.queue, here.first, here.last, str(here.archive))
                    )
                    continue
                taken = offsets_of(archives[one.archive](), one.topic, one.queue, low, high)
                if len(taken):
                    raise self._conflict(one.topic, one.queue, int(taken[0]), int(taken[-1]))

        def opened(name: str) -> Archive:
            return archives[name]() if name in archives else self._ours.get(int(name))

        twice = first_duplicate(ranges, dict.fromkeys(others), opened)
        if twice is not None:
            if set(twice.archives) <= archives.keys():
                raise AttachConflict(
                    f"{twice.archives[0]} and {twice.archives[1]} both have offsets {twice.first} "
                    f"to {twice.last} of queue {twice.queue} of topic {twice.topic!r}; attach what "
                    "is wanted of them by `topics`, or remove one",
                    *twice[:4],
                )
            raise self._conflict(*twice[:4])

    def _conflict(self, topic: str, queue: int, first: int, last: int) -> AttachConflict:
        return AttachConflict(
            f"the store has offsets {first} to {last} of queue {queue} of topic {topic!r} already, "
            f"and so has {self._source.place.name}; if they are other messages, leave the topic "
            "out, or `kvmq restore` them to a store of their own",
            topic, queue, first, last,
        )  # fmt: skip

    def attached_ranges(
        self,
        held: Sequence[ArchivedRange],
        new: Mapping[int, Callable[[], Archive]],
        heres: Mapping[Queue, tuple[list[HeldRange], int]],
    ) -> list[AttachedRange]:
        """The ranges of the new archives, apart from all else that the queues have. Raises for
        store times that would not rise any more.
        """
        names = {t.id: t.name for opened in new.values() for t in opened().manifest.topics}
        every = [*held, *self._held_here(held, heres)]

        def archive_of(number: int) -> Archive:
            return new[number]() if number in new else self._ours.get(number)

        out: list[AttachedRange] = []
        for one in split_overlaps(every, archive_of):
            if one.archive in new:
                log = [h for h in heres[one.topic, one.queue][0] if h.archive is None]
                out += _apart(one, log, new[one.archive](), self._times)
        by_queue: dict[Queue, list[AttachedRange]] = {}
        for attached in out:
            by_queue.setdefault((attached.topic, attached.queue), []).append(attached)
        for (topic, queue), mine_ in by_queue.items():
            self._check_times(names[topic], queue, mine_, heres[topic, queue][0])
        return out

    def _held_here(
        self, held: Sequence[ArchivedRange], heres: Mapping[Queue, tuple[list[HeldRange], int]]
    ) -> Iterator[ArchivedRange]:
        """The ranges, by blocks, that the store's archives have between the first and the last
        offset of `held` in each queue. Each archive is read once, for all queues.
        """
        spans: dict[Queue, tuple[int, int]] = {}
        for one in held:
            low, high = spans.get((one.topic, one.queue), (one.first, one.last))
            spans[one.topic, one.queue] = min(low, one.first), max(high, one.last)
        wanted: dict[int, dict[Queue, list[HeldRange]]] = {}
        for queue, (low, high) in spans.items():
            for here in heres[queue][0]:
                if here.archive is not None and here.first <= high and here.last >= low:
                    wanted.setdefault(here.archive, {}).setdefault(queue, []).append(here)
        for number, mine in wanted.items():
            for one in contents(self._ours.get(number), number).held:
                for here in mine.get((one.topic, one.queue), ()):
                    low, high = max(one.first, here.first), min(one.last, here.last)
                    if low <= high:
                        yield one._replace(first=low, last=high)

    def _check_times(
        self, topic: str, queue: int, ranges: Sequence[AttachedRange], heres: Sequence[HeldRange]
    ) -> None:
        """A queue is searched by time, so new messages must not break the order of its times."""
        now = self._config.clock.now_ms()
        for one in ranges:
            before = (self._time(h, one, high=True) for h in reversed(heres) if h.first < one.first)
            behind = (self._time(h, one, high=False) for h in heres if h.last > one.last)
            low = next((time for time in before if time is not None), 0)
            high = min(now, next((time for time in behind if time is not None), now))
            if one.stored_at < low or one.last_stored_at > high:
                raise AttachConflict(
                    f"offsets {one.first} to {one.last} of queue {queue} of topic {topic!r} were "
                    f"stored from {one.stored_at} to {one.last_stored_at} ms, and what the store "
                    f"has around them (or its clock) takes times from {low} to {high}: the queue "
                    "could not be searched by time; write them with other times, or `kvmq "
                    "restore` them to a store of their own",
                    topic,
                    queue,
                    one.first,
                    one.last,
                )

    def _time(self, here: HeldRange, one: AttachedRange, *, high: bool) -> int | None:
        """The last store time before a range, or (not `high`) the first behind it."""
        if here.archive is None:
            if high:
                return here.last_stored_at if here.last < one.first else None
            return here.first_stored_at if here.first > one.last else None
        low, end = (here.first, one.first - 1) if high else (one.last + 1, here.last)
        archive = self._ours.get(here.archive)
        blocks = [
            block
            for block in archive.blocks(one.topic, one.queue)
            if archive.directory.first_offset(block) <= end
            and archive.directory.last_offset(block) >= low
        ]
        for block in reversed(blocks) if high else blocks:
            found = self._times.within(archive, block, low, end)
            if found is not None:
                return found[1] if high else found[0]
        return None


class BlockTimes:
    """Offsets and store times of blocks; it keeps those of the last blocks it looked at."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[I64, I64]] = {}
        self._blocks: dict[str, tuple[I64, I64]] = {}

    def of(self, archive: Archive, block: int) -> tuple[int, int]:
        """The least and the greatest time of a whole block. The directory that an archive keeps in
        memory has times of groups alone.
        """
        found = self._blocks.get(archive.name)
        if found is None:
            rows = archive.rows()
            if len(self._blocks) >= _KEPT:
                self._blocks.clear()
            found = self._blocks[archive.name] = rows.least_stored_at, rows.greatest_stored_at
        return int(found[0][block]), int(found[1][block])

    def within(self, archive: Archive, block: int, low: int, high: int) -> tuple[int, int] | None:
        """The least and the greatest time of a block's messages from one offset to another."""
        key = archive.name, block
        found = self._kept.get(key)
        if found is None:
            group = archive.lazy_group(archive.directory.group(block))
            rows = group.rows_of(block)
            found = group.columns.offset[rows], group.columns.stored_at[rows]
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found
        offsets, times = found
        inside = times[(offsets >= low) & (offsets <= high)]
        return (int(inside.min()), int(inside.max())) if len(inside) else None


def _apart(
    one: ArchivedRange, log: Sequence[HeldRange], archive: Archive, times: BlockTimes
) -> Iterator[AttachedRange]:
    """A range, in several where the log has something in between."""
    block = archive.block_at(one.topic, one.queue, one.first)
    assert block is not None, "the directory that said so has it"
    directory = archive.directory
    ends = directory.first_offset(block), directory.last_offset(block)
    inside = [here for here in log if here.first <= one.last and here.last >= one.first]
    parts = [(one.first, one.last)]
    if inside:
        name = next(t.name for t in archive.manifest.topics if t.id == one.topic)
        offsets = offsets_of(archive, name, one.queue, one.first, one.last)
        borders = np.searchsorted(np.array(sorted(here.first for here in inside)), offsets)
        each = [offsets[borders == number] for number in np.unique(borders).tolist()]
        parts = [(int(mine[0]), int(mine[-1])) for mine in each]
    for first, last in parts:
        found = None
        if len(parts) > 1 or (first, last) != ends:
            found = times.within(archive, block, first, last)
        low, high = found or times.of(archive, block)
        yield AttachedRange(one.topic, one.queue, first, last, low, high, one.archive)
