"""Block: reading a *group*, which is one block or several small ones, and the blocks in it.

The idea: a block is consecutive messages of one queue. It is alone in its group, or shares the
group with blocks of other queues that have few messages each. A group is three coded parts, which
are decoded for all its blocks at once and lazily: the fixed columns first, properties and bodies
when a message is asked for. A block is then some rows of a group, and costs next to nothing.

Invariants: any bytes decode to a group or raise ArchiveDamaged; a block that shares its group keeps
only its own rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage, decode
from kvstore.errors import ArchiveDamaged
from kvstore.record.compression import decompress
from kvstore.record.layout import CRC_MASK
from tiering.archive.coder import Coder
from tiering.archive.columns.header_codec import decode_headers
from tiering.archive.columns.header_fields import HeaderColumns, OffsetRanges, Owners
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import (
    PropertyColumns,
    decode_properties,
    shapes_part,
)
from tiering.archive.columns.text_columns import Joined, join_values
from tiering.archive.layout import PARTS, PartKind, Sizes

_ROW_BYTES: Final = 250
"""About what a row takes in memory beside its body and properties."""


class GroupBlocks(NamedTuple):
    """The blocks of a group, as the directory has them."""

    topics: list[str]
    queues: list[int]
    ranges: OffsetRanges


class BlockGroup:
    """A group as it was read; each of its blocks costs next to nothing.

    `decoded_sizes` are those of its parts. `archive` and `number` (of the first block) are named in
    its errors. Each part is checked and decoded when it is first needed; columns, fields of
    properties and bodies are then kept. Where `bodies` reads the last part, `data` is without that
    part. Any number of threads may use a group.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        part_sizes: Sizes,
        decoded_sizes: Sizes,
        coder: Coder,
        blocks: GroupBlocks,
        *,
        topic_number: int = 0,
        secret: bytes | None = None,
        archive: str = "",
        number: int = -1,
        bodies: Callable[[], bytes] | None = None,
    ) -> None:
        self._data = bytes(data)
        self._read_bodies = bodies
        self._part_sizes = part_sizes
        self.decoded_sizes = decoded_sizes
        self._coder = coder
        self.members = blocks
        self._topic_number = topic_number if secret is not None else 0
        self._secret = secret
        self.archive = archive
        self.number = number
        self._columns: HeaderColumns | None = None
        self._properties: list[bytes] | None = None
        self._property_columns: PropertyColumns | None = None
        """Set if the group was read with others (`read_columns`)."""
        self._payload: bytes | None = None
        self._begins: list[int] = [0, *accumulate(blocks.ranges.counts.tolist())]
        self._text_bytes = sum(decoded_sizes)
        self.memory_bytes = self._text_bytes + len(self._data) + self.count * _ROW_BYTES

    @property
    def count(self) -> int:
        """The messages of all blocks."""
        return self._begins[-1]

    @property
    def blocks(self) -> int:
        """The number of blocks that share the group."""
        return len(self._begins) - 1

    def __contains__(self, number: int) -> bool:
        """Whether the block of that number is in the group."""
        return 0 <= number - self.number < self.blocks

    def rows_of(self, number: int) -> slice:
        """The rows of a block, given the block's number in the archive."""
        at = number - self.number
        return slice(self._begins[at], self._begins[at + 1])

    def block(self, index: int) -> Block:
        """One block, by its place in the group. This decodes the fixed part. Where blocks share the
        group it decodes all parts, so that the block then takes only its own share of memory.
        Raises ArchiveDamaged.
        """
        topic, queue = self.members.topics[index], self.members.queues[index]
        columns = self.columns
        if self.blocks == 1:
            return Block(self, topic, queue, columns, self._text_bytes)
        begin, end = self._begins[index], self._begins[index + 1]
        ends = columns.ends
        properties = [] if columns.is_whole else self.properties[begin:end]
        if columns.is_ordinary and columns.sizes is None:
            # Worked out once for all blocks of the group.
            self.record_sizes()
            columns.hosts  # noqa: B018 -- kept for all as well
        bodies = self.bodies[int(ends[begin]) : int(ends[end])]
        size = len(bodies) + sum(map(len, properties))
        block = Block(self, topic, queue, columns.part(begin, end), size)
        block.detach(properties, bodies)
        return block

    def check(self) -> None:
        """Decodes all parts, needed or not. Raises ArchiveDamaged."""
        with self._located():
            for kind in PartKind:
                self._decode(kind)

    def records(self) -> Joined:
        """The records of all blocks, as they were in the log. Raises ArchiveDamaged."""
        columns = self.columns
        bodies = Joined(self.bodies, columns.ends)
        if columns.is_whole:
            return bodies
        with self._located():
            return columns.records(0, self.count, self._owners, bodies, self._fields)

    def record_sizes(self) -> Column:
        """The sizes of the records of all blocks; bodies are not read for that."""
        columns = self.columns
        if columns.is_whole:
            sizes: Column = np.diff(columns.ends)
            return sizes
        return columns.record_sizes(self._owners, np.diff(self._fields.bounds))

    @property
    def _owners(self) -> Owners:
        counts = self.members.ranges.counts
        names = [topic.encode() for topic in self.members.topics]
        queues = np.array(self.members.queues, np.int64)
        return Owners(names, np.repeat(np.arange(len(names)), counts), np.repeat(queues, counts))

    @property
    def columns(self) -> HeaderColumns:
        """The fixed head fields of all messages. Raises ArchiveDamaged."""
        found = self._columns
        if found is None:
            with self._located():
                payload = self._decode(PartKind.FIXED)
                (found,) = decode_headers([payload], [self.members.ranges])
            self._columns = found
        return found

    @property
    def bodies(self) -> bytes:
        """The bodies of all messages, or whole records. Raises ArchiveDamaged."""
        found = self._payload
        if found is None:
            with self._located():
                found = self._decode(PartKind.BODIES)
                if len(found) != int(self.columns.ends[-1]):
                    raise ArchiveDamaged("the bodies are not as long as their lengths say")
            self._payload = found
        return found

    @property
    def properties(self) -> list[bytes]:
        """The properties of all messages. Raises ArchiveDamaged."""
        found = self._properties
        if found is None:
            found = self._properties = self._fields.values()
        return found

    @cached_property
    def _fields(self) -> Joined:
        return self.property_columns().fields()

    def property_columns(self) -> PropertyColumns:
        """The properties of all messages in columns, not put together to fields. The group may not
        hold whole records. Raises ArchiveDamaged.
        """
        if self._property_columns is not None:
            return self._property_columns
        with self._located():
            payload = self._decode(PartKind.PROPERTIES)
            return decode_properties([payload], [self.columns.born_at])[0]

    def _decode(self, kind: PartKind) -> bytes:
        index, later = kind - 1, self._read_bodies
        whole = sum(self._part_sizes if later is None else self._part_sizes[:-1])
        if whole != len(self._data) or min(self._part_sizes) < 0:
            raise ArchiveDamaged(f"it has {len(self._data)} bytes instead of {whole}")
        start = sum(self._part_sizes[:index])
        size = self.decoded_sizes[index]
        part = memoryview(self._data)[start : start + self._part_sizes[index]]
        payload = self._coder.decode(
            later() if later is not None and kind is PartKind.BODIES else part,
            size,
            kind=kind,
            topic=self._topic_number,
            secret=self._secret,
        )
        if len(payload) != size:
            raise ArchiveDamaged(f"a part should take {size} bytes, but takes {len(payload)}")
        return payload

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Adds to an error the archive and the blocks that it is about."""
        try:
            yield
        except ArchiveDamaged as error:
            if error.archive:
                raise
            where = "a block is"
            if self.archive and self.blocks == 1:
                where = f"block {self.number} of archive {self.archive} is"
            elif self.archive:
                last = self.number + self.blocks - 1
                where = f"blocks {self.number} to {last} of archive {self.archive} are"
            text = f"{where} damaged: {error}"
            raise ArchiveDamaged(text, self.archive, self.number) from None


def read_columns(groups: Sequence[BlockGroup], *, properties: bool = False) -> None:
    """Decodes the fixed head fields of all messages of several groups, and their properties if
    asked for. This is faster than one group after the other. A group that can't be decoded with the
    others is decoded, or raises its error, when its columns are asked for.
    """
    if len(groups) == 1:
        return
    try:
        payloads = [group._decode(PartKind.FIXED) for group in groups]
        columns = decode_headers(payloads, [group.members.ranges for group in groups])
    except ArchiveDamaged:
        return
    for group, found in zip(groups, columns, strict=True):
        group._columns = found
    if properties and not columns[0].is_whole:
        _read_properties(groups)


def _read_properties(groups: Sequence[BlockGroup]) -> None:
    """Decodes the properties of groups; those with the same shapes together."""
    alike: dict[bytes, list[tuple[BlockGroup, bytes]]] = {}
    for group in groups:
        with suppress(ArchiveDamaged):
            payload = group._decode(PartKind.PROPERTIES)
            alike.setdefault(shapes_part(payload, group.count), []).append((group, payload))
    for some in alike.values():
        with suppress(ArchiveDamaged):
            born = [group.columns.born_at for group, _ in some]
            each = decode_properties([payload for _, payload in some], born)
            for (group, _), found in zip(some, each, strict=True):
                group._property_columns = found


class Block:
    """Messages of one queue; see the module. Any number of threads may read it."""

    def __init__(
        self, group: BlockGroup, topic: str, queue: int, columns: HeaderColumns, text_bytes: int
    ) -> None:
        self._group: BlockGroup | None = group
        self._where = group.archive, group.number
        self._columns = columns
        self.topic = topic
        self.queue = queue
        self.count = columns.count
        self.offsets = columns.offset
        self.positions = columns.position
        self.stored_at = columns.stored_at
        self.memory_bytes = text_bytes + self.count * _ROW_BYTES
        self._texts: tuple[list[bytes], bytes] | None = None

    def detach(self, properties: list[bytes], bodies: bytes) -> None:
        """Gives the block its own rows of properties and bodies; it holds its group no longer."""
        self._texts = properties, bodies
        self._group = None

    def messages(self, start: int, stop: int, *, check_crc: bool = True) -> list[StoredMessage]:
        """The messages of the rows from `start` to `stop`, as `kvstore.core.messages.decode`
        gives them. Raises the errors of `decode`, and ArchiveDamaged.
        """
        start, stop = max(start, 0), min(stop, self.count)
        if stop <= start:
            return []
        if not self._columns.is_ordinary:
            positions = self.positions[start:stop].tolist()
            return [
                decode(record, 0, len(record), position, check_crc, decompress)
                for record, position in zip(self._records(start, stop), positions, strict=True)
            ]
        c, bodies, rows = self._columns, self._bodies(start, stop), slice(start, stop)
        crcs = np.fromiter(map(crc32, bodies), np.int64, len(bodies)) & CRC_MASK
        born_hosts, store_hosts = c.hosts
        properties = self._properties
        sizes = c.sizes
        if sizes is None:
            lengths = np.fromiter(map(len, properties), np.int64, self.count)
            sizes = c.record_sizes(self._owners(self.count), lengths)
        return list(
            map(
                StoredMessage,
                repeat(self.topic, stop - start),
                repeat(self.queue),
                c.offset[rows].tolist(),
                c.position[rows].tolist(),
                sizes[rows].tolist(),
                bodies,
                properties[rows],
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
        properties = self._properties[start:stop]
        try:
            return self._columns.records(
                start,
                stop,
                self._owners(stop - start),
                join_values(bodies),
                join_values(properties),
            ).values()
        except ArchiveDamaged as error:
            archive, number = self._where
            raise ArchiveDamaged(f"a block is damaged: {error}", archive, number) from None

    def _owners(self, rows: int) -> Owners:
        return Owners([self.topic.encode()], np.zeros(rows, np.int64), np.full(rows, self.queue))

    def _bodies(self, start: int, stop: int) -> list[bytes]:
        texts, group = self._texts, self._group
        if texts is None:
            assert group is not None, "a block has its group, or its own rows"
            payload = group.bodies
        else:
            payload = texts[1]
        ends = self._columns.ends[start : stop + 1].tolist()
        return [payload[a:b] for a, b in pairwise(ends)]

    @property
    def _properties(self) -> list[bytes]:
        texts, group = self._texts, self._group
        if texts is None:
            assert group is not None, "a block has its group, or its own rows"
            return group.properties
        return texts[0]


assert len(PartKind) == PARTS
