"""`kvmq spark export` and `export`: what is new in a store, each message once."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import kvstore
from kvstore import Message, StoreConfig, StoredMessage
from kvstore.cli.spark.export import export as verb
from kvstore.cli.spark.export import watched
from kvstore.cli.terminal.output import Output
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import SEGMENT
from tests.tiering.spark.export.batches import contents, frame, read, row
from tests.tiering.spark.export.test_commit import CrashError
from tiering.errors import ExportBroken, SchemaIllegal
from tiering.spark.export import Counted, Exporter, ExportReport, export
from tiering.spark.export.commit import CHECKPOINT


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


def test_an_error_of_a_batch_is_kept_for_whoever_runs_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(spark, str(tmp_path), infer=["events"])
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
