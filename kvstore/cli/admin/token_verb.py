"""The verb `token`: a new token for a client of a served store, and its line for the file."""

from __future__ import annotations

import click

from kvstore.cli.terminal.output import Output, output_option
from kvstore.serve.access.credentials import new_token, sha256_of


@click.command()
@output_option
def token(out: Output) -> None:
    """Make a token for a client, which proves by it who it is.

    The token is shown once: give it to the client. The other line goes into the file of
    credentials, which has only the token's hash. See SECURITY.md.
    """
    made = new_token()
    if out.json:
        out.document({"token": made, "token_sha256": sha256_of(made)})
    else:
        out.text(f"token, for the client:  {made}")
        out.text(f'for the credentials:    token_sha256 = "{sha256_of(made)}"')
