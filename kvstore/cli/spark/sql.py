"""The verb `spark sql`: a question about messages, asked in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.output import Output, output_option
from kvstore.cli.spark.options import Engine, engine_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS: int = 1000


@click.command()
@click.argument("path", metavar="PATH")
@click.argument("query")
@click.option("--rows", type=click.IntRange(min=1), default=_ROWS, show_default=True,
              help="The most that are shown; --json shows all.")  # fmt: skip
@engine_options
@access_options
@output_option
def sql(
    out: Output, path: str, query: str, rows: int, engine: Engine, access: Access
) -> None:  # fmt: skip
    """Ask QUERY, in Spark's SQL, of the table `messages`: those in PATH.

    PATH is a store's folder, with its log, or a folder or the URL of a bucket of archives. Such as:
    kvmq spark sql data "SELECT topic, count(*) FROM messages GROUP BY topic".
    """
    with out.progress() as report, engine.session(report) as spark:
        reader = spark.read.format("kvmq").options(**options_of(access))
        reader.load(path).createOrReplaceTempView("messages")
        found = spark.sql(query)
        if out.json:
            for row in found.toLocalIterator():
                out.line(_plain(row.asDict(recursive=True)))
            return
        _show(out, found, rows)


def options_of(access: Access) -> dict[str, str]:
    """How the table is told what the command line says of places and keys."""
    options = {f"place.{name}": value for name, value in access.options.items()}
    if access.keys_file is not None:
        options["key_file"] = str(access.keys_file.absolute())
    return options


def _show(out: Output, found: DataFrame, most: int) -> None:
    shown = found.take(most + 1)
    out.table(found.columns, [[_cell(value) for value in row] for row in shown[:most]])
    if len(shown) > most:
        out.text(f"and more: --rows shows more than {most}, --json all")


def _cell(value: Any) -> object:
    found = _plain(value)
    return found if isinstance(found, int | float | str | bool) or found is None else str(found)


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text, what is no UTF-8 escaped."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
