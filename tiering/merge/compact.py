"""Compaction: finds the messages of a compacted topic that nobody needs any more.

The idea: a compacted topic is a table. The newest message of a key is its value; one with an empty
body (a *tombstone*) says that the key is deleted. Of the messages of a queue that are merged, one
is superseded if a later one among them has the same first key. Other archives and the log are not
looked at, so a message may be kept longer than it must, never shorter.

Older and newer are said of the offset in the queue, never of the position in the log: archives that
were attached hold older offsets at later positions.

A tombstone is needed as long as an older message of its key is anywhere, and until every reader has
had the time to see it. So it goes only when it was stored before `Compaction.tombstones_before`,
and when no other archive and no segment holds a lower offset of its queue (`whole_below`).

A queue may be looked at in partitions, each by another process. The findings of each (`KeyTable`)
are put together afterwards.

Invariants:

- The newest message of a key stays, unless it is such a tombstone.
- A message without a key is nobody's earlier version, and stays.
- A message that stays keeps its offset.
- Partitions put together, in any order, give the same as one pass over all.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.core.records import keys_of
from kvstore.index.archived import Queue
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import Fields, RecordBatch

FOLD_ROWS: Final = 1 << 20
"""Messages after which only the offsets of the superseded ones among them stay in memory."""
_DIGEST: Final = 16
_NEVER: Final = (1 << 63) - 1


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for tombstones. Those stored before `tombstones_before` (ms) may go.
    `whole_below` has the offset of each queue (topic id, queue) below which only the merged
    archives hold anything. A tombstone from there on stays, and so does each of a queue that is not
    named.
    """

    tombstones_before: int
    whole_below: Mapping[Queue, int]


def first_key(properties: bytes) -> bytes | None:
    """The key of a message's row in the compacted table: its first key; None if it has none."""
    keys = keys_of(properties)
    return keys[0] if keys else None


class KeyTable(NamedTuple):
    """The findings of compaction in one partition of a queue. For each key: the digest (two
    numbers), the newest message's offset, and when that was stored if it is a tombstone (else
    `_NEVER`). And the offsets of the messages that are superseded within the partition.
    """

    digests: NDArray[np.uint64]
    offsets: I64
    empty_at: I64
    superseded: I64


class QueueCompaction:
    """Takes one queue's messages, or findings of its partitions; then says which of them may go.

    Memory: 32 bytes for each different key and for each of a million messages, and 8 bytes for each
    superseded message; twice as many while they are sorted.
    """

    def __init__(self, compaction: Compaction, queue: Queue) -> None:
        self._before = compaction.tombstones_before
        self._below = compaction.whole_below.get(queue, 0)
        self._digests = bytearray()
        self._offsets = array("q")
        self._empty_at = array("q")
        """When a tombstone was stored; `_NEVER` for other messages."""
        self._newest: tuple[NDArray[np.uint64], I64, I64] = _columns(b"", b"", b"")
        self.superseded: list[I64] = []

    def add(self, records: Sequence[bytes], offsets: I64) -> None:
        """Takes some messages."""
        fields = Fields(RecordBatch.of_records(records))
        empty = (fields.body_size == 0) & fields.regular
        empty_at = np.where(empty, fields.stored_at, _NEVER).tolist()
        rows = zip(fields.property_fields(), offsets.tolist(), empty_at, strict=True)
        for properties, offset, at in rows:
            key = first_key(properties)
            if key is not None:
                self._digests += blake2b(key, digest_size=_DIGEST).digest()
                self._offsets.append(offset)
                self._empty_at.append(at)
        if len(self._offsets) >= FOLD_ROWS:
            self._fold()

    def take(self, table: KeyTable) -> None:
        """Takes the findings of another partition."""
        self._fold()
        self._merge(table.digests, table.offsets, table.empty_at)
        self.superseded.append(table.superseded)

    def table(self) -> KeyTable:
        """The findings so far."""
        self._fold()
        return KeyTable(*self._newest, np.concatenate(self.superseded))

    def _fold(self) -> None:
        """Keeps only the newest message of each key."""
        new = _columns(self._digests, self._offsets, self._empty_at)
        self._merge(*new)
        self._digests, self._offsets, self._empty_at = bytearray(), array("q"), array("q")

    def _merge(self, *new: NDArray[np.uint64] | I64) -> None:
        digests, offsets, empty_at = (
            np.concatenate(both) for both in zip(self._newest, new, strict=True)
        )
        order = np.lexsort((offsets, digests[:, 1], digests[:, 0]))
        digests, offsets, empty_at = digests[order], offsets[order], empty_at[order]
        last = np.ones(len(offsets), np.bool_)
        last[:-1] = (digests[1:] != digests[:-1]).any(axis=1)
        self.superseded.append(offsets[~last])
        self._newest = digests[last], offsets[last], empty_at[last]

    def finish(self) -> tuple[I64, I64]:
        """Offsets of messages that are superseded, and of tombstones that may go; both rising."""
        _, offsets, empty_at, superseded = self.table()
        may_go = (empty_at < self._before) & (offsets < self._below)
        return np.sort(superseded), np.sort(offsets[may_go])


def _columns(
    digests: bytes | bytearray, offsets: bytes | array[int], empty_at: bytes | array[int]
) -> tuple[NDArray[np.uint64], I64, I64]:
    return (
        np.frombuffer(bytes(digests), np.uint64).reshape(-1, 2),
        np.frombuffer(bytes(offsets), np.int64),
        np.frombuffer(bytes(empty_at), np.int64),
    )
