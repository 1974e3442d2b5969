"""Block: consecutive messages of one queue (a *stretch*), or of several queues with few each <->
three coded parts.

The idea: stretches are encoded many at a time, because with thousands of queues in one segment each
has a dozen messages, and numpy's price is the call. Small ones share a block, since compressed each
by itself they take more room. They are decoded one at a time and lazily: the fixed columns first,
properties and bodies when somebody asks for a message.

Invariants: the exact bytes of every record come back: only records that their columns are known to
give back are taken apart, a block with any other holds its records whole; any bytes decode to a
block or ArchiveDamaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, repeat
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from kvstore.errors import ArchiveDamaged
from kvstore.record.decode import decode
from kvstore.record.layout import CRC_MASK, HOSTS_V6
from kvstore.record.names import COMPRESSED
from kvstore.record.values import StoredMessage
from tiering.archive.coder import Coder
from tiering.archive.columns import Columns, encode_fixed, encode_whole
from tiering.archive.integers import Column, bounds_of
from tiering.archive.layout import (
    BLOCK_BYTES_DEFAULT,
    BLOCK_ROWS_MAX,
    DECODED_MAX,
    NO_QUEUE,
    PARTS,
    PartKind,
)
from tiering.archive.properties import decode_properties, encode_properties
from tiering.archive.records import Fields

_NOT_ORDINARY: Final = HOSTS_V6 | COMPRESSED
_ROW_BYTES: Final = 250
"""About what a row takes in memory beside its body and properties."""


Sizes = tuple[int, int, int]
"""One number a part."""


class BlockSpan(NamedTuple):
    """Which rows of Fields are to be a stretch: held messages of one queue, in the order of their
    offsets. `topic_number` is archive-local, `secret` the topic's key if it is encrypted.
    """

    topic: str
    queue: int
    start: int
    stop: int
    topic_number: int = 0
    secret: bytes | None = None


class EncodedBlock(NamedTuple):
    """A stretch as it is written, and its row of the directory but for topic and place."""

    data: bytes
    """The three parts, one behind the other; empty where it is in the block of the one before."""
    part_sizes: Sizes
    """Of the whole block."""
    decoded_sizes: Sizes
    """Of this stretch alone."""
    begins: Sizes
    """Where in the block's decoded parts the stretch's begin: the sum of the decoded sizes of those
    before it in the same block."""
    messages: int
    raw_bytes: int
    first_offset: int
    last_offset: int
    first_position: int
    last_position: int
    least_stored_at: int
    greatest_stored_at: int


_RAW_BYTES: Final = 1
"""Where `raw_bytes` is among the fields from `messages` on."""


class Payloads(NamedTuple):
    """The decoded parts of a block."""

    fixed: bytes
    properties: bytes
    bodies: bytes


def cut(
    sizes: Column, start: int, stop: int, block_bytes: int = BLOCK_BYTES_DEFAULT
) -> list[tuple[int, int]]:
    """The rows from `start` to `stop` in stretches of at most `block_bytes`, or of one row."""
    ends = np.cumsum(sizes[start:stop])
    if 0 < len(ends) <= BLOCK_ROWS_MAX and ends[-1] <= block_bytes:
        return [(start, stop)]
    found = []
    at, before = 0, 0
    while at < len(ends):
        end = int(np.searchsorted(ends, before + block_bytes, side="right"))
        end = min(max(end, at + 1), at + BLOCK_ROWS_MAX)
        found.append((start + at, start + end))
        at, before = end, int(ends[end - 1])
    return found


def encode_blocks(
    fields: Fields, spans: Sequence[BlockSpan], coder: Coder, *, group_bytes: int = 0
) -> list[EncodedBlock]:
    """The stretches of many queues at once; each span begins where the one before ends.

    Stretches that follow each other share a block of up to `group_bytes` of records, unless they
    are encrypted and of different topics. Give it some megabytes, whatever topics and queues they
    are of: one call a queue costs several times as much where queues are small.
    """
    found = payloads_of(fields, spans)
    rows = _rows_of(fields, spans)
    out: list[EncodedBlock] = []
    at = 0
    while at < len(spans):
        end, size = at + 1, rows[at][_RAW_BYTES]
        while end < len(spans) and _may_share(spans[at], spans[end]):
            size += rows[end][_RAW_BYTES]
            if size > group_bytes:
                break
            end += 1
        out += _encode_block(spans[at], rows[at:end], found[at:end], coder)
        at = end
    return out


def _rows_of(fields: Fields, spans: Sequence[BlockSpan]) -> list[tuple[int, ...]]:
    """The fields of EncodedBlock from `messages` on."""
    if not spans:
        return []
    begin, end = spans[0].start, spans[-1].stop
    first = np.array([span.start for span in spans], np.int64)
    last = np.array([span.stop - 1 for span in spans], np.int64)
    stored_at = fields.stored_at[begin:end]
    columns = (
        last - first + 1,
        np.add.reduceat(fields.sizes[begin:end], first - begin),
        fields.offset[first],
        fields.offset[last],
        fields.position[first],
        fields.position[last],
        np.minimum.reduceat(stored_at, first - begin),
        np.maximum.reduceat(stored_at, first - begin),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _may_share(a: BlockSpan, b: BlockSpan) -> bool:
    """Whether two stretches may be in one block: what is encrypted is so with its topic's key."""
    return a.secret == b.secret and (a.secret is None or a.topic_number == b.topic_number)


def _encode_block(
    span: BlockSpan, rows: list[tuple[int, ...]], payloads: Sequence[Payloads], coder: Coder
) -> list[EncodedBlock]:
    """One block; `span` is its first stretch."""
    parts = [
        coder.encode(
            b"".join([found[kind - 1] for found in payloads]),
            dictionary=coder.codec == "zstd" or kind is PartKind.BODIES,
            thorough=len(payloads) > 1,
            digits=kind is PartKind.BODIES,
            kind=kind,
            topic=span.topic_number if span.secret is not None else 0,
            secret=span.secret,
        )
        for kind in PartKind
    ]
    data = b"".join(parts)
    part_sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    out = []
    begins = (0, 0, 0)
    for row, (fixed, properties, bodies) in zip(rows, payloads, strict=True):
        sizes = (len(fixed), len(properties), len(bodies))
        out.append(EncodedBlock(data, part_sizes, sizes, begins, *row))
        data = b""
        begins = (begins[0] + sizes[0], begins[1] + sizes[1], begins[2] + sizes[2])
    return out


def payloads_of(fields: Fields, spans: Sequence[BlockSpan]) -> list[Payloads]:
    """What the parts of each block are before they are coded."""
    if not spans:
        return []
    if any(a.stop != b.start for a, b in pairwise(spans)) or any(
        not 0 < span.stop - span.start <= BLOCK_ROWS_MAX for span in spans
    ):
        raise ValueError("blocks must follow each other, and have 1 to 65,536 rows")
    fields = fields.part(spans[0].start, spans[-1].stop)
    bounds = bounds_of([span.stop - span.start for span in spans])
    whole = _to_keep_whole(fields, spans, bounds)
    fixed = encode_fixed(fields, bounds)
    properties = encode_properties(fields.property_list, fields.even, bounds, fields.born_at)
    found = []
    begins = bounds.tolist()
    bodies = fields.body_list
    for i, (begin, end) in enumerate(pairwise(begins)):
        if whole[i]:
            records = b"".join(fields.records(begin, end))
            found.append(Payloads(encode_whole(fields, begin, end), b"", records))
        else:
            found.append(Payloads(fixed[i], properties[i], b"".join(bodies[begin:end])))
    return found


def _to_keep_whole(fields: Fields, spans: Sequence[BlockSpan], bounds: Column) -> list[bool]:
    """Which blocks have a record that topic, queue and columns would not give back."""
    queues = np.repeat(np.array([span.queue for span in spans], np.int64), np.diff(bounds))
    # What is in no queue has an offset here that is not the record's.
    odd = ~fields.regular | (fields.queue != queues) | (queues == NO_QUEUE)
    whole: list[bool] = np.logical_or.reduceat(odd, bounds[:-1]).tolist()
    topics = fields.topics()
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        if not whole[i]:
            expected = spans[i].topic.encode("utf-8", "replace")
            whole[i] = topics[begin:end].count(expected) != end - begin
    return whole


def decode_block(
    data: bytes | memoryview,
    part_sizes: Sizes,
    decoded_sizes: Sizes,
    coder: Coder,
    *,
    topic: str,
    queue: int,
    topic_number: int = 0,
    secret: bytes | None = None,
    archive: str = "",
    number: int = -1,
    messages: int | None = None,
) -> Block:
    """The one stretch of a block that is not shared; see BlockSource for the arguments."""
    source = BlockSource(
        data,
        part_sizes,
        decoded_sizes,
        coder,
        topic_number=topic_number,
        secret=secret,
        archive=archive,
        number=number,
    )
    return source.stretch(topic, queue, (0, 0, 0), decoded_sizes, messages)


class BlockSource:
    """A block as it was read. `decoded_sizes` are those of all its stretches together, `archive`
    and `number` are for its errors. Each part is checked and decoded when it is first needed, and
    then kept for all stretches. Any number of threads may use it.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        part_sizes: Sizes,
        decoded_sizes: Sizes,
        coder: Coder,
        *,
        topic_number: int = 0,
        secret: bytes | None = None,
        archive: str = "",
        number: int = -1,
    ) -> None:
        self._data = bytes(data)
        self._part_sizes = part_sizes
        self._decoded_sizes = decoded_sizes
        self._coder = coder
        self._topic_number = topic_number if secret is not None else 0
        self._secret = secret
        self._archive = archive
        self._number = number
        self._payloads: dict[PartKind, bytes] = {}
        self.memory_bytes = sum(decoded_sizes) + len(self._data)

    def stretch(
        self,
        topic: str,
        queue: int,
        begins: Sizes,
        decoded_sizes: Sizes,
        messages: int | None = None,
    ) -> Block:
        """The messages of one queue, whose bytes begin at `begins` of the decoded parts; `messages`
        is how many the directory says there are.

        Decodes the fixed part at once, the others when they are needed. Raises ArchiveDamaged.
        """
        return Block(self, topic, queue, begins, decoded_sizes, messages)

    def payload(self, kind: PartKind, begin: int, size: int) -> bytes:
        """A stretch's bytes of one part. Raises ArchiveDamaged."""
        found = self._payloads.get(kind)
        if found is None:
            found = self._payloads[kind] = self._decode(kind)
        if not 0 <= begin <= begin + size <= len(found):
            raise ArchiveDamaged(f"{size} bytes at {begin} should be in a part of {len(found)}")
        return found if size == len(found) else found[begin : begin + size]

    def _decode(self, kind: PartKind) -> bytes:
        index = kind - 1
        if sum(self._part_sizes) != len(self._data) or min(self._part_sizes) < 0:
            raise ArchiveDamaged(
                f"it has {len(self._data)} bytes instead of {sum(self._part_sizes)}"
            )
        start = sum(self._part_sizes[:index])
        size = self._decoded_sizes[index]
        payload = self._coder.decode(
            self._data[start : start + self._part_sizes[index]],
            size,
            kind=kind,
            topic=self._topic_number,
            secret=self._secret,
        )
        if len(payload) != size:
            raise ArchiveDamaged(f"a part should take {size} bytes, but takes {len(payload)}")
        return payload

    def named(self, error: ArchiveDamaged) -> ArchiveDamaged:
        """The error, saying which block of which archive it is about."""
        where = f"block {self._number} of archive {self._archive}" if self._archive else "a block"
        return ArchiveDamaged(f"{where} is damaged: {error}", self._archive, self._number)


class Block:
    """A stretch: messages of one queue; see the module. Any number of threads may read it."""

    def __init__(
        self,
        source: BlockSource,
        topic: str,
        queue: int,
        begins: Sizes,
        decoded_sizes: Sizes,
        messages: int | None,
    ) -> None:
        self._source = source
        self._begins = begins
        self._decoded_sizes = decoded_sizes
        self.topic = topic
        self.queue = queue
        try:
            self._columns = Columns(self._part(PartKind.FIXED))
            self.count = self._columns.count
            if messages is not None and messages != self.count:
                raise ArchiveDamaged(f"it has {self.count} messages instead of {messages}")
        except ArchiveDamaged as error:
            raise source.named(error) from None
        self.offsets = self._columns.offset
        self.positions = self._columns.position
        self.stored_at = self._columns.stored_at
        self.memory_bytes = sum(decoded_sizes) + self.count * _ROW_BYTES

    def _part(self, kind: PartKind) -> bytes:
        return self._source.payload(kind, self._begins[kind - 1], self._decoded_sizes[kind - 1])

    def check(self) -> None:
        """Decode all parts. Raises ArchiveDamaged."""
        self.records()

    def messages(self, start: int, stop: int, *, check_crc: bool = True) -> list[StoredMessage]:
        """The messages of the rows from `start` to `stop`, as `kvstore.record.decode.decode` gives
        them; raises what it raises, and ArchiveDamaged.
        """
        start, stop = max(start, 0), min(stop, self.count)
        if stop <= start:
            return []
        if not self._is_ordinary:
            positions = self.positions[start:stop].tolist()
            return [
                decode(record, 0, len(record), position, check_crc)
                for record, position in zip(self._records(start, stop), positions, strict=True)
            ]
        c, bodies, rows = self._columns, self._bodies(start, stop), slice(start, stop)
        crcs = np.fromiter(map(crc32, bodies), np.int64, len(bodies)) & CRC_MASK
        born_hosts, store_hosts = c.hosts
        return list(
            map(
                StoredMessage,
                repeat(self.topic, stop - start),
                repeat(self.queue),
                c.offset[rows].tolist(),
                c.position[rows].tolist(),
                self._sizes[rows].tolist(),
                bodies,
                self._properties[rows],
                c.flags[rows].tolist(),
                c.system_flags[rows].tolist(),
                c.born_at[rows].tolist(),
                c.stored_at[rows].tolist(),
                born_hosts[rows],
                store_hosts[rows],
                c.reconsume_times[rows].tolist(),
                c.prepared_position[rows].tolist(),
                crcs.tolist(),
            )
        )

    def record(self, row: int) -> bytes:
        """One record as it was in the log."""
        if not 0 <= row < self.count:
            raise IndexError(f"a block of {self.count} messages has no row {row}")
        return self._records(row, row + 1)[0]

    def records(self) -> list[bytes]:
        """All records as they were in the log."""
        return self._records(0, self.count)

    def _records(self, start: int, stop: int) -> list[bytes]:
        bodies = self._bodies(start, stop)
        if self._columns.is_whole:
            return bodies
        try:
            return self._columns.records(
                start, stop, self.topic, self.queue, bodies, self._properties[start:stop]
            )
        except ArchiveDamaged as error:
            raise self._source.named(error) from None

    @cached_property
    def _is_ordinary(self) -> bool:
        """Whether all messages are ones for which `decode` has its shortcut."""
        c = self._columns
        return (
            not c.is_whole
            and c.body_crc is None
            and not (c.system_flags & _NOT_ORDINARY).any()
            and not (c.version != 1).any()
        )

    @cached_property
    def _payload(self) -> bytes:
        """The bodies part."""
        try:
            payload = self._part(PartKind.BODIES)
            if len(payload) != int(self._columns.ends[-1]):
                raise ArchiveDamaged("the bodies are not as long as their lengths say")
        except ArchiveDamaged as error:
            raise self._source.named(error) from None
        return payload

    def _bodies(self, start: int, stop: int) -> list[bytes]:
        payload = self._payload
        ends = self._columns.ends[start : stop + 1].tolist()
        return [payload[a:b] for a, b in pairwise(ends)]

    @cached_property
    def _properties(self) -> list[bytes]:
        try:
            payload = self._part(PartKind.PROPERTIES)
            return decode_properties(payload, self.count, self._columns.born_at, DECODED_MAX)
        except ArchiveDamaged as error:
            raise self._source.named(error) from None

    @cached_property
    def _sizes(self) -> Column:
        """Of whole records."""
        return self._columns.record_sizes(self.topic, self._properties)


assert len(PartKind) == PARTS
