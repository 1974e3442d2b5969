"""Exports to Parquet: every message once, in the folder of its topic and day."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kvstore.errors import ConfigError
from tests.tiering.spark.export.batches import HEADERS, Row, contents, frame, ids, read, row
from tests.tiering.spark.export.test_commit import CrashError, Crashing
from tiering.errors import ExportBroken, SparkUnsuitable
from tiering.spark.export import Compacted, Exporter
from tiering.spark.export.commit import CHECKPOINT
from tiering.spark.export.hadoop import Folders


def test_batches_are_added_and_one_that_comes_again_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = tmp_path / "out [1]"
    first = [row(0), row(1, hours=3), row(2, "%DLQ%a{b}")]
    exporter = Exporter(spark, str(target))
    exporter.export_batch(frame(spark, first), 0)
    exporter.export_batch(frame(spark, [row(3)]), 1)
    before = contents(target)
    exporter.export_batch(frame(spark, [row(9)]), 1)
    assert contents(target) == before
    # A new process is given the last batch once more, if its end was not noted in the checkpoint.
    again = Exporter(spark, str(target))
    again.export_batch(frame(spark, [row(3)]), 1)
    assert again.report.batches == 0
    assert ids(target) == ["%DLQ%a{b}-2", "orders-0", "orders-1", "orders-3"]
    assert {path.parent.name for path in target.glob("topic=orders/*/*.parquet")} == {
        "day=2026-11-01", "day=2026-11-02",
    }  # fmt: skip
    report = exporter.report
    assert (report.batches, report.total.messages, report.total.rejected) == (2, 4, 0)
    files = list(target.glob("topic=*/*/*.parquet"))
    assert report.total.files == len(files)
    assert report.total.bytes == sum(path.stat().st_size for path in files)
    table = spark.read.parquet(Folders(spark, str(target)).for_reading(""))
    assert table.where("topic = 'orders' AND day = '2026-11-01'").count() == 2


def test_a_topic_that_is_called_as_folders_of_nothing_are_is_read_by_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = "__HIVE_DEFAULT_PARTITION__"
    exporter = Exporter(spark, str(tmp_path), schemas={topic: "id BIGINT"})
    bodies = [b'{"id": 1}', b"no JSON"]
    exporter.export_batch(frame(spark, [row(n, topic, b) for n, b in enumerate(bodies)]), 0)
    one = exporter.report.topics[topic]
    assert (one.messages, one.rejected) == (1, 1)
    for folder in (tmp_path, tmp_path / "_kvmq_rejected"):
        table = spark.read.option("basePath", str(folder)).parquet(f"{folder}/topic=*")
        assert [found.topic for found in table.collect()] == [topic]


def test_all_columns_come_through(spark: SparkSession, tmp_path: Path) -> None:
    wanted = row(5, body=b"\x00\xff")
    with_headers = wanted | {"headers": HEADERS | {"flags": 1, "born_host": "h:1"}}
    Exporter(spark, str(tmp_path)).export_batch(frame(spark, [with_headers]), 0)
    (found,) = read(tmp_path)
    headers = found.pop("headers")
    assert found.pop("day") == "2026-11-01"
    assert found | {"headers": HEADERS} == wanted
    assert (headers["flags"], headers["born_host"], headers["stored_body"]) == (1, "h:1", None)
    assert found["stored_at"] == datetime(2026, 11, 1, 22, 0, 5, tzinfo=UTC)


def compacted(spark: SparkSession, folder: Path, after: int = -1) -> Compacted:
    exporter = Exporter(spark, str(folder), folders=Crashing(spark, str(folder), after))
    return exporter.compact(least=2)


@pytest.fixture(scope="module")
def many(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with three files in one folder and one in another."""
    folder = tmp_path_factory.mktemp("many") / "out"
    exporter = Exporter(spark, str(folder))
    exporter.export_batch(frame(spark, [row(0), row(1), row(2, "once")]).repartition(1), 0)
    exporter.export_batch(frame(spark, [row(4), row(3)]), 1)
    exporter.export_batch(frame(spark, [row(5)]), 2)
    return folder


def test_small_files_become_one_and_every_message_stays(
    spark: SparkSession, many: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(many, tmp_path / "out"))
    before = read(folder)
    done = compacted(spark, folder)
    assert (done.files_before, done.files_after) == (3, 1)
    assert len(list(folder.glob("topic=orders/*/*.parquet"))) == 1
    assert read(folder) == before
    assert compacted(spark, folder) == Compacted()


def test_a_crash_within_a_compaction_loses_and_doubles_nothing(
    spark: SparkSession, many: Path, tmp_path: Path
) -> None:
    """Before the manifest has its place, before the new file has, with one old file gone, and when
    all is done but the filing.
    """
    before = ids(many)
    for after in (7, 8, 10, 12):
        folder = Path(shutil.copytree(many, tmp_path / f"out{after}"))
        with pytest.raises(CrashError):
            compacted(spark, folder, after)
        assert set(ids(folder)) == set(before)
        Exporter(spark, str(folder))
        assert ids(folder) == before


def test_a_folder_has_one_kind_of_export(spark: SparkSession, tmp_path: Path) -> None:
    Exporter(spark, str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="as parquet"):
        Exporter(spark, str(tmp_path / "out"), format="iceberg")
    with pytest.raises(ConfigError, match="only format iceberg"):
        Exporter(spark, str(tmp_path / "out"), table="a.b")
    with pytest.raises(ConfigError, match="must be one of"):
        Exporter(spark, str(tmp_path / "out"), format="csv")  # type: ignore[arg-type] # on purpose
    with pytest.raises(ConfigError, match="1 byte"):
        Exporter(spark, str(tmp_path / "out")).compact(target_bytes=0)
    # Without its checksum, which Hadoop would look at.
    (tmp_path / "out/_kvmq/.export.json.crc").unlink()
    (tmp_path / "out/_kvmq/export.json").write_text("{")
    with pytest.raises(ExportBroken, match="put it back"):
        Exporter(spark, str(tmp_path / "out"))


def test_an_export_without_its_checkpoint_is_not_begun_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(spark, str(tmp_path))
    exporter.check_checkpoint()
    empty: list[Row] = []
    exporter.export_batch(frame(spark, empty), 0)
    assert exporter.report.batches == 1
    with pytest.raises(ExportBroken, match="checkpoint"):
        exporter.check_checkpoint()


def test_a_session_without_a_jvm_is_told_to_be_none_for_this(tmp_path: Path) -> None:
    class Connected:
        """What a session of Spark Connect lacks."""

    with pytest.raises(SparkUnsuitable, match="Spark Connect"):
        Folders(Connected(), str(tmp_path))  # type: ignore[arg-type] # it has nothing, on purpose


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("s3a://lake/messages", r"packages=org.apache.hadoop:hadoop-aws:\d+\.\d+\.\d+\), or"),
        ("s3://lake/messages", r"\), and say s3a: instead of s3:"),
        ("abc://lake/messages", "PACKAGE-WITH-ABC"),
    ],
    ids=["s3a", "s3", "unknown"],
)
def test_a_target_that_spark_has_no_part_for_is_told_with_what_it_takes(
    spark: SparkSession, target: str, told: str
) -> None:
    with pytest.raises(SparkUnsuitable, match=told):
        Folders(spark, target)


def test_a_checkpoint_that_is_older_than_the_export_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its batches are others under the same numbers, and would be taken for those exported."""
    exporter, empty = Exporter(spark, str(tmp_path)), frame(spark, [])

    def export(batch: int, end: int, at: int) -> None:
        noted = f'v1\n{{"batchTimestampMs":{at}}}\n{{"end": {end}}}'
        exporter.folders.write(f"{CHECKPOINT}/offsets/{batch}", noted.encode())
        exporter.export_batch(empty, batch)

    export(0, 100, 1)
    export(1, 200, 2)
    export(1, 200, 3)
    for batch, end in ((1, 250), (0, 100)):
        with pytest.raises(ExportBroken, match="older than"):
            export(batch, end, 4)
    assert exporter.report.batches == 2
