"""Runs an export: copies all that is new in a source to a folder or table.

The idea: Spark's stream of the source gives the new messages, in batches, and keeps in a checkpoint
how far it has come. Each batch is staged and committed here under its number. When Spark gives a
batch again after a crash, it is either found committed or never was: so each message is exported
once.

Invariants: one export at a time goes to a target, and the one that began last goes on. The first
export decides the target's format and its table; the checkpoint lies in the target.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kvstore.errors import ConfigError, StoreError, shown
from tiering.errors import ExportBroken
from tiering.spark.export.commit import (
    BATCH,
    CHECKPOINT,
    SETTINGS,
    Commits,
    Counted,
    ExportManifest,
    batch_name,
)
from tiering.spark.export.hadoop import Folders
from tiering.spark.export.parquet import (
    LEAST,
    TARGET_BYTES,
    Compacted,
    Stager,
    compact,
    counted,
    in_place,
)
from tiering.spark.export.schemas import Given, Schemas
from tiering.spark.session import spark_errors
from tiering.worker.store_protocols import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiering.spark.export.iceberg import IcebergTables

Format = Literal["parquet", "iceberg"]
FORMATS: Final = ("parquet", "iceberg")
TABLE: Final = "kvmq.messages"
BATCH_BYTES: Final = 1 << 30
"""Bytes of records in a batch, unless the options say otherwise. A crash makes one batch to be done
again.
"""
_DONE: Final = "messages exported"


class ExportReport(msgspec.Struct):
    """The results of a run: batches; by topic messages, files, bytes and how many messages were set
    aside, as their body did not fit. `compacted` if that was asked for.
    """

    target: str
    format: str
    batches: int = 0
    topics: dict[str, Counted] = msgspec.field(default_factory=dict)
    compacted: Compacted | None = None

    @property
    def total(self) -> Counted:
        """All topics together."""
        found = Counted()
        for one in self.topics.values():
            found.add(one)
        return found


class _TargetSettings(msgspec.Struct, frozen=True):
    """The settings of a target, from its first export on."""

    id: str
    format: Format
    table: str | None = None
    version: int = 1


class ExportForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form in which messages are exported.

    `schemas` are by topic (docs/spark.md), `infer` the topics whose schema is to be found;
    `keep_body`: typed messages keep their body, too. `catalog` are pyiceberg's properties, `table`
    the table's name; only format iceberg has them. Raises ConfigError.
    """

    format: Format = "parquet"
    schemas: Given | None = None
    infer: Collection[str] = ()
    keep_body: bool = False
    catalog: Mapping[str, str] | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(
                f"format is {shown(self.format)}; it must be one of {', '.join(FORMATS)}"
            )
        if self.format == "parquet" and (self.catalog or self.table):
            raise ConfigError("a catalog or a table is given, which only format iceberg has")


PARQUET: Final = ExportForm()


class Exporter:
    """An export's target, opened: `export_batch` is for Spark's `foreachBatch`. Raises
    SchemaIllegal, SchemaContradicts, ConfigError; ExportBroken if the target's notes are damaged.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        form: ExportForm = PARQUET,
        *,
        progress: Progress | None = None,
        folders: Folders | None = None,
    ) -> None:
        self._spark = spark
        self._progress = progress
        self.folders = folders or Folders(spark, target)
        in_iceberg, table = form.format == "iceberg", form.table or TABLE
        export = self._note_settings(form.format, table if in_iceberg else None)
        self._schemas = Schemas(self.folders, form.schemas, form.infer)
        self.tables: IcebergTables | None = None
        if in_iceberg:
            from tiering.spark.export.iceberg import IcebergTables  # noqa: PLC0415 # an extra's

            self.tables = IcebergTables(
                self.folders, table, dict(form.catalog or {}), self._schemas, export
            )
        self._stager = Stager(
            self.folders, self._schemas, keep_body=form.keep_body, twice=in_iceberg
        )
        self._commits = Commits(self.folders, self.tables.append if self.tables else None)
        self.report = ExportReport(target=target, format=form.format)
        self.failed: Exception | None = None
        self._commits.begin()

    def export_batch(self, rows: DataFrame, batch: int) -> None:
        """Exports some messages as a batch of the stream; does nothing if it was exported before.
        Raises ExportBusy, ExportBroken, SchemaIllegal, SparkFailed.
        """
        try:
            with spark_errors():
                self._export(rows, batch)
        except Exception as e:
            # Spark turns the error into text; the caller of the stream wants the error itself.
            self.failed = e
            raise

    def _export(self, rows: DataFrame, batch: int) -> None:
        name = batch_name(batch)
        of = self._of(batch)
        made = self._commits.once(name, lambda: self._staged(rows, name, of))
        if made is None:
            self._check_again(batch, of)
            return
        self.report.batches += 1
        for topic, one in made.topics.items():
            self.report.topics.setdefault(topic, Counted()).add(one)
        if self._progress is not None:
            self._progress(_DONE, self.report.total.messages, 0)

    def _of(self, batch: int) -> str | None:
        """The messages of a batch, as the checkpoint says it; None without one."""
        return _sum_of(self.folders.read(f"{CHECKPOINT}/offsets/{batch}"))

    def _check_again(self, batch: int, of: str | None) -> None:
        """Raises ExportBroken if a batch that comes again is another: from an older checkpoint."""
        newest = self._commits.last(BATCH)
        kept = self._commits.committed(batch_name(batch))
        if of is None or (batch == newest and kept is not None and kept.of in (None, of)):
            return
        raise ExportBroken(
            f"{self.folders.root} has exported batch {newest}, and its checkpoint is older than "
            f"that: it begins another batch {batch}; put the newest _kvmq/checkpoint back, or "
            "export to a new folder"
        )

    def compact(self, *, target_bytes: int = TARGET_BYTES, least: int = LEAST) -> Compacted:
        """Puts small files together. Raises ConfigError for an export that is not Parquet."""
        _check_compaction(self.report.format, target_bytes, least)
        with spark_errors():
            done = compact(
                self._spark, self.folders, self._commits, target_bytes=target_bytes, least=least
            )
        self.report.compacted = done
        return done

    def check_checkpoint(self) -> None:
        """Raises ExportBroken if batches were exported, and the stream would begin anew."""
        if self._commits.last(BATCH) < 0:
            return
        if self.folders.read(f"{CHECKPOINT}/metadata") is None:
            raise ExportBroken(
                f"{self.folders.root} has exported batches, and no checkpoint that says how far "
                "they go: put _kvmq/checkpoint back, or export to a new folder"
            )

    def _note_settings(self, format: Format, table: str | None) -> str:
        """Notes the target's settings, or checks them against those noted; returns the export's
        id. Raises ConfigError, ExportBroken.
        """
        kept = self.folders.read(SETTINGS)
        if kept is None:
            made = _TargetSettings(uuid.uuid4().hex, format, table)
            self.folders.write(SETTINGS, msgspec.json.encode(made))
            return made.id
        try:
            found = msgspec.json.decode(kept, type=_TargetSettings)
        except msgspec.DecodeError as e:
            where = self.folders.at(SETTINGS)
            raise ExportBroken(f"{where} can't be read ({e}); put it back") from e
        if (found.format, found.table) != (format, table):
            raise ConfigError(
                f"{self.folders.root} has an export as {_said(found.format, found.table)}, and "
                f"{_said(format, table)} is asked for; say the former, or export to another folder"
            )
        return found.id

    def _staged(self, rows: DataFrame, name: str, of: str | None) -> ExportManifest:
        place = in_place if self.tables is None else self.tables.place(name)
        moves = self._stager.stage(rows, name, place)
        appends = () if self.tables is None else self.tables.appends(moves)
        topics = counted(moves)
        return ExportManifest(name=name, moves=tuple(moves), appends=appends, topics=topics, of=of)


def _sum_of(said: bytes | None) -> str | None:
    """A checksum of a batch's end offsets, without Spark's other notes on the run."""
    if said is None:
        return None
    # Line 1 is Spark's format, line 2 the run's settings; then each source has a line.
    offsets = b"\n".join(said.splitlines()[2:])
    return hashlib.sha256(offsets).hexdigest()


def _check_compaction(format: str, target_bytes: int, least: int) -> None:
    if format != "parquet":
        raise ConfigError(
            "a table of Iceberg is compacted by what maintains it (rewrite_data_files), not by its "
            "export"
        )
    if target_bytes < 1 or least < 2:
        raise ConfigError(
            f"files of {target_bytes} bytes are to be made of {least} or more; it must be 1 byte "
            "or more, and 2 files or more"
        )


def _said(format: str, table: str | None) -> str:
    return f"{format} in table {table}" if table else format


def export(
    spark: SparkSession,
    source: str,
    target: str,
    form: ExportForm = PARQUET,
    *,
    topics: Collection[str] | None = None,
    options: Mapping[str, str] | None = None,
    compact_to: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Exports all that is new in a store, or in its archives, since the last export to that target.

    `target` is a folder or a URL that Spark can write to; `topics` None: all; `options` are those
    of `format("kvmq")`; `compact_to`: put small files together afterwards, to files of about so
    many bytes.

    >>> export(spark, "data", "exported", ExportForm(infer=["orders"]))  # doctest: +SKIP

    Raises SparkFailed for an error of the source, and the errors of Exporter.
    """
    if compact_to is not None:
        _check_compaction(form.format, compact_to, LEAST)
    exporter = Exporter(spark, target, form, progress=progress)
    exporter.check_checkpoint()
    given = {"max_bytes_per_trigger": str(BATCH_BYTES), **(options or {})}
    if topics is not None:
        given["topics"] = json.dumps(sorted(topics))
    try:
        with spark_errors(), _hushed():
            _run(spark.readStream.format("kvmq").options(**given).load(source), exporter)
    except StoreError as e:
        if exporter.failed is not None:
            raise exporter.failed from e
        raise
    if compact_to is not None:
        exporter.compact(target_bytes=compact_to)
    return exporter.report


def _run(stream: DataFrame, exporter: Exporter) -> None:
    """Exports all that there is now."""
    query = (
        stream.writeStream.foreachBatch(exporter.export_batch)
        .trigger(availableNow=True)
        .option("checkpointLocation", exporter.folders.at(CHECKPOINT))
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


@contextmanager
def _hushed() -> Iterator[None]:
    """Keeps the bridge to the JVM from printing an error of a batch, as it is raised anyway."""
    bridge = logging.getLogger("py4j.clientserver")
    before = bridge.disabled
    bridge.disabled = True
    try:
        yield
    finally:
        bridge.disabled = before
