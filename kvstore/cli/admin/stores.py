"""The verbs about a whole store: `stats`, `verify`, `rebuild`, `import`, `export` and `restore`."""

from __future__ import annotations

from pathlib import Path

import click

import kvstore
from kvstore.cli.terminal.opening import (
    Instant,
    call_text,
    config_option,
    folder_argument,
    open_store,
    read_config,
    require_store,
    telling,
)
from kvstore.cli.terminal.options import Access, LocalPath, access_options
from kvstore.cli.terminal.output import Output, exit_if, output_option, show_report
from kvstore.files import LocalFiles


@click.command()
@folder_argument
@output_option
def stats(out: Output, folder: Path) -> None:
    """Show the contents of the store in DIR, and the report of its opening."""
    with open_store(out, folder, read_only=True) as store:
        found = store.stats()
    show_report(out, found)


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
    exit_if(report.problems)


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
    with out.progress() as progress, telling(None):
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


@click.command()
@click.option("--rocketmq", "form", flag_value="rocketmq", required=True,
              help="A folder on which a broker of Apache RocketMQ starts.")  # fmt: skip
@folder_argument
@click.argument("target", metavar="TARGET", type=LocalPath(file_okay=False))
@click.option("--archived", is_flag=True, help="Write archived messages, too.")
@access_options
@config_option
@output_option
def export(
    out: Output, form: str, folder: Path, target: Path, archived: bool, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Make TARGET of the store in DIR, for another program to go on with.

    Log files are linked where the file system can; topics, groups, offsets and messages that wait
    go along. The store stays as it is.
    """
    del form  # there is one
    does = call_text("export_rocketmq_store", str(target), archived=archived or None)
    opened = open_store(out, folder, config_file, access=access, does=does)
    with opened as store, out.progress() as progress:
        report = store.export_rocketmq_store(target, archived=archived, progress=progress)
    show_report(out, report)


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
    from tiering.keys.key_file import provider_of

    keys = provider_of(access.keys_file, LocalFiles())
    with out.progress() as progress:
        report = tiering.restore(
            source, target, topics=topics or None, until=until, keys=keys,
            options=access.place_options(store_id), copy=copy, take_over=take_over,
            config=None if config_file is None else read_config(config_file), progress=progress,
        )  # fmt: skip
    show_report(out, report)
    exit_if(report.problems)
