"""The verbs `spark ...`: work on archives, and questions about their messages, as jobs of Spark.

- `export`: messages as files that other tools read.
- `package`: kvmq itself, for a cluster.
- `sql`: a question, asked of the table of messages, and of views for operators.
- `report`: the same views as a page.
- `views`: the options of these two: places, prices, the time.
- `tier`, `merge`, `compact`, `verify`, `erase`, `reencrypt`: what the verbs of the same name
  under `tier`, and `erase`, do, as jobs of Spark.
- `options`: the options of these verbs: which Spark, and its settings.
"""

from __future__ import annotations

from typing import Final

import click

from kvstore.cli.lazy import LazyGroup

__all__ = ["spark"]

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "export": ("kvstore.cli.spark.export", "Export messages to Parquet or Iceberg."),
    "package": ("kvstore.cli.spark.package", "Write kvmq as a zip file, for spark-submit."),
    "report": ("kvstore.cli.spark.report", "Make a page of the messages, and what they cost."),
    "sql": ("kvstore.cli.spark.sql", "Ask a question about messages in SQL."),
    "tier": ("kvstore.cli.spark.tier", "Carry out a policy, as `tier run`."),
    "merge": ("kvstore.cli.spark.merge", "Merge archives into larger ones."),
    "compact": ("kvstore.cli.spark.compact", "Keep the newest messages of compacted topics."),
    "verify": ("kvstore.cli.spark.verify", "Check every archive, and list orphans."),
    "erase": ("kvstore.cli.spark.erase", "Erase messages, and prove it."),
    "reencrypt": ("kvstore.cli.spark.reencrypt", "Write archives anew under the keys of today."),
}


class _Verbs(LazyGroup):
    """The verbs of `spark`."""

    verbs = _VERBS


@click.group(cls=_Verbs)
def spark() -> None:
    """Work on archives at any size, as jobs of Apache Spark, here or on a cluster.

    Needs Java 17 and the extra `spark`; a Spark on this machine is started by itself.
    """
