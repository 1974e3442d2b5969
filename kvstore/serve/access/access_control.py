"""Access control: the one thing that each door asks who a caller is, and whether it may.

The idea: a connection is authenticated once and keeps its `Client`; each call asks `require`. The
file of credentials can be read again while the server runs (`reload`). A client that it has as
before stays who it is; for one that changed, or went, `require` raises `NotAuthenticated`, so its
connections prove themselves again.

Without a file there are no credentials: every caller is `LOCAL` and may do everything. Then no door
may listen beyond loopback (`exposure`).

Invariants: a right is looked up in the file's last good reading; a reading that fails changes
nothing; no client outlives its `expires`.
"""

from __future__ import annotations

from pathlib import Path

from kvstore.clock import Clock
from kvstore.errors import NotAllowed, NotAuthenticated
from kvstore.files import Files
from kvstore.serve.access.credentials import LOCAL, Client, Credentials, read_credentials
from kvstore.serve.access.limits import AccessLimits
from kvstore.serve.access.rights import Action, allows, allows_beginning, allows_metrics


class AccessControl:
    """Who may do what; see the module. Its calls may be made from several threads."""

    def __init__(self, path: Path | None, files: Files, clock: Clock) -> None:
        """Reads the file of credentials; None: there is none. Raises `ConfigError`."""
        self._path = path
        self._files = files
        self._clock = clock
        self._known: Credentials | None = None
        self.reload()

    @property
    def has_credentials(self) -> bool:
        """Whether callers must prove who they are."""
        return self._known is not None

    @property
    def limits(self) -> AccessLimits:
        """The limits of clients, as the file has them."""
        return AccessLimits() if self._known is None else self._known.limits

    def reload(self) -> None:
        """Reads the file again; `ConfigError` leaves all as it is."""
        if self._path is not None:
            before = {} if self._known is None else self._known.by_name
            self._known = read_credentials(self._files, self._path, before)

    def anonymous(self) -> Client:
        """Who a caller is that proves nothing: `LOCAL`, or `NotAuthenticated` where there are
        credentials.
        """
        if self._known is not None:
            raise NotAuthenticated("this server asks for credentials, and the caller has none")
        return LOCAL

    def of_token(self, token: str) -> Client:
        """The client that has a token; `NotAuthenticated`. Without credentials every token is
        good.
        """
        known = self._known
        return LOCAL if known is None else known.of_token(token, self._clock.now_ms())

    def of_secret(self, access_key: str, secret: str) -> Client:
        """The client that has an access key and its secret; as `of_token`."""
        known = self._known
        if known is None:
            return LOCAL
        return known.of_secret(access_key, secret, self._clock.now_ms())

    def of_signature(self, authorization: str, date_time: str) -> Client:
        """The client that signed a request as RocketMQ's clients do, see
        `Credentials.of_signature`; `NotAuthenticated`. Without credentials every one is good.
        """
        known = self._known
        if known is None:
            return LOCAL
        return known.of_signature(authorization, date_time, self._clock.now_ms())

    def check_current(self, client: Client) -> None:
        """Raises `NotAuthenticated` if a client's credentials have expired or changed since it
        proved who it is.
        """
        if client is LOCAL:
            return
        if client.expires_at is not None and self._clock.now_ms() >= client.expires_at:
            raise NotAuthenticated(f"the credentials of client {client.name} have expired")
        if self._known is None or self._known.by_name.get(client.name) is not client:
            raise NotAuthenticated(f"the credentials of client {client.name} changed: connect anew")

    def allows(self, client: Client, action: Action, topic: str = "", group: str = "") -> bool:
        """Whether a client may; see `rights.allows`. `NotAuthenticated` as of `check_current`."""
        self.check_current(client)
        return allows(client.rights, action, topic, group)

    def require(self, client: Client, action: Action, topic: str = "", group: str = "") -> None:
        """Raises `NotAllowed` where `allows` says no."""
        if not self.allows(client, action, topic, group):
            raise _not_allowed(client, action, topic, group)

    def require_beginning(self, client: Client, beginning: str, pattern: str, group: str) -> None:
        """Raises `NotAllowed` where `allows_beginning` says no; the pattern is the caller's."""
        self.check_current(client)
        if not allows_beginning(client.rights, beginning, group):
            raise _not_allowed(client, "consume", pattern, group)

    def require_metrics(self, client: Client) -> None:
        """Raises `NotAllowed` if a client may not read the store's metrics."""
        self.check_current(client)
        if not allows_metrics(client.rights):
            raise NotAllowed(
                f"client {client.name} has no right to read metrics; `metrics = true` in the file "
                "of credentials gives it",
                "metrics",
            )


def _not_allowed(client: Client, action: Action, topic: str, group: str) -> NotAllowed:
    names = (("topic", topic), ("group", group))
    what = " and ".join(f"{kind} {name}" for kind, name in names if name) or "the store"
    return NotAllowed(
        f"client {client.name} has no right to {action} with {what}; the file of credentials gives "
        "rights",
        action,
        topic,
        group,
    )
