"""Block: reading a *group*, which is one block or several small ones, and the blocks in it.

The idea: a block is consecutive messages of one queue. It is alone in its group, or shares the
group with blocks of other queues that have few messages each. A group is three coded parts, which
are decoded for all its blocks at once and lazily: the fixed columns first, properties and bodies
when a message is asked for. Then all are joined into records, as they were in the log, and messages
are decoded from these as the log's are. So a block is some records of a group, and costs next to
nothing.

Invariants: any bytes decode to a group or raise ArchiveDamaged; a block that shares its group keeps
only its own rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from kvstore.core.messages import StoredMessage, decode_rows
from kvstore.errors import ArchiveDamaged
from kvstore.record.compression import decompress
from tiering.archive.coder import Coder
from tiering.archive.columns.header_codec import decode_headers
from tiering.archive.columns.header_fields import HeaderColumns, OffsetRanges
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import PropertyColumns, decode_properties
from tiering.archive.columns.text_columns import Joined, join_values
from tiering.archive.layout import DECODED_MAX, PARTS, PartKind, Sizes

_ROW_BYTES: Final = 250
"""About what a row takes in memory beside its body and properties, as columns and in a record."""


class GroupBlocks(NamedTuple):
    """The blocks of a group, as the directory has them."""

    topics: list[str]
    queues: list[int]
    ranges: OffsetRanges


class GroupOrigin(NamedTuple):
    """The origin of a group, for its errors and its decryption: the archive, the number of the
    first block, the topic's number, which is authenticated, and the topic's secret.
    """

    archive: str = ""
    number: int = -1
    topic_number: int = 0
    secret: bytes | None = None


class _JoinedBlocks(NamedTuple):
    """The records of a group that blocks share, cut into these when they are asked for; of a block
    that is alone, no records. The rest is as in `Block`.
    """

    data: bytes
    bounds: Column
    places: Column
    may_lie: bool


_NO_ORIGIN: Final = GroupOrigin()


class BlockGroup:
    """A group as it was read; each of its blocks costs next to nothing.

    `decoded_sizes` are those of its parts. Each part is checked and decoded when it is first
    needed; columns and bodies are then kept, or, where blocks share the group, records instead of
    bodies. Where `bodies` reads the last part, `data` is without that part. Any number of threads
    may use a group.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        part_sizes: Sizes,
        decoded_sizes: Sizes,
        coder: Coder,
        blocks: GroupBlocks,
        origin: GroupOrigin = _NO_ORIGIN,
        *,
        bodies: Callable[[], bytes] | None = None,
    ) -> None:
        self._data = bytes(data)
        self._read_bodies = bodies
        self._part_sizes = part_sizes
        self.decoded_sizes = decoded_sizes
        self._coder = coder
        self.members = blocks
        self._origin = origin
        self.number = origin.number
        self._columns: HeaderColumns | None = None
        self._payload: bytes | None = None
        self._joined: _JoinedBlocks | None = None
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
        data, bounds, places, may_lie = self._joined or self._join()
        topic, queue = self.members.topics[index], self.members.queues[index]
        if self.blocks == 1:
            return Block(topic, queue, places, self, may_lie, self._text_bytes)
        begin, end = self._begins[index], self._begins[index + 1]
        some = data[bounds[begin] : bounds[end]]
        mine = Joined(some, bounds[begin : end + 1].copy())
        return Block(topic, queue, places[:, begin:end].copy(), mine, may_lie, len(some))

    def _join(self) -> _JoinedBlocks:
        columns = self.columns
        may_lie = columns.is_whole or columns.body_crc is not None
        if self.blocks == 1:
            return _JoinedBlocks(b"", columns.ends, columns.places, may_lie)
        self._joined = _JoinedBlocks(*self.records(), columns.places, may_lie)
        return self._joined

    def check(self) -> None:
        """Decodes all parts, needed or not. Raises ArchiveDamaged."""
        with self._located():
            for kind in PartKind:
                self.decoded(kind)

    def records(self) -> Joined:
        """The records of all blocks, as they were in the log. Raises ArchiveDamaged."""
        columns = self.columns
        if columns.is_whole:
            return Joined(self.bodies, columns.ends)
        properties = self.property_columns().fields()
        bodies, self._payload = self.bodies, None  # the records have them
        topics = join_values([topic.encode() for topic in self.members.topics])
        with self._located():
            return columns.records(topics, self._topic_of, bodies, properties)

    def record_sizes(self) -> Column:
        """The sizes of the records of all blocks; bodies are not read for that."""
        columns = self.columns
        if columns.is_whole:
            sizes: Column = np.diff(columns.ends)
            return sizes
        fields = self.property_columns().fields()
        names = [len(topic.encode()) for topic in self.members.topics]
        return columns.record_sizes(np.array(names)[self._topic_of], np.diff(fields.bounds))

    @property
    def _topic_of(self) -> Column:
        counts = self.members.ranges.counts
        return np.arange(len(counts)).repeat(counts)

    @property
    def columns(self) -> HeaderColumns:
        """The fixed head fields of all messages. Raises ArchiveDamaged."""
        found = self._columns
        if found is None:
            with self._located():
                payload = self.decoded(PartKind.FIXED)
                queues = np.array(self.members.queues, np.int64)
                found = decode_headers(payload, queues, self.members.ranges)
            self._columns = found
        return found

    @property
    def bodies(self) -> bytes:
        """The bodies of all messages, or whole records. Raises ArchiveDamaged."""
        found = self._payload
        if found is None:
            with self._located():
                found = self.decoded(PartKind.BODIES)
                if len(found) != int(self.columns.ends[-1]):
                    raise ArchiveDamaged("the bodies are not as long as their lengths say")
            self._payload = found
        return found

    def property_columns(self) -> PropertyColumns:
        """The properties of all messages in columns, not put together to fields. The group may not
        hold whole records. Raises ArchiveDamaged.
        """
        with self._located():
            payload = self.decoded(PartKind.PROPERTIES)
            return decode_properties(payload, self.columns.born_at, DECODED_MAX)

    def decoded(self, kind: PartKind) -> bytes:
        """A part of the group as it was before it was encoded. Raises ArchiveDamaged."""
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
            topic=self._origin.topic_number if self._origin.secret is not None else 0,
            secret=self._origin.secret,
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
            where, archive = "a block is", self._origin.archive
            if archive and self.blocks == 1:
                where = f"block {self.number} of archive {archive} is"
            elif archive:
                last = self.number + self.blocks - 1
                where = f"blocks {self.number} to {last} of archive {archive} are"
            text = f"{where} damaged: {error}"
            raise ArchiveDamaged(text, archive, self.number) from None


class Block:
    """Messages of one queue; see the module. Any number of threads may read it.

    `places` has three rows: offsets, positions, store times. `source` has the records, or is the
    group whose records they are, which is decoded when one is asked for. `may_lie`: a record's CRC
    may not be that of its body.
    """

    def __init__(
        self, topic: str, queue: int, places: Column, source: Joined | BlockGroup, may_lie: bool,
        text_bytes: int,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.queue = queue
        self.count = places.shape[1]
        self._places = places
        self._source = source
        self._may_lie = may_lie
        self.memory_bytes = text_bytes + self.count * _ROW_BYTES

    @property
    def offsets(self) -> Column:
        """The offsets of all messages."""
        found: Column = self._places[0]
        return found

    @property
    def positions(self) -> Column:
        """Their log positions."""
        found: Column = self._places[1]
        return found

    @property
    def stored_at(self) -> Column:
        """Their store times."""
        found: Column = self._places[2]
        return found

    def messages(self, start: int, stop: int, *, check_crc: bool = True) -> list[StoredMessage]:
        """The messages of the rows from `start` to `stop`, as `kvstore.core.messages.decode`
        gives them. Raises the errors of `decode`, and ArchiveDamaged.
        """
        start, stop = max(start, 0), min(stop, self.count)
        if stop <= start:
            return []
        data, bounds = self._joined()
        is_checked = check_crc and self._may_lie
        return decode_rows(data, bounds, self._places[1], start, stop, is_checked, decompress)

    def record(self, row: int) -> bytes:
        """One record as it was in the log."""
        if not 0 <= row < self.count:
            raise IndexError(f"a block of {self.count} messages has no row {row}")
        data, bounds = self._joined()
        return data[bounds[row] - bounds[0] : bounds[row + 1] - bounds[0]]

    def records(self) -> list[bytes]:
        """All records as they were in the log."""
        data, bounds = self._joined()
        return Joined(data, bounds - bounds[0]).values()

    def _joined(self) -> Joined:
        """The records; the bounds are those in the group."""
        found = self._source
        if isinstance(found, BlockGroup):
            # Then the group is held no longer.
            found = self._source = found.records()
        return found


assert len(PartKind) == PARTS
