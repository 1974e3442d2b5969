"""The verbs `tx ...`: messages that wait for their transaction to end, listed, committed and rolled
back.

The idea: as `timer ...` for delayed messages. The store is asked for a message by its id; a set
ends with any of its ids.

Invariant: `list` and `show` open the store read-only, so they end nothing.
"""

from __future__ import annotations

import click

from kvstore import PreparedMessage
from kvstore.cli.terminal.message_text import body_text, prepared_value, show_prepared
from kvstore.cli.terminal.opening import (
    VerbStore,
    folder_argument,
    store_options,
    time_text,
)
from kvstore.cli.terminal.waiting_pages import page_options, show_page, whole_page

_OF_ALL = "wait, of all groups"
_ids_argument = click.argument("message_ids", metavar="ID...", nargs=-1, required=True)


@click.group()
def tx() -> None:
    """List, show, commit or roll back prepared messages of transactions."""


@tx.command("list")
@folder_argument
@click.argument("group", required=False)
@page_options
@store_options
def list_prepared(
    store: VerbStore, group: str | None, limit: int, after: tuple[int, int] | None
) -> None:
    """List prepared messages, of producer GROUP or of all, the next to be asked about first.

    With --json one document: the messages, how many wait in all, of all groups (count), and what
    --after takes for the next page (next; null behind the last).
    """
    with store.reading() as calls:
        page = whole_page(lambda n, at: calls.transactions(group, limit=n, after=at), limit, after)
    columns = ("asked at", "group", "checks", "topic", "queue", "message id", "body")
    show_page(store.out, page, prepared_value, columns, _row, "wait" if group is None else _OF_ALL)


def _row(one: PreparedMessage) -> tuple[object, ...]:
    return (
        "with its set" if one.check_at is None else time_text(one.check_at), one.group,
        one.checks, one.topic, one.queue, one.message_id, body_text(one.message),
    )  # fmt: skip


@tx.command("show")
@folder_argument
@click.argument("message_id", metavar="ID")
@store_options
def show_one(store: VerbStore, message_id: str) -> None:
    """Show the prepared message with ID, or the first of its set, and all its fields."""
    with store.reading() as calls:
        found = calls.prepared(message_id)
    show_prepared(store.out, found)


@tx.command()
@folder_argument
@_ids_argument
@store_options
def commit(store: VerbStore, message_ids: tuple[str, ...]) -> None:
    """Commit the transactions of prepared messages, all or none; with --json where they went."""
    found = store.call("commit_batch", list(message_ids))
    if store.out.json:
        fields = ("message_id", "topic", "queue", "offset", "position", "size")
        store.out.rows(fields, [tuple(getattr(one, name) for name in fields) for one in found])
    else:
        store.out.text(f"{len(found):,} messages committed")


@tx.command()
@folder_argument
@_ids_argument
@store_options
def rollback(store: VerbStore, message_ids: tuple[str, ...]) -> None:
    """Roll the transactions of prepared messages back, all or none."""
    store.call("rollback_batch", list(message_ids))
    store.out.done({"rolled_back": list(message_ids)}, f"{len(message_ids):,} rolled back")
