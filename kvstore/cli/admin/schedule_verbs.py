"""The verbs `schedule ...`: messages that are put at set times."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from kvstore import ScheduleInfo
from kvstore.cli.terminal.message_text import QUEUE_MAX
from kvstore.cli.terminal.opening import (
    call_store,
    exist_ok_option,
    folder_argument,
    namespace_option,
    open_calls,
    time_text,
    topic_argument,
)
from kvstore.cli.terminal.options import LocalFile, Option, Setting, given_of, listed
from kvstore.cli.terminal.output import Output, output_option

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
@namespace_option
@output_option
def create_schedule(
    out: Output, folder: Path, name: str, topic: str, body: str | None,
    body_file: BinaryIO | None, keys: tuple[str, ...], properties: tuple[tuple[str, str], ...],
    exist_ok: bool, namespace: str | None, **given: Any,
) -> None:  # fmt: skip
    """Create schedule NAME, which puts a message to TOPIC at each of its times."""
    if body is not None and body_file is not None:
        raise click.UsageError("give either --body or --body-file")
    content = body_file.read() if body_file is not None else (body or "").encode()
    lists = {"keys": list(keys) or None, "properties": dict(properties) or None}
    settings = given_of(given | lists | {"exist_ok": exist_ok or None})
    _do(out, folder, "schedule", name, topic, content, namespace=namespace, **settings)


@schedule.command("list")
@folder_argument
@click.argument("topic", required=False)
@namespace_option
@output_option
def list_schedules(out: Output, folder: Path, topic: str | None, namespace: str | None) -> None:
    """List the schedules of the store in DIR, or those of TOPIC."""
    with open_calls(out, folder, namespace, read_only=True) as calls:
        found = calls.schedules(topic)
    _show(out, found, found)


@schedule.command("next")
@folder_argument
@_name_argument
@click.option("--count", type=click.IntRange(min=1), default=_FIRINGS, show_default=True)
@namespace_option
@output_option
def next_firings(out: Output, folder: Path, name: str, count: int, namespace: str | None) -> None:
    """Tell the next times of schedule NAME; if it is paused, those it would have."""
    with open_calls(out, folder, namespace, read_only=True) as calls:
        times = calls.next_firings(name, count)
    out.show(times, ("time", "ms"), [(time_text(time), str(time)) for time in times], ("ms",))


@schedule.command("pause")
@folder_argument
@_name_argument
@namespace_option
@output_option
def pause_schedule(out: Output, folder: Path, name: str, namespace: str | None) -> None:
    """Pause schedule NAME: it puts no message until it is resumed."""
    _do(out, folder, "pause_schedule", name, namespace=namespace)


@schedule.command("resume")
@folder_argument
@_name_argument
@namespace_option
@output_option
def resume_schedule(out: Output, folder: Path, name: str, namespace: str | None) -> None:
    """Let schedule NAME go on with its next time from now on."""
    _do(out, folder, "resume_schedule", name, namespace=namespace)


@schedule.command("delete")
@folder_argument
@_name_argument
@namespace_option
@output_option
def delete_schedule(out: Output, folder: Path, name: str, namespace: str | None) -> None:
    """Delete schedule NAME; messages that it put stay."""
    call_store(out, folder, "delete_schedule", name, namespace=namespace)
    out.done({"deleted": name})


def _do(out: Output, folder: Path, call: str, *args: Any, **named: Any) -> None:
    """Makes a call that gives a schedule, and shows that."""
    found = call_store(out, folder, call, *args, **named)
    _show(out, found, [found])


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
