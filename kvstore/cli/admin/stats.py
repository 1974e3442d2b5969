"""The verb `stats`."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.opening import folder_argument, open_store
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.report import show_report


@click.command()
@folder_argument
@output_option
def stats(out: Output, folder: Path) -> None:
    """Show the contents of the store in DIR, and the report of its opening."""
    with open_store(out, folder, read_only=True) as store:
        found = store.stats()
    show_report(out, found)
