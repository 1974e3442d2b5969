"""Lets Spark find the source `kvmq`, so that `spark.read.format("kvmq")` needs no registration.

Spark looks for a `DefaultSource` in every package whose name begins with `pyspark_`. Nothing else
is in here; the source itself is in `tiering.spark.source`.
"""

from __future__ import annotations

from tiering.spark.source.data_source import KvmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
