"""The verb `spark report`: a page about stored messages, their content and their cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.spark.views import Asked, view_options
from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.cli.terminal.paths import LocalPath

if TYPE_CHECKING:
    from tiering.spark.report.figures import Figures


@click.command()
@click.argument("path", metavar="PATH")
@click.option("-o", "--output", "target", metavar="FILE",
              type=LocalPath(dir_okay=False),
              help="The page, in HTML; default: report.html, or none with --json.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True,
              help="How many topics, keys and dead letters are named.")  # fmt: skip
@view_options
@engine_options
@output_option
def report(
    out: Output, path: str, target: Path | None, top: int, asked: Asked, engine: Engine
) -> None:  # fmt: skip
    """Make a page about the messages in PATH: volume and cost by topic, tier and day, dead letters,
    delays, frequent keys, and what keeping less would save.

    PATH is a store's folder, or a folder or the URL of a bucket of archives. The page is one file
    that needs nothing else; to make it takes kvmq[plot].
    """
    from tiering.spark.report import texts
    from tiering.spark.report.gather import gather

    if target is None and not out.json:
        target = Path("report.html")
    write = None if target is None else _writer(target)
    with out.progress() as progress, engine.session(progress) as spark:
        figures = gather(
            spark, path, options=asked.options, prices=asked.prices, now_ms=asked.now_ms, top=top
        )
    if write is not None:
        write(figures)
    if out.json:
        out.document(figures)
        return
    total = figures.total.sums
    places = texts.decimals([total.cost_per_month])
    cost = texts.money(total.cost_per_month, places).replace("\u2009", " ")
    rows = [
        ("messages", f"{total.messages:,}"),
        ("records", size_text(total.raw_bytes)),
        ("stored", size_text(total.stored_bytes)),
        (f"{figures.currency} a month", cost),
        ("dead letters", f"{figures.dead_letters_count:,}"),
    ]
    out.table(("what", "value"), rows)
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
