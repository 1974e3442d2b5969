"""The verb `pull`: a queue read in order.

The idea: one pull is one answer, with its status and the offset to go on from; `--all` is a stream
that goes on until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from kvstore import PullResult, SqlFilter, Store, StoredMessage
from kvstore.cli.message.pop import filter_options, wanted_filter
from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.messages import message_value, show_messages
from kvstore.cli.terminal.opening import folder_argument, open_store, topic_argument
from kvstore.cli.terminal.output import Output, output_option

_STREAM_LIMIT = 256
"""Messages asked for at once by a stream."""


@click.command()
@folder_argument
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), help="Default 0; with --all every queue.")
@click.option("--offset", type=click.IntRange(min=0), help="Default: where the queue begins.")
@click.option("--limit", type=click.IntRange(min=1), default=32, show_default=True)
@filter_options
@click.option("--all", "everything", is_flag=True, help="Go on to the end; --limit has no effect.")
@click.option("--raw", is_flag=True, help="Only the bodies, one a line.")
@access_options
@output_option
def pull(
    out: Output, folder: Path, topic: str, queue: int | None, offset: int | None, limit: int,
    tags: str | None, sql: str | None, everything: bool, raw: bool,
    access: Access,
) -> None:  # fmt: skip
    """Read messages of TOPIC in order, from an offset on.

    With --json one document with the messages, the status and the next offset; with --all one JSON
    line for each message.
    """
    expression = wanted_filter(tags, sql)
    with open_store(out, folder, access=access, read_only=True) as store:
        if everything:
            queues = range(store.topic(topic).read_queues) if queue is None else [queue]
            for number in queues:
                show_messages(out, _stream(store, topic, number, offset, expression), raw=raw)
            return
        number = queue or 0
        begin = store.bounds(topic, queue=number).min_offset if offset is None else offset
        found = store.pull(topic, queue=number, offset=begin, limit=limit, filter=expression)
    _show_pull(out, found, raw)


def _stream(
    store: Store,
    topic: str,
    queue: int,
    offset: int | None,
    expression: str | SqlFilter | None,
) -> Iterator[StoredMessage]:
    bounds = store.bounds(topic, queue=queue)
    at = bounds.min_offset if offset is None else max(offset, bounds.min_offset)
    while at < bounds.next_offset:
        found = store.pull(topic, queue=queue, offset=at, limit=_STREAM_LIMIT, filter=expression)
        yield from found.messages
        if found.next_offset <= at:  # the queue's beginning moved past us, or nothing is left
            return
        at = found.next_offset


def _show_pull(out: Output, found: PullResult, raw: bool) -> None:
    if out.json and not raw:
        out.document(
            {
                "status": found.status,
                "next_offset": found.next_offset,
                "min_offset": found.min_offset,
                "max_offset": found.max_offset,
                "messages": [message_value(m) for m in found.messages],
            }
        )
        return
    show_messages(out, found.messages, raw=raw)
    if not raw:
        click.echo(
            f"{found.status}: {len(found.messages):,} messages; next offset {found.next_offset:,} "
            f"of {found.min_offset:,} to {found.max_offset:,}",
            err=True,
        )
