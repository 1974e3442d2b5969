"""Export: messages as files that every tool reads, each of them once.

    from tiering.spark.export import export
    export(spark, "data", "s3a://lake/messages", infer=["orders"])

Begin with `running`.

- `running`: a run, from the stream to the target.
- `parquet`, `fitting`, `schemas`: rows become files; bodies become columns.
- `commit`, `export_manifest`: how files appear together, and once.
- `compaction`: few files of many small ones.
- `iceberg`: the same as a table of Iceberg.
- `hadoop`, `export_layout`: where it all lies.

Not in here: reading messages, which is the stream's (`stream`).
"""

from tiering.spark.export.compaction import Compacted
from tiering.spark.export.export_manifest import Counted
from tiering.spark.export.running import Exporter, ExportReport, export

__all__ = ["Compacted", "Counted", "ExportReport", "Exporter", "export"]
