"""What makes `spark.read.format("kvmq")` work without registering it: Spark looks for a
`DefaultSource` in every package whose name begins with `pyspark_`.
"""

from __future__ import annotations

from tiering.spark.source import KvmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
