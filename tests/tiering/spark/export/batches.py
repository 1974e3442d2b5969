"""Batches as the stream hands them over, and how what was exported is read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession

from tiering.spark.arrow import SCHEMA

BEGIN = datetime(2026, 11, 1, 22, tzinfo=UTC)
Row = dict[str, Any]
HEADERS: Row = {
    "flags": 0,
    "system_flags": 0,
    "born_host": "10.0.0.7:10911",
    "store_host": "10.0.0.7:10911",
    "reconsume_times": 0,
    "prepared_position": 0,
    "version": 1,
}
"""Of each message; nothing else is there that doesn't follow."""


def row(offset: int, topic: str = "orders", body: bytes | None = None, hours: float = 0.0) -> Row:
    """A message; `hours` after ten in the evening."""
    at = BEGIN + timedelta(hours=hours, seconds=offset)
    return {
        "topic": topic,
        "queue": offset % 2,
        "offset": offset,
        "message_id": f"{topic}-{offset}",
        "keys": [f"k{offset}"],
        "tag": None,
        "properties": [("number", str(offset))],
        "born_at": at,
        "stored_at": at,
        "position": offset * 100,
        "body": body if body is not None else b"message %d" % offset,
        "headers": HEADERS,
    }


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Rows as a batch has them, in one part."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    return spark.createDataFrame(table).coalesce(1)


def read(folder: Path, only: str = "topic=*") -> list[Row]:
    """The rows that a reader without kvmq finds below a folder, in order."""
    files = [str(path) for path in sorted(folder.glob(f"{only}/day=*/*.parquet"))]
    found = []
    for file in files:
        parts = pa.dataset.partitioning(flavor="hive")
        table = pa.dataset.dataset(file, partitioning=parts, partition_base_dir=str(folder))
        found += table.to_table().to_pylist()
    return sorted(found, key=lambda one: (one["topic"], one["offset"]))


def ids(folder: Path) -> list[str]:
    """The messages that such a reader finds."""
    return [one["message_id"] for one in read(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but checksums."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
