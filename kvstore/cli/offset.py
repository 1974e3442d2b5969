"""The verbs `offset show|commit`: how far a consumer group has come."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.opening import folder_argument, open_store, topic_argument
from kvstore.cli.output import Output, output_option

_group_argument = click.argument("group")


@click.group()
def offset() -> None:
    """Show or commit a consumer group's offsets."""


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@output_option
def show(out: Output, folder: Path, group: str, topic: str) -> None:
    """Show what GROUP has committed in the queues of TOPIC, and how far behind that is."""
    rows: list[tuple[int, int | None, int, int]] = []
    with open_store(out, folder, read_only=True) as store:
        for queue in range(store.topic(topic).read_queues):
            bounds = store.bounds(topic, queue=queue)
            committed = store.committed_offset(group, topic, queue)
            begin = bounds.min_offset if committed is None else max(committed, bounds.min_offset)
            rows.append((queue, committed, bounds.next_offset, bounds.next_offset - begin))
    names = ("queue", "committed", "next_offset", "lag")
    if out.json:
        out.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        out.table([name.replace("_", " ") for name in names], rows)


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), required=True)
@click.option("--offset", "up_to", type=click.IntRange(min=0), required=True)
@output_option
def commit(out: Output, folder: Path, group: str, topic: str, queue: int, up_to: int) -> None:
    """Say that GROUP has consumed a queue of TOPIC up to, not including, an offset."""
    with open_store(out, folder) as store:
        store.commit_offset(group, topic, queue, up_to)
    if out.json:
        out.document({"group": group, "topic": topic, "queue": queue, "offset": up_to})
