"""Parquet: writes rows of messages to files in a staging folder, and says where the files go.

The idea: Spark writes a folder for each topic and day; the day is that on which a message was
stored, in UTC. Topics with a schema have a column `value` instead of `body`. Rows whose body does
not fit go to files of their own, with all their columns. The written rows are counted by the files'
own footers.

Invariant: every row is in one file: the rows exported and set aside are as many as those read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from tiering.errors import ExportBroken
from tiering.spark.export.export_layout import ASIDE, OUT, PARQUET, REJECTED, staged
from tiering.spark.export.export_manifest import Counted, Move
from tiering.spark.export.fitting import fitted
from tiering.spark.export.hadoop import Folders
from tiering.spark.export.schemas import SAMPLED, Schemas

TOPIC: Final = "topic"
DAY: Final = "day"
_MICROSECONDS: Final = 86_400_000_000
_SETTINGS: Final = {
    # The standard's own type, not INT96, which newer readers warn about, and has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_NULL_ESCAPED: Final = "%5F" + _NULL[1:]
"""Spark reads a folder of the first name as null, and of the second as a topic's."""
_ORDER: Final = ("queue", "offset")


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str] = _SETTINGS) -> Iterator[None]:
    """Gives Spark some settings for the block; afterwards it has its own again."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class Stager:
    """Writes rows to staging folders. `twice`: the columns that name the folders are in the files,
    too.
    """

    def __init__(
        self, folders: Folders, schemas: Schemas, *, keep_body: bool = False, twice: bool = False
    ) -> None:
        self._folders = folders
        self._schemas = schemas
        self._keep_body = keep_body
        self._twice = twice

    def stage(self, rows: DataFrame, name: str, to: Callable[[str, str], str]) -> list[Move]:
        """Writes rows; `to` gives a file's place by its part (`OUT`, `ASIDE`) and its name below
        that. Raises ExportBroken if rows are missing afterwards, SchemaIllegal.
        """
        typed = sorted(self._schemas.topics)
        if not typed:
            self._write(rows, staged(name, OUT))
            return self._moves(name, to)
        # The rows are read once, and written several times.
        kept = rows.persist()
        try:
            read = {row[TOPIC]: row["count"] for row in kept.groupBy(TOPIC).count().collect()}
            if any(topic not in typed for topic in read):
                self._write(kept.where(~fn.col(TOPIC).isin(typed)), staged(name, OUT))
            aside: list[DataFrame] = []
            for topic in (one for one in typed if one in read):
                mine = kept.where(fn.col(TOPIC) == topic)
                found = fitted(mine, self._schema(mine, topic), keep_body=self._keep_body)
                self._write(found.fit, staged(name, OUT))
                aside.append(found.unfit)
            if aside:
                self._write(reduce(DataFrame.unionByName, aside), staged(name, ASIDE), twice=False)
            moves = self._moves(name, to)
        finally:
            kept.unpersist()
        _check(read, counted(moves))
        return moves

    def _schema(self, rows: DataFrame, topic: str) -> StructType:
        known = self._schemas.known(topic)
        if known is not None:
            return known
        bodies = [bytes(row.body) for row in rows.select("body").limit(SAMPLED).collect()]
        return self._schemas.infer(rows.sparkSession, topic, bodies)

    def _write(self, rows: DataFrame, folder: str, *, twice: bool | None = None) -> None:
        stored = fn.floor(fn.unix_micros("stored_at") / _MICROSECONDS).cast("int")
        rows = rows.withColumn(DAY, fn.date_from_unix_date(stored))
        names = [TOPIC, DAY]
        if self._twice if twice is None else twice:
            rows = rows.withColumn("_topic", fn.col(TOPIC)).withColumnRenamed(DAY, "_day")
            names = ["_topic", "_day"]
        with settings(rows.sparkSession):
            (
                # Spark sorts by the folders anyway; this way a file's rows are in order.
                rows.sortWithinPartitions(*names, *_ORDER)
                .write.partitionBy(*names)
                .mode("append")
                .option("compression", "zstd")
                .parquet(self._folders.at(folder))
            )

    def _moves(self, name: str, to: Callable[[str, str], str]) -> list[Move]:
        found = []
        for part in (OUT, ASIDE):
            folder = staged(name, part)
            for file in self._folders.files(folder, PARQUET):
                place = to(part, file.name.removeprefix(f"{folder}/"))
                rows = self._folders.messages(file.name)
                found.append(Move(file.name, place, file.size, rows))
        return found


def in_place(part: str, name: str) -> str:
    """Where a file of a staging folder goes in an export to Parquet."""
    name = name.replace(f"{TOPIC}={_NULL}/", f"{TOPIC}={_NULL_ESCAPED}/", 1)
    return name if part == OUT else f"{REJECTED}/{name}"


def counted(moves: list[Move]) -> dict[str, Counted]:
    """The exported and set-aside amounts, by topic."""
    found: dict[str, Counted] = {}
    for move in moves:
        one = found.setdefault(topic_of(move.staged), Counted())
        if f"/{ASIDE}/" in move.staged:
            one.add(Counted(rejected=move.messages))
        else:
            one.add(Counted(move.messages, 1, move.size))
    return found


def topic_of(name: str) -> str:
    """The topic whose messages a file has, by the folder that Spark made."""
    folder = next(part for part in name.split("/") if part.lstrip("_").startswith(f"{TOPIC}="))
    return unquote(folder.partition("=")[2])


def _check(read: Mapping[str, int], found: Mapping[str, Counted]) -> None:
    for topic, count in read.items():
        one = found.get(topic, Counted())
        if one.messages + one.rejected != count:
            raise ExportBroken(
                f"of {count} messages of topic {topic} that were read, {one.messages} were "
                f"written and {one.rejected} set aside, which is not all; nothing of this batch "
                "was exported: export again, and report it if this comes again"
            )
