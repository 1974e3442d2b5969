"""The door of the local protocol: a Unix socket, or a TCP port, plain or with TLS.

Invariants: a socket's file is its owner's alone from the moment it takes connections; the file that
a killed server left is replaced, and that of a living one is not; a port that other machines can
reach takes TLS and credentials, or is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvstore.api.store import Store
from kvstore.errors import AddressInUse, CallerError
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import TLS_OPTIONS, check_exposure
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.connection_watch import ConnectionWatch
from kvstore.serve.door import LEAVE_WITHIN
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.local_connection import DOOR, Connection, LocalParts
from kvstore.serve.sessions import Sessions
from kvstore.wire.addresses import Address, reachable
from kvstore.wire.frames import HELLO_WITHIN

_BACKLOG: Final = 1024
_LOOK: Final = 0.02
"""Seconds between two looks at whether all is answered."""
_FREE: Final = (errno.ECONNREFUSED, errno.ENOENT)


class LocalDoor:
    """The door; see the module and `serve.door`. `tls` is what `serve.access.exposure.tls_context`
    makes, for an address of TLS.
    """

    name = DOOR

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        gatherer: Gatherer,
        access: AccessControl,
        limits: ClientLimits,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._loop = loop
        self._access = access
        self._tls = tls if address.is_tls else None
        self._sessions = Sessions(loop, gatherer.rooms)
        self._watch = ConnectionWatch(loop, access)
        self._parts = LocalParts(
            store, gatherer, self._sessions, self._watch, access, limits, address.path is not None
        )
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """See `serve.door.Door`."""
        return self._address.url

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._watch.connections)

    def _make(self) -> Connection:
        return Connection(self._parts)

    async def start(self) -> None:
        """See `serve.door.Door`. `ExposureRefused` for an address that other machines can reach, if
        it is not one of TLS, or there are no credentials; `CallerError` for TLS without its files.
        """
        address = self._address
        if address.path is None:
            check_local_exposure(
                address, has_credentials=self._access.has_credentials, has_tls=self._tls is not None
            )
        if address.path is not None:
            self._server = await self._loop.create_unix_server(
                self._make, sock=_listening(address.path), backlog=_BACKLOG
            )
            return
        try:
            self._server = await self._loop.create_server(
                self._make, address.host, address.port, backlog=_BACKLOG, ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HELLO_WITHIN,
            )  # fmt: skip
        except OSError as e:
            raise AddressInUse(
                f"{self.url} can't be opened: {e.strerror or e}; choose another port"
            ) from e
        port = self._server.sockets[0].getsockname()[1]
        self._address = address._replace(port=port)

    async def stop(self, drain: float) -> None:
        """See `serve.door.Door`."""
        if self._server is not None:
            self._server.close()
            if self._address.path is not None:
                self._address.path.unlink(missing_ok=True)
        for connection in self._watch.connections:
            connection.take_no_more()
        until = self._loop.time() + drain
        while self._sessions.is_busy and self._loop.time() < until:
            await asyncio.sleep(_LOOK)
        self._sessions.end_all()
        for connection in list(self._watch.connections):
            connection.close()
        await self._gone(until)
        self._watch.stop()

    async def _gone(self, until: float) -> None:
        """Waits for the end of the connections, which are closing; then breaks them off. TLS ends
        by an answer of the client, which one that reads nothing does not give.
        """
        leave_until = min(until, self._loop.time() + LEAVE_WITHIN)
        while self._watch.connections:
            now = self._loop.time()
            for connection in list(self._watch.connections):
                if now >= (until if connection.is_choked else leave_until):
                    connection.drop()
            if now >= until:
                return
            await asyncio.sleep(_LOOK)


def check_local_exposure(address: Address, *, has_credentials: bool, has_tls: bool) -> None:
    """See `serve.access.exposure.check_exposure`; of a TCP address of the local protocol. An
    address of TLS without its files is `CallerError`.
    """
    if address.is_tls and not has_tls:
        raise CallerError(f"--listen {address.url} takes TLS: {TLS_OPTIONS}")
    check_exposure(
        f"--listen {address.url}",
        address.host,
        has_credentials=has_credentials,
        has_tls=address.is_tls,
        tls_by=f"--listen {address._replace(is_tls=True).url} {TLS_OPTIONS}",
    )


def _listening(path: Path) -> socket.socket:
    """A socket that listens at a path; `AddressInUse` if another process listens there."""
    with reachable(path) as name:
        _free(path, name)
        found = socket.socket(socket.AF_UNIX)
        try:
            found.bind(name)
            # Nobody can connect before it listens.
            path.chmod(0o600)
            found.listen(_BACKLOG)
        except OSError as e:
            found.close()
            raise AddressInUse(f"there can't be a socket at {path}: {e.strerror or e}") from e
        except BaseException:
            found.close()
            raise
    return found


def _free(path: Path, name: str) -> None:
    """Removes a socket at which nobody listens."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(name)
        except OSError as e:
            if e.errno in _FREE:
                with suppress(FileNotFoundError):
                    path.unlink()
                return
    raise AddressInUse(f"another process listens at {path}; stop it, or name another socket")
