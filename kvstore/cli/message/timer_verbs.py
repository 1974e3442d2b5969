"""The verbs `timer ...`: messages that wait for their time, listed, cancelled and changed.

The idea: as `topic ...` for topics: each verb is one call of the store or of its namespace.

Invariant: `list` and `show` open the store read-only, so they deliver nothing.
"""

from __future__ import annotations

from pathlib import Path

import click

from kvstore import DelayedMessage
from kvstore.cli.terminal.message_text import body_text, delayed_value, show_delayed
from kvstore.cli.terminal.opening import (
    VerbStore,
    Word,
    config_option,
    delay_options,
    folder_argument,
    store_options,
    time_text,
)
from kvstore.cli.terminal.output import exit_if
from kvstore.cli.terminal.waiting_pages import page_options, show_page, whole_page
from kvstore.errors import CallerError, MessageNotFound

_id_argument = click.argument("message_id", metavar="ID")


@click.group()
def timer() -> None:
    """List, show, cancel or change messages that wait for their time."""


@timer.command("list")
@folder_argument
@click.argument("topic", required=False)
@page_options
@store_options
def list_delayed(
    store: VerbStore, topic: str | None, limit: int, after: tuple[int, int] | None
) -> None:
    """List the messages that wait, of TOPIC or of all topics, the next due first.

    With --json one document: the messages, how many wait in all, of TOPIC if it is given (count),
    and what --after takes for the next page (next; null behind the last).
    """
    with store.reading() as calls:
        page = whole_page(lambda n, at: calls.timers(topic, limit=n, after=at), limit, after)
    columns = ("due", "topic", "queue", "message id", "tag", "keys", "body")
    are = "wait" if topic is None else f"to {topic} wait"
    show_page(store.out, page, delayed_value, columns, _row, are)
    if page.damaged:
        click.echo(f"{page.damaged:,} damaged ones are due: see `kvmq verify`", err=True)


def _row(one: DelayedMessage) -> tuple[object, ...]:
    return (
        time_text(one.deliver_at), one.topic, one.queue, one.message_id,
        one.message.tag or "-", ",".join(one.message.keys) or "-", body_text(one.message),
    )  # fmt: skip


@timer.command()
@folder_argument
@_id_argument
@store_options
def show(store: VerbStore, message_id: str) -> None:
    """Show the message with ID that waits: where it goes, when, and all its fields."""
    with store.reading() as calls:
        found = calls.timer(message_id)
    show_delayed(store.out, found)


@timer.command()
@folder_argument
@click.argument("message_ids", metavar="ID...", nargs=-1, required=True)
@store_options
def cancel(store: VerbStore, message_ids: tuple[str, ...]) -> None:
    """Cancel messages that wait: they will not be delivered.

    Exit code 1 if one was delivered before, or is none: the others are cancelled.
    """
    # The program's call for several ids is a call for each.
    several = f"[{store.text('cancel', Word('one'))} for one in {message_ids}]"
    one = store.text("cancel", message_ids[0])
    ended: list[tuple[str, bool, str | None, str | None]] = []
    with store.writing(one if len(message_ids) == 1 else several) as calls:
        for message_id in message_ids:
            try:
                ended.append((message_id, calls.cancel(message_id), None, None))
            except (CallerError, MessageNotFound) as e:
                ended.append((message_id, False, type(e).__name__, str(e)))
    if store.out.json:
        store.out.rows(("message_id", "cancelled", "error", "message"), ended)
    else:
        for message_id, was_cancelled, _, text in ended:
            if not was_cancelled:
                why = text or "it was delivered before"
                click.echo(f"kvmq: {message_id}: {why}", err=True)
        click.echo(f"{sum(was for _, was, _, _ in ended):,} cancelled")
    exit_if(not all(was_cancelled for _, was_cancelled, _, _ in ended))


@timer.command()
@folder_argument
@_id_argument
@delay_options
@config_option
@store_options
def change(
    store: VerbStore, message_id: str, delay: float | None, deliver_at: int | None,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Let the message with ID be delivered at another time; one that has passed is now."""
    if (delay is None) == (deliver_at is None):
        raise click.UsageError("give one of --delay and --deliver-at")
    due = store.call(
        "change_delay", message_id, config_file=config_file, deliver_at=deliver_at, delay=delay
    )
    store.out.done({"message_id": message_id, "deliver_at": due}, f"due at {time_text(due)}")
