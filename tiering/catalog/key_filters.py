"""Key filters: the filters of many archives, which rule out archives that can't have a key.

The idea: the blocks of all kept filters lie in one array, and a table says where the blocks of each
archive begin. A key's bits are worked out once. One block of each filter is compared with them, in
one pass over all archives. When there is no more room, the kept filters stay: a query asks all
archives in turn, so the filter that was asked longest ago is the next to be asked.

Invariants: the kept filters take no more than the limit; an archive that may have a key is never
left out; a table and its array never change, so a look needs no lock.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.hashing import masks_of
from kvstore.record.key_filter import BLOCK_BYTES, HASHES_MAX, Filter
from tiering.archive.columns.packed import I64

Words = NDArray[np.uint64]

_WORD: Final = np.dtype("<u8")
_WORDS: Final = BLOCK_BYTES // _WORD.itemsize
_ROW_BYTES: Final = 4 * 8
"""Bytes of an archive in the table."""
_TOPIC_BITS: Final = 8
_NO_KEY: Final = 0
"""The block of archives without keys: it has no bit, so it denies every key."""


class _Table(NamedTuple):
    """The kept filters by the numbers of archives, which are in order: the first block of each, how
    many blocks and hash functions it has, and the array of all blocks.
    """

    numbers: I64
    begins: I64
    blocks: Words
    hashes: I64
    rows: Words

    def at(self, number: int) -> int | None:
        """Where an archive is in the table; None if it is not there."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None


class KeyFilters:
    """Filters by the numbers of archives; see the module. `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        none, rows = np.empty(0, np.int64), np.zeros((1, _WORDS), _WORD)
        self._table = _Table(none, none, np.empty(0, np.uint64), none, rows)
        self._used = 1
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._table.numbers)

    def keep(self, number: int, found: Filter | None) -> None:
        """Keeps an archive's filter, if there is room; None stands for an archive without keys."""
        filled = np.empty((0, _WORDS), _WORD) if found is None else found.blocks()
        size = _ROW_BYTES + filled.nbytes
        with self._lock:
            if self._table.at(number) is not None or self._bytes + size > self._limit:
                return
            if self._used + len(filled) > len(self._table.rows):
                self._make_room(len(filled))
            numbers, begins, blocks, hashes, rows = self._table
            begin = self._used if len(filled) else _NO_KEY
            # The rows behind the used ones are in no table yet.
            rows[self._used : self._used + len(filled)] = filled
            self._used += len(filled)
            self._bytes += size
            at = int(np.searchsorted(numbers, number))
            self._table = _Table(
                np.insert(numbers, at, number),
                np.insert(begins, at, begin),
                np.insert(blocks, at, len(filled)),
                np.insert(hashes, at, HASHES_MAX if found is None else found.hashes),
                rows,
            )

    def forget(self, number: int) -> None:
        """Drops an archive's filter. Its blocks go when the array is made anew."""
        with self._lock:
            at = self._table.at(number)
            if at is not None:
                self._bytes -= _ROW_BYTES + int(self._table.blocks[at]) * BLOCK_BYTES
                numbers, begins, blocks, hashes, rows = self._table
                self._table = _Table(
                    np.delete(numbers, at),
                    np.delete(begins, at),
                    np.delete(blocks, at),
                    np.delete(hashes, at),
                    rows,
                )

    def _make_room(self, more: int) -> None:
        """Makes the array anew, with only the blocks that the table names and room for others."""
        table = self._table
        needed = int(table.blocks.sum()) + more
        most = max(needed, self._limit // BLOCK_BYTES)
        rows = np.zeros((min(2 * needed, most) + 1, _WORDS), _WORD)
        begins, at = table.begins.copy(), 1
        for i, (begin, blocks) in enumerate(zip(table.begins, table.blocks, strict=True)):
            if begin != _NO_KEY:
                behind = at + int(blocks)
                rows[at:behind] = table.rows[begin : begin + int(blocks)]
                begins[i], at = at, behind
        self._used = at
        self._table = table._replace(begins=begins, rows=rows)

    def without_denied(self, numbers: I64, low: int, high: int) -> I64:
        """The archives of `numbers` that may have a key whose hash is between `low` and `high`, as
        far as the kept filters know.
        """
        digest, table = low >> _TOPIC_BITS, self._table
        if digest != high >> _TOPIC_BITS or not len(table.numbers):
            return numbers
        wanted = np.frombuffer(masks_of(digest), _WORD).reshape(-1, _WORDS)[table.hashes]
        block = (table.blocks * np.uint64(digest) >> np.uint64(32)).astype(np.int64)
        may_hold = ((table.rows[table.begins + block] & wanted) == wanted).all(axis=1)
        at = np.minimum(np.searchsorted(table.numbers, numbers), len(table.numbers) - 1)
        left: I64 = numbers[may_hold[at] | (table.numbers[at] != numbers)]
        return left

    @property
    def memory_bytes(self) -> int:
        """The bytes that the kept filters take."""
        return self._bytes
