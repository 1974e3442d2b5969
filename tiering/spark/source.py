"""Source: `spark.read.format("kvmq")`.

The idea: Spark's Python Data Source API asks for a schema, for parts and for each part's batches.
The parts are planned on the driver, and read wherever Spark runs tasks. Filters that Spark hands
down make the plan smaller; a schema of fewer columns makes the batches smaller.

Invariants: a task needs nothing but what its plan names; of a store only data on the disk is read,
and nothing in the store is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from tiering.spark.arrow import SCHEMA, arrow_schema, as_asked, spark_schema
from tiering.spark.listing import Opener, listing
from tiering.spark.options import ReadOptions, read_options
from tiering.spark.session import tune_process
from tiering.spark.splits import Split, plan_splits
from tiering.spark.wanted import QueryFilter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

NAME = "kvmq"


class KvmqDataSource(DataSource):
    """Messages of a store, or of the archives in a folder or bucket; docs/spark.md has the options.

    >>> spark.read.format("kvmq").load("data").where("topic = 'orders'")  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    def schema(self) -> StructType:
        """The columns that the options ask for; all, if they don't say."""
        return spark_schema(read_options(self._given).columns or SCHEMA.names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of a schema. Raises ConfigError for one that messages lack."""
        return KvmqReader(read_options(self._given), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's
        """A reader for `readStream`, of the columns of a schema; see docs/spark.md."""
        from tiering.spark.stream.reader import KvmqStreamReader  # noqa: PLC0415

        return KvmqStreamReader(read_options(self._given), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a frame to archives. Raises ConfigError, StoresAmbiguous, PlaceError."""
        from tiering.spark.sink.sink_writer import KvmqWriter  # noqa: PLC0415

        return KvmqWriter(schema, self._given, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 # Spark's name
        """A writer of a stream to archives. Raises ConfigError, StoresAmbiguous, PlaceError."""
        from tiering.spark.sink.sink_writer import KvmqStreamWriter  # noqa: PLC0415

        return KvmqStreamWriter(schema, self._given, overwrite=overwrite)


class KvmqReader(DataSourceReader):
    """Plans and reads the parts of a query; see the module."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._wanted = QueryFilter.of(options)
        # One for each instance, and of a kind of its own: see _Filters.
        self.pushFilters = _Filters(self)  # type: ignore[method-assign]

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Adds filters to the plan."""
        self._wanted = self._wanted.narrowed(filters)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts. Raises StoreNotFound, NothingToRestore, PlaceError, ArchiveDamaged."""
        opener = Opener(self._options)
        found = listing(self._options)
        # If there are no parts, Spark makes one that is None.
        return plan_splits(found, self._wanted, self._options, opener) or [Split()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A part's messages, as record batches."""
        from tiering.spark.part_reader import PartReader  # noqa: PLC0415

        assert isinstance(partition, Split), "they are what `partitions` gave"
        tune_process()
        reader = PartReader(self._options, self._wanted, self._schema.names)
        return as_asked(reader.batches(partition), self._schema)


class _Filters:
    """Takes Spark's filters; Spark is to apply all of them again.

    Spark refuses a reader that takes filters where `spark.sql.python.filterPushdown.enabled` is not
    set. Without it reading is only slower, so the reader looks to Spark as if it took none.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: KvmqReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.narrow(filters)
        return filters
