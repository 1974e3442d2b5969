"""The verbs `spark report` and `spark sql`: a page about messages, and questions about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstore.cli.spark.spark_options import Spark, ViewSettings, spark_options, view_options
from kvstore.cli.terminal.options import LocalPath
from kvstore.cli.terminal.output import Output, output_option, size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiering.spark.report.figures import Figures


@click.command()
@click.argument("path", metavar="PATH")
@click.option("-o", "--output", "target", metavar="FILE",
              type=LocalPath(dir_okay=False),
              help="The page, in HTML; default: report.html, or none with --json.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True,
              help="How many topics, keys and dead letters are named.")  # fmt: skip
@view_options
@spark_options
@output_option
def report(
    out: Output, path: str, target: Path | None, top: int, views: ViewSettings, spark: Spark
) -> None:  # fmt: skip
    """Make a page about the messages in PATH: volume and cost by topic, tier and day, dead letters,
    delays, messages that wait or were late, frequent keys, and what keeping less would save.

    PATH is a store's folder, or a folder or the URL of a bucket of archives. The page is one file
    that needs nothing else; to make it takes kvmq[plot].
    """
    from tiering.spark.report import texts
    from tiering.spark.report.gather import gather

    if target is None and not out.json:
        target = Path("report.html")
    write = None if target is None else _writer(target)
    with out.progress() as progress, spark.session(progress) as session:
        figures = gather(
            session, path, options=views.options, prices=views.prices, now_ms=views.now_ms, top=top
        )
    if write is not None:
        write(figures)
    total = figures.total.sums
    places = texts.decimals([total.cost_per_month])
    cost = texts.money(total.cost_per_month, places).replace("\u2009", " ")
    rows = [
        ("messages", f"{total.messages:,}"),
        ("records", size_text(total.raw_bytes)),
        ("stored", size_text(total.stored_bytes)),
        (f"{figures.currency} a month", cost),
        ("dead letters", f"{figures.dead_letters_count:,}"),
        ("delayed, waiting", f"{sum(one.waiting for one in figures.timers):,}"),
        ("delayed, overdue", f"{sum(one.overdue for one in figures.timers):,}"),
        (
            "prepared, waiting",
            f"{sum(one.waiting + one.overdue for one in figures.transactions):,}",
        ),
        ("prepared, rolled back", f"{sum(one.rolled_back for one in figures.transactions):,}"),
        ("prepared, given up", f"{sum(one.given_up for one in figures.transactions):,}"),
    ]
    out.show(figures, ("what", "value"), rows)
    if not out.json:
        out.text(f"written: {target}")


def _writer(target: Path) -> Callable[[Figures], object]:
    """The writer of the page. Raises now, and not after an hour of reading, if the page can't be
    written.

    Raises BadParameter for a missing folder, ExtraMissing without the packages that a page needs.
    """
    if not target.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {target.parent}", param_hint="--output")
    from tiering.spark.report.page import page

    return lambda figures: target.write_text(page(figures), encoding="utf-8")


_ROWS: int = 1000


@click.command()
@click.argument("path", metavar="PATH")
@click.argument("query")
@click.option("--rows", type=click.IntRange(min=1), default=_ROWS, show_default=True,
              help="The most that are shown; --json shows all.")  # fmt: skip
@view_options
@spark_options
@output_option
def sql(
    out: Output, path: str, query: str, rows: int, spark: Spark, views: ViewSettings
) -> None:  # fmt: skip
    """Ask QUERY, in Spark's SQL, of the table `messages`: those in PATH; or of the views archives,
    volume, dead_letters, delays, timers, transactions, keys and retention.

    PATH is a store's folder, with its log, or a folder or the URL of a bucket of archives. Example:
    kvmq spark sql data "SELECT topic, count(*) FROM messages GROUP BY topic".
    """
    from tiering.spark.report.views import create_views

    with out.progress() as report, spark.session(report) as session:
        create_views(
            session, path, options=views.options, prices=views.prices, now_ms=views.now_ms,
            only=_named(query),
        )  # fmt: skip
        found = session.sql(query)
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
