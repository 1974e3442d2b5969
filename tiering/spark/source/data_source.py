"""Data source: the calls of Spark's Python Data Source API, each with the reader or writer for it.

The idea: Spark asks for a schema, then for a reader or a writer. Plans are made on the driver, and
parts are read and written wherever Spark runs tasks. A module that a query doesn't need is imported
when Spark asks for its class.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from tiering.spark.arrow import SCHEMA, arrow_schema, spark_schema
from tiering.spark.options import read_options
from tiering.spark.source.query_reader import KvmqReader

if TYPE_CHECKING:
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
