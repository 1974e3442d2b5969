"""Block writer: records, queue after queue -> groups of blocks, and columns for the tail.

The idea: a *block* is consecutive messages of one queue; a *group* is one block, or several with
few messages each. A group is coded as if its rows were of one queue, so thousands of queues cost
neither size nor time. Some megabytes of records are encoded together, whatever their queues,
because numpy's price is the call, and a queue may have but a few records. A group is written as
soon as it is full. With each batch go columns for the tail: one row for each block and each group,
and for each message its position and its keys' digests (`tail_columns`).

Invariants: the exact bytes of every record come back: only records that their columns give back are
split into columns, and a block with any other record is in a group that holds its records whole.
Nothing is written twice or out of order; memory is some megabytes of records; the same records and
settings give the same bytes, however `add` was given them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kvstore.errors import CallerError
from tiering.archive.coder import Coder
from tiering.archive.columns.header_codec import encode_fixed, encode_whole
from tiering.archive.columns.integers import Column, bounds_of, cut_by_bytes
from tiering.archive.columns.packed import I64
from tiering.archive.columns.properties import encode_properties
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.indexes import KeyLevels, digests_of_many, is_rolled_back
from tiering.archive.layout import BLOCK_BYTES_DEFAULT, BLOCK_ROWS_MAX, NO_QUEUE, PartKind, Sizes
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.tail_columns import GROUP_COLUMNS, BlockColumns, TailColumns
from tiering.keys.crypto import KeyProvider


class BlockSpan(NamedTuple):
    """The rows of Fields that make one block: held messages of one queue, in the order of their
    offsets. `topic_number` is archive-local, `secret` the topic's key if it is encrypted.
    """

    topic: str
    queue: int
    start: int
    stop: int
    topic_number: int = 0
    secret: bytes | None = None


SHARED: Final = 2
"""The bytes of blocks that share a group, as a multiple of one group's."""
_SMALL: Final = 8
"""A block is small if a group's bytes hold this many blocks of its size."""


class EncodedGroup(NamedTuple):
    """A group as it is written."""

    data: bytes
    """The three parts, one behind the other."""
    part_sizes: Sizes
    decoded_sizes: Sizes
    blocks: int


class BlockRows(NamedTuple):
    """The directory's columns of blocks, but for topic and queue."""

    first_offset: Column
    last_offset: Column
    messages: Column
    first_position: Column
    last_position: Column
    least_stored_at: Column
    greatest_stored_at: Column
    raw_bytes: Column


class Payloads(NamedTuple):
    """The decoded parts of a group."""

    fixed: bytes
    properties: bytes
    bodies: bytes


def cut(
    sizes: Column, start: int, stop: int, block_bytes: int = BLOCK_BYTES_DEFAULT
) -> list[tuple[int, int]]:
    """The rows from `start` to `stop` as blocks of at most `block_bytes`, or of one row."""
    pieces = cut_by_bytes(sizes[start:stop], block_bytes, BLOCK_ROWS_MAX)
    return [(start + a, start + b) for a, b in pieces]


def encode_blocks(
    fields: Fields,
    spans: Sequence[BlockSpan],
    coder: Coder,
    *,
    group_bytes: int = 0,
    shared: int = SHARED,
) -> tuple[list[EncodedGroup], BlockRows]:
    """Encodes the blocks of many queues at once; each span begins where the one before ends.

    Blocks that follow each other share a group of up to `shared` times `group_bytes` of records, if
    it takes no more than `group_bytes` when encoded; else a group of up to `group_bytes`. Encrypted
    blocks of different topics never share one, nor does a block that must hold its records whole. A
    group that has half of `group_bytes` ends with its topic, so that a reader of one topic reads
    little else; but not where all blocks are small. A call should have some megabytes, whatever
    their topics and queues: one call a queue costs several times as much where queues are small.
    """
    rows = _rows_of(fields, spans)
    whole = _to_keep_whole(fields, spans)
    grouped = _grouped(spans, rows, whole, group_bytes, shared)
    found = payloads_of(fields, spans, grouped, whole)
    groups = []
    for (begin, end), payloads in zip(pairwise(grouped), found, strict=True):
        are_small = _are_small(int(rows.raw_bytes[begin:end].max()), group_bytes)
        group = _encode_group(spans[begin], end - begin, payloads, coder, thorough=are_small)
        if shared > 1 and end - begin > 1 and len(group.data) > group_bytes:
            # A group that hardly compresses is encoded twice: that takes less time than one pass
            # over a group that compresses well.
            mine = spans[begin:end]
            groups += encode_blocks(fields, mine, coder, group_bytes=group_bytes, shared=1)[0]
        else:
            groups.append(group)
    return groups, rows


def _rows_of(fields: Fields, spans: Sequence[BlockSpan]) -> BlockRows:
    """The directory's columns of these blocks."""
    first = np.array([span.start for span in spans], np.int64)
    last = np.array([span.stop - 1 for span in spans], np.int64)
    if not spans:
        return BlockRows(*[first] * len(BlockRows._fields))
    begin, end = spans[0].start, spans[-1].stop
    stored_at = fields.stored_at[begin:end]
    return BlockRows(
        fields.offset[first],
        fields.offset[last],
        last - first + 1,
        fields.position[first],
        fields.position[last],
        np.minimum.reduceat(stored_at, first - begin),
        np.maximum.reduceat(stored_at, first - begin),
        np.add.reduceat(fields.sizes[begin:end], first - begin),
    )


def _grouped(
    spans: Sequence[BlockSpan],
    rows: BlockRows,
    whole: Sequence[bool],
    group_bytes: int,
    shared: int,
) -> list[int]:
    """The first span of each group, and its number of spans."""
    counts, sizes = rows.messages.tolist(), rows.raw_bytes.tolist()
    begins = []
    size = count = largest = 0
    for i, span in enumerate(spans):
        is_half = size * 2 >= group_bytes
        size += sizes[i]
        count += counts[i]
        largest = max(largest, sizes[i])
        if (
            not i
            or size > group_bytes * shared
            or (
                is_half
                and span.topic != spans[i - 1].topic
                and not _are_small(largest, group_bytes)
            )
            or count > BLOCK_ROWS_MAX
            or whole[i] != whole[i - 1]
            or not _may_share(spans[i - 1], span)
        ):
            begins.append(i)
            size, count, largest = sizes[i], counts[i], sizes[i]
    return [*begins, len(spans)]


def _are_small(largest: int, group_bytes: int) -> bool:
    """Whether blocks are small, given the bytes of records of the largest."""
    return largest * _SMALL <= group_bytes


def _may_share(a: BlockSpan, b: BlockSpan) -> bool:
    """Whether two blocks may be in one group: a group is encrypted with one topic's key."""
    return a.secret == b.secret and (a.secret is None or a.topic_number == b.topic_number)


def _encode_group(
    span: BlockSpan, blocks: int, payloads: Payloads, coder: Coder, *, thorough: bool
) -> EncodedGroup:
    """Encodes one group, whose first block is `span`; `thorough` where blocks are small, since less
    repeats in them.
    """
    parts = [
        coder.encode(
            payload,
            thorough=thorough,
            digits=kind is PartKind.BODIES,
            kind=kind,
            topic=span.topic_number if span.secret is not None else 0,
            secret=span.secret,
        )
        for kind, payload in zip(PartKind, payloads, strict=True)
    ]
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    decoded = (len(payloads.fixed), len(payloads.properties), len(payloads.bodies))
    return EncodedGroup(b"".join(parts), sizes, decoded, blocks)


def payloads_of(
    fields: Fields, spans: Sequence[BlockSpan], grouped: Sequence[int], whole: Sequence[bool]
) -> list[Payloads]:
    """The payloads of each group's parts before they are coded; a group has the spans from
    `grouped[i]` to `grouped[i + 1]`. `whole` says which spans must be kept as whole records.
    """
    if not spans:
        return []
    starts = [span.start for span in spans]
    stops = [span.stop for span in spans]
    if starts[1:] != stops[:-1]:
        raise ValueError("blocks must follow each other")
    fields = fields.part(starts[0], stops[-1])
    inner = np.array([*starts, stops[-1]], np.int64) - starts[0]
    bounds = inner[list(grouped)]
    if not ((counts := np.diff(bounds)) > 0).all() or (counts > BLOCK_ROWS_MAX).any():
        raise ValueError("groups must have 1 to 65,536 rows")
    fixed = encode_fixed(fields, bounds, inner)
    properties = encode_properties(fields.properties, bounds, fields.born_at)
    found = []
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        first, stop = grouped[i], grouped[i + 1]
        if any(whole[first:stop]):
            kept = encode_whole(fields, inner[first : stop + 1])
            found.append(Payloads(kept, b"", fields.records(begin, end)))
        else:
            found.append(Payloads(fixed[i], properties[i], fields.bodies(begin, end)))
    return found


def _to_keep_whole(fields: Fields, spans: Sequence[BlockSpan]) -> list[bool]:
    """The blocks with a record that topic, queue and columns would not give back."""
    if not spans:
        return []
    fields = fields.part(spans[0].start, spans[-1].stop)
    bounds = np.array([*(span.start for span in spans), spans[-1].stop], np.int64)
    bounds -= bounds[0]
    names, topic_of = fields.topics()
    numbers = {name: number for number, name in enumerate(names)}
    wanted = [
        (span.queue, numbers.get(span.topic.encode("utf-8", "replace"), -1)) for span in spans
    ]
    queues, topics = np.repeat(np.array(wanted, np.int64), np.diff(bounds), 0).T
    # A record in no queue has an offset here that is not the record's own.
    odd = ~fields.regular | (fields.queue != queues) | (queues == NO_QUEUE) | (topic_of != topics)
    whole: list[bool] = np.logical_or.reduceat(odd, bounds[:-1]).tolist()
    return whole


BATCH_BYTES: Final = 8 << 20
"""Raw bytes that are encoded together, about 8 MiB."""


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


class _PendingQueue(NamedTuple):
    """Records of a queue that are not encoded yet; more may follow."""

    number: int
    queue: int
    records: RecordBatch


class BlockWriter:
    """Encodes records, and hands on the bytes and the columns for the tail: `add` in the order of
    topic number and queue, then `flush`. `topics` has the topics by their numbers, and may grow
    meanwhile.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        add_columns: Callable[[TailColumns], object],
        coder: Coder,
        block_bytes: int,
        topics: Sequence[TopicToWrite] | Mapping[int, TopicToWrite],
    ) -> None:
        self._write = write
        self._add_columns = add_columns
        self._coder = coder
        self._block_bytes = block_bytes
        self._topics = topics
        self._waiting: list[_PendingQueue] = []
        self._waiting_bytes = 0
        self._last: tuple[int, int, int] | None = None

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
            self._waiting.append(_PendingQueue(number, queue, records))
            self._waiting_bytes += total
            return
        ends = np.cumsum(records.sizes)
        at = 0
        while at < len(ends):
            done = int(ends[at - 1]) if at else 0
            room = max(BATCH_BYTES - self._waiting_bytes, 0)
            stop = max(int(np.searchsorted(ends, done + room, side="right")), at + 1)
            some = records.rows(at, stop)
            self._waiting.append(_PendingQueue(number, queue, some))
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
        queues = self._queue_counts()
        bounds = bounds_of([count for _, count in queues])
        totals = np.add.reduceat(fields.sizes, bounds[:-1]).tolist()
        at = begin = 0
        left = fields.count
        for ((number, queue), count), total in zip(queues, totals, strict=True):
            topic = self._topics[number]
            if queue == NO_QUEUE:
                fields.offset[at : at + count] = fields.position[at : at + count]
            begin, at = at, at + count
            # One cut a queue takes most of the time where queues are small.
            is_block = total <= self._block_bytes and count <= BLOCK_ROWS_MAX
            pieces = [(begin, at)] if is_block else cut(fields.sizes, begin, at, self._block_bytes)
            if at == fields.count and not is_last:
                left = pieces.pop()[0]
            spans += [
                BlockSpan(topic.topic.name, queue, start, stop, number, topic.secret)
                for start, stop in pieces
            ]
        self._check_order(fields.offset, queues, bounds[:-1])
        done = fields.part(0, left)
        groups, rows = encode_blocks(done, spans, self._coder, group_bytes=self._block_bytes)
        for group in groups:
            self._write(group.data)
        self._add_columns(self._columns(done, spans, groups, rows))
        number, queue, _ = self._waiting[-1]
        is_begun = left > begin
        self._last = (number, queue, int(fields.offset[left - 1])) if is_begun else None
        self._waiting.clear()
        self._waiting_bytes = 0
        if left < fields.count:
            rest = fields.rest(left)
            self._waiting.append(_PendingQueue(number, queue, rest))
            self._waiting_bytes = int(rest.sizes.sum())

    def _queue_counts(self) -> list[tuple[tuple[int, int], int]]:
        """The waiting queues, each with its number of records."""
        counts: dict[tuple[int, int], int] = {}
        for some in self._waiting:
            key = some.number, some.queue
            counts[key] = counts.get(key, 0) + len(some.records.starts)
        return list(counts.items())

    def _check_order(
        self, offsets: I64, queues: list[tuple[tuple[int, int], int]], begins: I64
    ) -> None:
        wrong = np.zeros(len(offsets), np.bool_)
        wrong[1:] = offsets[1:] <= offsets[:-1]
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
        ).reshape(-1, GROUP_COLUMNS)
        digests, keyed = self._keys(fields, spans)
        return TailColumns(
            BlockColumns(
                (
                    np.array([span.topic_number for span in spans], np.int64),
                    np.array([span.queue for span in spans], np.int64),
                    *rows,
                ),
                tuple(of_groups.T),
            ),
            fields.position,
            digests.astype(np.uint32),
            keyed.astype(np.uint32),
        )

    def _keys(self, fields: Fields, spans: Sequence[BlockSpan]) -> tuple[I64, I64]:
        """The digests of all keys, and the row of each."""
        if not spans:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        each = [self._topics[span.topic_number].levels for span in spans]
        if any(found.changes for found in each):
            positions = [fields.position[span.start : span.stop] for span in spans]
            levels = np.concatenate([a.of(b) for a, b in zip(each, positions, strict=True)])
        else:
            counts = [span.stop - span.start for span in spans]
            levels = np.repeat(np.array([found.only for found in each], np.int64), counts)
        for span in spans:
            if span.queue == NO_QUEUE:
                some = slice(span.start, span.stop)
                levels[some][is_rolled_back(fields.system_flags[some])] = -1
        return digests_of_many(fields.properties, fields.property_field, levels)
