"""The index tail: entries and keys appended to the log but not yet checkpointed.

The idea: columns, appended in log order, and nothing else: a put pays for a few array appends (60
ns a message). A checkpoint takes the whole tail away and turns it into runs with numpy. Keys stay
texts until a checkpoint or a search by key hashes them, which saves 200 ns a message at the put.
The readers' views, each queue's positions and the dict that finds keys, are made when a reader
asks, and go on from where they were left.

Invariants: columns are in log order, positions rise; a queue's offsets in one tail are dense; rows
are added under the log's lock and read without it; the log's visible end, not the end of the tail,
bounds what a reader may see.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.hashing import SEPARATOR, xxh32_many

__all__ = ["QueueTail", "Tail"]

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

_MANY: Final = 4096
"""Rows from which numpy sorts them to their queues faster than a loop does."""
# "L" has 8 bytes wherever kvmq runs, and fills from a list at twice the speed of "Q".
_WIDE: Final = "L"
assert array(_WIDE).itemsize == 8


class QueueTail:
    """One queue's entries in the tail: `positions[i]` is the position of offset `first + i`."""

    __slots__ = ("first", "positions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.positions: list[int] = []

    @property
    def next(self) -> int:
        """The offset behind the last entry."""
        return self.first + len(self.positions)


class Tail:
    """One index tail."""

    __slots__ = (
        "_digests", "_digests_known", "_hashed", "_hashed_known", "_key_counts", "_key_positions",
        "_key_queues", "_key_texts", "_keys", "_lock", "_queues", "_rows_hashed", "_rows_known",
        "_texts_hashed", "offsets", "positions", "queue_keys", "rows", "sizes",
        "start", "stored_at", "tag_hashes",
    )  # fmt: skip

    def __init__(self, start: int) -> None:
        self.start = start
        """The log position from which this tail knows every record."""
        self.rows = 0
        self.queue_keys = array(_WIDE)
        self.offsets = array(_WIDE)
        self.positions = array(_WIDE)
        self.sizes = array("I")
        self.tag_hashes = array("q")
        self.stored_at = array(_WIDE)
        # Keys found in the log come as digests, and come before all keys of puts.
        self._digests = array("I")
        self._key_positions = array(_WIDE)
        self._key_queues = array(_WIDE)
        # Keys of puts: a text for each put, and the number of keys of each row.
        self._key_texts: list[str] = []
        self._key_counts = array("I")
        self._hashed: list[tuple[U32, I64]] = []
        """The hashed texts: digests, and their rows."""
        self._texts_hashed = 0
        self._rows_hashed = 0
        self._queues: dict[int, QueueTail] = {}
        self._rows_known = 0
        self._keys: dict[int, list[int]] = {}
        self._digests_known = 0
        self._hashed_known = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return self.rows

    @property
    def keys_held(self) -> int:
        """The number of keys in the tail, unique ids included."""
        return len(self._digests) + int(np.array(self._key_counts[:]).sum())

    def add(
        self,
        queue_keys: list[int],
        offsets: list[int],
        positions: list[int],
        sizes: list[int],
        tag_hashes: list[int],
        stored_at: int | list[int],
    ) -> None:
        """Add entries; `stored_at` may be the same for all."""
        if not sizes:
            return
        self.queue_keys.fromlist(queue_keys)
        self.offsets.fromlist(offsets)
        self.positions.fromlist(positions)
        self.sizes.fromlist(sizes)
        count = len(sizes)
        if tag_hashes.count(tag_hashes[0]) == count:
            self.tag_hashes.extend(array("q", tag_hashes[:1]) * count)
        else:
            self.tag_hashes.fromlist(tag_hashes)
        if isinstance(stored_at, int):
            self.stored_at.extend(array(_WIDE, (stored_at,)) * count)
        else:
            self.stored_at.fromlist(stored_at)
        # Last of all: readers look at no row behind it.
        self.rows += count

    def add_digests(self, queue_keys: list[int], positions: list[int], digests: list[int]) -> None:
        """Add keys that were found in the log, of records with or without a row."""
        self._key_queues.fromlist(queue_keys)
        self._key_positions.fromlist(positions)
        self._digests.fromlist(digests)

    def add_keys(self, text: str, counts: array[int]) -> None:
        """Add the keys of the rows that were added last: all keys in one text, row by row,
        separated by `SEPARATOR`, and the number of keys of each row.
        """
        if not text:
            return
        self._no_keys(self.rows - len(counts))
        self._key_counts.extend(counts)
        # Last of all: readers must not see a count without its text.
        self._key_texts.append(text)

    def _no_keys(self, rows: int) -> None:
        """Note that the first rows, so far uncounted, have no keys."""
        missing = rows - len(self._key_counts)
        if missing:
            self._key_counts.extend(array("I", (0,)) * missing)

    def add_one(
        self, key: int, offset: int, position: int, size: int, tag_hash: int, stored_at: int,
        key_text: str, key_count: int,
    ) -> None:  # fmt: skip
        """Add an entry and its keys."""
        self.queue_keys.append(key)
        self.offsets.append(offset)
        self.positions.append(position)
        self.sizes.append(size)
        self.tag_hashes.append(tag_hash)
        self.stored_at.append(stored_at)
        self.rows += 1
        if key_count:
            counts = self._key_counts
            if len(counts) < self.rows - 1:
                self._no_keys(self.rows - 1)
            counts.append(key_count)
            self._key_texts.append(key_text)

    def mark(self) -> tuple[int, int, int]:
        """The end of the tail now, for `cut`."""
        return self.rows, len(self._key_counts), len(self._key_texts)

    def cut(self, mark: tuple[int, int, int]) -> None:
        """Remove the entries added since `mark`, also if adding them failed half-way: their records
        are not in the log. Nobody has seen them: they stood behind the log's end.
        """
        with self._lock:
            rows, counts, texts = mark
            self.rows = rows
            for column in (
                self.queue_keys, self.offsets, self.positions, self.sizes, self.tag_hashes,
                self.stored_at,
            ):  # fmt: skip
                del column[rows:]
            del self._key_texts[texts:], self._key_counts[counts:]
            # The readers' views of the columns are made anew when a reader asks.
            self._queues, self._rows_known = {}, 0
            self._keys, self._digests_known, self._hashed_known = {}, 0, 0
            self._hashed, self._texts_hashed, self._rows_hashed = [], 0, 0

    def queue(self, key: int) -> QueueTail | None:
        """A queue's entries; None if it has none here."""
        if self._rows_known < self.rows:
            with self._lock:
                known, end = self._rows_known, self.rows
                if end - known >= _MANY:
                    self._sort_in_bulk(known, end)
                elif known < end:
                    self._sort(known, end)
                self._rows_known = end
        return self._queues.get(key)

    def _sort(self, known: int, end: int) -> None:
        queues = self._queues
        for key, offset, position in zip(
            self.queue_keys[known:end],
            self.offsets[known:end],
            self.positions[known:end],
            strict=True,
        ):
            found = queues.get(key)
            if found is None:
                found = queues[key] = QueueTail(offset)
            found.positions.append(position)

    def _sort_in_bulk(self, known: int, end: int) -> None:
        keys = np.array(self.queue_keys[known:end])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.flatnonzero(np.diff(keys, prepend=keys[0] + np.uint64(1)))
        ends = np.append(begins[1:], len(keys))
        positions = np.array(self.positions[known:end])[order].tolist()
        firsts = np.array(self.offsets[known:end])[order[begins]]
        queues = self._queues
        for key, first, a, b in zip(
            keys[begins].tolist(), firsts.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            found = queues.get(key)
            if found is None:
                found = queues[key] = QueueTail(first)
            found.positions += positions[a:b]

    def find_key(self, key_hash: int) -> list[int]:
        """Positions of records with a key of this hash, whatever their topic, oldest first."""
        with self._lock:
            known, end = self._digests_known, len(self._digests)
            if known < end:
                self._note(self._digests[known:end], self._key_positions[known:end])
                self._digests_known = end
            self._hash()
            for digests, rows in self._hashed[self._hashed_known :]:
                first = int(rows[0])
                positions = np.array(self.positions[first : int(rows[-1]) + 1])
                self._note(digests.tolist(), positions[rows - first].tolist())
            self._hashed_known = len(self._hashed)
            return list(self._keys.get(key_hash >> 8, ()))

    def _note(self, digests: Iterable[int], positions: Iterable[int]) -> None:
        keys = self._keys
        for digest, position in zip(digests, positions, strict=True):
            keys.setdefault(digest, []).append(position)

    def _hash(self) -> None:
        """Hash the texts that were added since this was last done."""
        known, end = self._texts_hashed, len(self._key_texts)
        if known == end:
            return
        digests = xxh32_many(SEPARATOR.join(self._key_texts[known:end]))
        first = self._rows_hashed
        counts = np.array(self._key_counts[first:])
        rows = np.repeat(np.arange(first, first + len(counts)), counts)[: len(digests)]
        self._hashed.append((digests, rows))
        self._texts_hashed, self._rows_hashed = end, int(rows[-1]) + 1

    def key_columns(self) -> tuple[U32, I64, I64]:
        """Digests of all keys, the positions of their records, and those records' queues; for a
        tail that gets no more keys.
        """
        with self._lock:
            self._hash()
            hashed = list(self._hashed)
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *[rows for _, rows in hashed]])
        digests = [np.frombuffer(self._digests, np.uint32), *[found for found, _ in hashed]]
        return (
            np.concatenate(digests),
            _with_rows(self._key_positions, self.positions, rows),
            _with_rows(self._key_queues, self.queue_keys, rows),
        )

    def visible(self, key: int, end: int) -> tuple[int, int] | None:
        """First and next offset of a queue's entries that stand below log position `end`; None if
        it has none here.
        """
        tail = self.queue(key)
        if tail is None:
            return None
        positions = tail.positions
        if positions and positions[-1] < end:
            return tail.first, tail.first + len(positions)
        return tail.first, tail.first + bisect_left(positions, end)


def _with_rows(more: array[int], column: array[int], rows: I64) -> I64:
    """`more`, followed by a column's values in these rows."""
    of_rows = np.frombuffer(column, np.int64)[rows]
    return np.concatenate([np.frombuffer(more, np.int64), of_rows]) if len(more) else of_rows


class Tails(NamedTuple):
    """The tail that takes entries, and the one that is being checkpointed."""

    active: Tail
    frozen: Tail | None


def queue_tails(tails: Tails, queue: int) -> list[QueueTail]:
    """A queue's tails, oldest first."""
    found = [t.queue(queue) for t in (tails.frozen, tails.active) if t is not None]
    return [t for t in found if t is not None]
