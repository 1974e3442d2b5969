"""Key lookup: finding messages by key in the parts of `message_keys`, newest first.

The idea: a checkpoint adds a part to its segment; sealing makes one part of a segment's, and eight
neighbours of a level become one of the next, so a lookup asks as many parts as the logarithm of the
log's length. The filter of each part is asked first, then its blocks; pieces of filters, and blocks
that were read, are kept in bounded memory. A key that is nowhere costs a block in one part of 40; a
key whose neighbours were looked up lately costs no look into RocksDB. Merging is done a step at a
time, by any thread that has time.

Invariants: results are candidates by hash, and positions that left the log may be among them: the
caller compares the key in the record. A generation goes with the last of its segments that is in
the log.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rocksdict import RdictIter

from kvstore.core.hashing import may_hold
from kvstore.core.packed_pairs import (
    find_in_block,
    known_positions,
    sort_pairs,
    unpack_blocks,
)
from kvstore.errors import FormatError
from kvstore.index.families import Batch, Families
from kvstore.index.handover import read_gone
from kvstore.index.key_merge import Merge
from kvstore.index.key_parts import (
    FILTER_HASHES,
    PIECE_BLOCKS,
    KnownBlocks,
    Part,
    blocks_between,
    digests_of,
    filter_piece,
    head_value,
    new_part,
    pairs_between,
    part_rows,
    piece_of,
    piece_start,
    read_parts,
    span,
)
from kvstore.index.keys import (
    BLOCK_SEQUENCES,
    HASH_END,
    MESSAGE_KEYS,
    PART_RANK_SHIFT,
    PART_SEALED,
    before_block,
    behind,
    block_key,
    filter_key,
    head_key,
    part_prefix,
    read_block_key,
)

I64 = NDArray[np.int64]
Parts = tuple[Part, ...]
FAN_OUT: Final = 4
"""Small parts of one rank in a segment that become one part of the next rank."""
_AT_ONCE_MAX: Final = 1 << 16
"""Pairs that a checkpoint merges by itself: small parts."""
LARGE_FAN_OUT: Final = 8
"""Larger parts of one rank that become one part: they are merged in the background, beside puts. In
a segment of 1 GiB a key is merged 1.5 times before the segment is sealed; with 4 it would be 2.75
times.
"""
_PAIRS_MAX: Final = 1 << 31
"""Pairs beyond which parts are not merged: a hash may have no more blocks."""
_RANK_MAX: Final = 14
_DIGEST_SHIFT: Final = 8
FILTERS_CACHED_BYTES_MAX: Final = 32 << 20
"""Pieces of filters in memory."""
_FILTER_OVERHEAD: Final = 200
"""Bytes that a piece takes in memory beside its own."""


class MessageKeys:
    """The key index of a store. Only one thread at a time changes parts."""

    def __init__(self, families: Families, segment_size: int) -> None:
        self._families = families
        self._segment_size = segment_size
        self._written: Parts | None = None
        """The parts, by segment; None until they are asked for."""
        self._readable: Parts = ()
        """The parts that lookups read: while a batch is written, those that it removes too."""
        self._grouped: tuple[Parts, list[list[Part]]] = ((), [])
        """The parts of the last look at rows, and the groups in which it reads them."""
        self._numbered: tuple[Parts, list[tuple[int, int, int, int]]] = ((), [])
        """The parts of the last look, as `known_positions` takes them."""
        self._merge: Merge | None = None
        self._headless: list[bytes] = []
        """Prefixes of rows without a head: readers pass over them."""
        self._replaced: deque[int] = deque()
        """Sealed segments with parts that were replaced, whose rows may be in files yet."""
        self._planned: tuple[Parts | None, int] = (None, 0)
        """The parts and the sealed segments at a time when nothing was to be merged."""
        self._numbers: dict[tuple[int, int], int] = {}
        """The last number given, by segment and rank."""
        self._filters: dict[tuple[int, int], bytes] = {}
        self._filter_bytes = 0
        self._blocks = KnownBlocks()
        self._lock = threading.Lock()

    # --- the parts ---

    def parts(self) -> Parts:
        """The parts, by segment."""
        found = self._written
        if found is None:
            with self._lock:
                if self._written is None:
                    self._load()
                found = self._written
            assert found is not None, "it was just read"
        return found

    def _load(self) -> None:
        found, unfinished, self._headless = read_parts(
            self._families, self._families.iter(MESSAGE_KEYS)
        )
        self._readable = self._written = _in_order(found)
        for one in unfinished:
            sources = [part for part in self._written if part.prefix in one.sources]
            self._merge = Merge(
                self._families,
                self._segment_size,
                one.part,
                _by_position(sources),
                one.done,
                one.part.pairs,
            )

    def writing(self, parts: Parts) -> None:
        """Notes that a batch with these parts as its outcome is about to be written: until it is,
        lookups read both the parts that it removes and the parts that it adds.
        """
        with self._lock:
            self._readable = _in_order({*self._readable, *parts})

    def written(self, parts: Parts) -> None:
        """Notes that the batch was written."""
        with self._lock:
            self._readable = self._written = _in_order(parts)

    def read_again(self) -> None:
        """Reads the parts again after a change that failed, which may have been written."""
        with self._lock:
            self._merge, self._planned = None, (None, 0)
            self._load()

    def forget_rows(self) -> None:
        """Drops the cached filters and blocks, since rows of parts changed."""
        with self._lock:
            self._filters.clear()
            self._filter_bytes = 0
        self._blocks.forget()

    def forget(self) -> None:
        """Drops everything cached, since all rows were removed or replaced."""
        with self._lock:
            self._written, self._readable, self._merge = None, (), None

    # --- looking ---

    def find(self, low: int, high: int, first: int, last: int, since: int = 0) -> Iterable[int]:
        """Log positions of records with a key hash from `low` to `high`, newest first, each once.
        All those in segments `first` to `last`, from position `since` on, are among them.
        """
        self.parts()
        begin = max(first * self._segment_size, since)
        end = (last + 1) * self._segment_size
        asked: dict[int, bool] = {}
        if low == high:
            # Rows of parts do not change while they are in memory, so this is the result at the
            # moment at which these were the parts.
            found = known_positions(
                self._numbers_of(self._readable),
                self._filters,
                self._blocks.pieces,
                asked,
                low,
                begin,
                end,
                PIECE_BLOCKS,
                FILTER_HASHES,
            )
            if found is not None:
                return found
        return self._read(low, high, range(begin, end), asked)

    def _read(self, low: int, high: int, stretch: range, asked: dict[int, bool]) -> Iterator[int]:
        before, version = self._readable, self._blocks.version
        it = self._families.iter(MESSAGE_KEYS)
        # The iterator sees one moment. The parts of that moment are among those noted before and
        # after its making, whatever is merged meanwhile.
        now = self._readable
        every = now if now is before else tuple({*before, *now})
        digest = low >> _DIGEST_SHIFT
        # A filter can't answer for hashes of several digests.
        is_one = digest == high >> _DIGEST_SHIFT
        newest = -1
        for together in self._groups_of(every):
            found = list[Iterator[int]]()
            for part in together:
                holds = asked.get(part.serial)
                if holds is None and not self._is_beside(part, stretch):
                    holds = not is_one or self._may_hold(it, part, digest)
                if holds:
                    positions = partial(self._positions, it, part, stretch, version)
                    found += map(positions, self._hashes(it, part, low, high))
            if not found:
                continue
            for position in found[0] if len(found) == 1 else merge(*found, reverse=True):
                if position != newest:
                    yield position
                newest = position

    def _numbers_of(self, parts: Parts) -> list[tuple[int, int, int, int]]:
        """The parts as `known_positions` takes them, kept until they change."""
        known, numbers = self._numbered
        if known is not parts:
            size = self._segment_size
            numbers = [
                (part.serial, part.segment * size, part.end * size, part.filter_blocks)
                for part in parts
            ]
            self._numbered = parts, numbers
        return numbers

    def _groups_of(self, parts: Parts) -> list[list[Part]]:
        """The groups of `_newest_first`, kept until the parts change."""
        known, groups = self._grouped
        if known is not parts:
            groups = list(_newest_first(parts))
            self._grouped = parts, groups
        return groups

    def _is_beside(self, part: Part, stretch: range) -> bool:
        size = self._segment_size
        return part.segment * size >= stretch.stop or part.end * size <= stretch.start

    def _may_hold(self, it: RdictIter, part: Part, digest: int) -> bool:
        piece = piece_of(part.filter_blocks, digest)
        data = self._filters.get((part.serial, piece))
        if data is None:
            data = self._read_filter(it, part, piece)
        # No bytes, where the row is damaged or the part is gone, say nothing.
        return may_hold(data, 0, part.filter_blocks, piece * PIECE_BLOCKS, digest, FILTER_HASHES)

    def _read_filter(self, it: RdictIter, part: Part, piece: int) -> bytes:
        data = self._filter_row(it, part, piece)
        if data is None:
            return b""
        with self._lock:
            if (part.serial, piece) not in self._filters:
                self._filters[part.serial, piece] = data
                self._filter_bytes += len(data) + _FILTER_OVERHEAD
            while self._filter_bytes > FILTERS_CACHED_BYTES_MAX:
                oldest = self._filters.pop(next(iter(self._filters)))
                self._filter_bytes -= len(oldest) + _FILTER_OVERHEAD
        return data

    def _filter_row(self, it: RdictIter, part: Part, piece: int) -> bytes | None:
        key = filter_key(part.prefix, piece)
        it.seek(key)
        if not self._families.valid(it) or it.key() != key:
            return None
        data: bytes = it.value()
        return data

    def _hashes(self, it: RdictIter, part: Part, low: int, high: int) -> Iterable[int]:
        """The hashes from `low` to `high` that a part has."""
        if low == high:
            return (low,)
        found: set[int] = set()
        at = low
        while at <= high:
            following, before = high + 1, -1
            for _, first, value in blocks_between(self._families, it, part, at, high + 1):
                if first == before and first >= at:
                    # This hash has blocks of its own: go on behind them.
                    following = first + 1
                    break
                before = first
                found.update(hash_ for hash_, _ in find_in_block(first, value, at, high))
            at = following
        return found

    def _positions(
        self, it: RdictIter, part: Part, stretch: range, version: int, wanted: int
    ) -> Iterator[int]:
        """The log positions of a hash in a part, within a stretch of the log, newest first."""
        base = part.segment * self._segment_size
        begin, end = stretch.start - base, stretch.stop - base
        key = block_key(part.prefix, wanted, BLOCK_SEQUENCES - 1)
        while True:
            # Others move the iterator between two blocks.
            it.seek_for_prev(key)
            if not self._families.valid(it) or not it.key().startswith(part.prefix):
                return
            key = it.key()
            first, sequence = read_block_key(key)
            value = it.value()
            found = find_in_block(first, value, wanted, wanted)
            if first < wanted:
                piece = piece_of(part.filter_blocks, first >> _DIGEST_SHIFT)
                self._blocks.add(version, part.serial, piece, (first, value))
            if first == wanted and found and found[0][1] >= end:
                key = self._behind_blocks_of(it, part, wanted, end, sequence)
                continue
            for _, position in reversed(found):
                if position < begin:
                    return
                if position < end:
                    yield base + position
            if first < wanted:
                return
            key = before_block(key)

    def _behind_blocks_of(
        self, it: RdictIter, part: Part, wanted: int, end: int, sequence: int
    ) -> bytes:
        """A key behind all blocks of a hash that have positions below `end` of its part, and before
        those that have none. The block `sequence` has none.
        """
        low, high = 0, sequence
        while low < high:
            middle = (low + high) // 2
            it.seek_for_prev(block_key(part.prefix, wanted, middle))
            if not self._families.valid(it) or not it.key().startswith(part.prefix):
                break  # the blocks were removed meanwhile, or the rows are damaged
            first, at = read_block_key(it.key())
            found = find_in_block(first, it.value(), wanted, wanted)
            if first == wanted and found and found[0][1] >= end:
                high = at
            else:
                low = middle + 1
        return before_block(block_key(part.prefix, wanted, high))

    # --- writing ---

    def add(
        self, batch: Batch, parts: Parts, segment: int, hashes: I64, positions: I64
    ) -> tuple[Parts, list[tuple[list[bytes], list[bytes]]]]:
        """Puts the head of a new part of sorted pairs into a batch. Returns all parts, this one
        included, and the keys and values of its other rows, which are written before the batch or
        with it.

        Where this makes `FAN_OUT` small parts of a rank, the batch removes them: they are merged.
        """
        base, rank = segment * self._segment_size, 0
        while rank < _RANK_MAX:
            same = [p for p in parts if _rank(p, segment) == rank]
            together = sum(p.pairs for p in same) + len(hashes)
            if len(same) < FAN_OUT - 1 or together > _AT_ONCE_MAX:
                break
            it = self._families.iter(MESSAGE_KEYS)
            found = pairs_between(
                self._families, it, _by_position(same), self._segment_size, 0, HASH_END,
                _AT_ONCE_MAX,
            )  # fmt: skip
            if found is None:
                break
            hashes, positions = sort_pairs(
                np.concatenate([found[0], hashes]), np.concatenate([found[1] - base, positions])
            )
            self.drop(batch, same)
            parts = tuple(p for p in parts if p not in same)
            rank += 1
        number = self._number(parts, segment, rank)
        first = base + int(positions.min(initial=self._segment_size))
        part = new_part(0, segment, number, len(hashes), first)
        batch.put(MESSAGE_KEYS, head_key(part.prefix), head_value(part, part.pieces))
        return (*parts, part), list(part_rows(part, hashes, positions))

    def drop_headless(self) -> None:
        """Removes the rows of parts that a checkpoint did not come to complete, before another part
        gets the number of one.
        """
        self.parts()
        if self._headless:
            batch = self._families.batch()
            for prefix in self._headless:
                batch.delete_range(MESSAGE_KEYS, prefix, behind(prefix))
            self._families.write(batch)
            self._headless = []

    def _number(self, parts: Parts, segment: int, rank: int) -> int:
        """A number for a part that no part of the segment has, or had just before."""
        taken = {p.number for p in parts if p.level == 0 and p.segment == segment}
        last = self._numbers.get((segment, rank), -1)
        while True:
            last = (last + 1) % (1 << PART_RANK_SHIFT)
            number = rank << PART_RANK_SHIFT | last
            if number not in taken:
                kept = {k: n for k, n in self._numbers.items() if k[0] >= segment - 1}
                self._numbers = kept | {(segment, rank): last}
                return number

    def drop_segments(self, batch: Batch, leaving: Iterable[int], there: Sequence[int]) -> Parts:
        """Puts into a batch that segments leave the log, which has the segments `there` (rising)
        until then; returns the parts that remain. Parts that other segments of a generation need
        stay.
        """
        going = set(leaving)
        staying = [number for number in there if number not in going]

        def is_over(part: Part) -> bool:
            at = bisect_left(staying, part.segment)
            return any(part.covers(n) for n in going) and (
                at == len(staying) or not part.covers(staying[at])
            )

        over = [part for part in self.parts() if is_over(part)]
        self.drop(batch, over)
        if self._merge is not None and is_over(self._merge.target):
            self._merge.abandon(batch)
            self._merge = None
        return tuple(part for part in self.parts() if part not in over)

    def drop(self, batch: Batch, parts: Iterable[Part]) -> None:
        """Puts the removal of parts into a batch."""
        for part in parts:
            batch.delete_range(MESSAGE_KEYS, part.prefix, behind(part.prefix))

    def merging(self) -> Parts:
        """The part that is being merged, if one is."""
        return () if self._merge is None else (self._merge.target,)

    # --- merging ---

    @property
    def is_merging(self) -> bool:
        """Whether a merge was begun."""
        self.parts()
        return self._merge is not None

    def merge_due(self, sealed: int) -> bool:
        """Whether parts are to be merged; segments below `sealed` get no more keys."""
        return self.is_merging or self._plan(sealed) is not None

    def merge_next(self, sealed: int) -> None:
        """Does one step of the merge that was begun, or of the next one."""
        parts = self.parts()
        doing = self._merge or self._plan(sealed)
        if doing is None:
            return
        self._merge = doing
        if not doing.step(read_gone(self._families)):
            return
        batch = self._families.batch()
        made = doing.finish(batch)
        following = tuple(p for p in parts if p not in doing.sources)
        if made is not None:
            following = (*following, made)
        self.writing(following)
        self._families.write(batch)
        self.written(following)
        self._merge = None
        # Higher generations are large enough for RocksDB's own compactions.
        if doing.target.level <= 1 and doing.target.number == PART_SEALED:
            self._replaced.extend(dict.fromkeys(part.segment for part in doing.sources))

    @property
    def compact_due(self) -> bool:
        """Whether parts of segments that were replaced may still be in RocksDB's files."""
        return bool(self._replaced)

    def compact_next(self) -> None:
        """Rewrites the files that have such parts of one segment: RocksDB would keep removed rows
        until some more files of that family have come.
        """
        segment = self._replaced.popleft()
        first, end = part_prefix(0, segment, 0), part_prefix(0, segment + 1, 0)
        self._families.compact(MESSAGE_KEYS, first, end)

    def _plan(self, sealed: int) -> Merge | None:
        parts = self.parts()
        if self._planned == (parts, sealed):
            return None
        chosen = self._choose(parts, sealed)
        if chosen is None:
            self._planned = (parts, sealed)
            return None
        level, segment, number, sources = chosen
        ordered = _by_position(sources)
        pairs = sum(part.pairs for part in sources)
        target = new_part(level, segment, number, pairs, ordered[0].first)
        return Merge(self._families, self._segment_size, target, ordered)

    def _choose(self, parts: Parts, sealed: int) -> tuple[int, int, int, list[Part]] | None:
        """Level, segment and number of the next part to make, and its sources."""
        segments = [part for part in parts if not part.level]
        for segment, group in groupby(segments, attrgetter("segment")):
            mine = list(group)
            if segment < sealed:
                if len(mine) > 1:
                    return 0, segment, PART_SEALED, mine
                continue
            for rank in range(_RANK_MAX):
                same = [part for part in mine if _rank(part, segment) == rank]
                if len(same) >= LARGE_FAN_OUT:
                    return 0, segment, self._number(parts, segment, rank + 1), same
        level = 1
        while span(level) <= sealed:
            wide = span(level)
            of_sealed = [p for p in parts if p.level < level and p.segment < sealed]
            ranges: dict[int, list[Part]] = {}
            for part in of_sealed:
                ranges.setdefault(part.segment // wide * wide, []).append(part)
            for first, mine in ranges.items():
                is_whole = first + wide <= sealed
                if is_whole and len(mine) > 1 and sum(p.pairs for p in mine) < _PAIRS_MAX:
                    return level, first, PART_SEALED, mine
            level += 1
        return None

    # --- all pairs of a segment ---

    def pairs(self, segment: int) -> tuple[I64, I64]:
        """All pairs of a segment at one moment, sorted, positions in the segment. `FormatError` if
        a part with such pairs, or its filter, is not what was written.
        """
        base = segment * self._segment_size
        all_hashes, all_positions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        it = self._families.iter(MESSAGE_KEYS)
        # The parts that are noted here are of no use: they may be merged before or after the
        # iterator is made, and the same holds for every row.
        for part in read_parts(self._families, it)[0]:
            if not part.covers(segment):
                continue
            for piece in range(part.pieces):
                hashes, positions = self._checked(it, part, piece)
                positions += part.segment * self._segment_size - base
                mine = (positions >= 0) & (positions < self._segment_size)
                all_hashes.append(hashes[mine])
                all_positions.append(positions[mine])
        return sort_pairs(np.concatenate(all_hashes), np.concatenate(all_positions))

    def _checked(self, it: RdictIter, part: Part, piece: int) -> tuple[I64, I64]:
        low, high = piece_start(part, piece), piece_start(part, piece + 1)
        rows = [row[1:] for row in blocks_between(self._families, it, part, low, high)]
        rows = [row for row in rows if row[0] >= low]
        hashes, positions = unpack_blocks([first for first, _ in rows], [v for _, v in rows])
        if self._filter_row(it, part, piece) != filter_piece(part, piece, digests_of(hashes)):
            raise FormatError("a filter is not that of its keys")
        return hashes, positions


def _rank(part: Part, segment: int) -> int:
    """The rank of a part of a segment that is not sealed; -1 of any other."""
    if part.level or part.segment != segment or part.number == PART_SEALED:
        return -1
    return part.number >> PART_RANK_SHIFT


def _in_order(parts: Iterable[Part]) -> Parts:
    return tuple(sorted(parts, key=lambda part: (part.segment, part.level, part.number)))


def _by_position(parts: Iterable[Part]) -> list[Part]:
    return sorted(parts, key=attrgetter("first"))


def _newest_first(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts, newest first; those that reach into each other's segments together."""
    together: list[Part] = []
    oldest = 0
    for part in sorted(parts, key=lambda part: (part.end, part.segment), reverse=True):
        if together and part.end <= oldest:
            yield together
            together = []
        oldest = min(oldest, part.segment) if together else part.segment
        together.append(part)
    if together:
        yield together
