"""A stream without Spark: what Spark asks of a source, one trigger after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tiering.spark.arrow import columns_of
from tiering.spark.options import read_options
from tiering.spark.stream.reader import KvmqStreamReader

COLUMNS = ["topic", "queue", "offset", "position"]
Row = dict[str, Any]
Json = dict[str, Any]


def reader(path: Path, names: list[str] | None = None, **options: str) -> KvmqStreamReader:
    return KvmqStreamReader(
        read_options({"path": str(path), **options}), columns_of(names or COLUMNS)
    )


def through_json(offset: Json) -> Json:
    """An offset as it comes back from a checkpoint."""
    found: Json = json.loads(json.dumps(offset))
    return found


def read(stream: KvmqStreamReader, start: Json, end: Json) -> list[Row]:
    """A batch's rows."""
    return [
        row
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]


def trigger(
    stream: KvmqStreamReader, start: Json, limit: ReadLimit | None = None
) -> tuple[Json, list[Row]]:
    """One batch: where it ends, and its rows."""
    limit = limit or stream.getDefaultReadLimit()
    end = through_json(stream.latestOffset(start, limit))
    return end, read(stream, start, end)


def drain(stream: KvmqStreamReader, start: Json | None = None) -> tuple[Json, list[list[Row]]]:
    """Batches until there is nothing more."""
    offset = through_json(stream.initialOffset()) if start is None else start
    batches: list[list[Row]] = []
    while True:
        end, rows = trigger(stream, offset)
        if end == offset:
            return offset, batches
        batches.append(rows)
        offset = end


def everything(stream: KvmqStreamReader, start: Json) -> tuple[Json, list[Row]]:
    """All rows that there are, in one batch."""
    return trigger(stream, start, ReadAllAvailable())


def positions(rows: list[Row]) -> set[int]:
    found = {row["position"] for row in rows}
    assert len(found) == len(rows), "a message came twice"
    return found
