"""Iceberg: adds exported files to a table, each batch as one of the table's commits.

The idea: Spark writes the files, at any size; pyiceberg, in the driver, adds them to the table by
their footers. (Iceberg's own part of Spark is built for one version of Spark each, and comes later
than that version: with another it does not load.) Topics without a schema share a table; each topic
with one has its own, since the columns differ. A table remembers in a property the newest batch
that it has.

Invariants: a batch is in a table once: files and property change in one commit of the table. Files
lie in place before a table names them, and in a folder that nothing else writes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from kvstore.errors import ConfigError, StoreError
from tiering.errors import ExtraMissing, TableFailed
from tiering.spark.arrow import SCHEMA, spark_schema
from tiering.spark.export.commit import NOTES, OUT, Append, Move, number_of
from tiering.spark.export.hadoop import Folders
from tiering.spark.export.parquet import in_place, topic_of
from tiering.spark.export.schemas import VALUE, Schemas

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_LOCAL: Final = "file:"
_DATA: Final = "data"
_TRIES: Final = 5
"""The number of tries of a commit, if others commit meanwhile."""


class IcebergTables:
    """The tables of an export. `catalog` are pyiceberg's properties; without any, a catalog is kept
    in the target's folder, which must be on this machine. Raises ExtraMissing, ConfigError,
    TableFailed.
    """

    def __init__(
        self,
        folders: Folders,
        table: str,
        catalog: Mapping[str, str],
        schemas: Schemas,
        export: str,
    ) -> None:
        if not re.fullmatch(r"\w+(\.\w+)+", table):
            raise ConfigError(f"a table is named {table!r}; it must be like namespace.table")
        self._folders = folders
        self._name = table
        self._schemas = schemas
        self._property = f"kvmq.{export}.batch"
        with _told(f"the catalog of {table}"):
            self.catalog = _loaded(folders, catalog)

    def place(self, name: str) -> Callable[[str, str], str]:
        """Where the files of a batch go."""

        def place(part: str, file: str) -> str:
            if part != OUT:
                return in_place(part, file)
            return f"{_DATA}/{self.table_of(topic_of(file))}/{name}/{file}"

        return place

    def table_of(self, topic: str) -> str:
        """The table that a topic's messages are in."""
        if topic not in self._schemas.topics:
            return self._name
        plain = re.sub(r"\W", "_", topic)
        # Topics whose names differ only in characters that a table's name lacks stay apart.
        sign = "" if plain == topic else f"_{zlib.crc32(topic.encode()):08x}"
        return f"{self._name}_{plain}{sign}"

    def appends(self, moves: Sequence[Move]) -> tuple[Append, ...]:
        """The parts of tables to add once the files are moved."""
        found: dict[tuple[str, str], list[str]] = {}
        for move in moves:
            if move.to.startswith(f"{_DATA}/"):
                topic = topic_of(move.staged)
                typed = topic if topic in self._schemas.topics else ""
                found.setdefault((self.table_of(topic), typed), []).append(move.to)
        return tuple(Append(table, topic, tuple(names)) for (table, topic), names in found.items())

    def append(self, name: str, append: Append) -> None:
        """Adds files to a table, unless that was done under this name."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 # an extra's

        batch = number_of(name)
        paths = [_url(self._folders.at(file)) for file in append.files]
        with _told(append.table):
            for left in reversed(range(_TRIES)):
                table = self._opened(append)
                if int(table.properties.get(self._property, -1)) >= batch:
                    return
                try:
                    with table.transaction() as change:
                        change.add_files(
                            paths, {self._property: str(batch)}, check_duplicate_files=False
                        )
                        change.set_properties({self._property: str(batch)})
                    return
                except CommitFailedException:
                    if not left:
                        raise

    def _opened(self, append: Append) -> Table:
        """A table, made if there is none."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415
        from pyiceberg.transforms import DayTransform, IdentityTransform  # noqa: PLC0415

        if self.catalog.table_exists(append.table):
            return self.catalog.load_table(append.table)
        self.catalog.create_namespace_if_not_exists(append.table.rpartition(".")[0])
        columns = to_arrow_schema(self._columns(append.topic), timezone="UTC")
        try:
            made = self.catalog.create_table_transaction(append.table, columns)
            with made as change, change.update_spec() as parts:
                parts.add_field("topic", IdentityTransform(), "topic")
                parts.add_field("stored_at", DayTransform(), "stored_at_day")
        except TableAlreadyExistsError:
            pass
        return self.catalog.load_table(append.table)

    def _columns(self, topic: str) -> StructType:
        # Nullable, as in all tables so far; and a frame may forget on its way what is never null.
        columns = spark_schema(SCHEMA.names).toNullable()
        schema = self._schemas.known(topic) if topic else None
        return columns if schema is None else columns.add(StructField(VALUE, schema))


def _loaded(folders: Folders, given: Mapping[str, str]) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 # an extra's
    except ImportError as e:
        raise ExtraMissing(
            "an export to Iceberg takes pyiceberg, which is not installed: "
            "pip install 'kvmq[iceberg]'", "iceberg",
        ) from e  # fmt: skip
    if given:
        return load_catalog("kvmq", **given)
    if not folders.root.startswith(_LOCAL):
        raise ConfigError(
            f"{folders.root} is not on this machine, so its tables need a catalog: give its "
            "properties, such as type=rest and uri=URL"
        )
    folders.make(NOTES)
    path = folders.root.removeprefix(_LOCAL)
    return load_catalog(
        "kvmq", type="sql", uri=f"sqlite:///{path}/{NOTES}/catalog.db", warehouse=_url(folders.root)
    )


def _url(path: str) -> str:
    """A path as Iceberg's readers have it: Hadoop leaves the empty host out."""
    if path.startswith(_LOCAL) and not path.startswith(f"{_LOCAL}//"):
        return f"{_LOCAL}//{path.removeprefix(_LOCAL)}"
    return path


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Raises TableFailed for any error of pyiceberg in the block."""
    try:
        yield
    except StoreError:
        raise
    except Exception as e:
        # Each catalog and file system raises its own.
        said = str(e).strip() or type(e).__name__
        raise TableFailed(
            f"{what} can't be used: {said}. What is committed is kept, and the next export goes on "
            "with it"
        ) from e
