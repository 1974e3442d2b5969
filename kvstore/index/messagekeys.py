"""Finding messages by key: the parts of `message_keys`, newest segment first.

The idea: a checkpoint adds a part to its segment; four parts of a level become one of the next, and
sealing makes one of all, so a lookup seeks in a handful of places. A part is one key range of
blocks; which parts a segment has is read from RocksDB when first asked and kept.

Invariant: what this finds are candidates by hash. The caller compares the real key in the record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.index.checkpoint import key_rows
from kvstore.index.families import Batch, Families
from kvstore.index.keyblocks import find_in_block, sort_pairs, unpack_blocks
from kvstore.index.keys import (
    MESSAGE_KEYS,
    PART_LEVEL_SHIFT,
    PART_SEALED,
    key_block_key,
    read_key_block_key,
)

I64 = NDArray[np.int64]
FAN_OUT: Final = 4
HASH_END: Final = 1 << 40
_STRETCH: Final = HASH_END // 16
"""Hashes merged at a time when a segment is sealed: bounds the memory, whatever it holds."""


class MessageKeys:
    """See the module."""

    def __init__(self, families: Families, segment_size: int) -> None:
        self._families = families
        self._segment_size = segment_size
        self._parts: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def parts(self, segment: int) -> tuple[int, ...]:
        """The parts a segment has."""
        found = self._parts.get(segment)
        if found is None:
            with self._lock:
                found = self._parts[segment] = tuple(self._read_parts(segment))
        return found

    def _read_parts(self, segment: int) -> Iterator[int]:
        it = self._families.iter(MESSAGE_KEYS)
        part = 0
        while part <= PART_SEALED:
            it.seek(key_block_key(segment, part, 0))
            if not self._families.valid(it):
                return
            found, part, _ = read_key_block_key(it.key())
            if found != segment:
                return
            yield part
            part += 1

    def find(self, segment: int, low: int, high: int) -> list[int]:
        """Log positions of a segment's records with a key hash of `low` to `high`, in order."""
        found: list[int] = []
        before = self.parts(segment)
        it = self._families.iter(MESSAGE_KEYS)
        # The iterator sees one moment; the parts of that moment are among those noted before it
        # and behind it, whatever is merged meanwhile.
        parts = set(before).union(self.parts(segment))
        base = segment * self._segment_size
        for part in parts:
            it.seek_for_prev(key_block_key(segment, part, low))
            if not self._families.valid(it) or read_key_block_key(it.key())[:2] != (segment, part):
                # `low` is below the part's first block; the range may still reach into it.
                if high == low:
                    continue
                it.seek(key_block_key(segment, part, low))
            while self._families.valid(it):
                in_segment, in_part, first = read_key_block_key(it.key())
                if in_segment != segment or in_part != part or first > high:
                    break
                found += find_in_block(first, it.value(), low, high)
                if low == high:
                    break
                it.next()
        return [base + p for p in sorted(set(found))]

    def add(self, batch: Batch, segment: int, hashes: I64, positions: I64) -> tuple[int, ...]:
        """Put a new part of sorted pairs into a batch; returns the segment's parts once it is
        written.

        When there are `FAN_OUT` parts of a level with it, they are merged in the same batch.
        """
        parts = self.parts(segment)
        level = 0
        while True:
            same = [p for p in parts if p >> PART_LEVEL_SHIFT == level and p != PART_SEALED]
            if len(same) < FAN_OUT - 1 or level == 14:
                break
            hashes, positions = self._merged(segment, same, [(hashes, positions)])
            self._drop(batch, segment, same)
            parts = tuple(p for p in parts if p not in same)
            level += 1
        number = max((p + 1 for p in same), default=level << PART_LEVEL_SHIFT)
        batch.put_many(MESSAGE_KEYS, *key_rows(segment, number, hashes, positions))
        return (*parts, number)

    def seal(self, batch: Batch, segment: int) -> tuple[int, ...]:
        """Merge a segment's parts into one; returns its parts once the batch is written."""
        parts = self.parts(segment)
        if parts in ((), (PART_SEALED,)):
            return parts
        self._drop(batch, segment, parts)
        for low in range(0, HASH_END, _STRETCH):
            hashes, positions = self._between(segment, parts, low, low + _STRETCH)
            batch.put_many(MESSAGE_KEYS, *key_rows(segment, PART_SEALED, hashes, positions))
        return (PART_SEALED,)

    def coming(self, segment: int, parts: tuple[int, ...]) -> None:
        """Take note that a batch of `add` or `seal` is about to be written: till then both the
        parts it removes and those it adds are looked for."""
        with self._lock:
            self._parts[segment] = tuple({*self._parts.get(segment, ()), *parts})

    def written(self, segment: int, parts: tuple[int, ...]) -> None:
        """Take note that a batch of `add` or `seal` was written."""
        with self._lock:
            self._parts[segment] = parts

    def forget(self, before: int) -> None:
        """Take note that the segments before `before` are gone."""
        with self._lock:
            self._parts = {s: p for s, p in self._parts.items() if s >= before}

    def drop(self, segment: int) -> None:
        """Take note that a segment is gone."""
        with self._lock:
            self._parts[segment] = ()

    def pairs(self, segment: int) -> tuple[I64, I64]:
        """All pairs of a segment, sorted."""
        return self._merged(segment, self.parts(segment), [])

    def _merged(
        self, segment: int, parts: Iterable[int], more: list[tuple[I64, I64]]
    ) -> tuple[I64, I64]:
        firsts: list[int] = []
        values: list[bytes] = []
        for part in parts:
            end = (
                key_block_key(segment, part + 1, 0)
                if part < PART_SEALED
                else key_block_key(segment + 1, 0, 0)
            )
            for key, value in self._families.rows(
                MESSAGE_KEYS, key_block_key(segment, part, 0), end
            ):
                firsts.append(read_key_block_key(key)[2])
                values.append(value)
        both = [*more, unpack_blocks(firsts, values)]
        return sort_pairs(
            np.concatenate([h for h, _ in both]), np.concatenate([p for _, p in both])
        )

    def _between(self, segment: int, parts: Iterable[int], low: int, high: int) -> tuple[I64, I64]:
        """The pairs of a segment with a hash from `low` to before `high`, sorted."""
        firsts: list[int] = []
        values: list[bytes] = []
        it = self._families.iter(MESSAGE_KEYS)
        for part in parts:
            start = key_block_key(segment, part, low)
            it.seek_for_prev(start)
            if not self._families.valid(it) or it.key()[:6] != start[:6]:
                it.seek(start)
            while self._families.valid(it) and it.key()[:6] == start[:6]:
                first = read_key_block_key(it.key())[2]
                if first >= high:
                    break
                firsts.append(first)
                values.append(it.value())
                it.next()
        hashes, positions = unpack_blocks(firsts, values)
        mine = (hashes >= low) & (hashes < high)
        return sort_pairs(hashes[mine], positions[mine])

    def _drop(self, batch: Batch, segment: int, parts: Iterable[int]) -> None:
        for part in parts:
            end = (
                key_block_key(segment, part + 1, 0)
                if part < PART_SEALED
                else key_block_key(segment + 1, 0, 0)
            )
            batch.delete_range(MESSAGE_KEYS, key_block_key(segment, part, 0), end)
