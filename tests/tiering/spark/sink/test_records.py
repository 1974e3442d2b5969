"""Rows become the records that they came from, or records as a store makes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, CODEC_MASK, COMPRESSED, STORE_HOST_V6
from kvstore.errors import ConfigError
from kvstore.record.compression import codec_flags, compress
from tests.record.strategies import hosts, stored_messages
from tests.reference.encode import encode_record
from tests.support.calls import calls_of
from tests.support.clock import VirtualClock
from tests.support.decoding import decode
from tests.tiering.archive.samples import PROPERTY_FIELDS, record
from tiering.archive.columns.records import RecordBatch
from tiering.errors import JobTooLarge, RowIllegal
from tiering.spark.arrow import SCHEMA, batch_of, spark_schema
from tiering.spark.rows import MessageRows, record_columns
from tiering.spark.sink.frame_columns import check_schema
from tiering.spark.sink.row_records import (
    RANGE_BYTES,
    TASKS_MAX,
    PlacedRecords,
    RecordMaker,
    TaskStart,
)

NAMES = st.sampled_from(["orders", "%RETRY%g", "a" * 127, "%DLQ%" + "b" * 200])
HALF = pa.struct([pa.field("flags", pa.int64())])
TIMES = st.integers(0, 4_000_000_000_000)


@st.composite
def kept(draw: st.DrawFn) -> StoredMessage:
    """A message as a store may have it, every field at random."""
    flags = draw(st.sampled_from([0, 0, BORN_HOST_V6, STORE_HOST_V6]) | st.integers(0, 2**32 - 1))
    flags &= ~(COMPRESSED | CODEC_MASK)
    codec = draw(st.sampled_from([None, None, "zlib", "lz4", "zstd"]))
    body = draw(st.binary(max_size=300))
    if codec is not None:
        body, flags = compress(body, codec), flags | codec_flags(codec)
    topic = draw(NAMES)
    made = draw(stored_messages())
    return made.__replace__(
        topic=topic, version=2 if len(topic) > 127 else draw(st.sampled_from([1, 1, 1, 2])),
        queue=draw(st.integers(0, 65535)), offset=draw(st.integers(0, 2**62)), body=body,
        position=draw(st.integers(0, 2**60)), system_flags=flags, born_at=draw(TIMES),
        stored_at=draw(TIMES), raw_born_host=draw(hosts(flags & BORN_HOST_V6)),
        raw_store_host=draw(hosts(flags & STORE_HOST_V6)),
        raw_properties=draw(PROPERTY_FIELDS | st.just(b"")),
    )  # fmt: skip


def rows_of(records: Sequence[bytes], positions: Sequence[int]) -> pa.RecordBatch:
    """The batch that a reader makes of records."""
    return batch_of(MessageRows(records, positions), SCHEMA.names)


def made(batch: pa.RecordBatch, maker: RecordMaker | None = None) -> list[bytes]:
    """The records of a batch."""
    maker = maker or RecordMaker(VirtualClock())
    return [one for placed in maker.placed(batch) for one in placed.records.records()]


@pytest.mark.parametrize("given", [True, False])
def test_the_sink_makes_no_object_and_no_call_for_a_row(given: bool) -> None:
    def calls(count: int) -> int:
        rows: dict[str, Any] = {"topic": ["a"] * count, "body": [b"x" * 20] * count}
        if given:
            rows |= {"message_id": ["A1"] * count, "tag": ["b"] * count, "keys": [["k"]] * count}
        batch = frame(**rows)
        found: list[PlacedRecords] = []
        made = calls_of(lambda: found.extend(RecordMaker(VirtualClock()).placed(batch)))
        assert sum(len(placed.queue) for placed in found) == count
        return made

    calls(10)
    assert calls(1000) == calls(100)


def frame(**columns: Any) -> pa.RecordBatch:
    """A batch of columns that messages have."""
    names = [name for name in SCHEMA.names if name in columns]
    arrays = [pa.array(columns[name], SCHEMA.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


@settings(max_examples=150)
@given(st.lists(kept(), min_size=1, max_size=6))
def test_records_of_any_kind_are_given_back(messages: list[StoredMessage]) -> None:
    records = [encode_record(one) for one in messages]
    assert made(rows_of(records, [one.position for one in messages])) == records


def test_ordinary_records_are_given_back_from_columns_of_the_log() -> None:
    records = [record(n, "orders" if n % 3 else "events") for n in range(300)]
    batch = RecordBatch.of_records(records)
    positions = batch.starts
    records = [
        encode_record(decode(r, 0, len(r), n * 1000).__replace__(position=int(p)))
        for n, (r, p) in enumerate(zip(records, positions, strict=True))
    ]
    found = [
        one
        for rows in record_columns(RecordBatch.of_records(records), 0)
        for one in made(batch_of(rows, SCHEMA.names))
    ]
    assert sorted(found) == sorted(records)
    whole = rows_of(records, positions.tolist())
    assert made(whole.slice(7, 100)) == records[7:107]


def test_rows_that_say_little_become_what_a_store_would_have_of_them() -> None:
    clock = VirtualClock()
    batch = frame(
        topic=["b", "a", "b"], body=[b"1", b"", b"3"], tag=["t", None, "x||y"],
        keys=[["k", "l"], [], None], properties=[{"p": "q"}, {}, None],
    )  # fmt: skip
    maker = RecordMaker(clock, TaskStart(3, 5000, {"b": {3: 7, 2: 100}}))
    found = [
        decode(one, 0, len(one), int(position))
        for placed in maker.placed(batch)
        for one, position in zip(placed.records.records(), placed.position, strict=True)
    ]
    assert [(m.topic, m.queue, m.offset, m.body) for m in found] == [
        ("b", 3, 7, b"1"), ("a", 3, 0, b""), ("b", 3, 8, b"3"),
    ]  # fmt: skip
    assert [list(m.properties)[1:] for m in found] == [["KEYS", "TAGS", "p"], [], ["TAGS"]]
    assert len({m.message_id for m in found}) == 3
    assert all(len(m.message_id) == 32 and "UNIQ_KEY" in m.properties for m in found)
    assert {m.stored_at for m in found} == {m.born_at for m in found} == {clock.now_ms()}
    assert {m.store_host for m in found} == {("127.0.0.1", 10911)}
    assert [m.system_flags for m in found] == [0, 0, 2]
    first = 5000 + 3 * RANGE_BYTES
    assert [m.position - first for m in found] == [0, found[0].size, found[0].size + found[1].size]


def test_ids_and_times_that_are_given_are_taken() -> None:
    at = [datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC), None]
    batch = frame(
        topic=["a", "a"], body=[b"", b""], message_id=["mine", None], born_at=at,
        stored_at=[None, at[0]],
    )  # fmt: skip
    clock = VirtualClock()
    found = [
        decode(one, 0, len(one), RANGE_BYTES * 0 + p) for one, p in _with_positions(batch, clock)
    ]
    ms = int(at[0].timestamp() * 1000)  # type: ignore[union-attr]
    assert [(m.born_at, m.stored_at) for m in found] == [(ms, clock.now_ms()), (ms, ms)]
    assert found[0].message_id == "mine"


def _with_positions(batch: pa.RecordBatch, clock: VirtualClock) -> list[tuple[bytes, int]]:
    return [
        (one, int(position))
        for placed in RecordMaker(clock).placed(batch)
        for one, position in zip(placed.records.records(), placed.position, strict=True)
    ]


def test_tasks_never_give_the_same_place_in_a_queue_or_in_the_log() -> None:
    batch = frame(topic=["a"] * 5, body=[b"x" * 100] * 5)
    seen: set[tuple[int, int]] = set()
    positions: set[int] = set()
    for task in range(3):
        maker = RecordMaker(VirtualClock(), TaskStart(task))
        found = [one for _ in range(2) for one in maker.placed(batch)]
        for one in found:
            seen |= set(zip(one.queue.tolist(), one.offset.tolist(), strict=True))
            positions |= set(one.position.tolist())
    assert len(seen) == len(positions) == 30


def test_a_task_with_more_than_its_lane_goes_on_in_another(monkeypatch: Any) -> None:
    monkeypatch.setattr("tiering.spark.sink.row_records.RANGE_BYTES", 1000)
    maker = RecordMaker(VirtualClock(), TaskStart(1))
    (found,) = maker.placed(frame(topic=["a"] * 9, body=[b"x" * 200] * 9))
    lanes = found.position // 1000
    assert lanes.tolist() == sorted(lanes.tolist())
    assert {int(lane) % TASKS_MAX for lane in lanes} == {1}
    ends = found.position + found.records.sizes
    assert (ends[:-1] <= found.position[1:]).all()


def test_rows_of_both_kinds_may_be_in_one_batch() -> None:
    old = record(1)
    there = rows_of([old], [1000]).to_pylist()[0]
    new = dict.fromkeys(SCHEMA.names) | {
        "topic": "events", "queue": 1, "offset": 5, "position": 7, "body": b"new", "tag": "t",
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([there, new], schema=SCHEMA)
    found = made(batch)
    assert found[0] == old
    second = decode(found[1], 0, len(found[1]), 7)
    assert (second.tag, second.offset, second.body) == ("t", 5, b"new")


def illegal(**columns: Any) -> str:
    base = {"topic": ["orders"], "body": [b"x"], "queue": [2], "offset": [9]} | columns
    with pytest.raises(RowIllegal) as caught:
        made(frame(**base))
    return str(caught.value)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"topic": [None]}, "column topic is null"),
        ({"topic": ["a b"]}, "'a b'.*characters other than"),
        ({"body": [None]}, "'orders', queue 2, offset 9: column body is null"),
        ({"offset": [-1]}, "column offset is -1"),
        ({"offset": [None]}, "column offset is null"),
        ({"queue": [70_000]}, "column queue is 70000"),
        ({"position": [-5]}, "queue 2, offset 9: column position is -5"),
        ({"keys": [["a b"]]}, "column keys is"),
        ({"tag": [""]}, "column tag is ''"),
        ({"message_id": ["a b"]}, "column message_id"),
        ({"properties": [{"a\x01": "b"}]}, "column properties.*0x01"),
        ({"properties": [{"TAGS": "x"}], "tag": ["y"]}, "column tag is 'y', and property TAGS"),
        ({"properties": [{"a": "b" * 40_000}]}, "too large"),
        ({"stored_at": [datetime(1960, 1, 1, tzinfo=UTC)]}, "column stored_at"),
    ],
    ids=lambda one: "" if isinstance(one, dict) else str(one)[:30],
)
def test_values_that_records_can_not_have_are_told_with_row_and_column(
    columns: dict[str, Any], told: str
) -> None:
    assert re.search(told, illegal(**columns))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tag": "other"}, "column tag is 'other', and property TAGS is 't1'"),
        ({"keys": ["other"]}, "column keys is"),
        ({"message_id": "other"}, "column message_id"),
        ({"body": b"other"}, "headers.stored_body decompresses to"),
        ({"properties": [("a", "b")]}, "column"),
    ],
    ids=["tag", "keys", "id", "body", "properties"],
)
def test_columns_that_contradict_what_the_record_had_are_refused(
    change: dict[str, Any], told: str
) -> None:
    packed = record(1, body=compress(b"hello", "zlib"), system_flags=codec_flags("zlib"))
    row = rows_of([packed], [1000]).to_pylist()[0]
    assert made(pa.RecordBatch.from_pylist([row], schema=SCHEMA)) == [packed]
    with pytest.raises(RowIllegal, match=told):
        made(pa.RecordBatch.from_pylist([row | change], schema=SCHEMA))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("born_host", "nowhere"), ("born_host", "[::1]:5"), ("system_flags", 16), ("flags", -1),
        ("version", 3), ("stored_body", b"no zlib"), ("properties", b"a\x01b\x02"),
    ],
)  # fmt: skip
def test_headers_that_no_record_has_are_refused(header: str, value: Any) -> None:
    row = rows_of([record(1)], [1000]).to_pylist()[0]
    row["headers"] = row["headers"] | {header: value}
    with pytest.raises(RowIllegal, match=r"column (headers|body|properties)"):
        made(pa.RecordBatch.from_pylist([row], schema=SCHEMA))


def schema(**columns: pa.DataType) -> StructType:
    return from_arrow_schema(pa.schema(columns))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"topic": pa.string()}, "lacks body"),
        ({"topic": pa.string(), "body": pa.binary(), "colour": pa.int32()}, "'colour'"),
        ({"topic": pa.string(), "body": pa.binary(), "offset": pa.int64()}, "lacks queue"),
        ({"topic": pa.int32(), "body": pa.binary()}, "column topic is int"),
        ({"topic": pa.string(), "body": pa.string(), "stored_at": pa.string()}, "is string"),
        ({"topic": pa.string(), "body": pa.binary(), "headers": HALF}, "column headers"),
    ],
    ids=["body", "unknown", "queue", "type", "time", "headers"],
)
def test_a_frame_that_is_no_table_of_messages_is_told_why(
    columns: dict[str, pa.DataType], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_schema(schema(**columns))


def test_the_readers_own_schema_and_text_bodies_are_taken() -> None:
    check_schema(spark_schema(SCHEMA.names))
    text, small = pa.string(), pa.int32()
    check_schema(schema(topic=text, body=text, queue=pa.int64(), offset=small))
    batch = pa.RecordBatch.from_pydict({"topic": ["a"], "body": ["text"]})
    (found,) = made(batch)
    assert decode(found, 0, len(found), 0).body == b"text"


def test_more_tasks_than_a_topic_has_queues_are_refused() -> None:
    with pytest.raises(JobTooLarge, match="coalesce"):
        made(frame(topic=["a"], body=[b""]), RecordMaker(VirtualClock(), TaskStart(1 << 16)))
    with pytest.raises(JobTooLarge, match="coalesce"):
        made(
            frame(topic=["a"], body=[b""], queue=[0], offset=[0]),
            RecordMaker(VirtualClock(), TaskStart(TASKS_MAX)),
        )


def test_an_empty_batch_has_no_records() -> None:
    batch = frame(topic=[], body=[])
    found: list[PlacedRecords] = list(RecordMaker(VirtualClock()).placed(batch))
    assert sum(len(one.records.starts) for one in found) == 0
    assert np.concatenate([np.empty(0, np.int64), *(one.offset for one in found)]).size == 0
