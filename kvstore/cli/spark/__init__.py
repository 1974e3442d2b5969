"""The verbs `spark ...`: work on archives, and questions about their messages, as jobs of Spark.

- `export_verbs`: messages as files that other tools read; and kvmq itself in a file, for a cluster.
- `report`: questions in SQL about the table of messages and the views for operators, and the same
  views as a page.
- `jobs`: the verbs `tier ...` and `erase ...`, done by Spark's tasks.
- `spark_options`: the options of these verbs: which Spark, its settings, the source of the views.

Not in here: the jobs themselves, which are `tiering.spark`. Begin with `export_verbs`. May import
the modules of `cli`, `cli.terminal`, `cli.tier`, and every room that `cli` may.
"""

from __future__ import annotations

from typing import Final

import click

from kvstore.cli import LazyGroup

__all__ = ["spark"]

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "export": ("kvstore.cli.spark.export_verbs", "Export messages to Parquet or Iceberg."),
    "package": ("kvstore.cli.spark.export_verbs", "Write kvmq as a zip file, for spark-submit."),
    "report": ("kvstore.cli.spark.report", "Make a page of the messages, and what they cost."),
    "sql": ("kvstore.cli.spark.report", "Ask a question about messages in SQL."),
    "tier": ("kvstore.cli.spark.jobs", "Carry out a policy, as `tier run`."),
    "merge": ("kvstore.cli.spark.jobs", "Merge archives into larger ones."),
    "compact": ("kvstore.cli.spark.jobs", "Keep the newest messages of compacted topics."),
    "verify": ("kvstore.cli.spark.jobs", "Check every archive, and list orphans."),
    "erase": ("kvstore.cli.spark.jobs", "Erase messages, and prove it."),
    "reencrypt": ("kvstore.cli.spark.jobs", "Write archives anew under the present keys."),
}


class _SparkVerbs(LazyGroup):
    """The verbs of `spark`."""

    verbs = _VERBS


@click.group(cls=_SparkVerbs)
def spark() -> None:
    """Work on archives at any size, as jobs of Apache Spark, here or on a cluster.

    Needs Java 17 and the extra `spark`; a Spark on this machine is started by itself.
    """
