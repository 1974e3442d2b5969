"""The watch over a door's connections: their number, their unfinished frames, and their time.

The idea: a connection by itself only acts when bytes come or go. Once a second the watch looks at
all of them, for clients that do nothing where they must, and for credentials that ran out or were
changed meanwhile.

Invariant: frames that are not whole have `UNFINISHED_MAX` bytes at most, all together, and the read
that goes beyond; the connection that has most of them ends.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from kvstore.errors import NotAuthenticated, StoreBusy, StoreError
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import Client
from kvstore.wire.frames import UNFINISHED_MAX

_LOOK: Final = 1.0
"""Seconds."""


class WatchedConnection(Protocol):
    """A connection, as its watch needs it."""

    client: Client | None
    unfinished: int
    """The bytes of its frame that is not whole."""
    is_choked: bool
    """Whether its client has to read what waits to be written."""

    def check_time(self, now: float) -> None:
        """Ends, if its client had its time; `now` is the loop's."""

    def refuse(self, why: StoreError) -> None:
        """Says goodbye, and closes."""

    def take_no_more(self) -> None:
        """Reads no more requests."""

    def close(self) -> None:
        """Closes it behind what is still to be written."""

    def drop(self) -> None:
        """Breaks it off."""


class ConnectionWatch:
    """See the module. Used in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, access: AccessControl) -> None:
        self.connections: set[WatchedConnection] = set()
        self._loop = loop
        self._access = access
        self._unfinished = 0
        self._timer = loop.call_later(_LOOK, self._look)

    def gone(self, connection: WatchedConnection) -> None:
        """Forgets a connection that is closed."""
        self.connections.discard(connection)
        self._unfinished -= connection.unfinished
        connection.unfinished = 0

    def keeps(self, connection: WatchedConnection, size: int) -> None:
        """Notes how many bytes of a frame that is not whole a connection keeps."""
        self._unfinished += size - connection.unfinished
        connection.unfinished = size
        if self._unfinished > UNFINISHED_MAX:
            most = max(self.connections, key=lambda one: one.unfinished)
            most.refuse(StoreBusy("the server has too many requests that are not whole; try later"))

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK, self._look)
        now = self._loop.time()
        refusals: dict[int, NotAuthenticated | None] = {}
        for connection in list(self.connections):
            connection.check_time(now)
            client = connection.client
            if client is None:
                continue
            key = id(client)
            if key not in refusals:
                refusals[key] = self._refusal(client)
            refusal = refusals[key]
            if refusal is not None:
                connection.refuse(refusal)

    def _refusal(self, client: Client) -> NotAuthenticated | None:
        try:
            self._access.check_current(client)
        except NotAuthenticated as e:
            return e
        return None

    def stop(self) -> None:
        """Looks no more."""
        self._timer.cancel()
