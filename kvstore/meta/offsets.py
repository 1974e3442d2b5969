"""Committed offsets: how far each group is in each queue.

The idea: one small row per group and queue, written when it changes. RocksDB may be ahead of the
log after a power cut (an offset was committed, the message it stands behind was lost), and new
messages may have taken the lost places before the offset is asked for. So each opening after an
unclean end notes where it found the log's end, numbered; a row says how many of these there were
when it was written. The first one that is newer than the row bounds it: the offset is clamped to
what its queue had there, when it is first read.

Invariants: what `get` returns is never above the queue's next offset, nor above the offset of a
message that nobody has seen yet; nothing is looked at before it is asked for.
"""

from __future__ import annotations

import threading
from struct import Struct
from typing import Final

from kvstore.errors import CallerError, IndexDamaged
from kvstore.index.index import Index
from kvstore.index.keys import META, OFFSET_MAX, OFFSETS, U32, U64, offset_key
from kvstore.message import Bounds

_ROW: Final = Struct(">QI")  # offset, recoveries noted before it was written
_RECOVERIES: Final = b"recoveries"  # u32: how many there are of the next
_RECOVERED: Final = b"recovered/"  # and a number, u32 -> u64: the log's end as it was found
_KNOWN_MAX: Final = 1 << 18


class Offsets:
    """See the module."""

    def __init__(self, index: Index, *, read_only: bool) -> None:
        self._index = index
        self._families = index.families
        self._read_only = read_only
        self._known: dict[bytes, int] = {}
        self._lock = threading.Lock()
        found = self._families.get(META, _RECOVERIES)
        self._recoveries = U32.unpack(found)[0] if found else 0

    def recovered(self, end: int) -> None:
        """Note where an opening after an unclean end found the log's end; before the first put."""
        if self._read_only:
            return  # its log grows no more: the queue's next offset says the same
        batch = self._families.batch()
        batch.put(META, _RECOVERED + U32.pack(self._recoveries), U64.pack(end))
        batch.put(META, _RECOVERIES, U32.pack(self._recoveries + 1))
        self._families.write(batch, sync=True)
        self._recoveries += 1

    def get(self, group: int, topic: int, queue: int, bounds: Bounds) -> int | None:
        """A group's committed offset; None if it never committed. `bounds` are the queue's."""
        key = offset_key(group, topic, queue)
        found = self._known.get(key)
        if found is None:
            with self._lock:
                found = self._read(key, topic << 32 | queue, bounds)
        return found

    def _read(self, key: bytes, queue: int, bounds: Bounds) -> int | None:
        row = self._families.get(OFFSETS, key)
        if row is None:
            return None
        offset, recoveries = read_offset(row)
        found = min(offset, bounds.next_offset)
        if recoveries < self._recoveries:
            found = self._held_at(self._found_end(recoveries), queue, found, bounds.min_offset)
        if found != offset:
            self._write(key, found)
        self._keep(key, found)
        return found

    def _found_end(self, number: int) -> int:
        found = self._families.get(META, _RECOVERED + U32.pack(number))
        if found is None:
            raise IndexDamaged(
                f"{self._families.path} does not say where the log ended at its recovery {number}, "
                "so committed offsets of before can't be told; commit them again"
            )
        return int(U64.unpack(found)[0])

    def _held_at(self, end: int, queue: int, offset: int, lowest: int) -> int:
        """`offset`, or the queue's next offset when the log ended at `end` if that is lower."""
        index, low, high = self._index, lowest, offset
        if low >= high or self._is_below(queue, high - 1, end):
            return offset
        high -= 1
        while low < high:
            middle = (low + high) // 2
            found = index.positions(queue, middle, 1, 0, OFFSET_MAX)
            if not found:
                # A gap that damage left: what counts is what comes behind it.
                behind = index.after(queue, middle, 0)
                if behind is None or behind >= high or not self._is_below(queue, behind, end):
                    high = middle
                else:
                    low = behind + 1
            elif found[0] < end:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_below(self, queue: int, offset: int, end: int) -> bool:
        found = self._index.positions(queue, offset, 1, 0, OFFSET_MAX)
        return bool(found) and found[0] < end

    def check(self, offset: int, next_offset: int) -> None:
        """Raise `CallerError` for what can't be committed in a queue with this next offset."""
        if type(offset) is not int or not 0 <= offset <= next_offset:
            raise CallerError(f"offset is {offset!r}; this queue takes 0 to {next_offset}")

    def commit(self, group: int, topic: int, queue: int, offset: int) -> None:
        """Set a group's offset, which was checked: the next message it wants."""
        key = offset_key(group, topic, queue)
        with self._lock:
            self._write(key, offset)
            self._keep(key, offset)

    def forget(self, group: int) -> None:
        """Take note that a group's rows were removed."""
        prefix = U32.pack(group)
        with self._lock:
            for key in [k for k in self._known if k.startswith(prefix)]:
                del self._known[key]

    def _keep(self, key: bytes, offset: int) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = offset

    def _write(self, key: bytes, offset: int) -> None:
        if self._read_only:
            return
        batch = self._families.batch()
        batch.put(OFFSETS, key, _ROW.pack(offset, self._recoveries))
        self._families.write(batch)


def read_offset(row: bytes) -> tuple[int, int]:
    """A row's offset, and how many recoveries were noted before it was written."""
    if len(row) == U64.size:
        # As adopted from RocketMQ, whose offsets may be ahead of its log too.
        return U64.unpack(row)[0], 0
    if len(row) != _ROW.size:
        raise IndexDamaged(
            f"a committed offset has {len(row)} bytes, not {_ROW.size}; commit it again"
        )
    offset, recoveries = _ROW.unpack(row)
    return offset, recoveries
