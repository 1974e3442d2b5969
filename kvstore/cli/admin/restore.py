"""The verb `restore`: a store from archives alone."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import Instant, config_option, read_config
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.paths import LocalPath
from kvstore.cli.terminal.report import show_report


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="DIR", type=LocalPath(file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Only this one; may be given again.")
@click.option("--until", type=Instant(), metavar="TIME", help="Leave out what was stored later.")
@click.option("--copy", is_flag=True,
              help="Copy the archives to DIR, instead of reading them where they are.")  # fmt: skip
@click.option("--take-over", is_flag=True,
              help="Go on as the store they are of, which is gone for good.")  # fmt: skip
@click.option("--store-id", metavar="HEX", help="Which store, where SOURCE has several.")
@access_options
@config_option
@output_option
def restore(
    out: Output, source: str, target: Path, topics: tuple[str, ...], until: int | None, copy: bool,
    take_over: bool, store_id: str | None, access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Make a store in DIR, a new folder, from the archives in SOURCE, a path or URL.

    Messages keep topic, queue, offset, position and ids; new ones go on behind them. An archive of
    which only a part is wanted is written anew, into DIR. Groups and their offsets are in no
    archive. Exit code 1 if an archive could not be read; the others are there.
    """
    import tiering
    from kvstore.files import LocalFiles
    from tiering.keys.sources import provider_of

    options: dict[str, object] = dict(access.options)
    keys = provider_of(access.keys_file, LocalFiles())
    if store_id is not None:
        options["store_id"] = store_id
    with out.progress() as progress:
        report = tiering.restore(
            source, target, topics=topics or None, until=until, keys=keys,
            options=options, copy=copy, take_over=take_over,
            config=None if config_file is None else read_config(config_file), progress=progress,
        )  # fmt: skip
    show_report(out, report)
    if report.problems:
        click.get_current_context().exit(1)
