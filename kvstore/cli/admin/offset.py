"""The verbs `offset show|commit|reset|history|lag`: the progress of consumer groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore import Lag
from kvstore.cli.admin.namespace import namespace_option, within
from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import (
    Instant,
    call_text,
    folder_argument,
    open_store,
    time_text,
    topic_argument,
)
from kvstore.cli.terminal.output import Output, output_option

_group_argument = click.argument("group")
_queue_option = click.option("--queue", type=click.IntRange(min=0), required=True)


@click.group()
def offset() -> None:
    """Show, commit or reset a consumer group's offsets; their history, and how far behind it is."""


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@namespace_option
@output_option
def show(out: Output, folder: Path, group: str, topic: str, namespace: str | None) -> None:
    """Show the offsets of GROUP in the queues of TOPIC, and the messages it has still to do."""
    with open_store(out, folder, read_only=True) as store:
        lags = within(store, namespace).lag(group, topic)
    rows = [(one.queue, one.committed, one.end, one.lag) for one in lags]
    _print(out, ("queue", "committed", "next_offset", "lag"), rows)


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@_queue_option
@click.option("--offset", "up_to", type=click.IntRange(min=0), required=True)
@namespace_option
@output_option
def commit(
    out: Output, folder: Path, group: str, topic: str, queue: int, up_to: int, namespace: str | None
) -> None:
    """Say that GROUP has consumed a queue of TOPIC up to, not including, an offset."""
    does = call_text("commit_offset", group, topic, queue, up_to, namespace=namespace)
    with open_store(out, folder, does=does) as store:
        within(store, namespace).commit_offset(group, topic, queue, up_to, sync=True)
    if out.json:
        out.document({"group": group, "topic": topic, "queue": queue, "offset": up_to})


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue; all if not given.")
@click.option("--offset", "up_to", type=click.IntRange(min=0), help="To an offset of the queue.")
@click.option("--time", type=Instant(), help="To the first message stored at or after a time.")
@click.option("--to", type=click.Choice(["begin", "end"]), help="To where the queues begin or end.")
@namespace_option
@access_options
@output_option
def reset(
    out: Output, folder: Path, group: str, topic: str, queue: int | None, up_to: int | None,
    time: int | None, to: Any, namespace: str | None, access: Access,
) -> None:  # fmt: skip
    """Set where GROUP goes on in TOPIC: --to begin, --to end, --time or --offset.

    What it has under lock there is given up.
    """
    if [up_to, time, to].count(None) != 2:
        raise click.UsageError("give one of --to, --time and --offset")
    where = {"offset": up_to, "time": time, "to": to, "queue": queue}
    does = call_text("reset_offset", group, topic, namespace=namespace, **where)
    with open_store(out, folder, access=access, does=does) as store:
        found = within(store, namespace).reset_offset(group, topic, **where)
    _print(out, ("queue", "offset"), list(found.items()))


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@_queue_option
@namespace_option
@output_option
def history(
    out: Output, folder: Path, group: str, topic: str, queue: int, namespace: str | None
) -> None:
    """Show the past offsets of GROUP in a queue of TOPIC with their times, oldest first."""
    with open_store(out, folder, read_only=True) as store:
        commits = within(store, namespace).offset_history(group, topic, queue)
    if out.json:
        out.document(commits)
    else:
        out.table(
            ("committed at", "offset"), [(time_text(c.committed_at), c.offset) for c in commits]
        )


@offset.command()
@folder_argument
@click.argument("group", required=False)
@click.argument("topic", required=False)
@namespace_option
@output_option
def lag(
    out: Output, folder: Path, group: str | None, topic: str | None, namespace: str | None
) -> None:
    """Show how much GROUP has still to do in TOPIC, and how much its filters passed over; without
    TOPIC in all it ever popped or committed in, without GROUP that of all groups.
    """
    found: list[Lag] = []
    with open_store(out, folder, read_only=True) as store:
        calls = within(store, namespace)
        for name in [g.name for g in calls.groups()] if group is None else [group]:
            found += calls.lag(name, topic)
    names = ("group", "topic", "queue", "committed", "end", "lag", "in_flight", "passed_over")
    if out.json:
        out.document(found)
    else:
        rows = [tuple(getattr(one, name) for name in names) for one in found]
        out.table([name.replace("_", " ") for name in names], rows)


def _print(out: Output, names: tuple[str, ...], rows: list[Any]) -> None:
    if out.json:
        out.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        out.table([name.replace("_", " ") for name in names], rows)
