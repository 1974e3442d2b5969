"""Rows: groups of archives, and records of the hot log, as columns to make batches of.

The idea: there are three kinds. Ordinary groups have their columns already, and several are laid
side by side (a numpy call takes as long for few rows as for many). Records of the log are taken
apart with numpy into columns, too. A group or record out of the ordinary (compressed bodies, IPv6
hosts, records that a group holds whole) is decoded message by message, and its fields put in
columns.

Invariant: whichever kind it is, the same messages give the same batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import decode
from kvstore.core.names import COMPRESSED
from kvstore.record.compression import decompress
from kvstore.record.layout import CRC_MASK, NOT_ORDINARY
from tiering.archive.block import BlockGroup
from tiering.archive.columns.header_fields import ConstantHeaders, host_of
from tiering.archive.columns.integers import Column, bounds_of
from tiering.archive.columns.properties import PropertyColumns
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.columns.text_columns import Joined, concat_joined, join_values
from tiering.spark.arrow import HEADER_NUMBERS, HeaderFields, Hosts, MessageColumns

_TOPIC_ROWS: Final = 64
"""Records of one topic that are worth columns of their own."""


_NUMBERS: Final = ("queue", "offset", "position", "born_at", "stored_at")


class DecodedGroup(NamedTuple):
    """A group with its decoded parts: its properties only if they are wanted; the whole group, as
    `odd`, if it is out of the ordinary.
    """

    group: BlockGroup
    properties: PropertyColumns | None
    odd: MessageColumns | None = None

    @property
    def alike(self) -> object:
        """A value that is equal for groups that can be joined."""
        if self.odd is not None:
            return self.odd  # no other group has it
        return () if self.properties is None else self.properties.plain_names


def decode_group(group: BlockGroup, *, properties: bool) -> DecodedGroup:
    """Decodes a group but for its bodies, or all of one that is out of the ordinary. Raises
    ArchiveDamaged, RecordDamaged.
    """
    columns = group.columns
    if not columns.is_ordinary:
        return DecodedGroup(
            group, None, MessageRows(group.records().values(), columns.position.tolist())
        )
    return DecodedGroup(group, group.property_columns() if properties else None)


def group_columns(groups: Sequence[DecodedGroup]) -> MessageColumns:
    """All messages of groups that are alike. Raises ArchiveDamaged."""
    odd = groups[0].odd
    if odd is None:
        return _GroupRows(groups)
    assert len(groups) == 1, "only ordinary ones are joined"
    return odd


def record_columns(batch: RecordBatch, base: int) -> Iterator[MessageColumns]:
    """Records of the log, of the segment that begins at `base`. Raises RecordDamaged."""
    fields = Fields(batch)
    ordinary = fields.regular & (fields.version == 1) & ~fields.wrong_crcs()
    ordinary &= (fields.system_flags & NOT_ORDINARY) == 0
    ordinary &= fields.position == batch.starts + base
    odd = np.flatnonzero(~ordinary)
    if len(odd):
        some = batch._replace(starts=batch.starts[odd], sizes=batch.sizes[odd])
        yield MessageRows(some.records(), (some.starts + base).tolist())
    names, topic_of = fields.topics()
    counts = np.bincount(topic_of[ordinary], minlength=len(names))
    for number in np.flatnonzero(counts >= _TOPIC_ROWS).tolist():
        yield _RecordRows(batch, np.flatnonzero(ordinary & (topic_of == number)))
    few = np.flatnonzero(ordinary & (counts < _TOPIC_ROWS)[topic_of])
    if len(few):
        yield _RecordRows(batch, few)


class _GroupRows(MessageColumns):
    """Ordinary groups of an archive; if there are several, with the same names of properties."""

    def __init__(self, groups: Sequence[DecodedGroup]) -> None:
        self._decoded = groups
        self._groups = [one.group for one in groups]
        self._columns = columns = [group.columns for group in self._groups]
        members = [group.members for group in self._groups]
        counts = np.concatenate([one.ranges.counts for one in members])
        self.count: int = sum(group.count for group in self._groups)
        self.topics: Sequence[str] = [topic for one in members for topic in one.topics]
        self.topic_of: Column = np.repeat(np.arange(len(counts)), counts)
        queues = [queue for one in members for queue in one.queues]
        self.queue: Column = np.repeat(np.array(queues, np.int64), counts)
        for name in _NUMBERS[1:]:
            setattr(self, name, _beside([getattr(c, name) for c in columns]))

    def header_fields(self) -> ConstantHeaders | HeaderFields:
        columns = self._columns
        constants = columns[0].constants
        if constants is not None and all(c.constants == constants for c in columns):
            return constants
        born, store = [c.born_host for c in columns], [c.store_host for c in columns]
        numbers = [_beside([getattr(c, name) for c in columns]) for name in HEADER_NUMBERS]
        return HeaderFields(numbers, _hosts_of(_beside(born)), _hosts_of(_beside(store)))

    def texts(self) -> Mapping[bytes, Joined] | None:
        found = [one.properties for one in self._decoded if one.properties is not None]
        names = found[0].plain_names if found else None
        if names is None:
            return None
        return {name: concat_joined([one.columns[name] for one in found]) for name in names}

    def fields(self) -> list[bytes]:
        found = [one.properties for one in self._decoded if one.properties is not None]
        return [field for columns in found for field in columns.fields().values()]

    def bodies(self) -> Joined:
        each = zip(self._groups, self._columns, strict=True)
        return concat_joined([Joined(group.bodies, c.ends) for group, c in each])


class _RecordRows(MessageColumns):
    """Ordinary records of the log, of any topics."""

    def __init__(self, batch: RecordBatch, at: Column) -> None:
        some = batch._replace(starts=batch.starts[at], sizes=batch.sizes[at])
        f = self._fields = Fields(some)
        self.count = f.count
        names, self.topic_of = f.topics()
        self.topics = [name.decode() for name in names]
        for name in _NUMBERS:
            setattr(self, name, getattr(f, name))

    def header_fields(self) -> HeaderFields:
        f = self._fields
        numbers = [getattr(f, name) for name in HEADER_NUMBERS]
        return HeaderFields(numbers, _hosts_of(f.born_host), _hosts_of(f.store_host))

    def texts(self) -> Mapping[bytes, Joined] | None:
        found = self._fields.properties
        if found.plain_names() is None:
            return None
        return {name: values.joined() for name, values in found.columns.items()}

    def fields(self) -> list[bytes]:
        return self._fields.property_fields()

    def bodies(self) -> Joined:
        return Joined(self._fields.bodies(0, self.count), bounds_of(self._fields.body_size))


class MessageRows(MessageColumns):
    """Records of any kind, decoded one by one. Raises RecordDamaged."""

    def __init__(self, records: Sequence[bytes], positions: Sequence[int]) -> None:
        # A wrong body CRC is kept as it is: the record was put with it.
        self._messages = [
            decode(record, 0, len(record), position, False, decompress)
            for record, position in zip(records, positions, strict=True)
        ]
        self._stored: list[bytes | None] | None = None
        if any(one.system_flags & COMPRESSED for one in self._messages):
            stored = [
                decode(record, 0, len(record), position, False).body
                for record, position in zip(records, positions, strict=True)
            ]
            self._stored = [
                None if body == one.body else body
                for body, one in zip(stored, self._messages, strict=True)
            ]
        self.count = len(self._messages)
        self.topics, self.topic_of = numbered([one.topic for one in self._messages])
        for name in _NUMBERS:
            setattr(self, name, self._column(name))

    def _column(self, name: str) -> Column:
        return np.array([getattr(one, name) for one in self._messages], np.int64)

    def header_fields(self) -> HeaderFields:
        """See MessageColumns."""
        return HeaderFields(
            list(map(self._column, HEADER_NUMBERS)),
            Hosts(*numbered([one.raw_born_host for one in self._messages])),
            Hosts(*numbered([one.raw_store_host for one in self._messages])),
        )

    def fields(self) -> list[bytes]:
        """See MessageColumns."""
        return [one.raw_properties for one in self._messages]

    def bodies(self) -> Joined:
        """See MessageColumns."""
        return join_values([one.body for one in self._messages])

    def stored_bodies(self) -> list[bytes | None] | None:
        """See MessageColumns."""
        return self._stored

    def wrong_crcs(self) -> list[int | None] | None:
        """See MessageColumns."""
        stored = self._stored or [None] * self.count
        found = [
            None if crc32(one.body if body is None else body) & CRC_MASK == one.body_crc
            else one.body_crc
            for one, body in zip(self._messages, stored, strict=True)
        ]  # fmt: skip
        return found if any(crc is not None for crc in found) else None


T = TypeVar("T", bound=Hashable)


def numbered(values: Sequence[T]) -> tuple[Sequence[T], Column]:
    """The different values, and the number of each row's value among them."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(values))}
    return list(numbers), np.fromiter(map(numbers.__getitem__, values), np.int64, len(values))


def _beside(columns: Sequence[Column]) -> Column:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _hosts_of(numbers: Column) -> Hosts:
    """Hosts with their 8 bytes as a number."""
    if bool((numbers == numbers[0]).all()):
        distinct, which = numbers[:1], np.zeros(len(numbers), np.int64)
    else:
        distinct, which = np.unique(numbers, return_inverse=True)
    return Hosts([host_of(host) for host in distinct.tolist()], which)
