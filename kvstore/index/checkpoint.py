"""Checkpoint: an index tail as rows of `runs` and `places` and sorted keys; repacking the runs.

The idea: numpy handles the whole tail at once. Rows are sorted by queue; a run ends where the queue
or the segment changes. So each checkpoint writes a run for each queue. When a segment is sealed,
`repack` reads its runs again, sorted by queue and offset, and writes them as one run a queue, of at
most `RUN_MAX` entries: a group of queues is one decode, one cut, one encode.

Most stores know a handful of tags, and a hash takes four bytes that don't compress. So the store
numbers the tag hashes it meets, the first `CODES_MAX` of them, and runs hold the numbers: one byte
an entry, which compresses to almost nothing. A code is a value no hash can have (a Java hash has 32
bits, a delivery time is positive), so a run says by itself which of its values are codes.

Invariants:

- The rows of a checkpoint are in the order of queues and offsets. A repacked segment is one batch.
- Repacking doesn't change the entries in the runs, so readers that keep a decoded run keep a true
  one.
- A code stands for one hash, for ever.
- The table of codes is written in the batch of the first run that uses a new code, and is in no
  derived family, so a rebuild keeps it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from kvstore.core.packed_pairs import sort_pairs
from kvstore.core.tail import PendingTail, Tail
from kvstore.errors import FormatError
from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    LOG_TIME,
    META,
    QUEUE_MASK,
    RUNS,
    TAG_CODES,
    TIMERS,
    TIMERS_END,
    TRANSACTIONS,
    U64,
    read_timer,
    segment_range,
    timer_count_key,
)
from kvstore.index.runs import Columns, count_of, pack_many, split_long, unpack_many

I64 = NDArray[np.int64]
RUN_KEY: Final = np.dtype(
    [("segment", ">u4"), ("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")]
)
LOCATION_KEY: Final = np.dtype([("topic", ">u4"), ("queue", ">u4"), ("first", ">u8")])
LOCATION_VALUE: Final = np.dtype([("segment", ">u4"), ("stored_at", ">u8")])
_CUT_AT_ONCE: Final = 1024
"""Values whose ends are objects at a time."""
_REPACKED_FROM: Final = 1.5
"""Repacking is done from this many runs for each resulting run on."""
_BATCH_ENTRIES: Final = 1 << 18
"""Entries decoded at a time: bounds the memory, whatever the segment holds."""
CODES_MAX: Final = 4096
_CODE_0: Final = -(1 << 40)
"""The value of code 0; code n is this plus n."""


class CutValues(Sequence[bytes]):
    """Values that lie in one piece of bytes, by where they begin and end. Each is an object only
    while somebody has it: rows of many queues take megabytes as objects.
    """

    __slots__ = ("_data", "_ends", "_starts")

    def __init__(self, data: bytes, starts: I64, ends: I64) -> None:
        self._data, self._starts, self._ends = data, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> CutValues: ...
    def __getitem__(self, at: int | slice) -> bytes | CutValues:
        starts, ends = self._starts[at], self._ends[at]
        return CutValues(self._data, starts, ends) if type(at) is slice else self._data[starts:ends]

    def sizes(self) -> I64:
        """The bytes of each."""
        return self._ends - self._starts

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self), _CUT_AT_ONCE):
            behind = at + _CUT_AT_ONCE
            starts, ends = self._starts[at:behind].tolist(), self._ends[at:behind].tolist()
            for a, b in zip(starts, ends, strict=True):
                yield self._data[a:b]


KeysValues = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys and values of rows."""
CutRows = tuple[CutValues, CutValues]
"""Keys and values that are cut."""


def _rows_of(table: NDArray[np.void]) -> CutValues:
    """The bytes of each row."""
    starts = np.arange(len(table)) * table.itemsize
    return CutValues(table.tobytes(), starts, starts + table.itemsize)


class Ranges(NamedTuple):
    """Entries of one queue each in one segment, without gaps: by queue, then by offset. Queues are
    named by their keys in memory, topic id << 32 | queue id.
    """

    queues: NDArray[np.uint64]
    segments: I64
    firsts: I64
    """First offsets."""
    ends: I64
    """The offsets behind the last."""
    stored_at: I64
    """The store times of the first."""

    def _is_first(self) -> NDArray[np.bool_]:
        """Which are the first of their queue."""
        found = np.ones(len(self.queues), np.bool_)
        found[1:] = self.queues[1:] != self.queues[:-1]
        return found

    def locations(self, last_segments: Callable[[list[int]], list[int]]) -> KeysValues:
        """The locations that they need: those that begin another segment of their queue than the
        one before. `last_segments` tells the segments in which queues ended before.
        """
        is_first = self._is_first()
        before = np.roll(self.segments, 1)
        before[is_first] = last_segments(self.queues[is_first].tolist())
        new = before != self.segments
        keys = np.empty(int(new.sum()), LOCATION_KEY)
        values = np.empty(len(keys), LOCATION_VALUE)
        queues, keys["first"] = self.queues[new], self.firsts[new]
        keys["topic"], keys["queue"] = queues >> np.uint64(32), queues & np.uint64(QUEUE_MASK)
        values["segment"], values["stored_at"] = self.segments[new], self.stored_at[new]
        return _rows_of(keys), _rows_of(values)

    def heads(self) -> tuple[list[int], list[int], list[int]]:
        """The queues, and the offsets and segments in which they end."""
        is_last = np.roll(self._is_first(), -1)
        columns = self.queues, self.ends, self.segments
        queues, ends, segments = (column[is_last].tolist() for column in columns)
        return queues, ends, segments


def run_rows(tail: Tail, segment_size: int, coded: Callable[[I64], I64]) -> tuple[CutRows, Ranges]:
    """The rows of `runs` for a tail that gets no more entries, and the ranges they make up;
    `coded` puts codes for tag hashes.
    """
    total = len(tail)
    # By queue, and each queue's in the order of its offsets.
    queues_signed, offsets, positions, sizes, tag_hashes, stored_at = tail.entry_columns()
    queues = queues_signed.view(np.uint64)
    of_entry = positions // segment_size
    border = np.ones(total, dtype=bool)
    # A gap in a queue's offsets, which only recovery makes, ends a run too.
    border[1:] = (queues[1:] != queues[:-1]) | (offsets[1:] != offsets[:-1] + 1)
    border[1:] |= of_entry[1:] != of_entry[:-1]
    begins = np.flatnonzero(border)
    segments = of_entry[begins]
    ends = offsets[np.append(begins[1:], total) - 1] + 1 if total else begins
    ranges = Ranges(queues[begins], segments, offsets[begins], ends, stored_at[begins])
    columns = Columns(positions - of_entry * segment_size, sizes, coded(tag_hashes), stored_at)
    split = split_long(begins, total)
    if len(split) != len(begins):
        segments = segments[np.searchsorted(begins, split, side="right") - 1]
    return pack_rows(columns, split, segments, queues[split], offsets[split]), ranges


def pack_rows(
    columns: Columns, starts: I64, segments: I64, queues: NDArray[np.uint64], firsts: I64
) -> CutRows:
    """Keys and values of `runs` for columns cut at `starts`; the other arguments have one value a
    run.
    """
    packed = pack_many(columns, starts)
    table = np.empty(len(starts), dtype=RUN_KEY)
    table["segment"], table["first"] = segments, firsts
    table["topic"], table["queue"] = queues >> np.uint64(32), queues & np.uint64(QUEUE_MASK)
    starts_ends = np.array((packed.starts, packed.ends), np.int64)
    return _rows_of(table), CutValues(packed.data, *starts_ends)


def key_pairs(tail: Tail, segment_size: int, topic_bytes: bytes) -> dict[int, tuple[I64, I64]]:
    """A tail's keys by segment, sorted: hashes, and positions in the segment.

    `topic_bytes[topic id]` is what the topic puts under its keys' hashes.
    """
    pairs = tail.key_pairs(segment_size, topic_bytes)
    return {segment: sort_pairs(hashes, positions) for segment, hashes, positions in pairs}


# --- pending messages ---


_PENDING_OF_A_PIECE: Final = 256


def pending_rows(tail: Tail) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """Family, keys and values of the rows of a tail's pending messages, a few hundred at a time."""
    for family, pending in _pending(tail):
        keys, values = pending.rows()
        for at in range(0, len(keys), _PENDING_OF_A_PIECE):
            behind = at + _PENDING_OF_A_PIECE
            yield family, keys[at:behind], values[at:behind]


def _pending(tail: Tail) -> tuple[tuple[str, PendingTail], ...]:
    return (TIMERS, tail.timers), (TRANSACTIONS, tail.prepared)


def put_waits_ended(families: Families, batch: Batch, tail: Tail) -> None:
    """Puts into a batch that the waits that ended in a tail have no rows any more, and how many
    messages of each topic wait now.
    """
    for family, pending in _pending(tail):
        batch.add(family, zip(pending.ended_keys(), repeat(None)))
        for topic, more in pending.counts().items():
            key = timer_count_key(topic)
            row = families.get(family, key)
            count = more + (0 if row is None else U64.unpack(row)[0])
            if count > 0:
                batch.put(family, key, U64.pack(count))
            elif row is not None:
                batch.delete(family, key)


def put_pending_counts(families: Families, batch: Batch) -> None:
    """Puts the number of pending messages of each topic into a batch, counted row by row; nothing
    if there are none.
    """
    for family in (TIMERS, TRANSACTIONS):
        rows = families.rows(family, b"", TIMERS_END)
        counts = Counter(read_timer(key, value)[2] for key, value in rows)
        for key, _ in families.rows(family, TIMERS_END):
            batch.delete(family, key)
        for topic, count in counts.items():
            batch.put(family, timer_count_key(topic), U64.pack(count))


def log_time(families: Families) -> int:
    """The time, ms, which the log's time is not before, whatever its records and the checkpoint
    say: they don't tell of messages that only archives have.
    """
    noted = families.get(META, LOG_TIME)
    return 0 if noted is None else U64.unpack(noted)[0]


def put_log_time(families: Families, batch: Batch, time: int) -> None:
    """Puts into a batch that the log's time, ms, is this or later."""
    if time > log_time(families):
        batch.put(META, LOG_TIME, U64.pack(time))


# --- repacking ---


class _Cut(NamedTuple):
    """Rows of a segment, and how their entries are cut into runs: queue, first offset and first
    entry of each row, first entry of each run, and how many entries there are.
    """

    rows: list[tuple[bytes, bytes]]
    queues: NDArray[np.uint64]
    firsts: I64
    starts: I64
    begins: I64
    total: int


def repack(families: Families, batch: Batch, segment: int) -> bool:
    """Puts the repacked runs of a segment into a batch; False if that would gain little, which keys
    and counts tell without decoding a run.
    """
    low, high = segment_range(segment, segment + 1)
    cuts = [_cut(rows) for rows in run_batches(families.rows(RUNS, low, high))]
    before = sum(len(cut.rows) for cut in cuts)
    after = sum(len(cut.begins) for cut in cuts)
    if before < _REPACKED_FROM * after or before < 2:
        return False
    batch.delete_range(RUNS, low, high)
    for cut in cuts:
        batch.put_many(RUNS, *_repacked(cut, segment))
        cut.rows.clear()
    return True


def run_batches(
    rows: Iterator[tuple[bytes, bytes]],
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows in lists of about `_BATCH_ENTRIES` entries, cut between queues where possible."""
    found: list[tuple[bytes, bytes]] = []
    entries = 0
    for key, value in rows:
        if entries >= _BATCH_ENTRIES and (
            key[4:12] != found[-1][0][4:12] or entries >= 2 * _BATCH_ENTRIES
        ):
            yield found
            found, entries = [], 0
        found.append((key, value))
        entries += count_of(value)
    if found:
        yield found


def _cut(rows: list[tuple[bytes, bytes]]) -> _Cut:
    keys = np.frombuffer(b"".join([key for key, _ in rows]), dtype=RUN_KEY)
    queues = keys["topic"].astype(np.uint64) << np.uint64(32) | keys["queue"].astype(np.uint64)
    firsts = keys["first"].astype(np.int64)
    counts = np.array([count_of(value) for _, value in rows], np.int64)
    ends = np.cumsum(counts)
    starts, total = ends - counts, int(ends[-1])
    begin = np.ones(len(rows), dtype=bool)
    # A gap in a queue's offsets (damage that recovery skipped) stays the border of a run.
    begin[1:] = (queues[1:] != queues[:-1]) | (firsts[1:] != firsts[:-1] + counts[:-1])
    return _Cut(rows, queues, firsts, starts, split_long(starts[begin], total), total)


def _repacked(cut: _Cut, segment: int) -> KeysValues:
    begins = cut.begins
    columns, _ = unpack_many([value for _, value in cut.rows])
    owner = np.searchsorted(cut.starts, begins, side="right") - 1
    offsets = cut.firsts[owner] + begins - cut.starts[owner]
    return pack_rows(columns, begins, np.full(len(begins), segment), cut.queues[owner], offsets)


# --- codes of tags ---


class TagCodes:
    """The table of codes and hashes. It is changed under the index's write lock only, and read
    without it.
    """

    def __init__(self, row: bytes | None) -> None:
        self._hashes = np.frombuffer(row or b"", dtype=">i8").astype(np.int64)
        self._written = len(self._hashes)

    def coded(self, tag_hashes: I64) -> I64:
        """The column with codes in the place of hashes; gives codes to new ones."""
        if not len(tag_hashes):
            return tag_hashes
        low = int(tag_hashes.min())
        different = np.array([low])
        if low != int(tag_hashes.max()):
            # For the values alone numpy imports its masked arrays, a megabyte, and is no faster.
            different, _ = np.unique(tag_hashes, return_counts=True)
        room = CODES_MAX - len(self._hashes)
        fresh = different[~np.isin(different, self._hashes)][:room]
        if len(fresh):
            self._hashes = np.concatenate([self._hashes, fresh])
        order = np.argsort(self._hashes)
        place = np.searchsorted(self._hashes, different, sorter=order).clip(max=len(order) - 1)
        code = order[place]
        values = np.where(self._hashes[code] == different, _CODE_0 + code, different)
        return values[np.searchsorted(different, tag_hashes)]

    def put_new(self, batch: Batch) -> None:
        """Puts the table into a batch if it has grown since it was last written."""
        if len(self._hashes) != self._written:
            batch.put(META, TAG_CODES, self._hashes.astype(">i8").tobytes())

    def written(self) -> None:
        """Notes that the batch was written."""
        self._written = len(self._hashes)

    def hashes(self, values: I64) -> I64:
        """The inverse of `coded`; `FormatError` for a code that was never given."""
        codes = values - _CODE_0
        is_code = (codes >= 0) & (codes < CODES_MAX)
        if not is_code.any():
            return values
        known = self._hashes
        if int(codes[is_code].max()) >= len(known):
            raise FormatError(f"tag code {int(codes[is_code].max())} was never given")
        return np.where(is_code, known[np.where(is_code, codes, 0)], values)


class AppendedBytes:
    """The bytes of the records of each topic that came since the opening, with those that recovery
    found: of the entries that checkpoints took, and of those in the tails that `tails` gives.
    Threads share it.
    """

    def __init__(self, tails: Callable[[], tuple[Tail, Tail | None]]) -> None:
        self._tails = tails
        self._settled = Counter[int]()
        self._lock = threading.Lock()

    @contextmanager
    def settled(self, tail: Tail | None) -> Iterator[None]:
        """For the block in which a tail, whose entries RocksDB has, is let go of."""
        sizes = {} if tail is None else tail.topic_bytes()
        with self._lock:
            self._settled.update(sizes)
            yield

    def of(self, topics: Iterable[int]) -> list[int]:
        """The bytes of each of some topics."""
        with self._lock:
            parts = [self._settled, *(tail.topic_bytes() for tail in self._tails() if tail)]
            return [sum(part.get(topic, 0) for part in parts) for topic in topics]

    def forget(self, topics: Iterable[int]) -> None:
        """Forgets topics that were deleted."""
        with self._lock:
            for topic in topics:
                self._settled.pop(topic, None)
