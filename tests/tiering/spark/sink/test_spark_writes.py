"""Frames and streams written by Spark itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kvstore
import tiering
from kvstore import StoredMessage
from tests.tiering.spark.conftest import by_position
from tests.tiering.spark.sink.jobs import bodies, objects
from tests.tiering.spark.test_reading import read
from tiering.spark.session import error_line

SCHEMA = "topic STRING, body BINARY"


def rows(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    """Rows that say little."""
    return spark.range(0, count, 1, parts).selectExpr(
        "concat('t', id % 3) topic", "cast(concat('row ', id) AS BINARY) body"
    )


def due(count: int) -> list[bytes]:
    return sorted(b"row %d" % n for n in range(count))


def test_a_store_goes_through_a_frame_and_comes_back_byte_for_byte(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    table = spark.read.format("kvmq").option("split_bytes", "300000").load(str(folder))
    table.write.format("kvmq").mode("append").save(str(out))
    again = spark.read.format("kvmq").load(str(out))
    again.write.format("kvmq").mode("append").option("codec", "lz4").save(str(back))
    assert len(objects(out)) > 1
    tiering.restore(back, tmp_path / "restored")
    with kvstore.open(tmp_path / "restored", read_only=True) as store:
        assert by_position(store) == held


def test_a_task_that_dies_half_way_is_tried_again_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def once(part: int, given: Iterable[int]) -> Iterator[int]:
        """The first try of each part ends in the middle: one by an error, one killed outright."""
        mark = marks / str(part)
        for number, one in enumerate(given):
            if number == 1500 and not mark.exists():
                mark.touch()
                if part:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("half-way")
            yield one

    out = tmp_path / "out"
    numbered = spark.sparkContext.range(0, 4000, 1, 2).mapPartitionsWithIndex(once)
    frame = spark.createDataFrame(numbered.map(lambda n: (f"t{n % 3}", b"row %d" % n)), SCHEMA)
    frame.write.format("kvmq").mode("append").save(str(out))
    assert sorted(path.name for path in marks.iterdir()) == ["0", "1"]
    assert bodies(out) == due(4000)
    assert len(objects(out)) == 2


def test_modes_are_sparks_and_what_a_row_can_not_be_is_said_in_a_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    rows(spark, 10).write.format("kvmq").mode("append").save(out)
    rows(spark, 5).write.format("kvmq").mode("overwrite").save(out)
    assert bodies(Path(out)) == due(5)
    with pytest.raises(PySparkException, match="Append"):
        rows(spark, 5).write.format("kvmq").save(out)
    wrong = rows(spark, 5).selectExpr("topic", "body", "0 queue", "-7 offset")
    with pytest.raises(PySparkException) as caught:
        wrong.write.format("kvmq").mode("append").save(out)
    told = error_line(str(caught.value))
    assert told.startswith("a row of topic 't")
    assert "queue 0, offset -7: column offset is -7" in told
    with pytest.raises(PySparkException, match="'colour'"):
        rows(spark, 5).selectExpr("*", "1 colour").write.format("kvmq").mode("append").save(out)
    assert bodies(Path(out)) == due(5)


def test_a_stream_is_written_once_whatever_is_done_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out, checkpoint = (tmp_path / name for name in ("source", "out", "checkpoint"))

    def more(first: int, end: int) -> None:
        frame = spark.range(first, end, 1, 1).selectExpr(
            "concat('t', id % 3) topic", "cast(concat('row ', id) AS BINARY) body"
        )
        frame.write.mode("append").parquet(str(source))

    def run() -> None:
        stream = (
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        )
        query = (
            stream.writeStream.format("kvmq")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()

    more(0, 50)
    more(50, 80)
    run()
    assert bodies(out) == due(80)
    kept = objects(out)
    # The last batch was committed here, and Spark died before it took note of that.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    more(80, 100)
    run()
    assert bodies(out) == due(100)
    assert kept < objects(out)
    assert len(objects(out)) == len(kept) + 1
    offsets = sorted((r["topic"], r["queue"], r["offset"]) for r in read(out)[0])
    assert len(set(offsets)) == 100
