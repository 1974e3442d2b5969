"""Limits: how many connections, requests and bytes a client may have.

The idea: a bucket of tokens fills at a rate, up to a second's worth or more. A request is let
through while anything is in the bucket, and may take more than there is: so a large request is not
refused for ever, and pays by the time until the bucket is above zero again.

Invariants:

- Over any time a client gets at most the rate times that time, and one burst, and one request.
- Time that goes back gives nothing: buckets go by the clock that never does.
- A refusal changes nothing and says when to try again, or that it is no use.
- There is a state for at most each client that proved who it is: their number is the file's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kvstore.clock import Clock
from kvstore.errors import ConfigError, LimitExceeded, MessageTooLarge, shown

_FIELDS: Final = {
    "connections": (1, 1_000_000),
    "client_connections": (1, 1_000_000),
    "client_requests": (1, 1e9),
    "client_bytes": (1, 1e15),
    "request_bytes": (1, 1 << 30),
}


class AccessLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a server; None: no limit. `connections` are of all clients together,
    `client_connections` of one. A client may send `client_requests` and `client_bytes` a second.
    `request_bytes` is the size of one request.
    """

    connections: int = 20_000
    client_connections: int | None = None
    client_requests: float | None = None
    client_bytes: float | None = None
    request_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name, (least, most) in _FIELDS.items():
            value = getattr(self, name)
            may_be_none = name.startswith("client_")
            if value is None and may_be_none:
                continue
            # NaN is not between.
            if type(value) not in (int, float) or not least <= value <= most:
                raise ConfigError(
                    f"limits.{name} is {shown(value)}; it must be {least} to {most:g}"
                    f"{', or left out for no limit' if may_be_none else ''}"
                )


class TokenBucket:
    """Tokens that come at `rate` a second, `burst` at most; see the module."""

    __slots__ = ("_at", "_burst", "_clock", "_level", "_rate")

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock.monotonic()

    def wait(self) -> float:
        """Seconds until something is in the bucket; 0 if something is."""
        level = self._now()
        return 0.0 if level > 0 else -level / self._rate + 1 / self._rate

    def take(self, amount: float) -> None:
        """Takes tokens, also more than there are."""
        self._level = self._now() - amount

    @property
    def is_full(self) -> bool:
        """Whether it is as if nothing had ever been taken."""
        return self._now() >= self._burst

    def _now(self) -> float:
        now = self._clock.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level


class _State:
    """A client's connections and buckets."""

    __slots__ = ("buckets", "connections")

    def __init__(self, buckets: tuple[TokenBucket | None, TokenBucket | None]) -> None:
        self.buckets = buckets
        self.connections = 0

    @property
    def is_idle(self) -> bool:
        return not self.connections and all(b is None or b.is_full for b in self.buckets)


class ClientLimits:
    """Counts what clients do. Its calls are made from one thread, that of the server's loop."""

    def __init__(self, limits: AccessLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._states: dict[str, _State] = {}
        self._connections = 0

    @contextmanager
    def connected(self, client: str) -> Iterator[None]:
        """Counts a connection of a client for the time of the block, see `connect`. A door whose
        connections have no client of their own counts the requests under way.
        """
        self.connect(client)
        try:
            yield
        finally:
            self.disconnect(client)

    def connect(self, client: str) -> None:
        """Counts a connection of a client, by name; `LimitExceeded`."""
        limits = self._limits
        if self._connections >= limits.connections:
            raise LimitExceeded(f"the server has {limits.connections} connections, its limit")
        state = self._state(client)
        if limits.client_connections is not None and state.connections >= limits.client_connections:
            raise LimitExceeded(
                f"client {client} has {limits.client_connections} connections, its limit"
            )
        state.connections += 1
        self._connections += 1

    def disconnect(self, client: str) -> None:
        """Takes a connection back that `connect` counted."""
        state = self._states[client]
        assert state.connections > 0, "a connection ends once"
        state.connections -= 1
        self._connections -= 1
        if state.is_idle:
            del self._states[client]

    def charge(self, client: str, size: int) -> None:
        """Counts a request of a client, of `size` bytes; `LimitExceeded` says when to try again,
        and counts nothing. `MessageTooLarge` for a request that no time makes good.
        """
        limits = self._limits
        if size > limits.request_bytes:
            raise MessageTooLarge(
                f"the request has {size} bytes, and never fits: limits.request_bytes is "
                f"{limits.request_bytes}; send less at a time",
                size,
                limits.request_bytes,
            )
        if limits.client_requests is None and limits.client_bytes is None:
            return
        of_requests, of_bytes = self._state(client).buckets
        wait = max(
            0.0 if of_requests is None else of_requests.wait(),
            0.0 if of_bytes is None else of_bytes.wait(),
        )
        if wait > 0:
            raise LimitExceeded(
                f"client {client} is above its rate; try again in {wait:.3f} s", wait
            )
        if of_requests is not None:
            of_requests.take(1)
        if of_bytes is not None:
            of_bytes.take(size)

    def _state(self, client: str) -> _State:
        found = self._states.get(client)
        if found is None:
            limits = self._limits
            found = self._states[client] = _State(
                (self._bucket(limits.client_requests), self._bucket(limits.client_bytes))
            )
        return found

    def _bucket(self, rate: float | None) -> TokenBucket | None:
        return None if rate is None else TokenBucket(rate, rate, self._clock)
