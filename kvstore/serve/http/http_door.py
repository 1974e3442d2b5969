"""The HTTP door: HTTP/1.1 in the server's loop.

The idea: uvicorn speaks HTTP on a socket that the door has bound, and hands requests to the
application. It installs no signal handlers and writes no log of requests. uvicorn waits for a slow
client for ever, so the door looks once a second which connections wait for theirs.

Invariants:

- The door does not open beyond loopback without credentials and TLS.
- At most `CONNECTIONS_MAX` connections and requests are served; others get 503.
- A connection that waits for its client, to send a request or to take an answer, ends in time.
- `stop` takes no new requests and lets those that were taken end.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvstore.api.store import Store
from kvstore.clock import Clock
from kvstore.errors import AddressInUse
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import check_exposure, is_loopback
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.door import LEAVE_WITHIN
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.http.application import DOOR, HttpApplication
from kvstore.serve.metrics.store_metrics import StoreMetrics, TierCosts

CONNECTIONS_MAX: Final = 512
_HEADERS_MAX: Final = 16 << 10
_KEEP_ALIVE: Final = 15
"""Seconds that an idle connection stays open."""
_BACKLOG: Final = 128
_LOOK: Final = 1.0
_CLIENT_WITHIN: Final = 30.0
"""Seconds that a client has to send a request, and to take most of an answer."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The parts of the door. Port 0 is any free one; `tls` None is plain HTTP."""

    host: str
    port: int
    access: AccessControl
    limits: ClientLimits
    clock: Clock
    version: str
    tls: ssl.SSLContext | None = None
    costs: TierCosts | None = None


class HttpDoor:
    """The door; see the module and `serve.door`."""

    name = DOOR

    def __init__(
        self,
        settings: HttpSettings,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        gatherer: Gatherer,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._port = settings.port
        metrics = StoreMetrics(
            store, gatherer.counts, settings.clock, settings.version, settings.costs
        )
        self._application = HttpApplication(
            store,
            settings.access,
            metrics,
            gatherer.counts,
            settings.limits,
            settings.clock,
            is_loopback_only=is_loopback(settings.host) and not settings.access.has_credentials,
            has_tls=settings.tls is not None,
        )
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """See `serve.door.Door`."""
        host = self._settings.host
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"http{'s' if self._settings.tls else ''}://{shown}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def start(self) -> None:
        """See `serve.door.Door`. `ExposureRefused` for an address that other machines can reach,
        without credentials and TLS.
        """
        settings = self._settings
        check_exposure(
            "--http",
            settings.host,
            has_credentials=settings.access.has_credentials,
            has_tls=settings.tls is not None,
        )
        bound = await self._bind()
        self._port = bound.getsockname()[1]
        config = uvicorn.Config(
            self._application.app, http="h11", ws="none", lifespan="off", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, date_header=False,
            limit_concurrency=CONNECTIONS_MAX, h11_max_incomplete_event_size=_HEADERS_MAX,
            timeout_keep_alive=_KEEP_ALIVE, backlog=_BACKLOG,
        )  # fmt: skip
        config.load()
        config.ssl = settings.tls
        self._server = _Uvicorn(config)
        self._serving = self._loop.create_task(self._server.serve([bound]))

    async def _bind(self) -> socket.socket:
        host = self._settings.host.strip("[]")
        try:
            found = await self._loop.getaddrinfo(
                host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            made = socket.socket(family, socket.SOCK_STREAM)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(address)
                made.listen(_BACKLOG)
                made.setblocking(False)
            except BaseException:
                made.close()
                raise
        except OSError as e:
            raise AddressInUse(
                f"{self.url} can't be opened: {e.strerror or e}; choose another port"
            ) from e
        return made

    async def stop(self, drain: float) -> None:
        """See `serve.door.Door`."""
        self._application.is_ending = True
        if self._server is None or self._serving is None:
            return
        self._server.ending.set()
        until = self._loop.time() + drain
        while not self._serving.done() and (left := until - self._loop.time()) > 0:
            await asyncio.wait({self._serving}, timeout=min(left, LEAVE_WITHIN))
            self._server.end_waiting()
        if not self._serving.done():
            self._server.force_exit = True
            for task in list(self._server.server_state.tasks):
                task.cancel()
        with suppress(asyncio.CancelledError):
            await self._serving
        self._application.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, and without its loop that looks ten times a
    second.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()
        self._seen_waiting: set[H11Protocol] = set()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # same use
        """See `uvicorn.Server`: the verb handles signals."""
        return nullcontext()

    async def main_loop(self) -> None:
        """See `uvicorn.Server`."""
        clock = asyncio.get_running_loop().time
        since: dict[tuple[H11Protocol, object], float] = {}
        while not self.ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), _LOOK)
            now = clock()
            connections = cast(set[H11Protocol], self.server_state.connections)
            # Another request of the same connection has its own time.
            waiting = {(one, one.cycle) for one in connections if _waits_for_client(one)}
            since = {one: since.get(one, now) for one in waiting}
            for (connection, _), began in since.items():
                if now - began > _CLIENT_WITHIN:
                    connection.transport.abort()

    def end_waiting(self) -> None:
        """Cuts connections off that wait for their clients, and did at the last call: for the rest
        of a request, or the end of TLS. Those that wait for a client to read are not among them.
        """
        connections = cast(set[H11Protocol], self.server_state.connections)
        waiting = {
            one
            for one in connections
            if not one.flow.write_paused and (one.transport.is_closing() or _waits_for_client(one))
        }
        for connection in waiting & self._seen_waiting:
            connection.transport.abort()
        self._seen_waiting = waiting


def _waits_for_client(connection: H11Protocol) -> bool:
    """Whether a client is to go on. Between two requests uvicorn has a timer of its own."""
    is_to_send = connection.conn.their_state in (h11.IDLE, h11.SEND_BODY)
    is_between = connection.timeout_keep_alive_task is not None
    return connection.flow.write_paused or (is_to_send and not is_between)
