"""The verb `tier attach`: archives of a place become part of a store that goes on."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import config_option, folder_argument, open_store
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.report import show_report


@click.command()
@folder_argument
@click.argument("source", metavar="SOURCE")
@click.option("--topic", "topics", multiple=True, help="Only this one; may be given again.")
@click.option("--store-id", metavar="HEX", help="Which store, where SOURCE has several.")
@access_options
@config_option
@output_option
def attach(
    out: Output, folder: Path, source: str, topics: tuple[str, ...], store_id: str | None,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Bring the archives in SOURCE, a path or URL, into the store in DIR.

    Messages keep topic, queue and offset; the store must have none of these offsets. They get other
    positions. Topics that the store lacks are made. All of it comes, or nothing. An archive is
    written anew into DIR; what is in SOURCE stays.
    """
    import tiering

    options: dict[str, object] = dict(access.options)
    if store_id is not None:
        options["store_id"] = store_id
    with (
        open_store(
            out, folder, config_file, access=access, does=f"tiering.attach(store, {source!r})"
        ) as store,
        out.progress() as progress,
    ):
        report = tiering.attach(
            store, source, topics=topics or None, options=options, progress=progress
        )
    show_report(out, report)
