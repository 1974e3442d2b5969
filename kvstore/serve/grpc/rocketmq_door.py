"""The door for RocketMQ's clients: a TCP port with HTTP/2, the services behind it.

Invariants: a port that other machines can reach takes TLS and signed calls, or is refused; when the
door stops, clients are told to go elsewhere, their streams end, and calls under way are answered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from kvstore.api.store import Store
from kvstore.errors import AddressInUse
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import check_exposure, is_loopback
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.service_table import Services
from kvstore.serve.http2.grpc_call import Line
from kvstore.serve.http2.h2_limits import H2Limits
from kvstore.serve.http2.h2_server import H2Server
from kvstore.sharding.membership import Membership

_BACKLOG: Final = 1024
_BESIDE_BODY: Final = 1 << 20
"""Bytes that a request may have beside the body of one message: more than its properties take."""


def _limits_for(max_body: int) -> H2Limits:
    """The usual limits, raised where a request with one message needs more."""
    usual, largest = H2Limits(), max_body + _BESIDE_BODY
    return H2Limits(
        message_bytes=max(usual.message_bytes, largest),
        held_bytes=max(usual.held_bytes, largest),
        all_held_bytes=max(usual.all_held_bytes, largest),
    )


class RocketmqDoor:
    """The door; see the module and `serve.door`. `port` 0 takes a free one; `tls` is what
    `serve.access.exposure.tls_context` makes. `cluster` is the one in which it is a shard.
    """

    name = "gRPC door"

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        gatherer: Gatherer,
        access: AccessControl,
        limits: ClientLimits,
        *,
        tls: ssl.SSLContext | None = None,
        cluster: Membership | None = None,
    ) -> None:
        self._host, self._port = host, port
        self._loop, self._store, self._gatherer = loop, store, gatherer
        self._access, self._limits, self._tls = access, limits, tls
        self._cluster = cluster
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server: H2Server | None = None
        self._services: Services | None = None

    @property
    def url(self) -> str:
        """See `serve.door.Door`: the endpoint, as RocketMQ's clients are given it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def connections(self) -> int:
        """See `serve.door.Door`."""
        return 0 if self._server is None else self._server.count

    async def start(self) -> None:
        """See `serve.door.Door`. `ExposureRefused` for an address that other machines can reach, if
        there is no TLS, or there are no credentials.
        """
        check_exposure(
            "--grpc",
            self._host,
            has_credentials=self._access.has_credentials,
            has_tls=self._tls is not None,
        )
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server(
                (self._host, self._port), family=family, backlog=_BACKLOG
            )
        except OSError as e:
            raise AddressInUse(
                f"{self.url} can't be opened: {e.strerror or e}; choose another port"
            ) from e
        self._port = listening.getsockname()[1]
        self._services = Services(
            self._loop,
            self._store,
            self._gatherer,
            self._access,
            self._limits,
            cluster=self._cluster,
        )
        # Plaintext beside TLS is for clients on this machine.
        self._server = H2Server(
            self._services.methods(),
            _limits_for(self._store.config.max_body),
            self._tls,
            is_plain=is_loopback(self._host),
            unsent=self._unsent,
        )
        self._server.listen(listening)

    def _unsent(self, line: Line, size: int) -> None:
        self._gatherer.rooms.of(line).hold_part(size)

    async def stop(self, drain: float) -> None:
        """See `serve.door.Door`."""
        if self._services is not None:
            await self._services.close()
        if self._server is not None:
            await self._server.drain(drain)
