"""The verbs `query` and `offset-at`: messages by key, and offsets by time."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.messages import show_messages
from kvstore.cli.terminal.opening import Instant, folder_argument, open_store, topic_argument
from kvstore.cli.terminal.output import Output, output_option


@click.command()
@folder_argument
@topic_argument
@click.argument("key")
@click.option("--begin", type=Instant(), help="Stored at or after: ms since the epoch or ISO 8601.")
@click.option("--end", type=Instant(), help="Stored at or before.")
@click.option("--limit", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--raw", is_flag=True, help="Only the bodies, one a line.")
@access_options
@output_option
def query(
    out: Output, folder: Path, topic: str, key: str, begin: int | None, end: int | None,
    limit: int, raw: bool, access: Access,
) -> None:  # fmt: skip
    """Find the messages of TOPIC that carry KEY, newest first. With --json one line for each."""
    with open_store(out, folder, access=access, read_only=True) as store:
        found = store.query(topic, key=key, begin=begin, end=end, limit=limit)
    show_messages(out, found, raw=raw)


@click.command(name="offset-at")
@folder_argument
@topic_argument
@click.argument("time", type=Instant())
@click.option("--queue", type=click.IntRange(min=0), help="Default: every queue.")
@access_options
@output_option
def offset_at(
    out: Output, folder: Path, topic: str, time: int, queue: int | None, access: Access
) -> None:
    """Say, for the queues of TOPIC, the first offset stored at or after TIME.

    TIME is milliseconds since the epoch, or a date and time in ISO 8601.
    """
    with open_store(out, folder, access=access, read_only=True) as store:
        queues = range(store.topic(topic).read_queues) if queue is None else [queue]
        found = [(number, store.offset_at(topic, queue=number, time=time)) for number in queues]
    if out.json:
        out.document([{"queue": number, "offset": offset} for number, offset in found])
    else:
        out.table(("queue", "offset"), found)
