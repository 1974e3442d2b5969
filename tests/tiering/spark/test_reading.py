"""Tasks read each message once, in whatever tier it is, and no more than is asked for."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

import kvstore
from kvstore import ConfigError, Message, StoreConfig, StoredMessage, StoreNotFound
from kvstore.errors import ArchiveDamaged
from tests.support.calls import calls_of
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import SEGMENT, tiered
from tiering import NothingToRestore, Policy, Worker
from tiering.errors import ObjectTooShort
from tiering.spark.arrow import SCHEMA
from tiering.spark.listing import CountedSource, Opener, listing
from tiering.spark.options import read_options
from tiering.spark.part_reader import PartReader
from tiering.spark.splits import plan_splits
from tiering.spark.wanted import QueryFilter

Row = dict[str, Any]


def read(
    path: Path | str, *filters: Filter, names: list[str] | None = None, **options: str
) -> tuple[list[Row], int, int]:
    """The rows, how many parts there were, and how many bytes tasks read."""
    given = read_options({"path": str(path), **options})
    wanted = QueryFilter.of(given).narrowed(filters)
    splits = plan_splits(listing(given), wanted, given, Opener(given))
    opener = Opener(given)
    reader = PartReader(given, wanted, names or SCHEMA.names, opener)
    batches = [batch for split in splits for batch in reader.batches(split)]
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return rows, len(splits), opener.read


def as_row(message: StoredMessage) -> Row:
    """A message as a row says it, but for its headers."""
    born, stored = (
        datetime.fromtimestamp(at / 1000, UTC) for at in (message.born_at, message.stored_at)
    )
    return {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "message_id": message.message_id,
        "keys": message.keys,
        "tag": message.tag,
        "properties": list(message.properties.items()),
        "born_at": born,
        "stored_at": stored,
        "position": message.position,
        "body": message.body,
    }


def test_every_message_is_there_once_whatever_tier_it_is_in(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    for split_bytes in ("9000", "100000000"):
        rows, parts, _ = read(folder, split_bytes=split_bytes)
        assert parts > 1 or split_bytes == "100000000"
        headers = [row.pop("headers") for row in rows]
        assert len(rows) == len(held)
        assert {row["position"]: row for row in rows} == {p: as_row(m) for p, m in held.items()}
        assert all(head["version"] == 1 for head in headers)


def test_a_task_makes_no_object_and_no_call_for_a_live_message(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        path = tmp_path / str(count)
        with kvstore.open(path, StoreConfig(segment_size=4 << 20)) as store:
            store.create_topic("orders", queues=1)
            some = [Message("orders", b"x", keys=[f"k{n}"], tag="paid") for n in range(count)]
            store.put_batch(some)
        given = read_options({"path": str(path)})
        [split] = plan_splits(listing(given), QueryFilter.of(given), given, Opener(given))
        reader = PartReader(given, QueryFilter.of(given), SCHEMA.names)
        batches: list[pa.RecordBatch] = []
        made = calls_of(lambda: batches.extend(reader.batches(split)))
        assert sum(batch.num_rows for batch in batches) == count
        return made

    calls(10)
    assert calls(5000) - calls(1000) < 1000


def test_what_was_read_of_an_archive_before_it_went_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"hot": "false", "damaged": "skip", "split_bytes": "100000000"}
    given = read_options({"path": str(folder), **options})
    last = Opener(given).opened(listing(given).archives[-1]).manifest.messages
    reads, most = 0, 1 << 30
    read_at = CountedSource.read

    def counted(source: CountedSource, offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads > most:
            raise ObjectTooShort("it went")
        return read_at(source, offset, size)

    monkeypatch.setattr(CountedSource, "read", counted)
    every, _, _ = read(folder, names=["position"], **options)
    most, reads = reads - 1, 0
    some, _, _ = read(folder, names=["position"], **options)
    # One group of several.
    assert 0 < len(every) - len(some) < last / 2


def test_archives_alone_are_read_from_their_folder(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    rows, _, _ = read(folder / "archive")
    hot, _, _ = read(folder)
    mine = {row["position"] for row in rows if row["topic"] != "gone"}
    assert mine == {
        row["position"]
        for row in hot
        if row["position"] < min(p for p in held if p >= max(mine) // SEGMENT * SEGMENT + SEGMENT)
    }
    assert {row["position"] for row in read(folder, hot="false")[0]} == mine


def test_of_a_topic_that_was_made_again_archives_alone_give_the_later_life(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path, StoreConfig(segment_size=SEGMENT, clock=clock)) as store:
        store.create_topic("other")
        for life in (b"first", b"second"):
            store.create_topic("orders")
            store.put_batch([Message("orders", life), Message("other", b"x")])
            tiered(store, clock)
            store.delete_topic("orders")
    assert {row["body"] for row in read(tmp_path / "archive")[0]} == {b"second", b"x"}


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("topic",), "events")], lambda m: m.topic == "events"),
        ([In(("topic",), ("events", "none"))], lambda m: m.topic == "events"),
        ([EqualTo(("queue",), 1)], lambda m: m.queue == 1),
        ([GreaterThanOrEqual(("offset",), 20), LessThan(("offset",), 25)],
         lambda m: 20 <= m.offset < 25),
        ([LessThan(("position",), 70_000)], lambda m: m.position < 70_000),
        ([EqualTo(("tag",), "paid")], lambda m: m.tag == "paid"),
    ],
    ids=["topic", "topics", "queue", "offset", "position", "tag"],
)  # fmt: skip
def test_filters_lose_nothing(
    folder: Path, held: dict[int, StoredMessage], filters: list[Filter], wanted: Any
) -> None:
    rows, _, _ = read(folder, *filters)
    due = {p for p, m in held.items() if wanted(m)}
    assert due <= {row["position"] for row in rows} <= set(held)


def test_a_time_is_found_with_all_that_was_stored_in_it(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    some = sorted(held)[100]
    at = datetime.fromtimestamp(held[some].stored_at / 1000, UTC)
    for one in (EqualTo(("stored_at",), at), LessThan(("stored_at",), at + timedelta(seconds=1))):
        assert some in {row["position"] for row in read(folder, one)[0]}


def test_an_id_is_found_by_the_key_index(folder: Path, held: dict[int, StoredMessage]) -> None:
    whole = read(folder, hot="false")[2]
    some = held[sorted(held)[5]]
    rows, _, size = read(folder, EqualTo(("message_id",), some.message_id), hot="false")
    assert some.position in {row["position"] for row in rows}
    assert size < whole / 3


def test_keys_of_the_options_are_applied_exactly(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    rows, _, _ = read(folder, keys="k3, n17", names=["position"])
    assert {row["position"] for row in rows} == {
        p for p, m in held.items() if {"k3", "n17"} & set(m.keys)
    }
    assert rows[0].keys() == {"position"}


def test_topics_of_the_options_are_applied_exactly(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    rows, _, _ = read(folder, topics='["events"]')
    assert {row["position"] for row in rows} == {p for p, m in held.items() if m.topic == "events"}


def test_bodies_that_nobody_asks_for_are_not_read(folder: Path) -> None:
    whole = read(folder, hot="false")[2]
    rows, _, size = read(folder, hot="false", names=["topic", "offset"])
    assert size < whole
    assert rows[0].keys() == {"topic", "offset"}
    assert read(folder, EqualTo(("tag",), "none"), hot="false")[2] < whole


def test_headers_and_columns_give_every_record_back(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    with kvstore.open(folder, read_only=True) as store:
        for row in read(folder)[0]:
            message, head = store.read_at(row["position"]), row["headers"]
            fields = "".join(f"{k}\x01{v}\x02" for k, v in row["properties"]).encode()
            raw = head["properties"] if head["properties"] is not None else fields
            assert raw == message.raw_properties
            assert (head["flags"], head["system_flags"], head["reconsume_times"]) == (
                message.flags, message.system_flags, message.reconsume_times,
            )  # fmt: skip
            assert (head["stored_body"] is not None) == bool(message.system_flags & 1)
            assert head["store_host"] == "{}:{}".format(*message.store_host)


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_field_of_headers_is_a_column_by_name_and_no_body_is_read_for_it(
    tmp_path: Path, clock: VirtualClock, *, is_archived: bool
) -> None:
    path = tmp_path / "s"
    with kvstore.open(path, StoreConfig(segment_size=SEGMENT, clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", os.urandom(400)) for _ in range(50)])
        prepared = [store.prepare("t", os.urandom(400), group="g") for _ in range(9)]
        store.commit_batch(prepared[::2])
        if is_archived:
            store.seal()
            clock.advance(60)
            with Worker(store, Policy(hot_for=1, warm="archive", clock_doubt=0.0)) as worker:
                assert worker.run_once().failed == {}
    rows, _, whole = read(path)
    found, _, size = read(path, names=["position", "prepared_position"])
    wanted = {row["position"]: row["headers"]["prepared_position"] for row in rows}
    assert {row["position"]: row["prepared_position"] for row in found} == wanted
    assert {put.position + 1 for put in prepared[::2]} <= {*wanted.values()}
    assert size + 50 * 400 < whole or not is_archived


def test_a_damaged_archive_fails_or_is_left_out(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(folder, copy)
    first, second = sorted((copy / "archive").rglob("*.kvarc"))[:2]
    data = bytearray(first.read_bytes())
    data[200] ^= 1
    first.write_bytes(data)
    whole = len(read(folder)[0])
    with pytest.raises(ArchiveDamaged, match=first.name):
        read(copy)
    assert 0 < len(read(copy, damaged="skip")[0]) < whole
    second.unlink()
    with pytest.raises(kvstore.StoreError, match="kvarc"):
        read(copy)
    assert 0 < len(read(copy, damaged="skip")[0]) < whole


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "orders"}, "no option 'topic'"),
        ({"damaged": "maybe"}, "fail or skip"),
        ({"split_bytes": "0"}, "1 or more"),
        ({"hot": "no"}, "true or false"),
        ({"topics": "[1]"}, "list of texts"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_options({"path": "x", **options})


def test_a_place_without_archives_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="no folder"):
        read(tmp_path / "none")
    with pytest.raises(NothingToRestore, match="no archives"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="what to read"):
        read_options({})


def test_batches_that_are_small_are_joined_and_others_are_left_as_they_are(
    folder: Path, held: dict[int, StoredMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so none has more rows than are enough, but for one group or piece of the log."""
    given = read_options({"path": str(folder)})
    splits = plan_splits(listing(given), QueryFilter.of(given), given, Opener(given))
    monkeypatch.setattr("tiering.spark.part_reader._BATCH_ROWS", 1)
    alone = [
        len(b) for s in splits for b in PartReader(given, QueryFilter(), SCHEMA.names).batches(s)
    ]
    for enough in range(max(alone), 4 * max(alone), 5):
        monkeypatch.setattr("tiering.spark.part_reader._BATCH_ROWS", enough)
        for split in splits:
            batches = PartReader(given, QueryFilter(), SCHEMA.names).batches(split)
            sizes = [len(batch) for batch in batches]
            assert all(a >= enough or b >= enough or a + b >= enough for a, b in pairwise(sizes))
            assert max(sizes) < enough + max(alone)
    assert len(alone) > 10
    assert sum(alone) == len(held)


def test_parts_of_a_segment_that_moved_give_the_messages_of_a_key_also_where_there_are_none(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path, StoreConfig(segment_size=1 << 20, clock=clock)) as store:
        for topic in ("often", "seldom"):
            store.create_topic(topic, queues=1)
        for n in range(0, 3000, 100):
            store.put_batch([Message("often", b"x" * 200, keys=["k"])] * 100)
            if n in (100, 2800):
                store.put_batch([Message("seldom", b"%d" % n, keys=["k"])])
        store.seal()
        options = {"keys": "k", "topics": "seldom", "split_bytes": "65536"}
        given = read_options({"path": str(tmp_path), **options})
        wanted = QueryFilter.of(given)
        splits = plan_splits(listing(given), wanted, given, Opener(given))
        assert sum(bool(split.log) for split in splits) > 2
        tiered(store, clock)
        reader = PartReader(given, wanted, SCHEMA.names)
        found = [row for split in splits for b in reader.batches(split) for row in b.to_pylist()]
    assert [row["body"] for row in found] == [b"100", b"2800"]
