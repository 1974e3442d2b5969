"""Records: the bytes of many records -> columns, with numpy.

The idea: the places of a record's fields depend on few of its bytes. So all records of a batch are
split at once, column by column, whatever their queues. A host is one number of 8 bytes; an IPv6
host has two more. Records with an IPv6 host are few, and are read one by one.

Invariant: only a record's own bytes are read, and none of them is left out: a `regular` record is
rebuilt from its columns, topic, body and properties, byte for byte.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.packed_texts import crc_texts, gather, number_texts
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.errors import RecordDamaged
from kvstore.record.layout import (
    BODY_AT,
    CRC_MASK,
    FIXED_V1,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    SYSTEM_FLAGS_AT,
    TOPIC_MAX,
    TOPIC_MAX_V2,
    V6_EXTRA,
)
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import SplitProperties, split_properties

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

HEAD: Final = np.dtype(
    [
        ("size", ">u4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue", ">u4"), ("flags", ">u4"),
        ("offset", ">i8"), ("position", ">i8"), ("system_flags", ">u4"), ("born_at", ">i8"),
        ("born_host", ">i8"), ("stored_at", ">i8"), ("store_host", ">i8"),
        ("reconsume_times", ">i4"), ("prepared_position", ">i8"), ("body_size", ">u4"),
    ]
)  # fmt: skip
"""`kvstore.record.layout.HEAD_V4_V4`, with hosts as numbers."""
assert HEAD.itemsize == BODY_AT
assert HEAD.fields is not None
assert HEAD.fields["system_flags"][1] == SYSTEM_FLAGS_AT
_NAMES: Final = HEAD.names or ()


class RecordBatch(NamedTuple):
    """Records in a buffer, in any order: each takes `sizes[i]` bytes from index `starts[i]`.

    The records were checked before (`kvstore.core.records`); `bodies_checked`: so were their body
    CRCs. `stays`: the buffer stays valid, so the records need not be copied.
    """

    buffer: Buffer
    starts: Column
    sizes: Column
    bodies_checked: bool = False
    stays: bool = False

    @classmethod
    def of_records(cls, records: Sequence[bytes], *, bodies_checked: bool = False) -> RecordBatch:
        """A batch of records that each are `bytes`."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(b"".join(records), np.cumsum(sizes) - sizes, sizes, bodies_checked)

    @classmethod
    def join(cls, batches: Sequence[RecordBatch]) -> RecordBatch:
        """The records of all batches, in that order; copied only where buffers differ."""
        if not batches:
            return cls.of_records(())
        first = batches[0].buffer
        bodies_checked = all(batch.bodies_checked for batch in batches)
        if any(batch.buffer is not first for batch in batches):
            return cls.of_records(
                [record for batch in batches for record in batch.records()],
                bodies_checked=bodies_checked,
            )
        return cls(
            first,
            np.concatenate([batch.starts for batch in batches]),
            np.concatenate([batch.sizes for batch in batches]),
            bodies_checked,
            all(batch.stays for batch in batches),
        )

    def rows(self, start: int, stop: int) -> RecordBatch:
        """Some of the records."""
        return self._replace(starts=self.starts[start:stop], sizes=self.sizes[start:stop])

    def records(self) -> list[bytes]:
        """Every record's bytes."""
        return slices(self.buffer, self.starts, self.starts + self.sizes)


def slices(buffer: Buffer, starts: Column, stops: Column) -> list[bytes]:
    """The bytes from each start to its stop."""
    return [bytes(buffer[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def different_texts(buffer: Buffer, starts: Column, stops: Column) -> tuple[list[bytes], Column]:
    """The different ones of the texts from each start to its stop, as they came first, and the
    number of each.
    """
    found = number_texts(buffer, starts, stops, len(starts))
    assert found is not None, "there are no more different texts than texts"
    numbers, firsts = found
    return slices(buffer, starts[firsts], stops[firsts]), numbers


class Fields:
    """The fields of a batch's records, in columns; one row a record, in the batch's order.

    `born_host` and `store_host` are the first 8 bytes of the hosts as a number; `born_more` and
    `store_more` are the 12 further bytes of IPv6 hosts, by row. A row that is not `regular` is a
    record that contradicts its own lengths: only its size, offset, position and store time count.
    """

    queue: Column
    flags: Column
    offset: Column
    position: Column
    system_flags: Column
    born_at: Column
    born_host: Column
    stored_at: Column
    store_host: Column
    reconsume_times: Column
    prepared_position: Column
    body_size: Column
    body_crc: Column

    def __init__(self, batch: RecordBatch) -> None:
        self._buffer = buffer = batch.buffer
        self.bodies_checked = batch.bodies_checked
        self._stays = batch.stays
        self.count = len(batch.starts)
        self.sizes = sizes = batch.sizes
        self._starts = starts = batch.starts
        view = np.frombuffer(buffer, np.uint8)
        if self.count and (
            int(starts.min()) < 0
            or int(sizes.min()) < FIXED_V1
            or int((starts + sizes).max()) > len(view)
        ):
            raise RecordDamaged("a batch has a record that is not inside its buffer")
        if not self.count:
            view = np.zeros(FIXED_V1, np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(view, BODY_AT)
        head = windows[starts].view(HEAD).reshape(-1)
        columns = {name: head[name].astype(np.int64) for name in _NAMES}
        self.born_more: dict[int, bytes] = {}
        self.store_more: dict[int, bytes] = {}
        self._extra = np.zeros(self.count, np.int64)
        for row in np.flatnonzero(columns["system_flags"] & HOSTS_V6).tolist():
            self._read_v6(columns, row)
        for name in _NAMES[3:]:
            setattr(self, name, columns[name])
        self.body_crc = columns["body_crc"]
        self.version = np.where(columns["magic"] == MAGIC_V1, 1, 2)
        good = (columns["magic"] == MAGIC_V1) | (columns["magic"] == MAGIC_V2)
        self._measure(view, good & (columns["size"] == sizes))

    def part(self, start: int, stop: int) -> Fields:
        """The rows from `start` to `stop` alone."""
        if (start, stop) == (0, self.count):
            return self
        found = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, list)):
                setattr(found, name, value[start:stop])
        found.count = stop - start
        vars(found).pop("properties", None)
        for more in ("born_more", "store_more"):
            rows = getattr(self, more).items()
            setattr(found, more, {row - start: host for row, host in rows if start <= row < stop})
        return found

    def _read_v6(self, columns: dict[str, Column], row: int) -> None:
        """Reads one head again whose hosts are not both of 8 bytes."""
        flags = int(columns["system_flags"][row]) & HOSTS_V6
        head = HEADS[flags]
        start = int(self._starts[row])
        if self.sizes[row] < head.size:
            columns["size"][row] = -1  # wrong on purpose: the row is not regular
            return
        values = dict(zip(_NAMES, head.unpack_from(self._buffer, start), strict=True))
        for name, more, bit in (
            ("born_host", self.born_more, BORN_HOST_V6),
            ("store_host", self.store_more, STORE_HOST_V6),
        ):
            host = values[name]
            values[name] = int.from_bytes(host[:8], "big", signed=True)
            if flags & bit:
                more[row] = host[8:]
                self._extra[row] += V6_EXTRA
        for name in _NAMES:
            columns[name][row] = values[name]

    def _measure(self, view: NDArray[np.uint8], good: NDArray[np.bool_]) -> None:
        """Finds the parts behind the head; sets `regular`."""
        stops = self._starts + self.sizes
        self._body_at = self._starts + BODY_AT + self._extra
        body_end = self._body_at + self.body_size
        good &= body_end + self.version + PROPERTIES_SIZE.size <= stops
        at = np.where(good, body_end, self._starts)
        short, wide = view[at].astype(np.int64), view[at + 1].astype(np.int64)
        topic_size = np.where(self.version == 1, short, short << 8 | wide)
        good &= topic_size <= np.where(self.version == 1, TOPIC_MAX, TOPIC_MAX_V2)
        length_at = body_end + self.version + topic_size
        properties_at = length_at + PROPERTIES_SIZE.size
        good &= properties_at <= stops
        at = np.where(good, length_at, self._starts)
        stated = view[at].astype(np.int64) << 8 | view[at + 1]
        good &= (stated == stops - properties_at) & (stated <= PROPERTIES_MAX)
        self.regular = good
        self.topic_size = np.where(good, topic_size, 0)
        self._body_end = np.where(good, body_end, self._body_at)
        self._properties_at = np.where(good, properties_at, stops)

    def bodies(self, start: int, stop: int) -> bytes:
        """The bodies of these rows as stored, side by side."""
        return gather(self._buffer, self._body_at[start:stop], self._body_end[start:stop])

    def property_field(self, row: int) -> bytes:
        """A record's properties field."""
        stop = int(self._starts[row] + self.sizes[row])
        return bytes(self._buffer[int(self._properties_at[row]) : stop])

    def property_fields(self) -> list[bytes]:
        """Every record's properties field."""
        return slices(self._buffer, self._properties_at, self._starts + self.sizes)

    @cached_property
    def properties(self) -> SplitProperties:
        """Every record's properties, by name."""
        return split_properties(self._buffer, self._properties_at, self._starts + self.sizes)

    def topics(self) -> tuple[list[bytes], Column]:
        """The different topics, as they came first, and the number of every record's topic."""
        stops = self._properties_at - PROPERTIES_SIZE.size
        starts = stops - self.topic_size
        return different_texts(self._buffer, starts, stops)

    def records(self, start: int, stop: int) -> bytes:
        """The whole records of these rows, side by side."""
        starts = self._starts[start:stop]
        return gather(self._buffer, starts, starts + self.sizes[start:stop])

    def rest(self, start: int) -> RecordBatch:
        """The records from a row on: copies, unless the buffer stays valid."""
        if not self._stays:
            sizes = self.sizes[start:].copy()
            data = self.records(start, self.count)
            return RecordBatch(data, np.cumsum(sizes) - sizes, sizes, self.bodies_checked)
        starts, sizes = self._starts[start:].copy(), self.sizes[start:].copy()
        return RecordBatch(self._buffer, starts, sizes, self.bodies_checked, stays=True)

    def wrong_crcs(self) -> NDArray[np.bool_]:
        """The rows whose body CRC is not that of the body."""
        if self.bodies_checked:
            return np.zeros(self.count, np.bool_)
        found = crc_texts(self._buffer, self._body_at, self._body_end)
        wrong: NDArray[np.bool_] = (found & CRC_MASK) != self.body_crc
        return wrong
