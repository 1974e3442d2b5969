"""Streams by way of Spark itself: batches of limited size, and exactly once with a checkpoint."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kvstore import StoredMessage


def started(spark: SparkSession, folder: Path, out: Path, **options: str) -> StreamingQuery:
    """A stream to Parquet, until there is no more."""
    return (
        spark.readStream.format("kvmq")
        .options(**options)
        .load(str(folder))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "rows"))
    )


def batches(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress]


def positions(spark: SparkSession, out: Path) -> list[int]:
    rows = spark.read.parquet(str(out / "rows")).select("position").collect()
    return sorted(row.position for row in rows)


def test_available_now_ends_with_everything_in_batches_of_limited_size(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    query = started(spark, folder, tmp_path, max_messages_per_trigger="400")
    query.awaitTermination()
    sizes = batches(query)
    assert max(sizes) <= 400
    assert len([size for size in sizes if size]) >= 3
    assert positions(spark, tmp_path) == sorted(held)
