"""Clients: who is connected, as far as the server has to know.

The idea: a client says its kind, its group and its topics on its Telemetry stream, and shows that
it lives by each call. None of that outlives the server: a client that is unknown is made known by
its next call, whatever that is. A client is forgotten when it says so, or when it was silent for
long and has no stream.

Invariants: a call needs nothing that a client was to say before, so the order of calls does not
matter; there are at most `CLIENTS_MAX` clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from kvstore.clock import Clock
from kvstore.serve.grpc.protocol.answers import Refusal
from kvstore.serve.grpc.protocol.wire import NUMBERS
from kvstore.serve.http2.grpc_call import Call

CLIENTS_MAX: Final = 65_536
ALIVE: Final = 45.0
"""Seconds after its last call for which a client counts as alive; heartbeats come each 10 s."""
_FORGOTTEN: Final = 120.0
TYPES: Final = NUMBERS["ClientType"]
PUSHED: Final = frozenset({TYPES["PUSH_CONSUMER"], TYPES["LITE_PUSH_CONSUMER"]})
CONSUMERS: Final = frozenset(set(TYPES.values()) - {0, TYPES["PRODUCER"]})


SendsTo = Callable[[str], bool]
"""Whether the caller that opened a stream says it sends to a topic, by its name in the store, and
may. It is the stream's, since others may call themselves by the same client id.
"""


class ClientState:
    """A client; see the module. `streams` are its Telemetry streams."""

    __slots__ = ("id", "kind", "seen_at", "streams")

    def __init__(self, client_id: str) -> None:
        self.id = client_id
        self.kind = 0
        self.seen_at = 0.0
        self.streams: dict[Call, SendsTo] = {}

    @property
    def is_pushed(self) -> bool:
        """Whether it is a push consumer, which gives messages back only because they failed."""
        return self.kind in PUSHED


class Clients:
    """The clients of a server; see the module. Used in the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, ClientState] = {}
        self._turns = itertools.count()

    def __len__(self) -> int:
        return len(self._clients)

    def seen(self, client_id: str) -> ClientState:
        """The client that makes a call."""
        found = self._clients.get(client_id)
        if found is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.sweep()
            if len(self._clients) >= CLIENTS_MAX:
                raise Refusal("TOO_MANY_REQUESTS", f"the server has {CLIENTS_MAX} clients already")
            found = self._clients[client_id] = ClientState(client_id)
        found.seen_at = self._clock.monotonic()
        return found

    def is_alive(self, client_id: str) -> bool:
        """Whether a client made a call not long ago."""
        found = self._clients.get(client_id)
        return found is not None and self._clock.monotonic() - found.seen_at < ALIVE

    def forget(self, client_id: str) -> None:
        """Forgets a client that says it ends."""
        self._clients.pop(client_id, None)

    def sweep(self) -> None:
        """Forgets the clients that were silent for long and have no stream."""
        before = self._clock.monotonic() - _FORGOTTEN
        for one in [c for c in self._clients.values() if c.seen_at < before and not c.streams]:
            del self._clients[one.id]

    def producer_stream(self, topic: str) -> Call | None:
        """A stream of a producer that sends to a topic, of several each in turn."""
        found = [
            stream
            for client in self._clients.values()
            for stream, sends_to in client.streams.items()
            if sends_to(topic)
        ]
        return found[next(self._turns) % len(found)] if found else None

    def end_streams(self) -> None:
        """Ends the streams of all clients; they make new ones elsewhere."""
        for client in self._clients.values():
            for stream in client.streams:
                stream.finish()
