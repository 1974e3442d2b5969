"""The verb `ack`: messages that are done, by their receipts."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.opening import call_text, folder_argument, open_store
from kvstore.cli.terminal.output import Output, output_option


@click.command()
@folder_argument
@click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)
@output_option
def ack(out: Output, folder: Path, receipts: tuple[str, ...]) -> None:
    """Say that messages are done, by the receipts that `pop` printed.

    Exit code 1 if a receipt is too late, or none: the others count.
    """
    with open_store(out, folder, does=call_text("ack_batch", list(receipts))) as store:
        results = store.ack_batch(list(receipts))
    errors = [None if result is True else result for result in results]
    if out.json:
        out.document(
            [
                {
                    "receipt": receipt,
                    "acked": error is None,
                    "error": type(error).__name__ if error is not None else None,
                    "message": str(error) if error is not None else None,
                }
                for receipt, error in zip(receipts, errors, strict=True)
            ]
        )
    else:
        for receipt, error in zip(receipts, errors, strict=True):
            if error is not None:
                click.echo(f"kvmq: {receipt}: {error}", err=True)
        click.echo(f"{errors.count(None):,} acked")
    if errors.count(None) < len(errors):
        click.get_current_context().exit(1)
