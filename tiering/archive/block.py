"""Block: consecutive messages of one queue <-> three coded parts.

The idea: blocks are encoded many at a time, because with thousands of queues in one segment a block
has a dozen messages, and numpy's price is the call. They are decoded one at a time and lazily: the
fixed columns first, properties and bodies when somebody asks for a message.

Invariants: the exact bytes of every record come back: only records that their columns are known to
give back are taken apart, a block with any other holds its records whole; any bytes decode to a
block or ArchiveDamaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
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
    PARTS,
    PartKind,
)
from tiering.archive.properties import decode_properties, encode_properties
from tiering.archive.records import Fields

_NOT_ORDINARY: Final = HOSTS_V6 | COMPRESSED
_ROW_BYTES: Final = 250
"""About what a row takes in memory beside its body and properties."""


class BlockSpan(NamedTuple):
    """Which rows of Fields are to be a block: held messages of one queue, in the order of their
    offsets. `topic_number` is archive-local, `secret` the topic's key if it is encrypted.
    """

    topic: str
    queue: int
    start: int
    stop: int
    topic_number: int = 0
    secret: bytes | None = None


class EncodedBlock(NamedTuple):
    """A block as it is written, and its row of the directory but for topic and place."""

    data: bytes
    """The three parts, one behind the other."""
    part_sizes: tuple[int, int, int]
    decoded_sizes: tuple[int, int, int]
    messages: int
    raw_bytes: int
    first_offset: int
    last_offset: int
    first_position: int
    last_position: int
    least_stored_at: int
    greatest_stored_at: int


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
    found = []
    at, before = 0, 0
    while at < len(ends):
        end = int(np.searchsorted(ends, before + block_bytes, side="right"))
        end = min(max(end, at + 1), at + BLOCK_ROWS_MAX)
        found.append((start + at, start + end))
        at, before = end, int(ends[end - 1])
    return found


def encode_blocks(fields: Fields, spans: Sequence[BlockSpan], coder: Coder) -> list[EncodedBlock]:
    """The blocks of many queues at once; each span begins where the one before ends.

    Give it some megabytes, whatever topics and queues they are of: one call a queue costs several
    times as much where queues are small.
    """
    out = []
    for span, payloads in zip(spans, payloads_of(fields, spans), strict=True):
        parts = [
            coder.encode(
                payload,
                dictionary=coder.codec == "zstd" or kind is PartKind.BODIES,
                kind=kind,
                topic=span.topic_number,
                secret=span.secret,
            )
            for kind, payload in zip(PartKind, payloads, strict=True)
        ]
        first, last = span.start, span.stop - 1
        stored_at = fields.stored_at[span.start : span.stop]
        out.append(
            EncodedBlock(
                data=b"".join(parts),
                part_sizes=(len(parts[0]), len(parts[1]), len(parts[2])),
                decoded_sizes=(len(payloads[0]), len(payloads[1]), len(payloads[2])),
                messages=span.stop - span.start,
                raw_bytes=int(fields.sizes[span.start : span.stop].sum()),
                first_offset=int(fields.offset[first]),
                last_offset=int(fields.offset[last]),
                first_position=int(fields.position[first]),
                last_position=int(fields.position[last]),
                least_stored_at=int(stored_at.min()),
                greatest_stored_at=int(stored_at.max()),
            )
        )
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
    properties = encode_properties(fields.property_list, bounds, fields.born_at)
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
    odd = ~fields.regular | (fields.queue != queues)
    whole: list[bool] = np.logical_or.reduceat(odd, bounds[:-1]).tolist()
    topics = fields.topics()
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        if not whole[i]:
            expected = spans[i].topic.encode("utf-8", "replace")
            whole[i] = topics[begin:end].count(expected) != end - begin
    return whole


def decode_block(
    data: bytes | memoryview,
    part_sizes: tuple[int, int, int],
    decoded_sizes: tuple[int, int, int],
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
    """A block from its three parts; `archive` and `number` are for its errors, `messages` is how
    many the directory says it has.

    Decodes, and so checks, the fixed part at once, the others when they are needed. Raises
    ArchiveDamaged.
    """
    source = _Source(
        bytes(data), part_sizes, decoded_sizes, coder, topic_number, secret, archive, number
    )
    return Block(source, topic, queue, messages)


class _Source(NamedTuple):
    """Where a block's parts come from."""

    data: bytes
    part_sizes: tuple[int, int, int]
    decoded_sizes: tuple[int, int, int]
    coder: Coder
    topic_number: int
    secret: bytes | None
    archive: str
    number: int

    def payload(self, kind: PartKind) -> bytes:
        """One part, decoded. Raises ArchiveDamaged."""
        index = kind - 1
        if sum(self.part_sizes) != len(self.data) or min(self.part_sizes) < 0:
            raise ArchiveDamaged(f"a block has {len(self.data)} bytes, not {sum(self.part_sizes)}")
        start = sum(self.part_sizes[:index])
        size = self.decoded_sizes[index]
        payload = self.coder.decode(
            self.data[start : start + self.part_sizes[index]],
            size,
            kind=kind,
            topic=self.topic_number,
            secret=self.secret,
        )
        if len(payload) != size:
            raise ArchiveDamaged(f"a part should take {size} bytes, but takes {len(payload)}")
        return payload

    def named(self, error: ArchiveDamaged) -> ArchiveDamaged:
        """The error, saying which block of which archive it is about."""
        where = f"block {self.number} of archive {self.archive}" if self.archive else "a block"
        return ArchiveDamaged(f"{where} is damaged: {error}", self.archive, self.number)


class Block:
    """Messages of one queue; see the module. Any number of threads may read it."""

    def __init__(self, source: _Source, topic: str, queue: int, messages: int | None) -> None:
        self._source = source
        self.topic = topic
        self.queue = queue
        try:
            self._columns = Columns(source.payload(PartKind.FIXED))
            self.count = self._columns.count
            if messages is not None and messages != self.count:
                raise ArchiveDamaged(f"it has {self.count} messages instead of {messages}")
        except ArchiveDamaged as error:
            raise source.named(error) from None
        self.offsets = self._columns.offset
        self.positions = self._columns.position
        self.stored_at = self._columns.stored_at
        self.memory_bytes = sum(source.decoded_sizes) + len(source.data) + self.count * _ROW_BYTES

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
        c, bodies, properties = self._columns, self._bodies(start, stop), self._properties
        topic, queue = self.topic, self.queue
        born_hosts, store_hosts = c.hosts
        return [
            StoredMessage(
                topic, queue, offset, position, size, body, raw_properties, flags, system_flags,
                born_at, stored_at, born_host, store_host, reconsume_times, prepared,
                crc32(body) & CRC_MASK,
            )
            for (
                offset, position, size, body, raw_properties, flags, system_flags, born_at,
                stored_at, born_host, store_host, reconsume_times, prepared,
            ) in zip(
                c.offset[start:stop].tolist(),
                c.position[start:stop].tolist(),
                self._sizes[start:stop].tolist(),
                bodies,
                properties[start:stop],
                c.flags[start:stop].tolist(),
                c.system_flags[start:stop].tolist(),
                c.born_at[start:stop].tolist(),
                c.stored_at[start:stop].tolist(),
                born_hosts[start:stop],
                store_hosts[start:stop],
                c.reconsume_times[start:stop].tolist(),
                c.prepared_position[start:stop].tolist(),
                strict=True,
            )
        ]  # fmt: skip

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
            payload = self._source.payload(PartKind.BODIES)
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
            payload = self._source.payload(PartKind.PROPERTIES)
            return decode_properties(payload, self.count, self._columns.born_at, DECODED_MAX)
        except ArchiveDamaged as error:
            raise self._source.named(error) from None

    @cached_property
    def _sizes(self) -> Column:
        """Of whole records."""
        return self._columns.record_sizes(self.topic, self._properties)


assert len(PartKind) == PARTS
