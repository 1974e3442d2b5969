"""Doors: the ways in to a served store, each with a protocol of its own.

The idea: the server (`serve.server`) starts doors and stops them; it knows nothing of their
protocols. A door is given the loop it runs in, the store, for what can't block, and the gatherer,
for every other call.

Invariants: a door that failed to start has nothing left open; `start` returns when clients can
connect; `stop` takes no new requests from its call on, and returns when those that were taken are
answered, or the seconds are over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from kvstore.api.store import Store
from kvstore.serve.gatherer import Gatherer

LEAVE_WITHIN: Final = 0.5
"""Seconds of a draining door for clients from which nothing is awaited but that they go: to end
TLS, a request or a handshake that they began. One that waits for no answer may never do it.
"""


class Door(Protocol):
    """A way in; see the module."""

    @property
    def name(self) -> str:
        """The protocol, in a word or two, for people."""

    @property
    def url(self) -> str:
        """Where clients connect, as they write it; known once the door is started."""

    @property
    def connections(self) -> int:
        """How many connections are open now."""

    async def start(self) -> None:
        """Opens the door; `AddressInUse`, `CallerError`, OSError."""

    async def stop(self, drain: float) -> None:
        """Closes the door for new requests, and lets those that were taken end within `drain`
        seconds.
        """


MakesDoor = Callable[[asyncio.AbstractEventLoop, Store, Gatherer], Door]
"""Makes a door, which is not started yet; called in the loop."""
