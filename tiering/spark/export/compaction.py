"""Compacts an export: many small files of a topic's day become few.

The idea: every run of an export adds files, so a day that is exported every minute has a thousand.
Files under half of the wanted size are put together, by folder, up to that size; several folders at
once, each by one task. The new files are committed as a batch is: see `commit`.

Invariants: the new files have as many messages as those they replace, or nothing is changed. A
folder with fewer than `LEAST` small files is left alone: rewriting all its files for each new one
would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from tiering.errors import ExportBroken
from tiering.spark.export.commit import Commits
from tiering.spark.export.export_layout import (
    COMPACTION,
    OUT,
    PARQUET,
    REJECTED,
    compaction_name,
    staged,
)
from tiering.spark.export.export_manifest import ExportManifest, Move
from tiering.spark.export.hadoop import Folders, ListedFile
from tiering.spark.export.parquet import TOPIC, settings

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
