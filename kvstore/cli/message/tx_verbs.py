"""The verbs `tx ...`: messages that wait for their transaction to end, listed, committed and rolled
back.

The idea: as `timer ...` for delayed messages. The store is asked for a message by its id; a set
ends with any of its ids.

Invariant: `list` and `show` open the store read-only, so they end nothing.
"""

from __future__ import annotations

from pathlib import Path

import click

from kvstore import PreparedMessage
from kvstore.cli.terminal.message_text import body_text, prepared_value, show_prepared
from kvstore.cli.terminal.opening import (
    call_store,
    folder_argument,
    namespace_option,
    open_calls,
    time_text,
)
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.waiting_pages import page_options, show_page

_OF_ALL = "wait, of all groups"
_ids_argument = click.argument("message_ids", metavar="ID...", nargs=-1, required=True)


@click.group()
def tx() -> None:
    """List, show, commit or roll back prepared messages of transactions."""


@tx.command("list")
@folder_argument
@click.argument("group", required=False)
@page_options
@namespace_option
@output_option
def list_prepared(
    out: Output, folder: Path, group: str | None, limit: int, after: tuple[int, int] | None,
    namespace: str | None,
) -> None:  # fmt: skip
    """List prepared messages, of producer GROUP or of all, the next to be asked about first.

    With --json one document: the messages, how many wait in all, of all groups (count), and what
    --after takes for the next page (next; null behind the last).
    """
    with open_calls(out, folder, namespace, read_only=True) as calls:
        page = calls.transactions(group, limit=limit, after=after)
    columns = ("asked at", "group", "checks", "topic", "queue", "message id", "body")
    show_page(out, page, prepared_value, columns, _row, "wait" if group is None else _OF_ALL)


def _row(one: PreparedMessage) -> tuple[object, ...]:
    return (
        "with its set" if one.check_at is None else time_text(one.check_at), one.group,
        one.checks, one.topic, one.queue, one.message_id, body_text(one.message),
    )  # fmt: skip


@tx.command("show")
@folder_argument
@click.argument("message_id", metavar="ID")
@namespace_option
@output_option
def show_one(out: Output, folder: Path, message_id: str, namespace: str | None) -> None:
    """Show the prepared message with ID, or the first of its set, and all its fields."""
    with open_calls(out, folder, namespace, read_only=True) as calls:
        found = calls.prepared(message_id)
    show_prepared(out, found)


@tx.command()
@folder_argument
@_ids_argument
@namespace_option
@output_option
def commit(out: Output, folder: Path, message_ids: tuple[str, ...], namespace: str | None) -> None:
    """Commit the transactions of prepared messages, all or none; with --json where they went."""
    found = call_store(out, folder, "commit_batch", list(message_ids), namespace=namespace)
    if out.json:
        fields = ("message_id", "topic", "queue", "offset", "position", "size")
        out.rows(fields, [tuple(getattr(one, name) for name in fields) for one in found])
    else:
        out.text(f"{len(found):,} messages committed")


@tx.command()
@folder_argument
@_ids_argument
@namespace_option
@output_option
def rollback(
    out: Output, folder: Path, message_ids: tuple[str, ...], namespace: str | None
) -> None:
    """Roll the transactions of prepared messages back, all or none."""
    call_store(out, folder, "rollback_batch", list(message_ids), namespace=namespace)
    if out.json:
        out.document({"rolled_back": list(message_ids)})
    else:
        out.text(f"{len(message_ids):,} rolled back")
