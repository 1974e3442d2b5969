"""The verbs `get`, `find`, `pull`, `query` and `offset-at`: messages by any of their handles.

The idea: one pull is one answer, with its status and the offset to go on from; `--all` is a stream
that goes on until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from kvstore import PullResult, SqlFilter, StoredMessage
from kvstore.cli.message.pop_verbs import filter_options, wanted_filter
from kvstore.cli.terminal.message_text import message_value, show_message, show_messages
from kvstore.cli.terminal.opening import (
    Instant,
    StoreOrNamespace,
    VerbStore,
    folder_argument,
    store_options,
    topic_argument,
)
from kvstore.cli.terminal.options import Access, access_options
from kvstore.cli.terminal.output import Output

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
@store_options
def get(
    store: VerbStore, topic: str | None, queue: int, offset: int | None, position: int | None,
    message_id: str | None, raw: bool, access: Access,
) -> None:  # fmt: skip
    """Show one message: TOPIC with --queue and --offset, or --position, or --id."""
    given = [value is not None for value in (offset, position, message_id)]
    if sum(given) != 1:
        raise click.UsageError("give exactly one of --offset, --position and --id")
    if offset is not None and topic is None:
        raise click.UsageError("--offset needs TOPIC")
    with store.reading(access) as calls:
        if offset is not None and topic is not None:
            message = calls.get(topic, queue=queue, offset=offset)
        elif position is not None:
            message = calls.read_at(position)
        else:
            message = calls.find(message_id or "")
    show_message(store.out, message, raw=raw)


@click.command()
@folder_argument
@click.argument("message_id", metavar="ID")
@_raw_option
@access_options
@store_options
def find(store: VerbStore, message_id: str, raw: bool, access: Access) -> None:
    """Show the message with ID: the unique id it was given, or the id made of host and position."""
    with store.reading(access) as calls:
        message = calls.find(message_id)
    show_message(store.out, message, raw=raw)


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
@store_options
def pull(
    store: VerbStore, topic: str, queue: int | None, offset: int | None, limit: int,
    tags: str | None, sql: str | None, everything: bool, raw: bool, access: Access,
) -> None:  # fmt: skip
    """Read messages of TOPIC in order, from an offset on.

    With --json one document with the messages, the status and the next offset; with --all one JSON
    line for each message.
    """
    expression = wanted_filter(tags, sql)
    with store.reading(access) as calls:
        if everything:
            queues = range(calls.topic(topic).read_queues) if queue is None else [queue]
            for number in queues:
                show_messages(store.out, _stream(calls, topic, number, offset, expression), raw=raw)
            return
        number = queue or 0
        begin = calls.bounds(topic, queue=number).min_offset if offset is None else offset
        found = calls.pull(topic, queue=number, offset=begin, limit=limit, filter=expression)
    _show_pull(store.out, found, raw)


def _stream(
    calls: StoreOrNamespace,
    topic: str,
    queue: int,
    offset: int | None,
    expression: str | SqlFilter | None,
) -> Iterator[StoredMessage]:
    bounds = calls.bounds(topic, queue=queue)
    at = bounds.min_offset if offset is None else max(offset, bounds.min_offset)
    while at < bounds.next_offset:
        found = calls.pull(topic, queue=queue, offset=at, limit=_STREAM_LIMIT, filter=expression)
        yield from found.messages
        if found.next_offset <= at:  # the queue's beginning moved past us, or nothing is left
            return
        at = found.next_offset


_PULL_FIELDS = ("status", "next_offset", "min_offset", "max_offset")


def _show_pull(out: Output, found: PullResult, raw: bool) -> None:
    if out.json and not raw:
        out.document(
            {name: getattr(found, name) for name in _PULL_FIELDS}
            | {"messages": [message_value(m) for m in found.messages]}
        )
        return
    show_messages(out, found.messages, raw=raw)
    if not raw:
        click.echo(
            f"{found.status}: {len(found.messages):,} messages; next offset {found.next_offset:,} "
            f"of {found.min_offset:,} to {found.max_offset:,}",
            err=True,
        )


@click.command()
@folder_argument
@topic_argument
@click.argument("key")
@click.option("--begin", type=Instant(), help="Stored at or after: ms since the epoch or ISO 8601.")
@click.option("--end", type=Instant(), help="Stored at or before.")
@click.option("--limit", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--raw", is_flag=True, help="Only the bodies, one a line.")
@access_options
@store_options
def query(
    store: VerbStore, topic: str, key: str, begin: int | None, end: int | None, limit: int,
    raw: bool, access: Access,
) -> None:  # fmt: skip
    """Find the messages of TOPIC that carry KEY, newest first. With --json one line for each."""
    with store.reading(access) as calls:
        found = calls.query(topic, key=key, begin=begin, end=end, limit=limit)
    show_messages(store.out, found, raw=raw)


@click.command(name="offset-at")
@folder_argument
@topic_argument
@click.argument("time", type=Instant())
@click.option("--queue", type=click.IntRange(min=0), help="Default: every queue.")
@access_options
@store_options
def offset_at(store: VerbStore, topic: str, time: int, queue: int | None, access: Access) -> None:
    """Say, for the queues of TOPIC, the first offset stored at or after TIME.

    TIME is milliseconds since the epoch, or a date and time in ISO 8601.
    """
    with store.reading(access) as calls:
        queues = range(calls.topic(topic).read_queues) if queue is None else [queue]
        found = [(number, calls.offset_at(topic, queue=number, time=time)) for number in queues]
    store.out.rows(("queue", "offset"), found)
