"""Parquet: writes rows of messages to files in a staging folder, and compacts small files.

The idea: Spark writes a folder for each topic and day; the day is that on which a message was
stored, in UTC. Topics with a schema have a column `value` instead of `body`. Rows whose body does
not fit go to files of their own, with all their columns. The written rows are counted by the files'
own footers. Every run adds files, so a day that is exported every minute has a thousand: those
under half of the wanted size are put together, by folder, up to that size; several at once, each by
one task. The new files are committed as a batch is: see `commit`.

Invariants: every row is in one file: where a topic has a schema, the rows exported and set aside
are as many as those read; compacted files have as many messages as those they replace, or nothing
is changed. A folder with fewer than `LEAST` small files is left alone: rewriting all its files for
each new one would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, reduce
from typing import Final
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from tiering.errors import ExportBroken
from tiering.spark.export.commit import (
    ASIDE,
    COMPACTION,
    OUT,
    PARQUET,
    REJECTED,
    Commits,
    Counted,
    ExportManifest,
    Move,
    compaction_name,
    staged,
)
from tiering.spark.export.hadoop import Folders, ListedFile
from tiering.spark.export.schemas import SAMPLED, Schemas, fitted

TOPIC: Final = "topic"
DAY: Final = "day"
_MICROSECONDS: Final = 86_400_000_000
_TIMES: Final = "spark.sql.parquet.outputTimestampType"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_NULL_ESCAPED: Final = "%5F" + _NULL[1:]
"""Spark reads a folder of the first name as null, and of the second as a topic's."""
_ORDER: Final = ("queue", "offset")


@contextmanager
def settings(spark: SparkSession) -> Iterator[None]:
    """Gives Spark the setting of times in files for the block; afterwards it has its own again."""
    before = spark.conf.get(_TIMES, None)
    # The standard's own type, not INT96, which newer readers warn about, and has no statistics.
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_TIMES)
        else:
            spark.conf.set(_TIMES, before)


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
        that. Raises SchemaIllegal, and ExportBroken if rows of a batch with typed topics are
        missing afterwards.
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


# --- compaction -----------------------------------------------------------------------------------


TARGET_BYTES: Final = 128 << 20
LEAST: Final = 8
AT_ONCE: Final = 64
"""Groups of files in one commit, which a crash makes to be done again."""


class Compacted(msgspec.Struct):
    """How many files were replaced, and by how many; bytes before and after."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def compact(
    spark: SparkSession,
    folders: Folders,
    commits: Commits,
    *,
    target_bytes: int = TARGET_BYTES,
    least: int = LEAST,
) -> Compacted:
    """Puts small files together. Raises ExportBusy, ExportBroken."""
    done = Compacted()
    groups = list(_groups(folders, target_bytes, least))
    number = commits.last(COMPACTION) + 1
    for first in range(0, len(groups), AT_ONCE):
        some = groups[first : first + AT_ONCE]
        name = compaction_name(number)
        number += 1
        made = commits.once(name, partial(_rewritten, spark, folders, name, some))
        assert made is not None, "the number is a new one"
        done.files_before += len(made.removes)
        done.files_after += len(made.moves)
        done.bytes_before += sum(file.size for group in some for file in group)
        done.bytes_after += sum(move.size for move in made.moves)
    return done


def _groups(folders: Folders, target_bytes: int, least: int) -> Iterator[list[ListedFile]]:
    """Yields files that are to become one, from one folder each."""
    small: dict[str, list[ListedFile]] = {}
    tops = folders.names("") + [f"{REJECTED}/{one}" for one in folders.names(REJECTED)]
    # Other files that may lie there are not touched.
    for top in (one for one in tops if one.rpartition("/")[2].startswith(f"{TOPIC}=")):
        for file in folders.files(top, PARQUET):
            if file.size < target_bytes / 2:
                small.setdefault(file.name.rpartition("/")[0], []).append(file)
    for files in small.values():
        if len(files) < least:
            continue
        group: list[ListedFile] = []
        size = 0
        for file in files:
            if group and size + file.size > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if len(group) > 1:
            yield group


def _rewritten(
    spark: SparkSession, folders: Folders, name: str, groups: list[list[ListedFile]]
) -> ExportManifest:
    """Writes each group's file, and returns which files it replaces."""

    def rewrite(number: int) -> list[Move]:
        group = groups[number]
        folder = staged(name, f"{OUT}/{number}")
        # Schemas differ where a topic was typed from some day on.
        reader = spark.read.option("mergeSchema", "true").option("recursiveFileLookup", "true")
        rows = reader.parquet(*(folders.for_reading(file.name) for file in group))
        ordered = rows.coalesce(1).sortWithinPartitions("queue", "offset")
        ordered.write.option("compression", "zstd").parquet(folders.at(folder))
        place = group[0].name.rpartition("/")[0]
        moves = [
            Move(file.name, f"{place}/{file.name.rpartition('/')[2]}", file.size,
                 folders.messages(file.name))
            for file in folders.files(folder, PARQUET)
        ]  # fmt: skip
        before = sum(folders.messages(file.name) for file in group)
        after = sum(move.messages for move in moves)
        if before != after:
            raise ExportBroken(
                f"small files of {place} have {before} messages, and what replaces them {after}; "
                "nothing was changed: export again, and report it if this comes again"
            )
        return moves

    with settings(spark), ThreadPoolExecutor(spark.sparkContext.defaultParallelism) as pool:
        moved = [move for moves in pool.map(rewrite, range(len(groups))) for move in moves]
    removes = tuple(file.name for group in groups for file in group)
    return ExportManifest(name=name, moves=tuple(moved), removes=removes)
