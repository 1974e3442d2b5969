"""Clients: who is connected, as far as the server has to know.

The idea: a client says its kind, its group and its topics on its Telemetry stream, and shows that
it lives by each call. None of that outlives the server: a client that is unknown is made known by
its next call, whatever that is. A client is forgotten when it says so, or when it was silent for
long and has no stream. A client chooses its id freely, and connects as often as it likes; so the id
is one among those of the same credentials (`ClientKey`).

Invariants:

- A call needs nothing that a client was to say before, so the order of calls does not matter.
- No call changes anything of a client of other credentials, whatever id it names.
- There are at most `CLIENTS_MAX` clients. Credentials with many of them keep no others out: those
  that have most lose the one that was silent for longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

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


class ClientKey(NamedTuple):
    """Who a client is: the name of its credentials, and the id that it chose among those of the
    same credentials.
    """

    credentials: str
    client_id: str


class ClientState:
    """A client; see the module. `streams` are its Telemetry streams."""

    __slots__ = ("key", "kind", "seen_at", "streams")

    def __init__(self, key: ClientKey) -> None:
        self.key = key
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
        self._by_credentials: dict[str, dict[ClientKey, ClientState]] = {}
        """The clients of the same credentials, the one that was silent for longest first."""
        self._count = 0
        self._turns = itertools.count()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ClientState]:
        return itertools.chain.from_iterable(map(dict.values, self._by_credentials.values()))

    def seen(self, key: ClientKey) -> ClientState:
        """The client that makes a call."""
        found = self.forget(key)
        if found is None:
            self._make_room(key)
            found = ClientState(key)
        found.seen_at = self._clock.monotonic()
        self._by_credentials.setdefault(key.credentials, {})[key] = found
        self._count += 1
        return found

    def _make_room(self, key: ClientKey) -> None:
        if self._count >= CLIENTS_MAX:
            self.sweep()
        if self._count < CLIENTS_MAX:
            return
        most = max(self._by_credentials.values(), key=len)
        if len(most) <= len(self._by_credentials.get(key.credentials, ())):
            raise Refusal("TOO_MANY_REQUESTS", f"the server has {CLIENTS_MAX} clients already")
        self.forget(next(iter(most)))

    def is_alive(self, key: ClientKey) -> bool:
        """Whether a client made a call not long ago."""
        found = self._by_credentials.get(key.credentials, {}).get(key)
        return found is not None and self._clock.monotonic() - found.seen_at < ALIVE

    def forget(self, key: ClientKey) -> ClientState | None:
        """Forgets a client, and returns it if it was known."""
        of_same = self._by_credentials.get(key.credentials)
        found = None if of_same is None else of_same.pop(key, None)
        if found is not None:
            self._count -= 1
            if not of_same:
                del self._by_credentials[key.credentials]
        return found

    def sweep(self) -> None:
        """Forgets the clients that were silent for long and have no stream."""
        before = self._clock.monotonic() - _FORGOTTEN
        for one in [c for c in self if c.seen_at < before and not c.streams]:
            self.forget(one.key)

    def producer_stream(self, topic: str) -> Call | None:
        """A stream of a producer that sends to a topic, of several each in turn."""
        found = [
            stream
            for client in self
            for stream, sends_to in client.streams.items()
            if sends_to(topic)
        ]
        return found[next(self._turns) % len(found)] if found else None

    def end_streams(self) -> None:
        """Ends the streams of all clients; they make new ones elsewhere."""
        for client in self:
            for stream in client.streams:
                stream.finish()
