"""A proof: a client shows by it who it is, when it connects.

The idea: a proof is a token alone, or an access key with its secret, as the server's file of
credentials has them. It is sent in the hello, so it goes through TLS, or stays on the machine.

Invariant: a proof does not show its secret, whatever it is put into.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kvstore.errors import CallerError
from kvstore.wire.secret import Secret

PART_MAX: Final = 1024
"""Bytes of a token, an access key or a secret."""


class Proof(NamedTuple):
    """See the module; without an access key the secret is a token."""

    access_key: str | None
    secret: Secret

    def sent(self) -> str | list[str]:
        """The proof as the hello has it."""
        text = self.secret.reveal()
        return text if self.access_key is None else [self.access_key, text]


def read_proof(given: Any) -> Proof:
    """The proof that a caller gives: a token, or an access key and its secret. `CallerError`, which
    does not show the value.
    """
    match given:
        case Proof():
            return given
        case str(secret) if _is_sent(secret):
            return Proof(None, Secret(secret))
        case (str(key), str(secret)) if _is_sent(key) and _is_sent(secret):
            return Proof(key, Secret(secret))
    raise CallerError(
        f"the credentials are a {type(given).__name__} that is not shown; they must be a token, or "
        f"an access key and its secret in a tuple, each of 1 to {PART_MAX} bytes"
    )


def parse_proof(text: str) -> Proof:
    """The proof in a text, as a variable of the environment or a file has it: `TOKEN`, or
    `ACCESS_KEY:SECRET`. `CallerError`.
    """
    key, colon, secret = text.strip().partition(":")
    return read_proof((key, secret) if colon else key)


def _is_sent(text: str) -> bool:
    return 0 < len(text.encode("utf-8", "surrogatepass")) <= PART_MAX and text.isprintable()
