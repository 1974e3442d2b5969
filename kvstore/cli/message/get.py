"""The verbs `get` and `find`: one message, by any of its handles."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.messages import show_message, write_raw
from kvstore.cli.terminal.opening import folder_argument, open_store
from kvstore.cli.terminal.output import Output, output_option

_raw_option = click.option("--raw", is_flag=True, help="Only the body, byte for byte.")


@click.command()
@folder_argument
@click.argument("topic", required=False)
@click.option("--queue", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--offset", type=click.IntRange(min=0), help="The message's place in its queue.")
@click.option("--position", type=click.IntRange(min=0), help="Its byte offset in the log.")
@click.option("--id", "message_id", help="Its unique id or its position id.")
@_raw_option
@access_options
@output_option
def get(
    out: Output, folder: Path, topic: str | None, queue: int, offset: int | None,
    position: int | None, message_id: str | None, raw: bool, access: Access,
) -> None:  # fmt: skip
    """Show one message: TOPIC with --queue and --offset, or --position, or --id."""
    given = [value is not None for value in (offset, position, message_id)]
    if sum(given) != 1:
        raise click.UsageError("give exactly one of --offset, --position and --id")
    if offset is not None and topic is None:
        raise click.UsageError("--offset needs TOPIC")
    with open_store(out, folder, access=access, read_only=True) as store:
        if offset is not None and topic is not None:
            message = store.get(topic, queue=queue, offset=offset)
        elif position is not None:
            message = store.read_at(position)
        else:
            message = store.find(message_id or "")
    if raw:
        write_raw(sys.stdout.buffer, message)
    else:
        show_message(out, message)


@click.command()
@folder_argument
@click.argument("message_id", metavar="ID")
@_raw_option
@access_options
@output_option
def find(out: Output, folder: Path, message_id: str, raw: bool, access: Access) -> None:
    """Show the message with ID: the unique id it was given, or the id made of host and position."""
    with open_store(out, folder, access=access, read_only=True) as store:
        message = store.find(message_id)
    if raw:
        write_raw(sys.stdout.buffer, message)
    else:
        show_message(out, message)
