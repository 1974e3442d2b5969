"""The verbs `tier list` and `tier history`: the archives of a store, and what was done to them."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.opening import (
    config_option,
    folder_argument,
    open_store,
    read_config,
    require_store,
    time_text,
)
from kvstore.cli.terminal.output import Output, output_option, size_text


@click.command(name="list")
@folder_argument
@config_option
@output_option
def list_(out: Output, folder: Path, config_file: Path | None) -> None:
    """List the archives of the store in DIR, oldest first, and segments that can't be archived.

    With --json archives alone; `kvmq stats --json` has what is left alone, by tier.
    """
    from tiering.catalog.catalog import decode_rows
    from tiering.places.work_folder import FILE, WORK, read_waits

    with open_store(out, folder, config_file, read_only=True) as store:
        rows = decode_rows(store.catalog().rows)
        waits = read_waits(folder / WORK / FILE, store.config.files)
    if out.json:
        out.document(rows)
        return
    columns = ("archive", "tier", "place", "class", "messages", "records", "bytes", "stored until")
    shown = [
        (
            row.key.rpartition("/")[2],
            row.tier if row.state == "live" else f"{row.tier}, until {_until(row.delete_at)}",
            row.place,
            row.retention_class,
            row.messages,
            size_text(row.raw_bytes),
            size_text(row.size),
            time_text(row.last_stored_at),
        )
        for row in rows
    ]
    out.table(columns, shown, right=("records", "bytes"))
    if waits:
        left = [(wait.what, wait.tries, time_text(wait.until), wait.why) for wait in waits]
        out.table(
            ("left alone", "tries", "tried again at", "why"), left, title="could not be moved"
        )


def _until(delete_at: int | None) -> str:
    return "now" if delete_at is None else time_text(delete_at)


@click.command()
@folder_argument
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True,
              help="Only the newest.")  # fmt: skip
@config_option
@output_option
def history(out: Output, folder: Path, limit: int, config_file: Path | None) -> None:
    """Show the steps that tiering did in the store in DIR, oldest first."""
    from tiering.places.work_folder import WORK
    from tiering.worker.runs import History

    require_store(folder)
    config = read_config(config_file)
    done = History(folder / WORK / "history.jsonl", config.files, config.clock).last(limit)
    if out.json:
        out.document(done)
        return
    columns = ("when", "what", "of", "messages", "records", "bytes", "seconds", "why")
    rows = [
        (
            time_text(one.at), one.what, one.source, one.messages,
            size_text(one.raw_bytes), size_text(one.bytes), one.seconds, one.note,
        )
        for one in done
    ]  # fmt: skip
    out.table(columns, rows, right=("records", "bytes"))
