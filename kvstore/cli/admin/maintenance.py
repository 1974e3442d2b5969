"""The verbs `verify`, `rebuild` and `import`, each of which goes through a whole log."""

from __future__ import annotations

from pathlib import Path

import click

import kvstore
from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import (
    config_option,
    folder_argument,
    open_store,
    read_config,
    require_store,
)
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.paths import LocalPath
from kvstore.cli.terminal.report import show_report


@click.command()
@folder_argument
@access_options
@config_option
@output_option
def verify(out: Output, folder: Path, access: Access, config_file: Path | None) -> None:
    """Check every record of the store in DIR, and that log and index agree.

    Exit code 1 if there is a problem.
    """
    opened = open_store(out, folder, config_file, access=access, read_only=True)
    with opened as store, out.progress() as progress:
        report = store.verify(progress=progress)
    show_report(out, report)
    if not out.json and not report.problems:
        out.text("no problem found", fg="green")
    if report.problems:
        click.get_current_context().exit(1)


@click.command()
@folder_argument
@access_options
@config_option
@output_option
def rebuild(out: Output, folder: Path, access: Access, config_file: Path | None) -> None:
    """Drop the index of the store in DIR and build it anew from the log.

    Topics, groups and consumer offsets stay. A rebuild that was interrupted goes on when the store
    is opened next.
    """
    require_store(folder)
    config = read_config(config_file, access)
    with out.progress() as progress:
        report = kvstore.rebuild(folder, config=config, progress=progress)
    show_report(out, report)


@click.command(name="import")
@click.argument("source", metavar="SRC", type=LocalPath(file_okay=False))
@click.argument("target", metavar="DST", type=LocalPath(file_okay=False))
@config_option
@output_option
def import_(out: Output, source: Path, target: Path, config_file: Path | None) -> None:
    """Adopt the RocketMQ store in SRC as a new store in DST. SRC is not changed.

    Full log files are linked where the file system can, the last one is copied; the index is built
    from the log; topics, groups and offsets come from RocketMQ's configuration.
    """
    with out.progress() as progress:
        config = read_config(config_file)
        report = kvstore.import_rocketmq(source, target, config=config, progress=progress)
    show_report(out, report)
