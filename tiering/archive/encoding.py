"""Encoding: rows of Fields -> blocks, and the groups in which they are written.

The idea: a *block* is consecutive messages of one queue; a *group* is one block, or several with
few messages each. A group is coded as if its rows were of one queue, so thousands of queues cost
neither size nor time. Many groups are encoded at a time, because numpy's price is the call.

Invariant: the exact bytes of every record come back. Only records that their columns give back are
split into columns; a block with any other record is in a group that holds its records whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tiering.archive.coder import Coder
from tiering.archive.columns.header_fields import encode_fixed, encode_whole
from tiering.archive.columns.integers import Column, cut_by_bytes
from tiering.archive.columns.properties import encode_properties
from tiering.archive.columns.records import Fields
from tiering.archive.layout import BLOCK_BYTES_DEFAULT, BLOCK_ROWS_MAX, NO_QUEUE, PartKind, Sizes


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
"""A block is small if a group's bytes hold this many of it."""


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
    properties = encode_properties(fields.property_list, fields.uniform, bounds, fields.born_at)
    bodies = fields.body_list
    found = []
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        first, stop = grouped[i], grouped[i + 1]
        if any(whole[first:stop]):
            records = b"".join(fields.records(begin, end))
            kept = encode_whole(fields, inner[first : stop + 1])
            found.append(Payloads(kept, b"", records))
        else:
            found.append(Payloads(fixed[i], properties[i], b"".join(bodies[begin:end])))
    return found


def _to_keep_whole(fields: Fields, spans: Sequence[BlockSpan]) -> list[bool]:
    """The blocks with a record that topic, queue and columns would not give back."""
    if not spans:
        return []
    fields = fields.part(spans[0].start, spans[-1].stop)
    bounds = np.array([*(span.start for span in spans), spans[-1].stop], np.int64)
    bounds -= bounds[0]
    queues = np.repeat(np.array([span.queue for span in spans], np.int64), np.diff(bounds))
    # A record in no queue has an offset here that is not the record's own.
    odd = ~fields.regular | (fields.queue != queues) | (queues == NO_QUEUE)
    whole: list[bool] = np.logical_or.reduceat(odd, bounds[:-1]).tolist()
    topics = fields.topics()
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        if not whole[i]:
            expected = spans[i].topic.encode("utf-8", "replace")
            whole[i] = topics[begin:end].count(expected) != end - begin
    return whole
