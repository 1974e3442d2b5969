"""Page sessions: browsers that signed in to the admin page.

The idea: a sign-in gives a random id, which the browser keeps as a cookie that no script can read,
and a second random token, which only the page has. A change needs both: a cookie goes along with
requests that another site makes, the token does not.

Invariants: ids and tokens are 256 random bits, and are in this process's memory only; a session
ends after `LASTS` seconds, and when its client's credentials end; there are at most `SESSIONS_MAX`,
the oldest goes first.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from kvstore.clock import Clock
from kvstore.serve.access.credentials import Client
from kvstore.wire.secret import Secret

LASTS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
_BYTES: Final = 32


class PageSession:
    """One browser's session; `token` is the second secret, see the module."""

    __slots__ = ("_ends_at", "client", "token")

    def __init__(self, client: Client, ends_at: float) -> None:
        self.client = client
        self.token = Secret(secrets.token_urlsafe(_BYTES))
        self._ends_at = ends_at

    def is_over(self, now: float) -> bool:
        """Whether it has lasted long enough."""
        return now >= self._ends_at

    def has_token(self, given: str) -> bool:
        """Whether a request comes from the page itself."""
        return hmac.compare_digest(given.encode(), self.token.reveal().encode())


class PageSessions:
    """All sessions of a door; see the module. Its calls are made in the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, PageSession] = {}

    def begin(self, client: Client) -> tuple[str, PageSession]:
        """Signs a client in; returns the session's id."""
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        found, made = secrets.token_urlsafe(_BYTES), self._clock.monotonic() + LASTS
        self._sessions[found] = PageSession(client, made)
        return found, self._sessions[found]

    def find(self, session_id: str) -> PageSession | None:
        """The session with an id, if there is one and it is not over."""
        found = self._sessions.get(session_id)
        if found is not None and found.is_over(self._clock.monotonic()):
            self.end(session_id)
            return None
        return found

    def end(self, session_id: str) -> None:
        """Signs out; nothing if there is no such session."""
        self._sessions.pop(session_id, None)
