"""Directory: the offsets that each block holds, its queue, and its place in the file.

The idea: blocks lie in the file one behind the other, in the order of topic, queue and offset. So a
block's place is the sum of the sizes before it, and topic and queue are stored once a queue. Where
queues have few messages, several blocks (each still of one queue, with a number of its own) are
coded together in one *group*, which is read as a whole; most groups are one block. Memory holds
only the columns that finding a block needs, each value at as few bytes as the widest of its column
takes. A caller that goes through a whole archive, or checks or lists it, has all columns decoded
(`DirectoryRows`), and takes slices of them (`Groups`).

Invariants: rows are in that order; a queue's offset ranges rise and do not overlap; `Directory` and
`Groups` give the same answer about a group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from kvstore.errors import FormatError
from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.packed import I64, ByteReader, Narrow, encode_column
from tiering.archive.layout import DECODED_MAX, HEADER_SIZE, PART_EXTRA, PARTS, Sizes

_HEAD: Final = Struct(">IIII")
"""Topics, queues, blocks, groups."""
GROUP_MIN: Final = PARTS * PART_EXTRA
"""Bytes of the smallest group."""
BLOCKS_MAX: Final = 1 << 16
"""The most blocks of one group."""


class Row(NamedTuple):
    """One block's row in the directory."""

    topic_number: int
    queue: int
    first_offset: int
    last_offset: int
    messages: int
    first_position: int
    last_position: int
    least_stored_at: int
    greatest_stored_at: int
    raw_bytes: int
    group: int


class Group(NamedTuple):
    """Blocks that are coded together: their number, and the sizes of the group's parts in the file
    and when decoded.
    """

    blocks: int
    part_sizes: Sizes
    decoded_sizes: Sizes


class Members(NamedTuple):
    """The blocks of a group, from `first` on: topic number, queue, messages, first and last offset
    of each.
    """

    first: int
    topics: list[int]
    queues: list[int]
    counts: I64
    first_offsets: I64
    last_offsets: I64


class GroupExtent(NamedTuple):
    """A group of an archive: its begin in the file, the sizes of its parts, its blocks."""

    at: int
    sizes: Sizes
    members: Members


class DirectoryRows(NamedTuple):
    """A whole directory in columns of one row a block, except the topics' ids, and the sizes of
    groups' parts in the file and when decoded.
    """

    topic_ids: I64
    topics: I64
    queues: I64
    first_offset: I64
    last_offset: I64
    messages: I64
    first_position: I64
    last_position: I64
    least_stored_at: I64
    greatest_stored_at: I64
    raw_bytes: I64
    groups: I64
    part_sizes: tuple[I64, I64, I64]
    decoded_sizes: tuple[I64, I64, I64]

    def row(self, block: int) -> Row:
        """One block."""
        return Row(*(int(column[block]) for column in (*self.of_blocks, self.groups)))

    @property
    def of_blocks(self) -> tuple[I64, ...]:
        """The columns of `Row` in its order, without the last."""
        return self[1:11]


def encode_directory(
    topic_ids: Sequence[int], columns: Sequence[I64], groups: Sequence[I64]
) -> bytes:
    """The payload. `columns` are the fields of `Row` in its order, without the last; `groups` are
    those of `Group`, with each triple as three columns. Rows are in the directory's order.
    """
    (
        topics, queues, first_offset, last_offset, count, first_position, last_position, least,
        greatest, raw_bytes,
    ) = columns  # fmt: skip
    blocks = len(topics)
    begins = np.flatnonzero(_begins(topics, queues))
    span = last_offset - first_offset
    per_topic = np.bincount(topics[begins], minlength=len(topic_ids)).astype(np.int64)
    per_queue = np.diff(np.append(begins, blocks))
    out = [
        np.array(topic_ids, np.int64), per_topic, queues[begins], per_queue,
        first_offset, span, span + 1 - count,
        first_position, last_position - first_position, least, greatest - least,
        raw_bytes, *groups,
    ]  # fmt: skip
    head = _HEAD.pack(len(topic_ids), len(begins), blocks, len(groups[0]))
    return head + b"".join(map(encode_column, out))


def _begins(topics: I64, queues: I64) -> I64:
    """1 where a queue's blocks begin."""
    begins = np.ones(len(topics), np.int64)
    begins[1:] = (topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])
    return begins


class _Parsed(NamedTuple):
    topic_ids: I64
    per_topic: I64
    queues: I64
    per_queue: I64
    first_offset: I64
    span: I64
    missing: I64
    first_position: I64
    position_span: I64
    least: I64
    time_span: I64
    raw_bytes: I64
    per_group: I64
    group_fixed: I64
    group_properties: I64
    group_bodies: I64
    fixed: I64
    properties: I64
    bodies: I64

    @property
    def group_sizes(self) -> I64:
        return self.group_fixed + self.group_properties + self.group_bodies


def _parse(payload: bytes, blocks_size: int) -> _Parsed:
    """The columns as stored; FormatError unless they can describe blocks of that many bytes."""
    cursor = ByteReader(payload)
    topics, queues, blocks, groups = cursor.head(_HEAD)
    if (
        not topics <= queues <= blocks <= groups * BLOCKS_MAX
        or groups > blocks
        or groups * GROUP_MIN > blocks_size
    ):
        raise FormatError(f"{topics} topics, {queues} queues, {blocks} blocks: that can't be")
    lengths = [topics, topics, queues, queues] + [blocks] * 8 + [groups] * 7
    p = _Parsed(*map(cursor.column, lengths))
    cursor.end()
    for counts, total in (
        (p.per_topic, queues),
        (p.per_queue, blocks),
        (p.per_group, blocks),
        (p.group_fixed, blocks_size),
        (p.group_properties, blocks_size),
        (p.group_bodies, blocks_size),
    ):
        if len(counts) and not 1 <= int(counts.min()) <= int(counts.max()) <= total:
            raise FormatError("the counts or sizes of a directory contradict each other")
    for sizes in (p.fixed, p.properties, p.bodies):
        if len(sizes) and not 0 <= int(sizes.min()) <= int(sizes.max()) <= DECODED_MAX:
            raise FormatError("a group can't take what a directory says")
    if (int(p.per_topic.sum()), int(p.per_queue.sum()), int(p.per_group.sum())) != (
        queues, blocks, blocks,
    ):  # fmt: skip
        raise FormatError("the counts of a directory contradict each other")
    if int(p.group_sizes.sum()) != blocks_size:
        raise FormatError(f"the blocks of a directory do not fill {blocks_size} bytes")
    return p


def decode_rows(payload: bytes, blocks_size: int) -> DirectoryRows:
    """A whole directory; `blocks_size` is the size of all its blocks. Raises FormatError."""
    p = _parse(payload, blocks_size)
    topics = np.repeat(np.arange(len(p.topic_ids)), p.per_topic)
    return DirectoryRows(
        p.topic_ids,
        np.repeat(topics, p.per_queue),
        np.repeat(p.queues, p.per_queue),
        p.first_offset,
        p.first_offset + p.span,
        p.span + 1 - p.missing,
        p.first_position,
        p.first_position + p.position_span,
        p.least,
        p.least + p.time_span,
        p.raw_bytes,
        np.repeat(np.arange(len(p.per_group)), p.per_group),
        (p.group_fixed, p.group_properties, p.group_bodies),
        (p.fixed, p.properties, p.bodies),
    )


class Directory:
    """The columns that finding a block takes. Raises FormatError for a payload that is no
    directory.
    """

    __slots__ = (
        "_by_id", "_ends", "_first_block", "_first_in_group", "_first_offset", "_first_queue",
        "_fixed", "_ids", "_least", "_missing", "_properties", "_queues", "_span", "_time_span",
        "blocks", "decoded_max", "groups", "messages", "topics",
    )  # fmt: skip

    def __init__(self, payload: bytes, blocks_size: int) -> None:
        p = _parse(payload, blocks_size)
        self.topics = len(p.topic_ids)
        self.blocks = len(p.span)
        self.groups = len(p.per_group)
        self._ids = Narrow(p.topic_ids)
        order = np.argsort(p.topic_ids, kind="stable")
        is_sorted = bool(np.array_equal(order, np.arange(self.topics)))
        self._by_id = None if is_sorted else Narrow(order)
        self._first_queue = Narrow(_starts(p.per_topic))
        self._queues = Narrow(p.queues)
        self._first_block = Narrow(_starts(p.per_queue))
        self._first_offset = Narrow(p.first_offset)
        self._span = Narrow(p.span)
        self._missing = Narrow(p.missing)
        self._ends = Narrow(HEADER_SIZE + np.cumsum(p.group_sizes))
        self._fixed = Narrow(p.group_fixed)
        self._properties = Narrow(p.group_properties)
        first_in_group = _starts(p.per_group)
        self._first_in_group = Narrow(first_in_group)
        # Two numbers a block would be half of the memory where each queue has a message or two.
        least, greatest = p.least, p.least + p.time_span
        if self.groups < self.blocks:
            least = np.minimum.reduceat(least, first_in_group[:-1])
            greatest = np.maximum.reduceat(greatest, first_in_group[:-1])
        self._least = Narrow(least)
        self._time_span = Narrow(greatest - least)
        self.messages = int((p.span + 1 - p.missing).sum())
        self.decoded_max = (_max(p.fixed), _max(p.properties), _max(p.bodies))

    # --- finding ---

    def number_of(self, topic_id: int) -> int | None:
        """The archive's number of the topic with the store's id `topic_id`; None: it has none."""
        order = self._by_id

        def id_at(i: int) -> int:
            return self._ids[i if order is None else order[i]]

        at = bisect_left(range(self.topics), topic_id, key=id_at)
        if at == self.topics or id_at(at) != topic_id:
            return None
        return at if order is None else order[at]

    def topic_id(self, number: int) -> int:
        """The store's id of a topic by its number here."""
        return self._ids[number]

    def blocks_of(self, number: int, queue: int) -> range:
        """The blocks of a queue; empty if there are none."""
        queues = self._queues_at(number)
        at = bisect_left(queues, queue, key=self._queues.__getitem__)
        if at == len(queues) or self._queues[queues[at]] != queue:
            return range(0)
        return range(self._first_block[queues[at]], self._first_block[queues[at] + 1])

    def block_at(self, number: int, queue: int, offset: int) -> int | None:
        """The block with the first held offset that is not below `offset`; None: there is none."""
        blocks = self.blocks_of(number, queue)
        at = bisect_right(blocks, offset, key=self._first_offset.__getitem__) - 1
        if at < 0 or self.last_offset(blocks[at]) < offset:
            at += 1
        return blocks[at] if at < len(blocks) else None

    def _queues_at(self, number: int) -> range:
        return range(self._first_queue[number], self._first_queue[number + 1])

    def queues(self) -> Iterator[tuple[int, int, range]]:
        """Topic number, queue and blocks of every queue, in order."""
        for number in range(self.topics):
            for at in self._queues_at(number):
                yield (
                    number,
                    self._queues[at],
                    range(self._first_block[at], self._first_block[at + 1]),
                )

    # --- one block ---

    def queue_of(self, block: int) -> tuple[int, int]:
        """Topic number and queue of a block."""
        at = self._queue_at(block)
        return self._topic_at(at), self._queues[at]

    def _queue_at(self, block: int) -> int:
        every = range(len(self._queues))
        return bisect_right(every, block, key=self._first_block.__getitem__) - 1

    def _topic_at(self, queue_at: int) -> int:
        return bisect_right(range(self.topics), queue_at, key=self._first_queue.__getitem__) - 1

    def first_offset(self, block: int) -> int:
        """The first offset that a block holds."""
        return self._first_offset[block]

    def last_offset(self, block: int) -> int:
        """The last offset that a block holds."""
        return self._first_offset[block] + self._span[block]

    def last_with(self, block: int) -> int:
        """The last offset of a block's queue that is lost if the block's whole group is lost. It
        lies before the first gap, because other archives may have the offsets of a gap.
        """
        last, blocks = self.last_offset(block), self.within(block)
        if blocks is None:
            return last
        end = min(blocks.stop, self._first_block[self._queue_at(block) + 1])
        for following in range(block + 1, end):
            if self._first_offset[following] != last + 1:
                break
            last = self.last_offset(following)
        return last

    def count(self, block: int) -> int:
        """The messages of a block."""
        return self._span[block] + 1 - self._missing[block]

    def stored_within(self, block: int) -> tuple[int, int]:
        """The least and the greatest store time in a block's whole group."""
        group = self.group_of(block)
        least = self._least[group]
        return least, least + self._time_span[group]

    def group_of(self, block: int) -> int:
        """The number of a block's group."""
        if self.groups == self.blocks:
            return block
        return bisect_right(range(self.groups), block, key=self._first_in_group.__getitem__) - 1

    def extent(self, block: int) -> tuple[int, Sizes]:
        """The begin of a block's group in the file, and the sizes of its parts."""
        group = self.group_of(block)
        at = self._ends[group - 1] if group else HEADER_SIZE
        fixed, properties = self._fixed[group], self._properties[group]
        return at, (fixed, properties, self._ends[group] - at - fixed - properties)

    def within(self, block: int) -> range | None:
        """The blocks that share a group with a block, this among them; None if it is alone."""
        if self.groups == self.blocks:
            return None
        group = self.group_of(block)
        blocks = range(self._first_in_group[group], self._first_in_group[group + 1])
        return blocks if len(blocks) > 1 else None

    def members(self, block: int) -> Members:
        """All blocks of a block's group, this one among them."""
        blocks = self.within(block)
        if blocks is None:
            number, queue = self.queue_of(block)
            first = self._first_offset[block]
            counts, firsts, lasts = (
                np.array([value], np.int64)
                for value in (self.count(block), first, first + self._span[block])
            )
            return Members(block, [number], [queue], counts, firsts, lasts)
        start, stop = blocks.start, blocks.stop
        queue_at = self._queue_at(start)
        last_at = self._queue_at(stop - 1)
        begins = self._first_block.values(queue_at, last_at + 1)
        at = np.searchsorted(begins, np.arange(start, stop), side="right") - 1
        number = self._topic_at(queue_at)
        first_queues = self._first_queue.values(number, self._topic_at(last_at) + 1)
        topics = number + np.searchsorted(first_queues, queue_at + at, side="right") - 1
        first_offsets = self._first_offset.values(start, stop)
        span = self._span.values(start, stop)
        return Members(
            start,
            topics.tolist(),
            self._queues.values(queue_at, last_at + 1)[at].tolist(),
            span + 1 - self._missing.values(start, stop),
            first_offsets,
            first_offsets + span,
        )

    def group(self, block: int) -> GroupExtent:
        """The group of a block."""
        return GroupExtent(*self.extent(block), self.members(block))

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the columns take."""
        columns = (getattr(self, name, None) for name in self.__slots__)
        return sum(column.memory_bytes for column in columns if isinstance(column, Narrow))


def _starts(counts: I64) -> I64:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _max(column: I64) -> int:
    return int(column.max()) if len(column) else 0


class Groups:
    """The groups of an archive; `rows` is its whole directory."""

    def __init__(self, rows: DirectoryRows) -> None:
        self.rows = rows
        fixed, properties, bodies = rows.part_sizes
        self._ats = (bounds_of(fixed + properties + bodies) + HEADER_SIZE).tolist()
        self._sizes = list(zip(fixed.tolist(), properties.tolist(), bodies.tolist(), strict=True))
        self._firsts = np.searchsorted(rows.groups, np.arange(len(fixed) + 1)).tolist()

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> GroupExtent:
        rows = self.rows
        first, stop = self._firsts[number], self._firsts[number + 1]
        members = Members(
            first,
            rows.topics[first:stop].tolist(),
            rows.queues[first:stop].tolist(),
            rows.messages[first:stop],
            rows.first_offset[first:stop],
            rows.last_offset[first:stop],
        )
        return GroupExtent(self._ats[number], self._sizes[number], members)

    def __iter__(self) -> Iterator[GroupExtent]:
        return map(self.__getitem__, range(len(self)))

    def having(self, blocks: I64) -> Iterator[tuple[I64, GroupExtent]]:
        """The groups of some blocks, whose numbers rise, each group with its blocks among them."""
        of = self.rows.groups[blocks]
        for mine in np.split(blocks, np.flatnonzero(np.diff(of)) + 1):
            if len(mine):
                yield mine, self[int(self.rows.groups[mine[0]])]
