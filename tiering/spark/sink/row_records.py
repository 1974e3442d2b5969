"""Row records: a frame's rows -> the records that a store would have of them, byte for byte.

The idea: a record is a head of fixed size, the body, the topic and the properties, each with its
length. Heads are a numpy table, and Arrow joins the columns of parts to one of records, whose bytes
are a `RecordBatch`.

Invariants: a row that came from a record gives that record; a value that a row lacks is as a store
would have it; offsets and positions that are made are given once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvstore.clock import Clock
from kvstore.config import QUEUES_MAX
from kvstore.core.columns.packed_texts import crc_texts
from kvstore.core.names import BORN_HOST_V6, COMPRESSED, MULTI_TAG, STORE_HOST_V6
from kvstore.core.unique_ids import UniqueIds
from kvstore.errors import FormatError, MessageIllegal, RecordDamaged, shown
from kvstore.record.compression import decompress
from kvstore.record.ids import HOST_V4_SIZE, pack_host
from kvstore.record.layout import (
    CRC_MASK,
    DECOMPRESSED_MAX,
    FIXED_V1,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_MAX,
)
from tiering.archive.columns.integers import Column
from tiering.archive.columns.records import HEAD, RecordBatch
from tiering.errors import JobTooLarge
from tiering.spark.arrow import host_text
from tiering.spark.sink.frame_columns import POSITION_END, FrameRows
from tiering.spark.sink.property_maps import Ids, multi_tags, property_fields

RANGE_BYTES: Final = 1 << 32
"""The size of one range of positions, which is one task's: 4 GiB."""
TASKS_MAX: Final = 1 << 14
"""The most tasks of a job whose positions are made."""
_HOST: Final = pack_host("127.0.0.1", 10911)
assert HEAD.fields is not None
_BORN_HOST, _STORED_AT, _STORE_HOST, _BEHIND_HOSTS = (
    HEAD.fields[name][1] for name in ("born_host", "stored_at", "store_host", "reconsume_times")
)
_PIECE: Final = 64 << 20
"""Bytes of rows that become records at once."""


class TaskStart(NamedTuple):
    """The start of values that a task's rows lack: its number among the job's tasks, the first
    position that is free in the place, and the next offset of queues there, by topic and queue.
    """

    task: int = 0
    position: int = 0
    ends: Mapping[str, Mapping[int, int]] = {}


class PlacedRecords(NamedTuple):
    """Records, and where each belongs; `topic_of` says which of the maker's `topics` it is of."""

    records: RecordBatch
    topic_of: Column
    queue: Column
    offset: Column
    position: Column


class RecordMaker:
    """Makes records of a task's rows. Batches may be of different columns."""

    def __init__(self, clock: Clock, start: TaskStart | None = None) -> None:
        self.topics: list[str] = []
        self._numbers: dict[str, int] = {}
        self._clock = clock
        self._start = start or TaskStart()
        self._ids = UniqueIds(_HOST[:4], os.getpid() & 0xFFFF, secrets.randbits(32))
        self._made = 0
        """Bytes of records that got a position here."""
        self._range = 0
        self._taken: dict[int, int] = {}
        """By topic the next offset of this task's queue."""

    def placed(self, batch: pa.RecordBatch) -> Iterator[PlacedRecords]:
        """The records of a batch. Raises RowIllegal, JobTooLarge."""
        pieces = max(-(-batch.nbytes // _PIECE), 1)
        step = max(-(-batch.num_rows // pieces), 1)
        for at in range(0, batch.num_rows, step):
            part = batch.slice(at, step)
            # Columns without an offset into their buffers: children are then read from 0 on, too.
            columns = [pa.concat_arrays([column]) for column in part.columns]
            if at or len(part) < batch.num_rows:
                columns = [column.take(pa.array(np.arange(len(column)))) for column in columns]
            yield self._of(FrameRows(pa.RecordBatch.from_arrays(columns, names=part.schema.names)))

    def _of(self, rows: FrameRows) -> PlacedRecords:
        parts = _Parts(rows, self._clock.now_ms(), self._new_ids)
        numbers = np.array([self._number(name) for name in rows.names], np.int64)
        topic_of = numbers[rows.topic_of] if rows.count else rows.topic_of
        queue, offset = rows.queue, rows.offset
        if queue is None or offset is None:
            queue, offset = self._spread(topic_of)
        position = rows.position
        if position is None:
            position = self._positions(parts.sizes)
        parts.check_version()
        records = parts.records(queue, offset, position)
        return PlacedRecords(records, topic_of, queue, offset, position)

    def _new_ids(self, count: int) -> list[str]:
        return self._ids.make(self._clock.now_ms(), count)

    def _number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.topics)
            self.topics.append(name)
        return found

    def _spread(self, topic_of: Column) -> tuple[Column, Column]:
        """A queue of this task's own in each topic, and its next offsets."""
        task = self._start.task
        if task >= QUEUES_MAX:
            raise JobTooLarge(
                f"this is task {task} of the job, and a topic has {QUEUES_MAX} queues, one for "
                "each task: coalesce the frame, or give queue and offset"
            )
        offset = np.empty(len(topic_of), np.int64)
        for topic in np.unique(topic_of).tolist():
            mine = topic_of == topic
            held = self._start.ends.get(self.topics[topic], {}).get(task, 0)
            first = self._taken.get(topic, held)
            count = int(np.count_nonzero(mine))
            offset[mine] = np.arange(first, first + count)
            self._taken[topic] = first + count
        return np.full(len(topic_of), task, np.int64), offset

    def _positions(self, sizes: Column) -> Column:
        """Positions one behind the other, in this task's ranges."""
        task = self._start.task
        if task >= TASKS_MAX:
            raise JobTooLarge(
                f"this is task {task} of the job, and positions can be made for {TASKS_MAX}: "
                "coalesce the frame, or give the column position"
            )
        out = np.empty(len(sizes), np.int64)
        at = 0
        while at < len(sizes):
            ends = self._made + np.cumsum(sizes[at:])
            count = int(np.searchsorted(ends, RANGE_BYTES, side="right"))
            if not count:
                self._range, self._made = self._range + 1, 0
                continue
            base = self._start.position + (self._range * TASKS_MAX + task) * RANGE_BYTES
            out[at : at + count] = base + ends[:count] - sizes[at : at + count]
            self._made = int(ends[count - 1])
            at += count
        if len(out) and int(out[-1]) + int(sizes[-1]) >= POSITION_END:
            raise JobTooLarge(
                f"the place has no positions left below {POSITION_END}: begin another store_id, or "
                "merge what is there"
            )
        return out


class _Parts:
    """The parts of records, as columns of rows."""

    def __init__(self, rows: FrameRows, now_ms: int, new_ids: Ids) -> None:
        self.rows = rows
        headers = self._headers = rows.headers()
        self.fields = property_fields(rows, headers, new_ids)
        self.stored_at = rows.times("stored_at", np.full(rows.count, now_ms, np.int64))
        self.born_at = rows.times("born_at", self.stored_at)
        tagged = np.where(multi_tags(rows), MULTI_TAG, 0).astype(np.int64)
        self.flags = self._number("flags", np.zeros(rows.count, np.int64))
        self.system_flags = self._number("system_flags", tagged)
        self.reconsume_times = self._number("reconsume_times", np.zeros(rows.count, np.int64))
        self.prepared_position = self._number("prepared_position", np.zeros(rows.count, np.int64))
        self.topic_sizes = np.array([len(n) for n in rows.names] or [0])[rows.topic_of]
        self.version = self._number("version", np.where(self.topic_sizes > TOPIC_MAX, 2, 1))
        self.born_host = self._hosts("born_host", BORN_HOST_V6)
        self.store_host = self._hosts("store_host", STORE_HOST_V6)
        self.body = self._stored_bodies()
        self.body_crc = self._crcs()
        lengths = np.asarray(pc.binary_length(self.body)).astype(np.int64)
        self.body_sizes: Column = lengths
        self.field_sizes = np.asarray(pc.binary_length(self.fields)).astype(np.int64)
        hosts = self.system_flags & HOSTS_V6
        extra = 12 * ((hosts & BORN_HOST_V6 != 0).astype(np.int64) + (hosts & STORE_HOST_V6 != 0))
        fixed = FIXED_V1 - 1 + self.version
        self.sizes: Column = fixed + extra + lengths + self.topic_sizes + self.field_sizes

    def check_version(self) -> None:
        """Raises for a name that is too long for a record of version 1."""
        wrong = (self.version == 1) & (self.topic_sizes > TOPIC_MAX)
        if bool(wrong.any()):
            raise self.rows.illegal(
                int(np.argmax(wrong)), "headers.version",
                f"1, and the topic's name is longer than {TOPIC_MAX}; make it 2",
            )  # fmt: skip

    def _number(self, name: str, default: Column) -> Column:
        if self._headers is None:
            return default
        column = self._headers.fields[name]
        known = self._headers.there & np.asarray(column.is_valid())
        numbers = np.asarray(column.cast(pa.int64()).fill_null(0))
        if name != "prepared_position":
            self.rows.check(f"headers.{name}", numbers, ~known)
        return np.where(known, numbers, default)

    def _hosts(self, name: str, bit: int) -> pa.Array:
        """A host of every row, packed."""
        encoded = pa.array([None] * self.rows.count, pa.string()).dictionary_encode()
        if self._headers is not None:
            known = pc.if_else(self._headers.there, self._headers.fields[name], None)
            encoded = known.dictionary_encode()
        of = np.asarray(encoded.indices.fill_null(len(encoded.dictionary))).astype(np.int64)
        packed: list[bytes] = []
        for number, text in enumerate(encoded.dictionary.to_pylist()):
            try:
                packed.append(packed_host(text))
            except (MessageIllegal, FormatError, ValueError) as e:
                raise self.rows.illegal(
                    int(np.argmax(of == number)), f"headers.{name}",
                    f"{shown(text)}, which is no host ({e}); one looks like 10.0.0.1:10911",
                ) from e  # fmt: skip
        packed.append(_HOST)
        long = np.array([len(host) != HOST_V4_SIZE for host in packed], np.bool_)
        self._check_host(name, bit, long[of])
        return pa.array(packed, pa.binary()).take(pa.array(of))

    def _check_host(self, name: str, bit: int, is_long: NDArray[np.bool_]) -> None:
        wrong = ((self.system_flags & bit) != 0) != is_long
        if bool(wrong.any()):
            raise self.rows.illegal(
                int(np.argmax(wrong)), f"headers.{name}",
                f"not of the kind that headers.system_flags say (bit {bit}: IPv6); change one",
            )  # fmt: skip

    def _stored_bodies(self) -> pa.Array:
        body = self.rows.body
        stored = None if self._headers is None else self._headers.fields["stored_body"]
        self._check_compressed(stored)
        if stored is None or stored.null_count == len(stored):
            return body
        for row in np.flatnonzero(np.asarray(stored.is_valid())).tolist():
            flags, raw = int(self.system_flags[row]), stored[row].as_py()
            try:
                is_same = decompress(raw, flags, DECOMPRESSED_MAX) == body[row].as_py()
            except RecordDamaged:
                is_same = False
            if not is_same:
                raise self.rows.illegal(
                    row, "body",
                    "not what headers.stored_body decompresses to, which the record would have; "
                    "change that as well, or make headers null",
                )  # fmt: skip
        return pc.if_else(stored.is_valid(), stored, body)

    def _check_compressed(self, stored: pa.Array | None) -> None:
        """Raises for a body that is to be decompressed and isn't compressed; an empty one needn't
        be.
        """
        packed = (self.system_flags & COMPRESSED) != 0
        if not bool(packed.any()):
            return
        bare = packed & (np.asarray(pc.binary_length(self.rows.body)) > 0)
        if stored is not None:
            bare &= ~np.asarray(stored.is_valid())
        if bool(bare.any()):
            raise self.rows.illegal(
                int(np.argmax(bare)), "headers.stored_body",
                "null, though headers.system_flags say that the body is compressed; give it, or "
                "make headers null",
            )  # fmt: skip

    def _crcs(self) -> Column:
        bounds, data = self.body.buffers()[1:]
        ends = np.frombuffer(bounds, np.int32)[self.body.offset :][: self.rows.count + 1]
        found = crc_texts(data or b"", *(at.astype(np.int64) for at in (ends[:-1], ends[1:])))
        return self._number("body_crc", found.astype(np.int64) & CRC_MASK)

    def records(self, queue: Column, offset: Column, position: Column) -> RecordBatch:
        """The records at these places."""
        head = np.zeros(self.rows.count, HEAD)
        for name, values in (
            ("size", self.sizes), ("magic", np.where(self.version == 1, MAGIC_V1, MAGIC_V2)),
            ("body_crc", self.body_crc), ("queue", queue), ("flags", self.flags),
            ("offset", offset), ("position", position), ("system_flags", self.system_flags),
            ("born_at", self.born_at), ("stored_at", self.stored_at),
            ("reconsume_times", self.reconsume_times),
            ("prepared_position", self.prepared_position), ("body_size", self.body_sizes),
        ):  # fmt: skip
            head[name] = values
        fixed = head.view(np.uint8).reshape(len(head), HEAD.itemsize)
        joined = pc.binary_join_element_wise(
            _fixed(fixed[:, :_BORN_HOST]),
            self.born_host,
            _fixed(fixed[:, _STORED_AT:_STORE_HOST]),
            self.store_host,
            _fixed(fixed[:, _BEHIND_HOSTS:]),
            self.body,
            self._topic_parts(),
            _fixed(self.field_sizes.astype(">u2").view(np.uint8).reshape(-1, 2)),
            self.fields,
            b"",
        )
        buffers = joined.buffers()
        starts = np.frombuffer(buffers[1], np.int32, len(head) + 1).astype(np.int64)
        assert (np.diff(starts) == self.sizes).all(), "the counted sizes are right"
        data = buffers[2].to_pybytes() if buffers[2] is not None else b""
        return RecordBatch(data, starts[:-1], self.sizes)

    def _topic_parts(self) -> pa.Array:
        """Every record's topic with its length before it: of 1 byte, in version 2 of 2."""
        names = [name.encode() for name in self.rows.names]
        short = [bytes([min(len(name), 255)]) + name for name in names]
        long = [len(name).to_bytes(2, "big") + name for name in names]
        which = self.rows.topic_of + (self.version - 1) * len(names)
        return pa.array(short + long, pa.binary()).take(pa.array(which))


def packed_host(text: str) -> bytes:
    """The bytes of a host that `host_text` gave."""
    address, _, port = text.rpartition(":")
    number = int(port)
    if number > 0xFFFF:
        # A record may have any 4 bytes there.
        host = pack_host(address.strip("[]"), 0)
        found = host[:-4] + number.to_bytes(4, "big")
    else:
        found = pack_host(address.strip("[]"), number)
    if host_text(found) != text:
        raise ValueError("it is not written in its usual form")
    return found


def _fixed(rows: NDArray[np.uint8]) -> pa.Array:
    """Binary values of one size, a row of bytes each."""
    count, size = rows.shape
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(rows.tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
