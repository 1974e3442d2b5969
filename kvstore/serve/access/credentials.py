"""Credentials: the file of the clients of a served store, and the proof that a caller is one.

The idea: a TOML file names each client with its rights (`rights`) and its proof. A token is random
and long, so the file has only its SHA-256: a reader of the file can't use it. RocketMQ's clients
sign with HMAC-SHA1, for which the server needs the secret itself, so the file may be read by its
owner and, if the owner wants that, by its group.

    [[clients]]
    name = "shop"
    token_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    produce = ["orders", "audit-*"]

    [[clients]]
    name = "billing"
    access_key = "billing-1"
    secret = "at least 16 characters"
    consume = ["orders"]
    groups = ["billing"]
    expires = 2027-01-01T00:00:00Z

    [limits]
    client_requests = 10_000

A signature covers only the caller's date and time. Java's client writes its local time as if it
were UTC, so a signature is good for fifteen hours before and behind: `_SKEW_MS`.

Invariants:

- Tokens and signatures are compared in a time that says nothing about how much of them was right.
- No error has a token, a secret or a signature in it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import ConfigError, NotAuthenticated, shown
from kvstore.files import Files
from kvstore.serve.access.limits import AccessLimits
from kvstore.serve.access.rights import EVERYTHING, Patterns, Rights
from kvstore.wire.secret import Secret

_FILE_BYTES_MAX: Final = 4 << 20
"""A file of 10,000 clients is smaller."""
_TOKEN_BYTES: Final = 32
_TOKEN_TEXT_MAX: Final = 1024
_SECRET_MIN: Final = 16
_OTHERS: Final = 0o027
"""Modes that a private file must not have: others, and writing by the group."""
_SHA256: Final = re.compile("[0-9a-f]{64}")
_SIGNED: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/\s]+)[^,]*, *SignedHeaders=x-mq-date-time, *"
    r"Signature=([0-9A-Fa-f]{40})"
)
_SIGNED_MAX: Final = 4096
_SKEW_MS: Final = 15 * 3_600_000


class Client(msgspec.Struct, frozen=True):
    """A caller that proved who it is. `expires_at` is in ms since the epoch; None: never."""

    name: str
    rights: Rights
    expires_at: int | None = None
    token_sha256: Secret | None = None
    access_key: str | None = None
    secret: Secret | None = None


LOCAL: Final = Client("local", EVERYTHING)
"""A caller that the system lets in: by the socket in the store's folder, or by loopback while no
credentials are asked for."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client as the file has it."""

    name: str
    token_sha256: str | None = None
    access_key: str | None = None
    secret: str | None = None
    produce: list[str] = []
    consume: list[str] = []
    groups: list[str] = []
    admin: list[str] = []
    metrics: bool = False
    expires: datetime | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clients: list[_Entry]
    limits: AccessLimits = AccessLimits()


class Credentials:
    """The clients of one reading of the file."""

    def __init__(self, clients: list[Client], limits: AccessLimits) -> None:
        """Raises `ConfigError` if two clients share a name, a token or an access key."""
        self.limits = limits
        self.by_name = _unique(clients, "name", {c.name: c for c in clients})
        tokens = [c for c in clients if c.token_sha256 is not None]
        self._by_token = _unique(
            tokens, "token", {c.token_sha256.reveal(): c for c in tokens if c.token_sha256}
        )
        keys = [c for c in clients if c.access_key is not None]
        self._by_key = _unique(keys, "access key", {c.access_key or "": c for c in keys})

    def of_token(self, token: str, now_ms: int) -> Client:
        """The client that has a token; `NotAuthenticated`."""
        if len(token) > _TOKEN_TEXT_MAX:
            raise NotAuthenticated("the token is longer than any that kvmq makes")
        # The look-up is by a hash: its time says nothing about the tokens that there are.
        found = self._by_token.get(sha256_of(token))
        if found is None:
            raise NotAuthenticated("the token is none of this server's clients'")
        return _still_good(found, now_ms)

    def of_secret(self, access_key: str, secret: str, now_ms: int) -> Client:
        """The client that has an access key and its secret; `NotAuthenticated`."""
        found = self._by_key.get(access_key)
        known = found.secret.reveal() if found is not None and found.secret is not None else ""
        # Digests have one length, so the time says nothing about the secret's either.
        pair = (hashlib.sha256(text.encode("utf-8", "replace")) for text in (known, secret))
        if not hmac.compare_digest(*(one.digest() for one in pair)) or found is None:
            raise NotAuthenticated("the access key is unknown, or the secret is not its own")
        return _still_good(found, now_ms)

    def of_signature(self, authorization: str, date_time: str, now_ms: int) -> Client:
        """The client that signed `date_time` (metadata `x-mq-date-time`) as RocketMQ's clients do;
        `authorization` is the metadata of that name. `NotAuthenticated`.
        """
        signed = _SIGNED.fullmatch(authorization) if len(authorization) <= _SIGNED_MAX else None
        if signed is None:
            raise NotAuthenticated(
                "the authorization is not as RocketMQ's clients write it: MQv2-HMAC-SHA1 "
                "Credential=…, SignedHeaders=x-mq-date-time, Signature=…"
            )
        found = self._by_key.get(signed[1])
        secret = found.secret.reveal() if found is not None and found.secret is not None else ""
        made = hmac.new(secret.encode(), date_time.encode("utf-8", "replace"), hashlib.sha1)
        if not hmac.compare_digest(made.digest(), bytes.fromhex(signed[2])) or found is None:
            raise NotAuthenticated("the access key is unknown, or the signature is not its own")
        _check_date(date_time, now_ms)
        return _still_good(found, now_ms)


def read_credentials(files: Files, path: Path, before: Mapping[str, Client]) -> Credentials:
    """Reads the file of credentials. A client that is as it was in `before` is the same object.
    Raises `ConfigError` if the file is missing, can be read by others, or is malformed.
    """
    check_private(files, path, "the file of credentials")
    data = files.read(path, 0, _FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"the file of credentials {path} is larger than {_FILE_BYTES_MAX} bytes")
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
        kind = "not UTF-8" if isinstance(e, UnicodeDecodeError) else str(e)
        # Without its cause, which may hold the whole text.
        raise ConfigError(f"the file of credentials {path} is malformed: {kind}") from None
    clients = [_client(entry, path) for entry in found.clients]
    kept = [before[c.name] if before.get(c.name) == c else c for c in clients]
    return Credentials(kept, found.limits)


def check_private(files: Files, path: Path, what: str) -> None:
    """Raises `ConfigError` if a file with secrets is missing, or open to others."""
    facts = files.facts(path)
    if facts is None:
        raise ConfigError(f"{what} {path} is not there")
    if facts.st_mode & _OTHERS:
        raise ConfigError(
            f"{what} {path} has mode {facts.st_mode & 0o777:03o}: others can read it, or its group "
            f"can write it; chmod 600 {path}"
        )


def new_token() -> str:
    """A token of 256 random bits, as text."""
    return "kvmq_" + secrets.token_urlsafe(_TOKEN_BYTES)


def sha256_of(token: str) -> str:
    """A token as the file of credentials has it: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _client(entry: _Entry, path: Path) -> Client:
    what = f"client {shown(entry.name)} in {path}"
    if not entry.name:
        raise ConfigError(f"a client in {path} has no name")
    if (entry.access_key is None) != (entry.secret is None):
        raise ConfigError(f"{what} has only one of access_key and secret; they come together")
    if entry.token_sha256 is None and not entry.access_key:
        raise ConfigError(f"{what} has neither token_sha256 nor access_key and secret")
    if entry.token_sha256 is not None and not _SHA256.fullmatch(entry.token_sha256):
        raise ConfigError(
            f"{what} has a token_sha256 that is not 64 hexadecimal digits; `kvmq token` makes one"
        )
    if entry.secret is not None and len(entry.secret) < _SECRET_MIN:
        raise ConfigError(f"{what} has a secret of less than {_SECRET_MIN} characters")
    return Client(
        entry.name,
        Rights(
            Patterns.of(entry.produce, f"produce of {what}"),
            Patterns.of(entry.consume, f"consume of {what}"),
            Patterns.of(entry.groups, f"groups of {what}"),
            Patterns.of(entry.admin, f"admin of {what}"),
            entry.metrics,
        ),
        None if entry.expires is None else _ms(entry.expires),
        None if entry.token_sha256 is None else Secret(entry.token_sha256),
        entry.access_key,
        None if entry.secret is None else Secret(entry.secret),
    )


def _ms(when: datetime) -> int:
    # A time without a zone is UTC.
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _unique(clients: list[Client], what: str, found: dict[str, Client]) -> dict[str, Client]:
    if len(found) < len(clients):
        kept = {id(c) for c in found.values()}
        names = sorted(c.name for c in clients if id(c) not in kept)
        raise ConfigError(f"clients share a {what} with others: {', '.join(names)}")
    return found


def _still_good(client: Client, now_ms: int) -> Client:
    if client.expires_at is not None and now_ms >= client.expires_at:
        raise NotAuthenticated(f"the credentials of client {client.name} have expired")
    return client


def _check_date(date_time: str, now_ms: int) -> None:
    try:
        at = datetime.strptime(date_time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise NotAuthenticated(
            f"x-mq-date-time is {shown(date_time)}; it must be as 20270131T235959Z"
        ) from None
    if abs(_ms(at) - now_ms) > _SKEW_MS:
        raise NotAuthenticated(
            f"x-mq-date-time is {date_time}, more than {_SKEW_MS // 3_600_000} hours from this "
            "server's time"
        )
