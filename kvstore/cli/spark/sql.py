"""The verb `spark sql`: a question about messages, asked in SQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.spark.views import Asked, view_options
from kvstore.cli.terminal.output import Output, output_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS: int = 1000


@click.command()
@click.argument("path", metavar="PATH")
@click.argument("query")
@click.option("--rows", type=click.IntRange(min=1), default=_ROWS, show_default=True,
              help="The most that are shown; --json shows all.")  # fmt: skip
@view_options
@engine_options
@output_option
def sql(
    out: Output, path: str, query: str, rows: int, engine: Engine, asked: Asked
) -> None:  # fmt: skip
    """Ask QUERY, in Spark's SQL, of the table `messages`: those in PATH; or of the views archives,
    volume, dead_letters, delays, keys and retention.

    PATH is a store's folder, with its log, or a folder or the URL of a bucket of archives. Such as:
    kvmq spark sql data "SELECT topic, count(*) FROM messages GROUP BY topic".
    """
    from tiering.spark.report.views import create_views

    with out.progress() as report, engine.session(report) as spark:
        create_views(
            spark, path, options=asked.options, prices=asked.prices, now_ms=asked.now_ms,
            only=_named(query),
        )  # fmt: skip
        found = spark.sql(query)
        if out.json:
            for row in found.toLocalIterator():
                out.line(_plain(row.asDict(recursive=True)))
            return
        _show(out, found, rows)


def _named(query: str) -> list[str] | None:
    """The views that a question names; None, all, if it names none (SHOW TABLES)."""
    from tiering.spark.report.views import VIEWS

    words = set(re.findall(r"\w+", query.lower()))
    return [name for name in VIEWS if name in words] or None


def _show(out: Output, found: DataFrame, most: int) -> None:
    shown = found.take(most + 1)
    out.table(found.columns, [[_cell(value) for value in row] for row in shown[:most]])
    if len(shown) > most:
        out.text(f"and more: --rows shows more than {most}, --json all")


def _cell(value: Any) -> object:
    found = _plain(value)
    return found if isinstance(found, int | float | str | bool) or found is None else str(found)


def _plain(value: Any) -> Any:
    """A value as in JSON: bytes as text, with invalid UTF-8 escaped."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
