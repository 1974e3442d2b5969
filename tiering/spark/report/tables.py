"""Tables: volumes and archives, as Spark reads them.

The idea: counts are read like messages are: the driver plans parts, tasks count them. Only the
rows of a part are others: a few sums, no messages. The list of archives is the plan's own.

Invariants: as those of the table of messages: each existing message is counted once, and those of
deleted topics are not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstore.config import StoreConfig
from kvstore.errors import ArchiveMissing, ConfigError
from kvstore.opening import viewing
from tiering.archive.archive_reader import Archive
from tiering.catalog.bucket import DAMAGE
from tiering.catalog.catalog import ArchiveRow, decode_rows, read_topics
from tiering.errors import ObjectNotFound, ObjectTooShort
from tiering.spark.listing import Listing, Opener, is_store, listing
from tiering.spark.options import ReadOptions, read_options
from tiering.spark.part_reader import PartReader
from tiering.spark.report.counting import Tally, count_archive, count_log
from tiering.spark.splits import PlannedArchive, Split, inspect_archives, plan_splits
from tiering.spark.wanted import QueryFilter

NAME: Final = "kvmq_report"
TABLE: Final = "table"
"""The option that names one of `SCHEMAS`."""
_AT_ONCE: Final = 4 << 30
"""Bytes of archived records that a task counts: it reads directories alone."""
_FOUND: Final = ["topic", "stored_at"]
SCHEMAS: Final = {
    "volume": "topic string, tier string, day date, messages bigint, raw_bytes bigint, "
    "stored_bytes double",
    "archives": "place string, key string, tier string, class string, state string, "
    "messages bigint, raw_bytes bigint, bytes bigint, topics int, generation int, "
    "first_position bigint, last_position bigint, first_stored_at timestamp, "
    "last_stored_at timestamp, codec string, level int, is_encrypted boolean, "
    "made_at timestamp, delete_at timestamp",
}
Row = tuple[object, ...]
_log = logging.getLogger("kvmq")


class ReportSource(DataSource):
    """`volume` or `archives`, by the option `table`; the others are those of messages."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name: value for name, value in options.items() if name.lower() != TABLE}
        self._table = options.get(TABLE, "")
        if self._table not in SCHEMAS:
            raise ConfigError(f"there is no table {self._table!r}; there are {', '.join(SCHEMAS)}")
        self._given = given

    def schema(self) -> str:
        """The table's columns."""
        return SCHEMAS[self._table]

    def reader(self, schema: StructType) -> DataSourceReader:
        """The table's reader."""
        options = read_options(self._given)
        return VolumeReader(options) if self._table == "volume" else ArchivesReader(options)


class VolumeReader(DataSourceReader):
    """Sums by topic, tier and day, as each task has them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = QueryFilter.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts. Raises StoreNotFound, NothingToRestore, PlaceError, ArchiveDamaged."""
        options = self._options
        found = listing(options)
        large = msgspec.structs.replace(options, split_bytes=max(options.split_bytes, _AT_ONCE))
        archives = Listing(found.archives, [], found.topics, found.rows)
        splits, skipped = plan_splits(archives, self._wanted, large, Opener(options))
        for one in skipped:
            _log.warning("left out: %s: %s", one.archive, one.reason)
        if found.log:
            log = Listing([], found.log, found.topics)
            splits += plan_splits(log, self._wanted, options, Opener(options))[0]
        # If there are no parts, Spark makes one that is None.
        return splits or [Split()]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """A part's sums."""
        assert isinstance(partition, Split), "they are what `partitions` gave"
        for topic, tier, day, *sums in self.count(partition).rows():
            yield topic, tier, datetime.fromtimestamp(day * 86_400, UTC).date(), *sums

    def count(self, split: Split) -> Tally:
        """A part's sums, as a tally. Raises ArchiveDamaged, SegmentDamaged, PlaceError."""
        tally = Tally()
        opener = Opener(self._options)
        for piece in split.pieces:
            held = piece.held
            blocks = np.concatenate([np.arange(first, stop) for first, stop in piece.blocks])
            try:
                count_archive(tally, opener.archive(held), held.tier, blocks)
            except (ObjectNotFound, ObjectTooShort) as e:
                told = (
                    f"archive {held.name} went, or was replaced, after the query was planned: {e}; "
                    "run it again"
                )
                self._failed(held.name, ArchiveMissing(told, held.name))
            except DAMAGE as e:
                self._failed(held.name, e)
        reader = PartReader(self._options, self._wanted, _FOUND, opener)
        for log_part in split.log:
            for records in reader.log_records(log_part, split):
                count_log(tally, records)
        return tally

    def _failed(self, what: str, error: Exception) -> None:
        if self._options.damaged == "fail":
            raise error
        _log.warning("left out: %s: %s", what, str(error))


class _Found(InputPartition):
    """Rows that the plan has found."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(None)
        self.rows = rows


class ArchivesReader(DataSourceReader):
    """A store's catalog, or the manifests of the archives in a place."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One part. Raises StoreNotFound, NothingToRestore, PlaceError, ArchiveDamaged."""
        return [_Found(list(self.rows()))]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The rows."""
        assert isinstance(partition, _Found), "it is what `partitions` gave"
        yield from partition.rows

    def rows(self) -> Iterator[Row]:
        """The archives: of a store with those that wait to be removed, of a place those that no
        other supersedes.
        """
        options = self._options
        if is_store(options):
            catalog = viewing.view_store(Path(options.path), StoreConfig()).catalog
            yield from map(_of_row, decode_rows(catalog.rows))
            return
        looked, skipped = inspect_archives(listing(options), options, Opener(options), _topics)
        for one in skipped:
            _log.warning("left out: %s: %s", one.archive, one.reason)
        yield from map(_of_archive, looked)


def _of_row(row: ArchiveRow) -> Row:
    return (
        row.place, row.key, row.tier, row.retention_class, row.state, row.messages, row.raw_bytes,
        row.size, None if row.topics is None else len(read_topics(row.topics)), row.generation,
        row.first_position, row.last_position, _time(row.first_stored_at),
        _time(row.last_stored_at), row.codec, row.level, row.is_encrypted,
        _time(row.made_at), None if row.delete_at is None else _time(row.delete_at),
    )  # fmt: skip


def _topics(archive: Archive) -> tuple[int, bool]:
    """The number of an archive's topics, and whether one of them is encrypted."""
    topics = archive.manifest.topics
    return len(topics), any(topic.key_id is not None for topic in topics)


def _of_archive(found: PlannedArchive[tuple[int, bool]]) -> Row:
    held, made = found.held, found.manifest
    topics, is_encrypted = found.taken
    return (
        held.place, held.key, held.tier, made.retention_class, "live", made.messages,
        made.raw_bytes, held.size, topics, made.generation, made.first_position,
        made.last_position, _time(made.first_stored_at), _time(made.last_stored_at), made.codec,
        made.level, is_encrypted, None, None,
    )  # fmt: skip


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
