"""Streams by way of Spark itself: batches of limited size, and exactly once with a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kvstore import Store, StoredMessage
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import DAY, POLICY, TOPICS, message
from tiering import Worker


@pytest.fixture
def store(empty: Store) -> Store:
    for topic, queues in TOPICS.items():
        empty.create_topic(topic, queues=queues)
    return empty


def put(store: Store, first: int, count: int) -> set[int]:
    """Messages that streams can see; their positions."""
    found = store.put_batch([message(n) for n in range(first, first + count)])
    store.checkpoint()
    return {result.position for result in found}


def tier(
    store: Store, clock: VirtualClock, *, days: float = 2.0, keep: float | None = None
) -> None:
    store.seal()
    clock.advance(days * DAY)
    policy = msgspec.structs.replace(POLICY, warm_for=keep)
    with Worker(store, policy) as worker:
        assert worker.run_once().failed == {}
        worker.merge()


def streamed(
    spark: SparkSession, folder: Path, checkpoint: Path, **options: str
) -> DataStreamWriter:
    """A stream that ends when there is no more."""
    return (
        spark.readStream.format("kvmq")
        .options(**options)
        .load(str(folder))
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )


def sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress]


def positions(spark: SparkSession, *folders: Path) -> list[int]:
    rows = spark.read.parquet(*map(str, folders)).select("position").collect()
    return sorted(row.position for row in rows)


def test_available_now_ends_with_everything_in_batches_of_limited_size(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    out = tmp_path / "rows"
    stream = streamed(spark, folder, tmp_path / "check", max_messages_per_trigger="400")
    query = stream.format("parquet").start(str(out))
    query.awaitTermination()
    assert max(sizes(query)) <= 400
    assert len([size for size in sizes(query) if size]) >= 3
    assert positions(spark, out) == sorted(held)


def test_a_batch_that_was_cut_off_comes_again_with_the_same_messages(
    spark: SparkSession, store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    due = put(store, 0, 300)
    tier(store, clock)
    due |= put(store, 300, 150)
    cut_at, written = 2, tmp_path / "cut off"

    def first(batch: DataFrame, number: int) -> None:
        out = written if number == cut_at else tmp_path / f"batch{number}"
        batch.write.parquet(str(out))
        if number == cut_at:
            raise RuntimeError("the sink dies before it is done")

    def again(batch: DataFrame, number: int) -> None:
        # One that was done already would fail here.
        batch.write.parquet(str(tmp_path / f"batch{number}"))

    options = {"max_messages_per_trigger": "130"}
    query = streamed(spark, store.path, tmp_path / "check", **options).foreachBatch(first).start()
    with pytest.raises(StreamingQueryException, match="the sink dies"):
        query.awaitTermination()
    # Meanwhile the store goes on: what the batch has is in other archives then.
    due |= put(store, 450, 100)
    tier(store, clock)
    tier(store, clock)
    due |= put(store, 550, 30)
    query = streamed(spark, store.path, tmp_path / "check", **options).foreachBatch(again).start()
    query.awaitTermination()
    folders = sorted(tmp_path.glob("batch*"))
    assert positions(spark, written) == positions(spark, tmp_path / f"batch{cut_at}")
    assert positions(spark, *folders) == sorted(due)
    assert len(folders) >= 5


def test_a_stream_follows_its_stores_writer_and_tells_what_was_lost(
    spark: SparkSession, store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    found: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(row.position for row in batch.select("position").collect())

    def stream(**options: str) -> StreamingQuery:
        writer = streamed(spark, store.path, tmp_path / "check", **options).foreachBatch(collect)
        return writer.trigger(processingTime="0 seconds").start()

    due = put(store, 0, 40)
    query = stream()
    for first in (40, 80):
        query.processAllAvailable()
        assert sorted(found) == sorted(due)
        due |= put(store, first, 40)
        tier(store, clock)
    query.processAllAvailable()
    query.stop()
    assert sorted(found) == sorted(due)
    put(store, 120, 40)
    tier(store, clock)
    tier(store, clock, days=20, keep=2 * DAY)
    new = put(store, 160, 40)
    query = stream()
    with pytest.raises(StreamingQueryException, match=r"MessagesLost.*fail_on_data_loss"):
        query.processAllAvailable()
    query = stream(fail_on_data_loss="false")
    query.processAllAvailable()
    query.stop()
    assert sorted(found) == sorted(due | new)
