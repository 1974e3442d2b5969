"""`kvmq spark sql`: a question, asked in SQL."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from kvstore import StoredMessage
from kvstore.cli.spark.report import sql
from tiering.errors import SparkFailed


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
