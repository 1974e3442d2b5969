"""Blocks: writes records, queue after queue, as groups of blocks, and collects columns for the
tail.

The idea: a group is written as soon as it is full. Until the end, when the indexes are made, plain
columns keep one row for each block and each group, and for each message its position and its keys'
digests. Some megabytes of records are encoded together, whatever their queues, because a queue may
have but a few.

Invariants: nothing is written twice or out of order; memory is some megabytes of records and a few
dozen bytes a message; the same records and settings give the same bytes, however `add` was given
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import CallerError
from tiering.archive.coder import Coder
from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.encoding import BlockRows, BlockSpan, EncodedGroup, cut, encode_blocks
from tiering.archive.layout import NO_QUEUE
from tiering.archive.lookup.keyed import KeyLevels, digests_in_columns, digests_of, is_rolled_back
from tiering.archive.manifest import ArchivedTopic
from tiering.keys.crypto import KeyProvider

BATCH_BYTES: Final = 8 << 20
"""Raw bytes that are encoded together, about 8 MiB."""
MESSAGES_MAX: Final = (1 << 32) - 1
"""A message's rank takes 32 bits in the key index."""
_ROW_COLUMNS: Final = 2 + len(BlockRows._fields)
_GROUP_COLUMNS: Final = 7


class TailColumns(NamedTuple):
    """The columns of an archive's tail, as far as blocks determine it. `rows` are the columns of
    the directory with one row a block: topic number, queue, then those of `BlockRows`. `groups`
    have one row a group: its blocks, the sizes of its parts, and their decoded sizes. Then come
    each message's position, and the digests of keys, each with the number of its message.
    """

    rows: tuple[I64, ...]
    groups: tuple[I64, ...]
    positions: I64
    digests: NDArray[np.uint32]
    keyed: NDArray[np.uint32]


class GrowingColumns:
    """`TailColumns` that grow at the end."""

    def __init__(self) -> None:
        self._rows = [array("q") for _ in range(_ROW_COLUMNS)]
        self._groups = [array("q") for _ in range(_GROUP_COLUMNS)]
        self._positions = array("q")
        self._digests = array("I")
        self._keyed = array("I")

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self._positions)

    def add(self, more: TailColumns) -> None:
        """Appends columns. Raises CallerError if an archive can't hold that many."""
        base = len(self._positions)
        if base + len(more.positions) > MESSAGES_MAX:
            raise CallerError(f"an archive holds at most {MESSAGES_MAX:,} messages")
        for mine, found in zip(
            (*self._rows, *self._groups, self._positions),
            (*more.rows, *more.groups, more.positions),
            strict=True,
        ):
            mine.frombytes(found.astype(np.int64, copy=False).tobytes())
        self._digests.frombytes(more.digests.tobytes())
        self._keyed.frombytes((more.keyed.astype(np.int64) + base).astype(np.uint32).tobytes())

    def all(self) -> TailColumns:
        """All columns; nothing can be added while they are held."""
        return TailColumns(
            tuple(np.frombuffer(column, np.int64) for column in self._rows),
            tuple(np.frombuffer(column, np.int64) for column in self._groups),
            np.frombuffer(self._positions, np.int64),
            np.frombuffer(self._digests, np.uint32),
            np.frombuffer(self._keyed, np.uint32),
        )


class TopicToWrite:
    """A topic as it is written, with its encryption key and the key's id."""

    def __init__(self, topic: ArchivedTopic, keys: KeyProvider | None) -> None:
        key = keys.key_for_writing(topic.name) if keys is not None else None
        key_id = key.key_id if key is not None else None
        if topic.key_id != key_id:
            topic = msgspec.structs.replace(topic, key_id=key_id)
        self.topic = topic
        self.secret = key.secret if key is not None else None
        self.levels = KeyLevels(topic)


class _Queue(NamedTuple):
    """Records of a queue that are not encoded yet; more may follow."""

    number: int
    queue: int
    records: RecordBatch


class BlockWriter:
    """Encodes records and hands on the bytes: `add` in the order of topic number and queue, then
    `flush`. `topics` has the topics by their numbers, and may grow meanwhile.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        coder: Coder,
        block_bytes: int,
        topics: Sequence[TopicToWrite] | Mapping[int, TopicToWrite],
    ) -> None:
        self._write = write
        self._coder = coder
        self._block_bytes = block_bytes
        self._topics = topics
        self._waiting: list[_Queue] = []
        self._waiting_bytes = 0
        self._last: tuple[int, int, int] | None = None
        self.columns = GrowingColumns()

    @property
    def messages(self) -> int:
        """The number of messages that are written or wait to be encoded."""
        return self.columns.messages + sum(len(some.records.starts) for some in self._waiting)

    def add(self, number: int, queue: int, records: RecordBatch) -> None:
        """Takes records of one queue of the topic with that number. Offsets rise, also over several
        calls for the same queue. Raises CallerError for records out of order.
        """
        if self._waiting or self._last is not None:
            before = self._waiting[-1][:2] if self._waiting else (self._last or (-1, -1))[:2]
            if (number, queue) < before:
                name = self._topics[number].topic.name
                raise CallerError(f"queue {queue} of {name!r} comes after a later one")
        total = int(records.sizes.sum())
        if self._waiting_bytes + total < BATCH_BYTES:
            self._waiting.append(_Queue(number, queue, records))
            self._waiting_bytes += total
            return
        ends = np.cumsum(records.sizes)
        at = 0
        while at < len(ends):
            done = int(ends[at - 1]) if at else 0
            room = max(BATCH_BYTES - self._waiting_bytes, 0)
            stop = max(int(np.searchsorted(ends, done + room, side="right")), at + 1)
            some = records.rows(at, stop)
            self._waiting.append(_Queue(number, queue, some))
            self._waiting_bytes += int(ends[stop - 1]) - done
            at = stop
            if self._waiting_bytes >= BATCH_BYTES:
                self._encode(is_last=False)

    def flush(self) -> None:
        """Encodes all waiting records; the next ones begin a new block."""
        self._encode(is_last=True)

    # --- blocks ---

    def _encode(self, is_last: bool) -> None:
        """Encodes and writes the waiting records, except a last block that may still grow."""
        if not self._waiting:
            return
        fields = Fields(RecordBatch.join([some.records for some in self._waiting]))
        spans: list[BlockSpan] = []
        at = begin = 0
        left = fields.count
        for (number, queue), count in self._queue_counts():
            topic = self._topics[number]
            if queue == NO_QUEUE:
                fields.offset[at : at + count] = fields.position[at : at + count]
            pieces = cut(fields.sizes, at, at + count, self._block_bytes)
            begin, at = at, at + count
            if at == fields.count and not is_last:
                left = pieces.pop()[0]
            spans += [
                BlockSpan(topic.topic.name, queue, start, stop, number, topic.secret)
                for start, stop in pieces
            ]
        self._check_order(fields.offsets)
        done = fields.part(0, left)
        groups, rows = encode_blocks(done, spans, self._coder, group_bytes=self._block_bytes)
        for group in groups:
            self._write(group.data)
        self.columns.add(self._columns(done, spans, groups, rows))
        number, queue, _ = self._waiting[-1]
        is_begun = left > begin
        self._last = (number, queue, int(fields.offsets[left - 1])) if is_begun else None
        self._waiting.clear()
        self._waiting_bytes = 0
        if left < fields.count:
            rest = fields.rest(left)
            self._waiting.append(_Queue(number, queue, rest))
            self._waiting_bytes = int(rest.sizes.sum())

    def _queue_counts(self) -> Iterable[tuple[tuple[int, int], int]]:
        """The waiting queues, each with its number of records."""
        counts: dict[tuple[int, int], int] = {}
        for some in self._waiting:
            key = some.number, some.queue
            counts[key] = counts.get(key, 0) + len(some.records.starts)
        return counts.items()

    def _check_order(self, offsets: I64) -> None:
        queues = list(self._queue_counts())
        wrong = np.zeros(len(offsets), np.bool_)
        wrong[1:] = offsets[1:] <= offsets[:-1]
        begins = bounds_of([count for _, count in queues])[:-1]
        wrong[begins] = False
        last = self._last
        wrong[0] = last is not None and last[:2] == queues[0][0] and offsets[0] <= last[2]
        if bool(wrong.any()):
            at = int(np.searchsorted(begins, np.argmax(wrong), side="right")) - 1
            number, queue = queues[at][0]
            name = self._topics[number].topic.name
            raise CallerError(f"the offsets of queue {queue} of {name!r} do not rise")

    # --- columns for the tail ---

    def _columns(
        self,
        fields: Fields,
        spans: Sequence[BlockSpan],
        groups: Sequence[EncodedGroup],
        rows: BlockRows,
    ) -> TailColumns:
        of_groups = np.array(
            [(group.blocks, *group.part_sizes, *group.decoded_sizes) for group in groups], np.int64
        ).reshape(-1, _GROUP_COLUMNS)
        digests, keyed = self._keys(fields, spans)
        return TailColumns(
            (
                np.array([span.topic_number for span in spans], np.int64),
                np.array([span.queue for span in spans], np.int64),
                *rows,
            ),
            tuple(of_groups.T),
            fields.positions,
            digests.astype(np.uint32),
            keyed.astype(np.uint32),
        )

    def _keys(self, fields: Fields, spans: Sequence[BlockSpan]) -> tuple[I64, I64]:
        """The digests of all keys, and the row of each."""
        if not spans or all(self._topics[span.topic_number].levels.none for span in spans):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        each = [self._topics[span.topic_number].levels for span in spans]
        if any(found.changes for found in each):
            positions = [fields.positions[span.start : span.stop] for span in spans]
            levels = np.concatenate([a.of(b) for a, b in zip(each, positions, strict=True)])
        else:
            counts = [span.stop - span.start for span in spans]
            levels = np.repeat(np.array([found.only for found in each], np.int64), counts)
        for span in spans:
            if span.queue == NO_QUEUE:
                some = slice(span.start, span.stop)
                levels[some][is_rolled_back(fields.system_flags[some])] = 0
        if fields.uniform is not None:
            return digests_in_columns(fields.uniform.columns, levels)
        digests, rows = array("q"), array("q")
        for row, level in enumerate(levels.tolist()):
            for digest in digests_of(fields.property_list[row], level):
                digests.append(digest)
                rows.append(row)
        return np.frombuffer(digests, np.int64), np.frombuffer(rows, np.int64)
