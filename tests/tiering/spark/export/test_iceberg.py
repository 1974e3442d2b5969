"""Exports to tables of Iceberg: a batch is one commit of a table, and is there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kvstore.errors import ConfigError
from tests.tiering.spark.export.batches import frame, read, row
from tests.tiering.spark.export.test_commit import CrashError, Crashing
from tiering.errors import TableFailed
from tiering.spark.export import Exporter, ExportForm
from tiering.spark.export.commit import PENDING
from tiering.spark.export.hadoop import Folders

LONG = "a-topic-with-a-long-name"


def table(exporter: Exporter, name: str = "kvmq.messages") -> Any:
    assert exporter.tables is not None
    return exporter.tables.catalog.load_table(name)


def table_ids(exporter: Exporter, only: str | None = None) -> list[str]:
    """The messages that the table of topics without schemas has."""
    scan = table(exporter).scan()
    found = scan.filter(only) if only else scan
    return sorted(found.to_arrow()["message_id"].to_pylist())


def exporter_of(spark: SparkSession, folder: Path, folders: Folders | None = None) -> Exporter:
    return Exporter(
        spark, str(folder), ExportForm(format="iceberg", schemas={LONG: "n INT"}), folders=folders
    )


def test_batches_are_commits_of_tables_and_one_that_comes_again_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = exporter_of(spark, tmp_path)
    rows = [row(0), row(1, hours=3), row(2, "events"), row(3, LONG, b'{"n": 1}'), row(4, LONG)]
    exporter.export_batch(frame(spark, rows), 0)
    again = exporter_of(spark, tmp_path)
    again.export_batch(frame(spark, rows), 0)
    again.export_batch(frame(spark, [row(5)]), 1)
    everything = ["events-2", "orders-0", "orders-1", "orders-5"]
    assert table_ids(again) == everything
    assert table_ids(again, "stored_at >= '2026-11-02T00:00:00+00:00'") == ["orders-1"]
    assert table_ids(again, "topic = 'events'") == ["events-2"]
    assert len(table(again).history()) == 2
    assert again.tables is not None
    typed = table(again, again.tables.table_of(LONG))
    assert typed.scan().to_arrow()["value"].to_pylist() == [{"n": 1}]
    assert [one["offset"] for one in read(tmp_path / "_kvmq_rejected")] == [4]
    assert exporter.report.topics[LONG].messages == 1
    with pytest.raises(ConfigError, match="rewrite_data_files"):
        again.compact()


def test_a_crash_before_any_change_leaves_every_message_in_the_table_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before the manifest has its place, before a file has, and when the table was told."""
    for after in (4, 5, 6):
        folder = tmp_path / f"out{after}"
        folders = Crashing(spark, str(folder), -1)
        crashing = exporter_of(spark, folder, folders)
        folders.left = after
        with pytest.raises(CrashError):
            crashing.export_batch(frame(spark, [row(0)]), 0)
        again = exporter_of(spark, folder)
        again.export_batch(frame(spark, [row(0)]), 0)
        assert table_ids(again) == ["orders-0"]


def test_a_catalog_that_fails_keeps_what_is_committed_for_the_next_export(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = exporter_of(spark, tmp_path)
    exporter.export_batch(frame(spark, [row(0)]), 0)
    catalog = tmp_path / "_kvmq/catalog.db"
    whole = catalog.read_bytes()
    catalog.write_bytes(b"nonsense" * 1000)
    with pytest.raises(TableFailed, match=r"kvmq\.messages"):
        exporter.export_batch(frame(spark, [row(1)]), 1)
    assert list((tmp_path / PENDING).glob("*.json"))
    catalog.write_bytes(whole)
    again = exporter_of(spark, tmp_path)
    assert table_ids(again) == ["orders-0", "orders-1"]
    again.export_batch(frame(spark, [row(1)]), 1)
    assert again.report.batches == 0


def test_a_table_must_have_a_name_that_catalogs_take(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("messages", "a.b;c", "a..b"):
        with pytest.raises(ConfigError, match=r"namespace\.table"):
            Exporter(spark, str(tmp_path / name), ExportForm(format="iceberg", table=name))
