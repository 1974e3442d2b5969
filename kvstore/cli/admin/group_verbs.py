"""The verbs `group ...` and `offset ...`: consumer groups, and their progress."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import click

from kvstore import GroupInfo, InFlightMessage, Lag
from kvstore.cli.terminal.message_text import body_text, in_flight_value
from kvstore.cli.terminal.opening import (
    Instant,
    VerbStore,
    exist_ok_option,
    folder_argument,
    store_options,
    time_text,
    topic_argument,
)
from kvstore.cli.terminal.options import (
    Access,
    Clearable,
    Option,
    access_options,
    changes_of,
    given_of,
    listed,
)
from kvstore.cli.terminal.output import Output
from kvstore.cli.terminal.waiting_pages import in_flight_options, show_page, whole_page

_NONE: Final = "none"
_group_argument = click.argument("group", metavar="GROUP")
_queue_option = click.option("--queue", type=click.IntRange(min=0), required=True)


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


_settings: Option = listed(
    click.option("--max-attempts", type=click.IntRange(min=1),
                 help="Deliveries before a dead letter."),
    click.option("--ordered/--not-ordered", default=None,
                 help="Whether messages of a message group come one after the other."),
    click.option("--backoff", type=_Backoff(), help="Seconds between deliveries: 1,10,60."),
    click.option("--dead-letter-topic", metavar="TOPIC", type=Clearable(click.STRING, _NONE),
                 help=f"Where dead letters go; {_NONE!r}: %DLQ% and the group's name."),
    click.option("--start", type=_Start(),
                 help="Where the group starts: begin, end, or the messages stored from a time on."),
    click.option("--max-in-flight", metavar="N", type=Clearable(click.INT, _NONE),
                 help=f"Messages under lock at a time; {_NONE!r}: no limit."),
    click.option("--dead-letter-expired/--drop-expired", default=None,
                 help="Whether messages that have expired become dead letters, or are dropped."),
)  # fmt: skip
"""The options that `group create` and `group alter` share."""


@click.group()
def group() -> None:
    """Create, list, show, alter or delete consumer groups."""


@group.command("create")
@folder_argument
@_group_argument
@_settings
@exist_ok_option
@store_options
def create_group(store: VerbStore, group: str, exist_ok: bool, **settings: Any) -> None:
    """Create GROUP."""
    given = given_of(settings) | ({"exist_ok": True} if exist_ok else {})
    made = store.call("create_group", group, **given)
    _show_groups(store.out, made, [made])


@group.command("list")
@folder_argument
@store_options
def list_groups(store: VerbStore) -> None:
    """List the groups of the store in DIR."""
    with store.reading() as calls:
        groups = calls.groups()
    _show_groups(store.out, groups, groups)


@group.command("show")
@folder_argument
@_group_argument
@store_options
def show_group(store: VerbStore, group: str) -> None:
    """Show GROUP, and how much it has still to do in the topics it ever popped or committed in."""
    with store.reading() as calls:
        found, lags = calls.group(group), calls.lag(group)
    names = ("topic", "lag", "passed_over", "expired")
    counts: dict[str, Counter[str]] = {}
    for one in lags:
        counts.setdefault(one.topic, Counter()).update({n: getattr(one, n) for n in names[1:]})
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    values["dead_letter_topic"] = found.dead_letters
    rows = [(topic, *(found_there[n] for n in names[1:])) for topic, found_there in counts.items()]
    topics = [dict(zip(names, row, strict=True)) for row in rows]
    settings = [(name, _setting_text(value)) for name, value in values.items()]
    store.out.show(values | {"topics": topics}, ("setting", "value"), settings)
    if rows and not store.out.json:
        store.out.text("")
        store.out.rows(names, rows)


@group.command("in-flight")
@folder_argument
@_group_argument
@click.argument("topic", required=False)
@in_flight_options
@store_options
def list_in_flight(
    store: VerbStore, group: str, topic: str | None, limit: int, after: tuple[int, ...] | None
) -> None:
    """List the messages that GROUP has under lock, of TOPIC or of all; by topic the next due first.

    With --json one document: the messages, how many there are in all (count), and what --after
    takes for the next page (next; null behind the last).
    """
    with store.reading() as calls:
        page = whole_page(
            lambda n, at: calls.in_flight(group, topic, limit=n, after=at), limit, after
        )
    columns = ("due", "topic", "queue", "offset", "attempt", "message id", "reason", "body")
    show_page(store.out, page, in_flight_value, columns, _in_flight_row, "are in flight")


def _in_flight_row(one: InFlightMessage) -> tuple[object, ...]:
    body = "not to be read now" if one.message is None else body_text(one.message)
    return (
        time_text(one.due_at), one.topic, one.queue, one.offset, one.attempt,
        one.message_id or "-", one.reason or "-", body,
    )  # fmt: skip


@group.command("alter")
@folder_argument
@_group_argument
@_settings
@store_options
def alter_group(store: VerbStore, group: str, **settings: Any) -> None:
    """Change settings of GROUP; the others stay."""
    changes = changes_of(settings)
    altered = store.call("alter_group", group, **changes)
    _show_groups(store.out, altered, [altered])


@group.command("delete")
@folder_argument
@_group_argument
@store_options
def delete_group(store: VerbStore, group: str) -> None:
    """Delete GROUP, its committed offsets and their history."""
    store.call("delete_group", group)
    store.out.done({"deleted": group})


@group.command()
@folder_argument
@_group_argument
@click.option("--limit", type=click.IntRange(min=1), help="Only so many.")
@store_options
def redrive(store: VerbStore, group: str, limit: int | None) -> None:
    """Put GROUP's dead letters back: it gets the messages once more, due at once."""
    count = store.call("redrive", group, limit)
    store.out.done({"redriven": count}, f"{count:,} dead letters put back")


def _setting_text(value: object) -> str:
    """A setting for people."""
    if isinstance(value, tuple):
        return " ".join(f"{step:g}" for step in value)
    return "-" if value is None or value == {} else str(value)


def _show_groups(out: Output, value: object, groups: list[GroupInfo]) -> None:
    rows = [
        (g.name, g.id, g.max_attempts, g.ordered, str(g.start), g.max_in_flight, g.dead_letters)
        for g in groups
    ]
    names = ("group", "id", "max attempts", "ordered", "start", "max in flight", "dead letters")
    out.show(value, names, rows)


@click.group()
def offset() -> None:
    """Show, commit or reset a consumer group's offsets; their history, and how far behind it is."""


@offset.command("show")
@folder_argument
@_group_argument
@topic_argument
@store_options
def show_offsets(store: VerbStore, group: str, topic: str) -> None:
    """Show the offsets of GROUP in the queues of TOPIC, and the messages it has still to do."""
    with store.reading() as calls:
        lags = calls.lag(group, topic)
    rows = [(one.queue, one.committed, one.end, one.lag) for one in lags]
    store.out.rows(("queue", "committed", "next_offset", "lag"), rows)


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@_queue_option
@click.option("--offset", "up_to", type=click.IntRange(min=0), required=True)
@store_options
def commit(store: VerbStore, group: str, topic: str, queue: int, up_to: int) -> None:
    """Say that GROUP has consumed a queue of TOPIC up to, not including, an offset."""
    store.call("commit_offset", group, topic, queue, up_to, sync=True)
    store.out.done({"group": group, "topic": topic, "queue": queue, "offset": up_to})


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue; all if not given.")
@click.option("--offset", "up_to", type=click.IntRange(min=0), help="To an offset of the queue.")
@click.option("--time", type=Instant(), help="To the first message stored at or after a time.")
@click.option("--to", type=click.Choice(["begin", "end"]), help="To where the queues begin or end.")
@access_options
@store_options
def reset(
    store: VerbStore, group: str, topic: str, queue: int | None, up_to: int | None,
    time: int | None, to: Any, access: Access,
) -> None:  # fmt: skip
    """Set where GROUP goes on in TOPIC: --to begin, --to end, --time or --offset.

    The group's locks there are given up.
    """
    if [up_to, time, to].count(None) != 2:
        raise click.UsageError("give one of --to, --time and --offset")
    found = store.call(
        "reset_offset", group, topic, access=access, offset=up_to, time=time, to=to, queue=queue
    )
    store.out.rows(("queue", "offset"), list(found.items()))


@offset.command()
@folder_argument
@_group_argument
@topic_argument
@_queue_option
@store_options
def history(store: VerbStore, group: str, topic: str, queue: int) -> None:
    """Show the past offsets of GROUP in a queue of TOPIC with their times, oldest first."""
    with store.reading() as calls:
        commits = calls.offset_history(group, topic, queue)
    rows = [(time_text(one.committed_at), one.offset) for one in commits]
    store.out.show(commits, ("committed at", "offset"), rows)


@offset.command()
@folder_argument
@click.argument("group", required=False)
@click.argument("topic", required=False)
@store_options
def lag(store: VerbStore, group: str | None, topic: str | None) -> None:
    """Show how much GROUP has still to do in TOPIC, how much its filters passed over, and how much
    had expired; without TOPIC in all it ever popped or committed in, without GROUP that of all
    groups.
    """
    found: list[Lag] = []
    with store.reading() as calls:
        for name in [g.name for g in calls.groups()] if group is None else [group]:
            found += calls.lag(name, topic)
    names = (
        "group", "topic", "queue", "committed", "end", "lag", "in_flight", "passed_over", "expired",
    )  # fmt: skip
    rows = [tuple(getattr(one, name) for name in names) for one in found]
    store.out.show(found, [name.replace("_", " ") for name in names], rows)
