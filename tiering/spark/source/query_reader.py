"""Query reader: plans the parts of `spark.read.format("kvmq")`, and reads each part's batches.

The idea: the parts are planned on the driver, and read wherever Spark runs tasks. Filters that
Spark hands down make the plan smaller; a schema of fewer columns makes the batches smaller.

Invariants: a task needs nothing but what its plan names; of a store only data on the disk is read,
and nothing in the store is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tiering.spark.arrow import as_asked
from tiering.spark.listing import Opener, listing
from tiering.spark.options import ReadOptions
from tiering.spark.session import tune_process
from tiering.spark.splits import Split, plan_splits
from tiering.spark.wanted import QueryFilter

if TYPE_CHECKING:
    import pyarrow as pa


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
