"""The verbs `schedule ...`: messages that are put at set times."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

import click

from kvstore import ScheduleInfo
from kvstore.cli.terminal.message_text import QUEUE_MAX
from kvstore.cli.terminal.opening import (
    VerbStore,
    exist_ok_option,
    folder_argument,
    store_options,
    time_text,
    topic_argument,
)
from kvstore.cli.terminal.options import LocalFile, Option, Setting, given_of, listed
from kvstore.cli.terminal.output import Output

_FIRINGS: Final = 5
_name_argument = click.argument("name", metavar="NAME")
_times: Option = listed(
    click.option("--cron", metavar="EXPRESSION",
                 help="Minute, hour, day, month, weekday: '0 4 * * *' is 4:00 each day."),
    click.option("--every", type=float, metavar="SECONDS",
                 help="Every so many seconds from now on, instead of --cron."),
    click.option("--zone", metavar="ZONE", help="The time zone of --cron, UTC if not given."),
    click.option("--missed", type=click.Choice(["skip", "once", "all"]),
                 help="Times at which the store was closed: none, one (if not given), or each."),
)  # fmt: skip
_fields: Option = listed(
    click.option("--body", help="The message's body; empty if there is no --body-file."),
    click.option("--body-file", type=LocalFile("rb"), metavar="FILE", help="A file with the body."),
    click.option("--tag", help="One word for filters."),
    click.option("--key", "keys", multiple=True, help="What `query` finds; may be repeated."),
    click.option("--property", "properties", type=Setting(), multiple=True),
    click.option("--queue", type=click.IntRange(0, QUEUE_MAX), help="The queue."),
    click.option("--group", "message_group", help="Keep the messages in order, in one queue."),
    click.option("--expires-after", type=float, metavar="SECONDS",
                 help="How long behind its time a message expires; never if not given."),
)  # fmt: skip


@click.group()
def schedule() -> None:
    """Create, list, pause, resume or delete schedules; tell their next times."""


@schedule.command("create")
@folder_argument
@_name_argument
@topic_argument
@_times
@_fields
@exist_ok_option
@store_options
def create_schedule(
    store: VerbStore, name: str, topic: str, body: str | None, body_file: BinaryIO | None,
    keys: tuple[str, ...], properties: tuple[tuple[str, str], ...], exist_ok: bool, **given: Any,
) -> None:  # fmt: skip
    """Create schedule NAME, which puts a message to TOPIC at each of its times."""
    if body is not None and body_file is not None:
        raise click.UsageError("give either --body or --body-file")
    content = body_file.read() if body_file is not None else (body or "").encode()
    lists = {"keys": list(keys) or None, "properties": dict(properties) or None}
    settings = given_of(given | lists | {"exist_ok": exist_ok or None})
    _do(store, "schedule", name, topic, content, **settings)


@schedule.command("list")
@folder_argument
@click.argument("topic", required=False)
@store_options
def list_schedules(store: VerbStore, topic: str | None) -> None:
    """List the schedules of the store in DIR, or those of TOPIC."""
    with store.reading() as calls:
        found = calls.schedules(topic)
    _show(store.out, found, found)


@schedule.command("next")
@folder_argument
@_name_argument
@click.option("--count", type=click.IntRange(min=1), default=_FIRINGS, show_default=True)
@store_options
def next_firings(store: VerbStore, name: str, count: int) -> None:
    """Tell the next times of schedule NAME; if it is paused, those it would have."""
    with store.reading() as calls:
        times = calls.next_firings(name, count)
    store.out.show(times, ("time", "ms"), [(time_text(time), str(time)) for time in times], ("ms",))


@schedule.command("pause")
@folder_argument
@_name_argument
@store_options
def pause_schedule(store: VerbStore, name: str) -> None:
    """Pause schedule NAME: it puts no message until it is resumed."""
    _do(store, "pause_schedule", name)


@schedule.command("resume")
@folder_argument
@_name_argument
@store_options
def resume_schedule(store: VerbStore, name: str) -> None:
    """Let schedule NAME go on with its next time from now on."""
    _do(store, "resume_schedule", name)


@schedule.command("delete")
@folder_argument
@_name_argument
@store_options
def delete_schedule(store: VerbStore, name: str) -> None:
    """Delete schedule NAME; messages that it put stay."""
    store.call("delete_schedule", name)
    store.out.done({"deleted": name})


def _do(store: VerbStore, call: str, *args: Any, **named: Any) -> None:
    """Makes a call that gives a schedule, and shows that."""
    found = store.call(call, *args, **named)
    _show(store.out, found, [found])


def _show(out: Output, value: object, schedules: list[ScheduleInfo]) -> None:
    rows = [
        (
            one.name,
            one.topic,
            one.cron if one.every is None else f"every {one.every:g} s",
            one.zone,
            one.missed,
            "-" if one.next_at is None else time_text(one.next_at),
            one.failure or ("paused" if one.is_paused else "active"),
        )
        for one in schedules
    ]
    out.show(value, ("schedule", "topic", "times", "zone", "missed", "next", "state"), rows)
