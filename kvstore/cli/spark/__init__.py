"""The verbs `spark ...`: what is done to archives, and with what is in them, as jobs of Spark.

- `export`: messages as files that other tools read.
- `package`: kvmq itself, for a cluster.
- `sql`: a question, asked of the table of messages.
- `options`: what these verbs share: which Spark, and how it is told.
"""

from __future__ import annotations

from typing import Final

import click

from kvstore.cli.lazy import LazyGroup

__all__ = ["spark"]

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "export": ("kvstore.cli.spark.export", "Export messages to Parquet or Iceberg."),
    "package": ("kvstore.cli.spark.package", "Write kvmq as a zip file, for spark-submit."),
    "sql": ("kvstore.cli.spark.sql", "Ask a question about messages in SQL."),
}


class _Verbs(LazyGroup):
    """The verbs of `spark`."""

    verbs = _VERBS


@click.group(cls=_Verbs)
def spark() -> None:
    """Work on archives at any size, as jobs of Apache Spark, here or on a cluster.

    Needs Java 17 and the extra `spark`; a Spark on this machine is started by itself.
    """
