"""Export: messages as files that every tool reads, each of them once.

    from tiering.spark.export import ExportForm, export
    export(spark, "data", "s3a://lake/messages", ExportForm(infer=["orders"]))

Begin with `running`.

- `running`: a run, from the stream to the target.
- `parquet`, `schemas`: rows become files, and many small files few; bodies become columns.
- `commit`: where it all lies; how files appear together, and once.
- `iceberg`: the same as a table of Iceberg.
- `hadoop`: files wherever Spark can write.

Not in here: reading messages, which is the stream's (`stream`). May import the modules of `spark`
and the rooms below `spark`.
"""

from tiering.spark.export.commit import Counted
from tiering.spark.export.parquet import Compacted
from tiering.spark.export.running import Exporter, ExportForm, ExportReport, export

__all__ = ["Compacted", "Counted", "ExportForm", "ExportReport", "Exporter", "export"]
