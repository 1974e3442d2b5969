"""The verbs `pop` and `ack`, and the filter options that others share.

The idea: a pop prints its messages with their receipts, so that `kvmq ack` or another program can
go on. With `--ack` printing is all the work, and the printed messages are acked.

Invariant: no message is acked before it was printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

import kvstore
from kvstore import Popped, SqlFilter
from kvstore.cli.terminal.message_text import message_value, show_messages
from kvstore.cli.terminal.opening import (
    Seconds,
    VerbStore,
    Word,
    folder_argument,
    store_options,
    time_text,
    topic_argument,
)
from kvstore.cli.terminal.options import Access, access_options
from kvstore.cli.terminal.output import Output, exit_if
from kvstore.pop.popped import INVISIBLE_DEFAULT, INVISIBLE_MAX, WAIT_MAX


def filter_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`--filter` and `--sql`, as `tags` and `sql`."""
    tags = click.option("--filter", "tags", metavar="TAGS", help="Tags: 'a || b'.")
    sql = click.option(
        "--sql", metavar="EXPRESSION", help="A filter over properties: \"amount > 5 AND r = 'eu'\"."
    )
    return tags(sql(verb))


def wanted_filter(tags: str | None, sql: str | None) -> str | SqlFilter | None:
    """The filter in the options. Raises `FilterIllegal`."""
    if tags is not None and sql is not None:
        raise click.UsageError("give --filter or --sql, not both")
    return tags if sql is None else kvstore.sql(sql)


def filter_text(tags: str | None, sql: str | None) -> str | None:
    """The filter in the options, as a call of a program has it."""
    return tags if sql is None else Word(f"kvstore.sql({sql!r})")


@click.command()
@folder_argument
@click.argument("group", metavar="GROUP")
@topic_argument
@click.option("--limit", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--invisible", type=Seconds(0.001, INVISIBLE_MAX), default=INVISIBLE_DEFAULT,
              show_default=True, metavar="SECONDS",
              help="How long nobody else gets what is popped.")  # fmt: skip
@click.option("--wait", type=Seconds(0, WAIT_MAX), default=0.0, show_default=True,
              metavar="SECONDS", help="How long to wait if there is nothing.")  # fmt: skip
@filter_options
@click.option("--queue", type=click.IntRange(min=0), help="Only messages of this queue.")
@click.option("--ack", is_flag=True, help="Ack what was printed.")
@access_options
@store_options
def pop(
    store: VerbStore, group: str, topic: str, limit: int, invisible: float, wait: float,
    tags: str | None, sql: str | None, queue: int | None, ack: bool, access: Access,
) -> None:  # fmt: skip
    """Take messages of TOPIC for GROUP, each under a lock, and print them with their receipts.

    With --json an array; each message as `pull` prints it, with receipt, attempt and due_at.
    """
    wanted = wanted_filter(tags, sql)
    does = store.text(
        "pop", group, topic, limit,
        invisible_for=None if invisible == INVISIBLE_DEFAULT else invisible,
        wait=wait or None, filter=filter_text(tags, sql), queue=queue,
    )  # fmt: skip
    if ack:
        does += f" and {store.text('ack', Word('receipt'))}"
    with store.writing(does, access=access) as calls:
        found = calls.pop(
            group, topic, limit, invisible_for=invisible, wait=wait, filter=wanted, queue=queue
        )
        _show(store.out, found, acked=ack)
        if ack:
            sys.stdout.flush()
            for result in calls.ack_batch([popped.receipt for popped in found]):
                if result is not True:
                    raise result


def _show(out: Output, found: list[Popped], *, acked: bool) -> None:
    if out.json:
        out.document(
            [
                message_value(p.message)
                | {"receipt": p.receipt, "attempt": p.attempt, "due_at": p.due_at}
                for p in found
            ]
        )
        return
    for popped in found:
        show_messages(out, [popped.message])
        if not acked:
            click.echo(
                f"{'':14}  receipt {popped.receipt}  attempt {popped.attempt}  "
                f"until {time_text(popped.due_at)}"
            )
    click.echo(f"{len(found):,} messages", err=True)


@click.command()
@folder_argument
@click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)
@store_options
def ack(store: VerbStore, receipts: tuple[str, ...]) -> None:
    """Say that messages are done, by the receipts that `pop` printed.

    Exit code 1 if a receipt is too late, or none: the others count. A receipt says whose message it
    is of, so it counts with and without --namespace.
    """
    results = store.call("ack_batch", list(receipts))
    errors = [None if result is True else result for result in results]
    if store.out.json:
        names = ("receipt", "acked", "error", "message")
        store.out.rows(names, [_acked(*ended) for ended in zip(receipts, errors, strict=True)])
    else:
        for receipt, error in zip(receipts, errors, strict=True):
            if error is not None:
                click.echo(f"kvmq: {receipt}: {error}", err=True)
        click.echo(f"{errors.count(None):,} acked")
    exit_if(any(errors))


def _acked(receipt: str, error: Exception | None) -> tuple[str, bool, str | None, str | None]:
    if error is None:
        return receipt, True, None, None
    return receipt, False, type(error).__name__, str(error)
