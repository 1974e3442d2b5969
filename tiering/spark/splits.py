"""Splits: cuts all that there is to read into parts of about the same size.

The idea: a store's catalog says which archives can't have wanted messages. The others are looked
at, some at once (directory, and key index where keys are asked for), and only the findings are kept
of each: blocks that can't have wanted messages fall away. The other blocks are packed, in the order
of the log, into parts of so many bytes of records. A large archive becomes several parts, and small
ones share one. The last parts are smaller, so that tasks which run side by side end at about the
same time. Parts of the hot log are cut by bytes: a task finds the first record of its part by
itself.

Invariants: each wanted block and each byte of the log is in one part; no block is read here; of an
archive that was looked at 8 bytes are kept for each wanted block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from kvstore.record.hashes import key_hash_range
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.catalog.bucket import AT_ONCE, ArchiveObject, newest, open_several
from tiering.errors import NothingToRestore
from tiering.executor.segment import SegmentRecords
from tiering.merge.partition import portion
from tiering.places.settings import is_remote
from tiering.spark.listing import ListedArchive, Listing, LogPart, Opener
from tiering.spark.options import ReadOptions
from tiering.spark.wanted import QueryFilter

Bools = NDArray[np.bool_]
I64 = NDArray[np.int64]
T = TypeVar("T")
Number = TypeVar("Number", int, I64)
Topics = Mapping[str, tuple[int, int]]
"""Ids and first positions of topics, by name."""
_NO_CUTS: Final[Mapping[int, tuple[int, int]]] = {}
_ENDLESS: Final = 1 << 62
_QUEUE_BITS: Final = 32
_POSITION_ID: Final = 32
"""Hex digits of an id made of an IPv4 host and a position."""


def code_of(topic: Number, queue: Number) -> Number:
    """A queue as one number, or queues as one number each: by the topic's id, then their own."""
    return topic << _QUEUE_BITS | queue


def queue_of(code: Number) -> tuple[Number, Number]:
    """The inverse: topic id and queue."""
    return code >> _QUEUE_BITS, code & ((1 << _QUEUE_BITS) - 1)


class BlockRange(NamedTuple):
    """Blocks of an archive, from each first to before each stop. Of those in `cuts` only the
    offsets from one to before the other are wanted; of all only positions `between` two.
    """

    held: ListedArchive
    blocks: list[tuple[int, int]]
    cuts: dict[int, tuple[int, int]]
    between: tuple[int, int] | None = None


class Ranges(NamedTuple):
    """Offsets of queues: of each, by rising codes, the first and the one behind the last."""

    codes: I64
    low: I64
    end: I64

    def find(self, codes: I64) -> tuple[I64, I64, I64]:
        """Of each of some queues the row here, the first offset and the one behind the last; both
        offsets are 0 for a queue that has no row.
        """
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        is_asked = self.codes[at] == codes
        return at, np.where(is_asked, self.low[at], 0), np.where(is_asked, self.end[at], 0)


class Split(InputPartition):
    """The work of one task, about `bytes` of records. Of the log it reads the messages of `topics`;
    if there are `ranges`, only the offsets in them.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.ranges: Ranges | None = None
        self.pieces: list[BlockRange] = []
        self.log: list[LogPart] = []
        self.topics: Topics = {}
        self.bytes = 0


class InspectedArchive(NamedTuple, Generic[T]):
    """An archive that was looked at, and the value taken from it. The manifest is without topics,
    which may be thousands in each of thousands of archives.
    """

    held: ListedArchive
    manifest: Manifest
    taken: T

    @property
    def object(self) -> ArchiveObject:
        """The object that its name describes."""
        return ArchiveObject.of(self.held.key, self.held.size)


class _Chosen(NamedTuple):
    """Blocks of an archive that may have wanted messages, and the bytes of records of each."""

    blocks: NDArray[np.uint32]
    sizes: NDArray[np.uint32]


def plan_splits(
    found: Listing, wanted: QueryFilter, options: ReadOptions, opener: Opener
) -> list[Split]:
    """The parts. Raises the error of a damaged archive, unless the options say to skip it."""
    topics = found.topics or {}
    live = {name: topic for name, topic in topics.items() if wanted.has_topic(name)}
    if found.topics is None:
        looked = _of_place(found, wanted, options, opener)
    else:
        ids = {name: number for name, (number, _) in topics.items()}
        looked = inspect_archives(
            _narrowed(found, wanted), options, opener, lambda one: _choice(one, wanted, ids)
        )
    log = found.log if live else []
    total = sum(int(one.taken.sizes.sum(dtype=np.int64)) for one in looked)
    packing = Packing(options.split_bytes, total + sum(one.end - one.begin for one in log))
    for one in looked:
        packing.add(one.held, one.taken.blocks.astype(np.int64), one.taken.sizes)
    for log_part in log:
        packing.add_log(log_part, live)
    return packing.splits


def _narrowed(found: Listing, wanted: QueryFilter) -> Listing:
    """The listing without archives that can't have wanted messages, as the catalog says."""
    if found.topics is None or found.rows is None:
        return found
    mine = frozenset(number for name, (number, _) in found.topics.items() if wanted.has_topic(name))
    both = zip(found.archives, found.rows, strict=True)
    return replace(found, archives=[one for one, row in both if wanted.may_be_in(row, mine)])


def _of_place(
    found: Listing, wanted: QueryFilter, options: ReadOptions, opener: Opener
) -> list[InspectedArchive[_Chosen]]:
    """The archives of a place without a store, opened, each with its wanted blocks. Only together
    they say which id of a topic counts.
    """
    pairs: set[tuple[str, int]] = set()

    def choice(archive: Archive) -> _Chosen:
        mine = {(topic.name, topic.id) for topic in archive.manifest.topics}
        pairs.update(mine)
        return _choice(archive, wanted, dict(mine))

    looked = inspect_archives(found, options, opener, choice)
    # Sorted, so that the highest id of a name is the one that stays.
    ids = dict(sorted(pairs))
    if len(ids) == len(pairs):
        return looked
    # A topic was deleted and created again. That is rare enough to look twice.
    again = replace(found, archives=[one.held for one in looked])
    return inspect_archives(again, options, opener, lambda one: _choice(one, wanted, ids))


def _choice(archive: Archive, wanted: QueryFilter, ids: Mapping[str, int]) -> _Chosen:
    may, sizes = wanted_blocks(archive, wanted, ids)
    blocks = np.flatnonzero(may)
    # No block has 4 GiB of records.
    return _Chosen(blocks.astype(np.uint32), sizes[blocks].astype(np.uint32))


def inspect_archives(
    found: Listing, options: ReadOptions, opener: Opener, take: Callable[[Archive], T]
) -> list[InspectedArchive[T]]:
    """The archives of a listing that no newer one supersedes, with the value taken of each. Some
    are open at once, and none stays so. Raises as `plan_splits` does.
    """

    def look(held: ListedArchive) -> InspectedArchive[T]:
        archive = opener.opened(held)
        # The figures need the directory, which is decoded once more when blocks are chosen.
        return InspectedArchive(held, replace(archive.manifest, topics=()), take(archive))

    left_out: list[Exception] = []

    def leave_out(held: ListedArchive, error: Exception) -> None:
        options.leave_out(held.name, error)
        left_out.append(error)

    # A few local archives are looked at in less time than as many threads take to begin.
    is_quick = len(found.archives) <= AT_ONCE and not any(
        is_remote(held.place) for held in found.archives
    )
    width = 1 if is_quick else AT_ONCE
    looked = open_several(found.archives, look, leave_out, width=width)
    if found.topics is None:
        looked = newest(looked)
        if not looked and left_out:
            raise NothingToRestore(f"no archive can be read: {left_out[0]}")
    return looked


def wanted_blocks(
    archive: Archive, wanted: QueryFilter, ids: Mapping[str, int]
) -> tuple[Bools, I64]:
    """The blocks that may have wanted messages, and the bytes of records of every block."""
    rows = archive.rows()
    topics = archive.manifest.topics
    mine = np.array(
        [t.name in ids and ids[t.name] == t.id and wanted.has_topic(t.name) for t in topics], bool
    )
    may = wanted.blocks(rows, mine)
    needles = wanted.needles
    if needles is not None and may.any():
        is_id = wanted.keys is None
        indexed = np.array([_is_indexed(t, is_id=is_id) for t in topics], bool)
        may &= _hit(archive, needles, len(may), is_id=is_id) | ~indexed[rows.topics]
    return may, rows.raw_bytes


def _is_indexed(topic: ArchivedTopic, *, is_id: bool) -> bool:
    """Whether the key index has all of a topic's keys, or ids."""
    levels = {topic.key_index, *(level for _, level in topic.key_history)}
    return levels <= ({"all", "unique"} if is_id else {"all"})


def _hit(archive: Archive, needles: frozenset[str], blocks: int, *, is_id: bool) -> Bools:
    """The blocks where the key index has any of the keys, or ids."""
    hit = np.zeros(blocks, np.bool_)
    for needle in needles:
        for found in archive.find(*key_hash_range(needle.encode())):
            hit[found.block] = True
        if is_id and len(needle) == _POSITION_ID:
            # A message without an id of its own is named by its host and position.
            try:
                placed = archive.locate(int(needle[_POSITION_ID // 2 :], 16))
            except ValueError:
                placed = None
            if placed is not None:
                hit[placed[0]] = True
    return hit


class Packing:
    """Fills parts of `split_bytes`, and smaller ones at the end of the `total`, if it is known."""

    def __init__(self, split_bytes: int, total: int = _ENDLESS) -> None:
        self._split_bytes = split_bytes
        self._left = total
        self._most = 0
        self.splits: list[Split] = []

    def add(
        self,
        held: ListedArchive,
        blocks: I64,
        sizes: I64 | NDArray[np.uint32],
        cuts: Mapping[int, tuple[int, int]] = _NO_CUTS,
    ) -> None:
        """Adds blocks of an archive, with the bytes of records of each, and the cuts of those that
        are wanted in part.
        """
        done = 0
        for first, stop in runs_of(blocks):
            at = first
            while at < stop:
                split = self._current()
                ends = np.cumsum(sizes[done : done + stop - at], dtype=np.int64)
                room = self._most - split.bytes
                taken = max(int(np.searchsorted(ends, room, side="right")), 1)
                if not split.pieces or split.pieces[-1].held != held:
                    split.pieces.append(BlockRange(held, [], {}))
                split.pieces[-1].blocks.append((at, at + taken))
                if cuts:
                    mine = {b: cuts[b] for b in range(at, at + taken) if b in cuts}
                    split.pieces[-1].cuts.update(mine)
                split.bytes += int(ends[taken - 1])
                at += taken
                done += taken

    def add_log(self, log_part: LogPart, topics: Topics, ranges: Ranges | None = None) -> None:
        """Adds a part of the log, and the topics whose messages count in it."""
        at = log_part.begin
        while at < log_part.end:
            split = self._current()
            end = min(at + max(self._most - split.bytes, 1), log_part.end)
            split.topics, split.ranges = topics, ranges
            split.log.append(replace(log_part, begin=at, end=end))
            split.bytes += end - at
            at = end

    def _current(self) -> Split:
        if not self.splits or self.splits[-1].bytes >= self._most:
            self._left -= self.splits[-1].bytes if self.splits else 0
            self._most = portion(self._left, self._split_bytes)
            self.splits.append(Split())
        return self.splits[-1]


def runs_of(blocks: I64) -> Iterator[tuple[int, int]]:
    """Ranges of numbers that follow each other."""
    if len(blocks):
        breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
        for run in np.split(blocks, breaks):
            yield int(run[0]), int(run[-1]) + 1


def cuts_of(blocks: I64, first: I64, last: I64, low: I64, end: I64) -> dict[int, tuple[int, int]]:
    """Of the blocks whose offsets, from `first` to `last`, are wanted in part: from which on, and
    before which.
    """
    is_part = (first < low) | (last >= end)
    columns = (one[is_part].tolist() for one in (blocks, low, end))
    return {block: (a, b) for block, a, b in zip(*columns, strict=True)}


def live_records(found: SegmentRecords, base: int, topics: Topics) -> tuple[Bools, I64]:
    """Which records of the segment that begins at `base` are messages of these topics; and the
    queue of each, as a code.
    """
    names = (name.decode("utf-8", "surrogateescape") for name in found.names)
    rows = [topics.get(name, (-1, _ENDLESS)) for name in names]
    ids, since = np.array(rows, np.int64).reshape(-1, 2).T
    live = (found.queues != NO_QUEUE) & (found.starts + base >= since[found.topics])
    return live, code_of(ids[found.topics], found.queues)
