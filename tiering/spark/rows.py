"""Rows: groups of archives, and records of the hot log, as columns to make batches of.

The idea: three kinds. An ordinary group has its columns already; so have records of the log, taken
apart with numpy. What is out of the ordinary (compressed bodies, IPv6 hosts, records that a group
holds whole) is decoded message by message, and its fields put in columns.

Invariant: whichever kind it is, the same messages give the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from kvstore.record.decode import decode
from kvstore.record.layout import CRC_MASK, NOT_ORDINARY
from kvstore.record.names import COMPRESSED
from tiering.archive.block import BlockGroup
from tiering.archive.integers import Column, bounds_of
from tiering.archive.properties import PropertyColumns, fields_of
from tiering.archive.records import Fields, RecordBatch
from tiering.spark.arrow import Rows

_TOPIC_ROWS: Final = 64
"""Records of one topic that are worth columns of their own."""


def of_group(group: BlockGroup) -> Rows:
    """All messages of a group. Raises ArchiveDamaged, RecordDamaged."""
    columns = group.columns
    if columns.is_ordinary:
        return GroupRows(group)
    return MessageRows(group.records(), columns.position.tolist())


def of_records(batch: RecordBatch, base: int) -> Iterator[Rows]:
    """Records of the log, of the segment that begins at `base`. Raises RecordDamaged."""
    fields = Fields(batch)
    ordinary = fields.regular & (fields.version == 1) & ~fields.wrong_crcs()
    ordinary &= (fields.system_flags & NOT_ORDINARY) == 0
    ordinary &= fields.position == batch.starts + base
    odd = np.flatnonzero(~ordinary)
    if len(odd):
        some = batch._replace(starts=batch.starts[odd], sizes=batch.sizes[odd])
        yield MessageRows(some.records(), (some.starts + base).tolist())
    names = fields.topics()
    by_topic: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(ordinary).tolist():
        by_topic.setdefault(names[row], []).append(row)
    few: list[int] = []
    for rows in by_topic.values():
        if len(rows) < _TOPIC_ROWS:
            few += rows
        else:
            yield RecordRows(batch, rows)
    if few:
        yield RecordRows(batch, sorted(few))


class GroupRows:
    """An ordinary group of an archive."""

    def __init__(self, group: BlockGroup) -> None:
        c = group.columns
        self._group = group
        members = group.members
        counts = members.stretches.counts
        self.count: int = group.count
        self.topics: Sequence[str] = members.topics
        self.topic_of: Column = np.repeat(np.arange(len(counts)), counts)
        self.queue: Column = np.repeat(np.array(members.queues, np.int64), counts)
        self.offset, self.position, self.stored_at = c.offset, c.position, c.stored_at
        self.born_at, self.flags, self.system_flags = c.born_at, c.flags, c.system_flags
        self.reconsume_times, self.version = c.reconsume_times, c.version
        self.prepared_position = c.prepared_position

    @property
    def hosts(self) -> tuple[list[bytes], list[bytes]]:
        """See Rows."""
        return self._group.columns.hosts

    @cached_property
    def _properties(self) -> PropertyColumns:
        return self._group.property_columns()

    def property_columns(self) -> PropertyColumns:
        """See Rows."""
        return self._properties

    def fields(self) -> list[bytes]:
        """See Rows."""
        return fields_of(self._properties)

    def bodies(self) -> tuple[bytes, Column]:
        """See Rows."""
        return self._group.bodies, self._group.columns.ends

    def stored_bodies(self) -> None:
        """See Rows: ordinary bodies are stored as they were put."""

    def wrong_crcs(self) -> None:
        """See Rows: in an ordinary group they are the bodies'."""


class RecordRows:
    """Ordinary records of the log, of any topics."""

    def __init__(self, batch: RecordBatch, rows: Sequence[int]) -> None:
        at = np.array(rows, np.int64)
        some = batch._replace(starts=batch.starts[at], sizes=batch.sizes[at])
        f = self._fields = Fields(some)
        self.count = f.count
        self.topics, self.topic_of = _numbered([name.decode() for name in f.topics()])
        self.queue, self.offset, self.position = f.queue, f.offset, f.position
        self.born_at, self.stored_at = f.born_at, f.stored_at
        self.flags, self.system_flags, self.version = f.flags, f.system_flags, f.version
        self.reconsume_times, self.prepared_position = f.reconsume_times, f.prepared_position

    @cached_property
    def hosts(self) -> tuple[list[bytes], list[bytes]]:
        """See Rows."""
        found = (self._fields.born_host, self._fields.store_host)
        born, store = (
            [host.to_bytes(8, "big", signed=True) for host in column.tolist()] for column in found
        )
        return born, store

    def property_columns(self) -> PropertyColumns | None:
        """See Rows."""
        even = self._fields.even
        if even is None:
            return None
        return PropertyColumns([even.shape], np.zeros(self.count, np.int64), even.columns)

    def fields(self) -> list[bytes]:
        """See Rows."""
        return self._fields.property_list

    def bodies(self) -> tuple[bytes, Column]:
        """See Rows."""
        return b"".join(self._fields.body_list), bounds_of(self._fields.body_size)

    def stored_bodies(self) -> None:
        """See Rows."""

    def wrong_crcs(self) -> None:
        """See Rows."""


class MessageRows:
    """Records of any kind, decoded one by one. Raises RecordDamaged."""

    def __init__(self, records: Sequence[bytes], positions: Sequence[int]) -> None:
        # A body CRC that is wrong is kept as it is: then the record was put so.
        self._messages = [
            decode(record, 0, len(record), position, check_crc=False)
            for record, position in zip(records, positions, strict=True)
        ]
        self._stored: list[bytes | None] | None = None
        if any(one.system_flags & COMPRESSED for one in self._messages):
            stored = [
                decode(record, 0, len(record), position, check_crc=False, raw_body=True).body
                for record, position in zip(records, positions, strict=True)
            ]
            self._stored = [
                None if body == one.body else body
                for body, one in zip(stored, self._messages, strict=True)
            ]
        self.count = len(self._messages)
        self.topics, self.topic_of = _numbered([one.topic for one in self._messages])
        self.queue = self._column("queue")
        self.offset, self.position = self._column("offset"), self._column("position")
        self.born_at, self.stored_at = self._column("born_at"), self._column("stored_at")
        self.flags, self.system_flags = self._column("flags"), self._column("system_flags")
        self.reconsume_times = self._column("reconsume_times")
        self.prepared_position = self._column("prepared_position")
        self.version = self._column("version")

    def _column(self, name: str) -> Column:
        return np.array([getattr(one, name) for one in self._messages], np.int64)

    @property
    def hosts(self) -> tuple[list[bytes], list[bytes]]:
        """See Rows."""
        born = [one.raw_born_host for one in self._messages]
        return born, [one.raw_store_host for one in self._messages]

    def property_columns(self) -> None:
        """See Rows."""

    def fields(self) -> list[bytes]:
        """See Rows."""
        return [one.raw_properties for one in self._messages]

    def bodies(self) -> tuple[bytes, Column]:
        """See Rows."""
        bodies = [one.body for one in self._messages]
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        return b"".join(bodies), bounds_of(sizes)

    def stored_bodies(self) -> list[bytes | None] | None:
        """See Rows."""
        return self._stored

    def wrong_crcs(self) -> list[int | None] | None:
        """See Rows."""
        stored = self._stored or [None] * self.count
        found = [
            None if crc32(one.body if body is None else body) & CRC_MASK == one.body_crc
            else one.body_crc
            for one, body in zip(self._messages, stored, strict=True)
        ]  # fmt: skip
        return found if any(crc is not None for crc in found) else None


def _numbered(topics: Sequence[str]) -> tuple[Sequence[str], Column]:
    """The topics once each, and which of them a row has."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(topics))}
    return list(numbers), np.fromiter(map(numbers.__getitem__, topics), np.int64, len(topics))
