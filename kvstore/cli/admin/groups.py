"""The verbs `group ...` and `offset ...`: consumer groups, and their progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvstore import GroupInfo, Lag
from kvstore.cli.terminal.opening import (
    Instant,
    call_text,
    exist_ok_option,
    folder_argument,
    namespace_option,
    open_store,
    time_text,
    topic_argument,
    within,
)
from kvstore.cli.terminal.options import Access, access_options
from kvstore.cli.terminal.output import Output, output_option

_NONE = "none"
_group_argument = click.argument("group_name", metavar="GROUP")


class _Start(click.ParamType[Any]):
    """`begin`, `end` or a time."""

    name = "begin|end|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        return value if value in ("begin", "end") else Instant().convert(value, param, ctx)


class _Backoff(click.ParamType[Any]):
    """Seconds, separated by commas."""

    name = "seconds,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        try:
            return value if isinstance(value, list) else [float(s) for s in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of seconds like 1,10,60", param, ctx)


def _settings(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `create` and `alter` share."""
    for option in reversed(
        (
            click.option(
                "--max-attempts",
                type=click.IntRange(min=1),
                help="Deliveries before a dead letter.",
            ),
            click.option(
                "--ordered/--not-ordered",
                default=None,
                help="Whether messages of a message group come one after the other.",
            ),
            click.option("--backoff", type=_Backoff(), help="Seconds between deliveries: 1,10,60."),
            click.option(
                "--dead-letter-topic",
                metavar="TOPIC",
                help=f"Where dead letters go; {_NONE!r}: %DLQ% and the group's name.",
            ),
            click.option(
                "--start",
                type=_Start(),
                help="Where the group starts: begin, end, or the messages stored from a time on.",
            ),
            click.option(
                "--max-in-flight",
                metavar="N",
                help=f"Messages under lock at a time; {_NONE!r}: no limit.",
            ),
        )
    ):
        verb = option(verb)
    return verb


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, in the form the store takes them."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in ("dead_letter_topic", "max_in_flight"):
        if given.get(name) == _NONE:
            given[name] = None
    if isinstance(given.get("max_in_flight"), str):
        try:
            given["max_in_flight"] = int(given["max_in_flight"])
        except ValueError:
            raise click.UsageError("--max-in-flight takes a number, or none") from None
    return given


@click.group()
def group() -> None:
    """Create, list, show, alter or delete consumer groups."""


@group.command()
@folder_argument
@_group_argument
@_settings
@exist_ok_option
@namespace_option
@output_option
def create(
    out: Output, folder: Path, group_name: str, exist_ok: bool, namespace: str | None,
    **settings: Any,
) -> None:  # fmt: skip
    """Create GROUP."""
    given = _given(settings)
    does = call_text("create_group", group_name, namespace=namespace, **given)
    with open_store(out, folder, does=does) as store:
        calls = within(store, namespace)
        _show(out, calls.create_group(group_name, exist_ok=exist_ok, **given))


@group.command(name="list")
@folder_argument
@namespace_option
@output_option
def list_groups(out: Output, folder: Path, namespace: str | None) -> None:
    """List the groups of the store in DIR."""
    with open_store(out, folder, read_only=True) as store:
        groups = within(store, namespace).groups()
    if out.json:
        out.document(groups)
    else:
        _table(out, groups)


@group.command()
@folder_argument
@_group_argument
@namespace_option
@output_option
def show(out: Output, folder: Path, group_name: str, namespace: str | None) -> None:
    """Show GROUP, and how much it has still to do in the topics it ever popped or committed in."""
    with open_store(out, folder, read_only=True) as store:
        calls = within(store, namespace)
        found, lags = calls.group(group_name), calls.lag(group_name)
    summed: dict[str, tuple[int, int]] = {}
    for one in lags:
        lag, passed_over = summed.get(one.topic, (0, 0))
        summed[one.topic] = (lag + one.lag, passed_over + one.passed_over)
    columns = ("topic", "lag", "passed_over")
    rows = [(topic, *counts) for topic, counts in summed.items()]
    if out.json:
        topics = [dict(zip(columns, row, strict=True)) for row in rows]
        out.document({**_plain(found), "topics": topics})
        return
    out.table(("setting", "value"), [(name, _text(v)) for name, v in _plain(found).items()])
    if rows:
        out.text("")
        out.table([name.replace("_", " ") for name in columns], rows)


@group.command()
@folder_argument
@_group_argument
@_settings
@namespace_option
@output_option
def alter(
    out: Output, folder: Path, group_name: str, namespace: str | None, **settings: Any
) -> None:
    """Change settings of GROUP; the others stay."""
    changes = _given(settings)
    if not changes:
        raise click.UsageError("give what to change; --help lists the settings")
    does = call_text("alter_group", group_name, namespace=namespace, **changes)
    with open_store(out, folder, does=does) as store:
        _show(out, within(store, namespace).alter_group(group_name, **changes))


@group.command()
@folder_argument
@_group_argument
@namespace_option
@output_option
def delete(out: Output, folder: Path, group_name: str, namespace: str | None) -> None:
    """Delete GROUP, its committed offsets and their history."""
    does = call_text("delete_group", group_name, namespace=namespace)
    with open_store(out, folder, does=does) as store:
        within(store, namespace).delete_group(group_name)
    if out.json:
        out.document({"deleted": group_name})


@group.command()
@folder_argument
@_group_argument
@click.option("--limit", type=click.IntRange(min=1), help="Only so many.")
@namespace_option
@output_option
def redrive(
    out: Output, folder: Path, group_name: str, limit: int | None, namespace: str | None
) -> None:
    """Put GROUP's dead letters back: it gets the messages once more, due at once."""
    does = call_text("redrive", group_name, limit, namespace=namespace)
    with open_store(out, folder, does=does) as store:
        count = within(store, namespace).redrive(group_name, limit)
    if out.json:
        out.document({"redriven": count})
    else:
        out.text(f"{count:,} dead letters put back")


def _plain(found: GroupInfo) -> dict[str, Any]:
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    return {**values, "dead_letter_topic": found.dead_letters}


def _text(value: object) -> str:
    """A setting for people."""
    if isinstance(value, tuple):
        return " ".join(f"{step:g}" for step in value)
    return "-" if value is None or value == {} else str(value)


def _show(out: Output, found: GroupInfo) -> None:
    if out.json:
        out.document(found)
    else:
        _table(out, [found])


def _table(out: Output, groups: list[GroupInfo]) -> None:
    rows = [
        (g.name, g.id, g.max_attempts, g.ordered, str(g.start), g.max_in_flight, g.dead_letters)
        for g in groups
    ]
    names = ("group", "id", "max attempts", "ordered", "start", "max in flight", "dead letters")
    out.table(names, rows)


_of_group_argument = click.argument("group")
_queue_option = click.option("--queue", type=click.IntRange(min=0), required=True)


@click.group()
def offset() -> None:
    """Show, commit or reset a consumer group's offsets; their history, and how far behind it is."""


@offset.command("show")
@folder_argument
@_of_group_argument
@topic_argument
@namespace_option
@output_option
def show_offsets(out: Output, folder: Path, group: str, topic: str, namespace: str | None) -> None:
    """Show the offsets of GROUP in the queues of TOPIC, and the messages it has still to do."""
    with open_store(out, folder, read_only=True) as store:
        lags = within(store, namespace).lag(group, topic)
    rows = [(one.queue, one.committed, one.end, one.lag) for one in lags]
    _print(out, ("queue", "committed", "next_offset", "lag"), rows)


@offset.command()
@folder_argument
@_of_group_argument
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
@_of_group_argument
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
@_of_group_argument
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
