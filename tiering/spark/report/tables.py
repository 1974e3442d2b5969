"""Tables: volumes and archives, as Spark reads them.

The idea: counts are read like messages are: the driver plans parts, tasks count them. An archive's
directory has the queue, the times and the size of each block, so most blocks are counted without
being read. Of a block that spans midnight the columns of fixed size are read, the store times among
them, and no properties or bodies. The log is scanned, record by record, and its bodies passed over.
The list of archives is the plan's own.

Invariants: each existing message is counted once, on the day (UTC) that it was stored, and those of
deleted topics of a store are not; of a block that no key opens the messages are spread evenly over
its days; the sizes of an archive's blocks sum up to its size. Bytes of a block of several days are
divided by its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstore.config import StoreConfig
from kvstore.errors import ConfigError, KeyDestroyed, KeyMissing
from kvstore.opening import viewing
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.directory import DirectoryRows, Groups
from tiering.catalog.catalog import ArchiveRow, decode_rows, read_topics, row_of
from tiering.spark.listing import Opener, is_store, listing
from tiering.spark.options import ReadOptions, read_options
from tiering.spark.part_reader import PartReader, numbers_of
from tiering.spark.splits import Split, inspect_archives, plan_splits
from tiering.spark.wanted import QueryFilter

NAME: Final = "kvmq_report"
TABLE: Final = "table"
"""The option that names one of `SCHEMAS`."""
_AT_ONCE: Final = 4 << 30
"""Bytes of archived records that a task counts: it reads little but directories."""
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
        large = replace(options, split_bytes=max(options.split_bytes, _AT_ONCE))
        splits = plan_splits(replace(found, log=[]), self._wanted, large, Opener(options))
        if found.log:
            log = replace(found, archives=[], rows=None)
            splits += plan_splits(log, self._wanted, options, Opener(options))
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
        reader = PartReader(self._options, self._wanted, [], opener)
        for piece in split.pieces:
            held = piece.held
            with reader.left_out_if_gone(held.name):
                count_archive(tally, opener.archive(held), held.tier, numbers_of(piece))
        for log_part in split.log:
            for records in reader.log_records(log_part, split):
                count_log(tally, records)
        return tally


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
            for row in decode_rows(catalog.rows):
                topics = None if row.topics is None else len(read_topics(row.topics))
                deleted = None if row.delete_at is None else _time(row.delete_at)
                yield *_of_row(row, topics), _time(row.made_at), deleted
            return
        for one in inspect_archives(listing(options), options, Opener(options), _of_archive):
            row, topics = one.taken
            row = replace(row, place=one.held.place, key=one.held.key, tier=one.held.tier)
            yield *_of_row(row, topics), None, None


def _of_archive(archive: Archive) -> tuple[ArchiveRow, int]:
    """The row of an archive without its place, and the number of its topics."""
    manifest = archive.manifest
    size = archive.source.size
    row = row_of(manifest, number=0, place="", key="", tier="warm", size=size, crc=0)
    return row, len(manifest.topics)


def _of_row(row: ArchiveRow, topics: int | None) -> Row:
    """The columns but for the last two."""
    return (
        row.place, row.key, row.tier, row.retention_class, row.state, row.messages, row.raw_bytes,
        row.size, topics, row.generation, row.first_position, row.last_position,
        _time(row.first_stored_at), _time(row.last_stored_at), row.codec, row.level,
        row.is_encrypted,
    )  # fmt: skip


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# --- counting -------------------------------------------------------------------------------------


DAY_MS: Final = 86_400_000
F64 = NDArray[np.float64]
Key = tuple[str, str, int]
"""Topic, tier, and day since 1970."""


class Tally:
    """Sums by topic, tier and day: messages, bytes of records, bytes as stored."""

    def __init__(self) -> None:
        self._sums: dict[Key, F64] = {}

    def add(
        self, tier: str, names: Sequence[str], topics: I64, days: I64, *amounts: I64 | F64
    ) -> None:
        """Adds rows: which of `names` each is of, its day, its amounts."""
        if not len(topics):
            return
        keys, inverse = np.unique(np.stack([topics, days]), axis=1, return_inverse=True)
        sums = np.stack(
            [np.bincount(inverse.reshape(-1), amount, keys.shape[1]) for amount in amounts], axis=1
        )
        for topic, day, more in zip(*keys.tolist(), sums, strict=True):
            key = names[topic], tier, day
            before = self._sums.get(key)
            self._sums[key] = more if before is None else before + more

    def rows(self) -> Iterator[tuple[str, str, int, int, int, float]]:
        """The sums so far."""
        for (topic, tier, day), (messages, raw, stored) in self._sums.items():
            yield topic, tier, day, round(messages), round(raw), float(stored)


def count_log(tally: Tally, records: RecordBatch) -> None:
    """Counts records of the log; their stored size is that of the records."""
    fields = Fields(records)
    distinct, of = fields.topics()
    names = [name.decode("utf-8", "replace") for name in distinct]
    sizes = fields.sizes
    tally.add("hot", names, of, fields.stored_at // DAY_MS, np.ones_like(of), sizes, sizes)


def count_archive(tally: Tally, archive: Archive, tier: str, blocks: I64) -> None:
    """Counts some blocks of an archive. Raises ArchiveDamaged, PlaceError."""
    rows = archive.rows()
    names = [topic.name for topic in archive.manifest.topics]
    stored = stored_bytes(archive, rows)
    first, last = rows.least_stored_at // DAY_MS, rows.greatest_stored_at // DAY_MS
    is_whole = first[blocks] == last[blocks]
    whole = blocks[is_whole]
    tally.add(
        tier, names, rows.topics[whole], first[whole],
        rows.messages[whole], rows.raw_bytes[whole], stored[whole],
    )  # fmt: skip
    for block, days, counts in _divided(archive, rows, blocks[~is_whole]):
        share = counts / rows.messages[block]
        topics = np.full(len(days), rows.topics[block])
        raw = np.diff(np.round(np.cumsum(share) * rows.raw_bytes[block]), prepend=0)
        tally.add(tier, names, topics, days, counts, raw, share * stored[block])


def stored_bytes(archive: Archive, rows: DirectoryRows) -> F64:
    """The bytes of an archive that each block takes: its share of the group, by its bytes of
    records, and of the parts that are no block (indexes, directory), by its messages.
    """
    if not len(rows.groups):
        return np.zeros(0)
    fixed, properties, bodies = rows.part_sizes
    sizes = (fixed + properties + bodies).astype(np.float64)
    raw = np.bincount(rows.groups, rows.raw_bytes)
    rest = archive.source.size - float(sizes.sum())
    of_groups: F64 = sizes[rows.groups] * rows.raw_bytes / raw[rows.groups]
    return of_groups + rest * rows.messages / int(rows.messages.sum())


def _divided(archive: Archive, rows: DirectoryRows, blocks: I64) -> Iterator[tuple[int, I64, I64]]:
    """Blocks of several days, each with its days and how many of its messages are of each."""
    for members, place in Groups(rows).having(blocks):
        try:
            group = archive.lazy_group(place)
            times = group.columns.stored_at
        except (KeyMissing, KeyDestroyed):
            # Nobody can tell their days; the messages are there, and are paid for, all the same.
            for block in members.tolist():
                yield block, *_evenly(rows, block)
            continue
        for block in members.tolist():
            mine = times[group.rows_of(block)] // DAY_MS
            days, counts = np.unique(mine, return_counts=True)
            yield block, days, counts


def _evenly(rows: DirectoryRows, block: int) -> tuple[I64, I64]:
    """A block's messages as if they had come evenly between its first and its last."""
    least, greatest = int(rows.least_stored_at[block]), int(rows.greatest_stored_at[block])
    days = np.arange(least // DAY_MS, greatest // DAY_MS + 1)
    ends = np.minimum((days + 1) * DAY_MS, greatest) - least
    counts = np.diff(np.round(ends / (greatest - least) * rows.messages[block]), prepend=0)
    return days, counts.astype(np.int64)
