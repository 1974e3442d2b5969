"""The same by way of Spark itself; questions in SQL; kvmq in a zip file that Python runs from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType, YearMonthIntervalType

import kvstore
from kvstore import ConfigError, StoredMessage
from kvstore.cli.spark.export_verbs import package
from kvstore.cli.spark.report import sql
from tiering.errors import SparkFailed
from tiering.spark.arrow import SCHEMA, arrow_schema


def test_a_store_is_a_table_without_registering_anything(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage]
) -> None:
    table = spark.read.format("kvmq").load(str(folder))
    assert table.columns == SCHEMA.names
    counted = {row["topic"]: row["count"] for row in table.groupBy("topic").count().collect()}
    topics = [m.topic for m in held.values()]
    assert counted == {name: topics.count(name) for name in set(topics)}
    bodies = {row.position: bytes(row.body) for row in table.select("position", "body").collect()}
    assert bodies == {position: m.body for position, m in held.items()}


def test_a_query_is_answered_beside_the_stores_writer(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage]
) -> None:
    with kvstore.open(folder):
        table = spark.read.format("kvmq").option("columns", "topic,tag,keys,stored_at")
        found = table.load(str(folder)).where(
            "topic = 'orders' AND tag = 'paid' AND array_contains(keys, 'k3')"
        )
        due = [
            m for m in held.values() if m.topic == "orders" and m.tag == "paid" and "k3" in m.keys
        ]
        assert found.count() == len(due)


def test_a_schema_of_fewer_columns_is_read_and_a_wrong_one_refused(
    spark: SparkSession, folder: Path
) -> None:
    reader = spark.read.format("kvmq")
    table = reader.schema("offset BIGINT, keys ARRAY<STRING>").load(str(folder))
    assert table.columns == ["offset", "keys"]
    whole = spark.read.format("kvmq").load(str(folder)).select("offset", "keys")
    assert sorted(table.collect()) == sorted(whole.collect())
    with pytest.raises(PySparkException, match="bigint"):
        spark.read.format("kvmq").schema("offset STRING").load(str(folder)).count()
    with pytest.raises(PySparkException, match="no option"):
        spark.read.format("kvmq").option("topic", "orders").load(str(folder)).count()


def test_a_schema_may_say_that_columns_are_null_at_times_but_not_that_a_tag_never_is(
    spark: SparkSession, folder: Path
) -> None:
    whole = spark.read.format("kvmq").load(str(folder)).orderBy("position")
    said = re.sub('(ullable|ontainsNull)":false', r'\1":true', whole.schema.json())
    assert said.count(":false") == 0
    table = spark.read.format("kvmq").schema(StructType.fromJson(json.loads(said)))
    assert table.load(str(folder)).orderBy("position").collect() == whole.collect()
    with pytest.raises(ConfigError, match="topic is asked for as interval"):
        arrow_schema(StructType([StructField("topic", YearMonthIntervalType())]))
    strict = StructType([StructField("tag", StringType(), nullable=False)])
    with pytest.raises(PySparkException, match="tag is asked for as never null"):
        spark.read.format("kvmq").schema(strict).load(str(folder)).count()


def test_a_spark_that_hands_no_filters_down_reads_all_the_same(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage]
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        table = spark.read.format("kvmq").load(str(folder))
        events = sum(m.topic == "events" for m in held.values())
        assert table.where("topic = 'events'").count() == events
    finally:
        spark.conf.set(setting, "true")


def test_a_question_is_answered_as_a_table_and_as_json(
    spark: SparkSession, folder: Path, held: dict[int, StoredMessage]
) -> None:
    query = "SELECT topic, count(*) AS n, max(body) AS b FROM messages GROUP BY 1 ORDER BY 1"
    topics = [m.topic for m in held.values()]
    done = CliRunner().invoke(sql, [str(folder), query, "--json"], catch_exceptions=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["topic"]: row["n"] for row in rows} == {t: topics.count(t) for t in set(topics)}
    assert rows[0]["b"] == max(m.body for m in held.values() if m.topic == "events").decode()
    shown = CliRunner().invoke(sql, [str(folder), query, "--rows", "1"], catch_exceptions=False)
    assert shown.stdout.startswith("topic")
    assert "events" in shown.stdout
    assert "orders" not in shown.stdout
    assert "--rows" in shown.stdout


def test_a_question_that_has_no_answer_is_one_line(spark: SparkSession, folder: Path) -> None:
    done = CliRunner().invoke(sql, [str(folder), "SELECT nothing FROM messages"])
    assert isinstance(done.exception, SparkFailed)
    assert "nothing" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_what_is_packed_is_imported_from_the_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "kvmq.zip"
    done = CliRunner().invoke(package, [str(target), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["bytes"] == target.stat().st_size
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import kvstore, pyspark_kvmq\n"
        "print(kvstore.__file__, pyspark_kvmq.DefaultSource.name())"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", program, str(target)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.split() == [str(target / "kvstore" / "__init__.py"), "kvmq"]


def test_the_same_source_is_packed_to_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for file in files:
        CliRunner().invoke(package, [str(file)], catch_exceptions=False)
    assert files[0].read_bytes() == files[1].read_bytes()
