"""The verbs `topic create|list|show|alter|delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from kvstore import TopicInfo
from kvstore.cli.opening import config_option, folder_argument, open_store
from kvstore.cli.output import Output, output_option

_name_argument = click.argument("name")
_key_index_option = click.option(
    "--key-index",
    type=click.Choice(["all", "unique", "off"]),
    help="What `query` finds: all keys and the unique id, the unique id, or nothing.",
)


@click.group()
def topic() -> None:
    """Create, list, show, alter or delete topics."""


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--kind",
    type=click.Choice(["normal", "fifo", "delay", "transaction", "compacted"]),
    default="normal",
    show_default=True,
)
@_key_index_option
@config_option
@output_option
def create(
    out: Output, folder: Path, name: str, queues: int, kind: Any,
    key_index: Literal["all", "unique", "off"] | None, config_file: Path | None,
) -> None:  # fmt: skip
    """Create topic NAME, and the store in DIR if there is none."""
    with open_store(out, folder, config_file, create=True) as store:
        store.create_topic(name, queues=queues, kind=kind, key_index=key_index)
        _show(out, [store.topic(name)])


@topic.command(name="list")
@folder_argument
@output_option
def list_topics(out: Output, folder: Path) -> None:
    """List the topics of the store in DIR."""
    with open_store(out, folder, read_only=True) as store:
        topics = store.topics()
    if out.json:
        out.document(topics)
    else:
        _show(out, topics)


@topic.command()
@folder_argument
@_name_argument
@output_option
def show(out: Output, folder: Path, name: str) -> None:
    """Show topic NAME and what its queues hold."""
    with open_store(out, folder, read_only=True) as store:
        info = store.topic(name)
        bounds = [store.bounds(name, queue=queue) for queue in range(info.read_queues)]
    if out.json:
        queues = [
            {"queue": queue, "min_offset": b.min_offset, "next_offset": b.next_offset}
            for queue, b in enumerate(bounds)
        ]
        out.document(msgspec.to_builtins(info) | {"queues": queues})
        return
    _show(out, [info])
    rows = [
        (queue, b.min_offset, b.next_offset, b.next_offset - b.min_offset)
        for queue, b in enumerate(bounds)
    ]
    out.table(("queue", "min offset", "next offset", "messages"), rows)


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(min=1), help="The new number of queues.")
@_key_index_option
@output_option
def alter(
    out: Output, folder: Path, name: str, queues: int | None,
    key_index: Literal["all", "unique", "off"] | None,
) -> None:  # fmt: skip
    """Change topic NAME."""
    changes: dict[str, Any] = {"queues": queues, "key_index": key_index}
    changes = {setting: value for setting, value in changes.items() if value is not None}
    if not changes:
        raise click.UsageError("give what to change: --queues, --key-index")
    with open_store(out, folder) as store:
        store.alter_topic(name, **changes)
        _show(out, [store.topic(name)])


@topic.command()
@folder_argument
@_name_argument
@output_option
def delete(out: Output, folder: Path, name: str) -> None:
    """Delete topic NAME; its messages can no longer be read."""
    with open_store(out, folder) as store:
        store.delete_topic(name)
    if out.json:
        out.document({"deleted": name})


def _show(out: Output, topics: list[TopicInfo]) -> None:
    if out.json:
        out.document(topics[0])
        return
    rows = [
        (t.name, t.id, t.read_queues, t.write_queues, str(t.kind), str(t.key_index)) for t in topics
    ]
    out.table(("topic", "id", "read queues", "write queues", "kind", "key index"), rows)
