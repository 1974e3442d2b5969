"""Exports to Parquet: every message once, in the folder of its topic and day, run after run."""

from __future__ import annotations

import json
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import kvstore
from kvstore import Message, StoreConfig, StoredMessage
from kvstore.cli.spark.export_verbs import export as verb
from kvstore.cli.spark.export_verbs import watched
from kvstore.cli.terminal.output import Output
from kvstore.errors import ConfigError
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import SEGMENT
from tests.tiering.spark.export.batches import HEADERS, Row, contents, frame, ids, read, row
from tests.tiering.spark.export.test_commit import CrashError, Crashing
from tiering.errors import ExportBroken, SchemaIllegal, SparkUnsuitable
from tiering.spark.export import Compacted, Counted, Exporter, ExportForm, ExportReport, export
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
    exporter = Exporter(spark, str(tmp_path), ExportForm(schemas={topic: "id BIGINT"}))
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
        Exporter(spark, str(tmp_path / "out"), ExportForm(format="iceberg"))
    with pytest.raises(ConfigError, match="only format iceberg"):
        Exporter(spark, str(tmp_path / "out"), ExportForm(table="a.b"))
    with pytest.raises(ConfigError, match="must be one of"):
        ExportForm(format="csv")  # type: ignore[arg-type] # on purpose
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
        """Lacks a JVM, as a session of Spark Connect does."""

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


def positions(folder: Path) -> list[int]:
    return sorted(one["position"] for one in read(folder))


def test_each_run_takes_what_is_new(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(folder, tmp_path / "store"))
    target = tmp_path / "out"
    args = [str(source), str(target)]
    first = CliRunner().invoke(verb, [*args, "--json"], catch_exceptions=False)
    done = json.loads(first.stdout)
    topics = [m.topic for m in held.values()]
    assert {topic: one["messages"] for topic, one in done["topics"].items()} == {
        topic: topics.count(topic) for topic in set(topics)
    }
    assert positions(target) == sorted(held)
    assert {one["position"]: one["body"] for one in read(target)} == {
        position: message.body for position, message in held.items()
    }
    with kvstore.open(source, StoreConfig(segment_size=SEGMENT, clock=VirtualClock())) as store:
        put = store.put_batch([Message("orders", b'{"n": 1}'), Message("orders", b"more")])
    given = tmp_path / "schemas.json"
    given.write_text('{"orders": "n INT"}')
    again = [*args, "--schema", str(given), "--compact"]
    second = CliRunner().invoke(verb, again, catch_exceptions=False)
    assert "_kvmq_rejected" in second.stdout
    assert positions(target) == sorted([*held, put[0].position])
    assert [one["position"] for one in read(target / "_kvmq_rejected")] == [put[1].position]
    before = contents(target)
    third = CliRunner().invoke(verb, args, catch_exceptions=False)
    assert "0 batches" in third.stdout
    assert {n for n in contents(target) if "_kvmq/" not in n} == {
        n for n in before if "_kvmq/" not in n
    }


def test_a_run_that_ends_half_way_is_gone_on_with(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    """The second batch is committed, and Spark is not told so; it gives the batch again."""
    options = {"max_messages_per_trigger": "400"}
    seen: list[int] = []

    def ending(what: str, done: int, whole: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise CrashError

    with pytest.raises(CrashError):
        export(spark, str(folder), str(tmp_path), options=options, progress=ending)
    assert len(positions(tmp_path)) == seen[1] < len(held)
    done = export(spark, str(folder), str(tmp_path), options=options)
    assert done.total.messages == len(held) - seen[1]
    assert positions(tmp_path) == sorted(held)
    shutil.rmtree(tmp_path / CHECKPOINT)
    with pytest.raises(ExportBroken, match="checkpoint"):
        export(spark, str(folder), str(tmp_path))


def test_an_error_of_a_batch_is_kept_for_the_caller_that_runs_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(spark, str(tmp_path), ExportForm(infer=["events"]))
    with pytest.raises(SchemaIllegal, match="topic events") as failed:
        exporter.export_batch(frame(spark, [row(0, "events", b"plain")]), 0)
    assert exporter.failed is failed.value
    assert read(tmp_path) == []


def test_watching_tells_what_is_new_and_ends_after_the_look_that_a_signal_comes_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks: list[int] = []

    def once() -> ExportReport:
        looks.append(len(looks))
        if len(looks) == 3:
            signal.raise_signal(signal.SIGTERM)
        new = {"orders": Counted(len(looks), 1, 10)} if len(looks) != 2 else {}
        return ExportReport(target="out", format="parquet", batches=len(new), topics=new)

    before = signal.getsignal(signal.SIGTERM)
    watched(Output(as_json=True), once, interval=0.01)
    assert looks == [0, 1, 2]
    assert signal.getsignal(signal.SIGTERM) == before
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["topics"]["orders"]["messages"] for one in told] == [1, 3]
