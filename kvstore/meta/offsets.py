"""Committed offsets: how far each group is in each queue, and how far it was.

The idea: one small row per group and queue, written when it changes, and in the same batch one of
its history: the time is cut into intervals of `offset_history_interval`, and the last commit of an
interval is its row (`history`). So a commit is two puts whatever there was before; nothing is read
for it. Pops write the first row alone, which is how far they have read. The progress of a popping
group is sampled (`moved`, `write_history`) by `pop.progress`.

RocksDB may be ahead of the log after a power cut (an offset was committed, the message it stands
behind was lost), and new messages may have taken the lost places before the offset is asked for. So
each opening after an unclean end notes where it found the log's end, numbered; a row says how many
of these there were when it was written. The lowest of those that are newer than the row bounds it:
the offset is clamped to its queue's next offset at that end, when it is first read. When there are
too many ends, an opening clamps all rows, and removes the ends (`apply_ends`): no row needs them
any more.

A caller that writes offsets together with other rows adds them to its own batch with `put_offset`,
and calls `written` afterwards.

Invariants:

- `get` and `history` return no offset above the queue's next offset, nor one that would skip a
  message put after a recovery.
- Opening reads no row, but where there are too many ends.
- An end is removed only when the disk has every row that it clamps.
- The last writer of a row wins: cached commits only save writing the same row again, and are
  dropped when another caller writes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import CallerError, IndexDamaged, shown
from kvstore.index.families import Batch, KeyValue, Row
from kvstore.index.index import Index
from kvstore.index.keys import (
    META,
    OFFSET_HISTORY,
    OFFSET_MAX,
    OFFSETS,
    U32,
    U64,
    behind,
    offset_key,
    read_offset_key,
)
from kvstore.message import Bounds
from kvstore.meta.groups import GroupInfo
from kvstore.meta.history import History, OffsetCommit
from kvstore.meta.topics import Topic

_ROW: Final = Struct(">QI")  # offset, recoveries noted before it was written
_PASSED_ROW: Final = Struct(">QIQ")  # the same, and how many messages filters have refused
_EXPIRED_ROW: Final = Struct(">QIQQ")  # the same, and how many had expired
_RECOVERIES: Final = b"recoveries"  # u32: how many there are of the next
_RECOVERED: Final = b"recovered/"  # and a number, u32 -> u64: the log's end as it was found
_ENDS_MAX: Final = 256
"""Ends of the log beyond which they are applied: 20 bytes each, and all are read at the first use
of an older row.
"""
_HELD_KEPT: Final = 1 << 12
"""Queues whose next offsets at an end of the log are kept while all rows are clamped."""
_SEEK_EACH: Final = 8
"""Up to this many deleted topics are looked for group by group; for more, all rows are read
once.
"""
_ID_MAX: Final = (1 << 32) - 1
_LAST_MAX: Final = 1 << 16


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in a queue: all below `committed` is done. It is None if the group never
    committed an offset there; the group would then begin at its `start`. `lag` is how many messages
    it has still to do: those that are `unread`, and those that are `in_flight`, handed out or
    redriven and not acked yet. `passed_over`: how many its filters have refused since its offset
    was last set; they are done. `expired`: how many its pops have passed over since then because
    they had expired.
    """

    group: str
    topic: str
    queue: int
    committed: int | None
    begin: int
    end: int
    lag: int
    unread: int = 0
    in_flight: int = 0
    passed_over: int = 0
    expired: int = 0


class Committed(NamedTuple):
    """A row: the offset a group wants next, how many recoveries were noted before it was written,
    how many messages filters have refused since the offset was last set, and how many had expired.
    """

    offset: int
    recoveries: int
    passed_over: int = 0
    expired: int = 0


class OffsetRow(NamedTuple):
    """A row with its key and queue."""

    key: bytes
    queue: int
    offset: int
    recoveries: int


class Commit(NamedTuple):
    """An offset to commit, by ids."""

    group: int
    topic: int
    queue: int
    offset: int


Resetting = Callable[[Batch, GroupInfo, Topic, Mapping[int, int]], AbstractContextManager[None]]


class Offsets:
    """The offsets of all groups, see the module. Each of `resetting` is entered before a reset is
    written, with its batch and the new offsets by queue: to take its locks and add its own rows. It
    is left when the batch was written, with the exception if it was not.
    """

    def __init__(self, index: Index, config: StoreConfig, *, read_only: bool) -> None:
        self._index = index
        self._families = index.families
        self._read_only = read_only
        self._clock = config.clock
        self.history_rows: Final = History(index.families, config)
        self.moved: dict[tuple[int, int], bool] = {}
        """Groups and topics, by id, whose progress may move without a commit: a sample is due."""
        self._sync_interval = config.offset_sync_interval
        self.resetting: list[Resetting] = []
        self._lock = threading.Lock()
        self._unsynced = False
        self._sync_at = 0.0
        self._last_rows: dict[bytes, int] = {}
        """Key -> the offset in the row, for some of the last commits."""
        found = self._families.get(META, _RECOVERIES)
        self.recoveries: int = U32.unpack(found)[0] if found else 0
        """The number of openings after an unclean end, which rows note."""
        self._ends: list[int] | None = None
        """For each noted end the lowest of this end and the later ones; the last is that of the
        last recovery.
        """

    # --- recoveries ---

    def recovered(self, end: int) -> None:
        """Notes where an opening after an unclean end found the log's end, before the first put."""
        if self._read_only:
            return  # its log grows no more: the queue's next offset says the same
        batch = self._families.batch()
        batch.put(META, _RECOVERED + U32.pack(self.recoveries), U64.pack(end))
        batch.put(META, _RECOVERIES, U32.pack(self.recoveries + 1))
        self._families.write(batch, sync=True)
        self.recoveries += 1
        self._ends = None

    def has_many_ends(self) -> bool:
        """Whether it is time for `apply_ends`."""
        return len(self._lowest_ends()) > _ENDS_MAX

    def apply_ends(self, bounds: Callable[[int], Bounds], others: Iterable[Row]) -> None:
        """Clamps all rows by the ends of the log that were noted, and forgets these ends. Nobody
        else may write yet. `bounds` are those of a queue, and `others` makes the rows of other
        families that ends bound as they are from now on. Killed in between, it is done again later.
        """
        self._families.write_many(chain(self._clamped_rows(bounds), others))
        self._families.sync()
        batch = self._families.batch()
        batch.delete_range(META, _RECOVERED, behind(_RECOVERED))
        self._families.write(batch, sync=True)
        self._ends = []

    def _clamped_rows(self, bounds: Callable[[int], Bounds]) -> Iterator[Row]:
        """The rows that ends clamp, as they are then."""
        for key, row in self._families.rows(OFFSETS, b""):
            try:
                old = read_offset(row)
            except IndexDamaged:
                continue  # its readers are told; no end is of use to it
            _, topic, number = read_offset_key(key)
            queue = topic << 32 | number
            offset = self.clamped(queue, old.offset, old.recoveries, bounds(queue))
            if offset != old.offset:
                yield OFFSETS, key, _packed(old._replace(offset=offset, recoveries=self.recoveries))
        # Many rows of a queue's history have one number of recoveries.
        yield from self.history_rows.clamped(
            lru_cache(_HELD_KEPT)(
                lambda queue, since: self.clamped(queue, OFFSET_MAX, since, bounds(queue))
            )
        )

    def _lowest_end(self, since: int) -> int | None:
        """The lowest end of the log that was found by recovery `since` or a later one; None if it
        was applied.
        """
        ends = self._lowest_ends()
        at = max(0, len(ends) - self.recoveries + since)
        return ends[at] if at < len(ends) else None

    def _lowest_ends(self) -> list[int]:
        if self._ends is None:
            lowest: list[int] = []
            found = list(self._families.rows(META, _RECOVERED, behind(_RECOVERED)))
            for number, (key, end) in enumerate(reversed(found), 1):
                due = self.recoveries - number
                if key != _RECOVERED + U32.pack(due):
                    raise IndexDamaged(
                        f"{self._families.path} does not say where the log ended at its recovery "
                        f"{due}, so earlier committed offsets can't be told; commit them again"
                    )
                lowest.append(min([U64.unpack(end)[0], *lowest[-1:]]))
            self._ends = lowest[::-1]
        return self._ends

    # --- reading ---

    def get(self, group: int, topic: int, queue: int, bounds: Bounds) -> int | None:
        """A group's committed offset; None if it never committed. `bounds` are the queue's."""
        found = self.committed(group, topic, queue, bounds)
        return None if found is None else found.offset

    def committed(self, group: int, topic: int, queue: int, bounds: Bounds) -> Committed | None:
        """A group's committed offset with all values of its row; None if it never committed."""
        key = offset_key(group, topic, queue)
        row = self._families.get(OFFSETS, key)
        if row is None:
            return None
        found = read_offset(row)
        if found.recoveries == self.recoveries and found.offset <= bounds.next_offset:
            return found
        with self._lock:
            return self._first_read(key, topic << 32 | queue, bounds)

    def _first_read(self, key: bytes, queue: int, bounds: Bounds) -> Committed | None:
        """Reads a row from before a recovery, or one beyond its queue; an offset that this clamps
        is written.
        """
        row = self._families.get(OFFSETS, key)
        if row is None:
            return None
        old = read_offset(row)
        offset = self.clamped(queue, old.offset, old.recoveries, bounds)
        found = old._replace(offset=offset, recoveries=self.recoveries)
        if offset != old.offset and not self._read_only:
            batch = self._families.batch()
            batch.put(OFFSETS, key, _packed(found))
            self._last_rows.pop(key, None)
            self._families.write(batch)
        return found

    def clamped(self, queue: int, offset: int, recoveries: int, bounds: Bounds) -> int:
        """The offset of a row that notes this number of recoveries, clamped to the log. `queue` is
        topic id << 32 | queue id.
        """
        found = min(offset, bounds.next_offset)
        end = self._lowest_end(recoveries) if recoveries < self.recoveries else None
        return found if end is None else self._held_at(end, queue, found, bounds.min_offset)

    def first_at(self, queue: int, position: int, bounds: Bounds) -> int:
        """The first offset of a queue (topic id << 32 | queue id) whose record stands at or behind
        a position of the log.
        """
        return self._held_at(position, queue, bounds.next_offset, bounds.min_offset)

    def _held_at(self, end: int, queue: int, offset: int, lowest: int) -> int:
        """`offset`, or the queue's next offset when the log ended at `end` if that is lower."""
        index, low, high = self._index, lowest, offset
        if low >= high or self._is_below(queue, high - 1, end):
            return offset
        high -= 1
        while low < high:
            middle = (low + high) // 2
            below = self._below(queue, middle, end)
            if below is None:
                # Damage left a gap here: the position behind it counts.
                behind = index.after(queue, middle, 0)
                if behind is None or behind >= high or not self._is_below(queue, behind, end):
                    high = middle
                else:
                    low = behind + 1
            elif below:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_below(self, queue: int, offset: int, end: int) -> bool:
        return bool(self._below(queue, offset, end))

    def _below(self, queue: int, offset: int, end: int) -> bool | None:
        """Whether an offset's record stood below a position of the log; None where it is lost."""
        found = self._index.positions(queue, offset, 1, 0, OFFSET_MAX)
        return found[0] < end if found else self._index.archived_below(queue, offset, end)

    def history(self, group: int, topic: int, queue: int, bounds: Bounds) -> list[OffsetCommit]:
        """The offsets that a group had committed in a queue, oldest first; see
        `Store.offset_history`.
        """
        found = self.history_rows.rows(offset_key(group, topic, queue))
        highest: dict[int, int] = {}
        for _, offset, recoveries in found:
            highest[recoveries] = max(offset, highest.get(recoveries, 0))
        key_of_queue = topic << 32 | queue
        # One search for all rows of as many recoveries: the queue's end is the same for them.
        bound = {
            recoveries: self.clamped(key_of_queue, offset, recoveries, bounds)
            for recoveries, offset in highest.items()
        }
        return [OffsetCommit(min(offset, bound[number]), at) for at, offset, number in found]

    def queues(self, group: int) -> Iterator[tuple[int, int]]:
        """Topic and queue of every offset that a group has committed, in order."""
        for key, _ in self._families.rows(OFFSETS, U32.pack(group), U32.pack(group + 1)):
            yield read_offset_key(key)[1:]

    def topics(self, group: int) -> Iterator[int]:
        """The topics in which a group has committed an offset: one seek each."""
        it, topic = self._families.iter(OFFSETS), 0
        while True:
            it.seek(offset_key(group, topic, 0))
            if not self._families.valid(it):
                return
            key = read_offset_key(it.key())
            if key[0] != group:
                return
            yield key[1]
            topic = key[1] + 1

    # --- committing ---

    def check(self, offset: int, next_offset: int) -> None:
        """Raises `CallerError` for an offset that can't be committed in a queue with this next
        offset.
        """
        if type(offset) is not int or not 0 <= offset <= next_offset:
            raise CallerError(f"offset is {shown(offset)}; this queue takes 0 to {next_offset}")

    def commit(self, commits: Collection[Commit], batch: Batch, *, sync: bool = False) -> None:
        """Sets groups' offsets, which were checked: the next messages they want. They are added to
        `batch`, and that is written. Offsets that are known to be stored already are left out; with
        `sync`, all of them are on the disk at the end.
        """
        with self._lock:
            rows = {
                offset_key(group, topic, queue): offset for group, topic, queue, offset in commits
            }
            last = self._last_rows
            if not sync:
                # Most commits of an idle group change nothing. RocksDB could tell that of all, but
                # among a million rows a read costs more than the write.
                rows = {key: offset for key, offset in rows.items() if last.get(key) != offset}
            if not rows and not len(batch):
                return
            for key, offset in rows.items():
                self._put(batch, key, offset)
                last.pop(key, None)
            self._families.write(batch, sync=sync)
            self._unsynced = self._unsynced or not sync
            if len(last) + len(rows) > _LAST_MAX:
                last.clear()
            if len(rows) <= _LAST_MAX:
                last.update(rows)

    def put_offset(self, batch: Batch, group: int, topic: int, queue: int, offset: int) -> None:
        """Adds to a caller's batch that a group wants `offset` next; then `written`.

        The offset was checked, or is that of a message that was read.
        """
        key = offset_key(group, topic, queue)
        self._last_rows.pop(key, None)
        self._put(batch, key, offset)

    def pop_rows(
        self, group: int, topic: int, positions: Iterable[tuple[int, int, int, int]]
    ) -> list[KeyValue]:
        """The rows that say where a group's pops go on in queues of a topic: for each a queue, its
        next offset, and how many of its messages filters have refused, and how many had expired. No
        `written` follows: the in-flight table has these values.
        """
        if self.history_rows.is_on:
            self.moved[group, topic] = True
        self._unsynced = True
        rows: list[KeyValue] = []
        for queue, offset, passed, expired in positions:
            key = offset_key(group, topic, queue)
            if self._last_rows:
                self._last_rows.pop(key, None)
            if passed or expired:
                rows.append((key, _packed(Committed(offset, self.recoveries, passed, expired))))
            else:
                rows.append((key, _ROW.pack(offset, self.recoveries)))
        return rows

    def written(self) -> None:
        """Notes that a batch with offsets was written: it is to be synced."""
        self._unsynced = True
        with self._lock:
            # Under the lock: a commit under way adds its offsets before, and they go too.
            self._last_rows.clear()

    def _put(self, batch: Batch, key: bytes, offset: int) -> None:
        batch.put(OFFSETS, key, _ROW.pack(offset, self.recoveries))
        if self.history_rows.is_on:
            self.history_rows.put(batch, key, offset, self.recoveries, self.history_rows.now())

    def may_move(self, group: int, topic: int) -> None:
        """Notes that a group's progress in a topic may move without a commit from now on."""
        if self.history_rows.is_on:
            self.moved[group, topic] = True

    def rows_of(self, group: int, topic: int, queue: int | None = None) -> Iterator[OffsetRow]:
        """A group's rows in a topic, or in one of the topic's queues, by queue."""
        first = offset_key(group, topic, queue or 0)
        end = offset_key(group, topic + 1, 0) if queue is None else behind(first)
        for key, row in self._families.rows(OFFSETS, first, end):
            found = read_offset(row)
            yield OffsetRow(key, read_offset_key(key)[2], found.offset, found.recoveries)

    def write_history(self, rows: Collection[OffsetRow]) -> None:
        """Writes the progress in some queues as history of now."""
        if rows:
            batch, now = self._families.batch(), self.history_rows.now()
            for row in rows:
                self.history_rows.put(batch, row.key, row.offset, row.recoveries, now)
            self._families.write(batch)
            self._unsynced = True

    # --- durability ---

    @property
    def is_synced(self) -> bool:
        """Whether all commits so far are on the disk."""
        return not self._unsynced

    def sync_due(self) -> bool:
        """Whether there are unsynced commits, and the interval is over."""
        return (
            not self.is_synced
            and self._sync_interval is not None
            and self._clock.monotonic() >= self._sync_at
        )

    def sync(self) -> None:
        """Puts all commits so far on the disk."""
        self._unsynced = False
        try:
            self._families.sync()
        except BaseException:
            self._unsynced = True
            raise
        self._sync_at = self._clock.monotonic() + (self._sync_interval or 0.0)

    # --- removing ---

    def put_removal(self, batch: Batch, topics: Collection[int]) -> None:
        """Puts the removal of all that groups keep of topics into a batch."""
        last = b""
        for key in self._keys_of(topics):
            batch.delete(OFFSETS, key)
            pair = key[:8]
            if pair != last:
                # A queue with history has an offset too.
                group, topic, _ = read_offset_key(key)
                batch.delete_range(OFFSET_HISTORY, pair, offset_key(group, topic + 1, 0))
            last = pair

    def _keys_of(self, topics: Collection[int]) -> Iterator[bytes]:
        """The keys of all groups' offsets in topics."""
        if len(topics) > _SEEK_EACH:
            wanted = {U32.pack(topic) for topic in topics}
            yield from (key for key, _ in self._families.rows(OFFSETS, b"") if key[4:8] in wanted)
            return
        for topic in topics:
            yield from self._keys_in(topic)

    def _keys_in(self, topic: int) -> Iterator[bytes]:
        """The keys of all groups' offsets in one topic, by one seek for each group that committed
        anywhere.
        """
        it, families = self._families.iter(OFFSETS), self._families
        it.seek(offset_key(0, topic, 0))
        while families.valid(it):
            key: bytes = it.key()
            group, found, _ = read_offset_key(key)
            if found == topic:
                yield key
                it.next()
            elif found < topic:
                it.seek(offset_key(group, topic, 0))
            elif group < _ID_MAX:
                it.seek(offset_key(group + 1, topic, 0))
            else:
                return


def _packed(row: Committed) -> bytes:
    """A row, as short as may be."""
    if row.expired:
        return _EXPIRED_ROW.pack(*row)
    if row.passed_over:
        return _PASSED_ROW.pack(*row[:3])
    return _ROW.pack(*row[:2])


def read_offset(row: bytes) -> Committed:
    """A row's values."""
    if len(row) == U64.size:
        # A row adopted from RocketMQ, whose offsets may be ahead of its log too.
        return Committed(U64.unpack(row)[0], 0)
    if len(row) == _PASSED_ROW.size:
        return Committed(*_PASSED_ROW.unpack(row))
    if len(row) == _EXPIRED_ROW.size:
        return Committed(*_EXPIRED_ROW.unpack(row))
    if len(row) != _ROW.size:
        raise IndexDamaged(
            f"a committed offset has {len(row)} bytes, not {_ROW.size}; commit it again"
        )
    return Committed(*_ROW.unpack(row))
