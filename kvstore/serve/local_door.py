"""The door of the local protocol: a Unix socket, or a TCP port of this machine.

Invariants: a socket's file is its owner's alone from the moment it takes connections; the file that
a killed server left is replaced, and that of a living one is not; a port that other machines can
reach is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from kvstore.api.store import Store
from kvstore.errors import AddressInUse, NotPermitted
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.local_connection import Connection
from kvstore.serve.sessions import Sessions
from kvstore.wire.addresses import Address, reachable

_BACKLOG: Final = 1024
_LOOK: Final = 0.02
"""Seconds between two looks at whether all is answered."""
_FREE: Final = (errno.ECONNREFUSED, errno.ENOENT)


class LocalDoor:
    """The door; see the module and `serve.door`."""

    name = "local protocol"

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        gatherer: Gatherer,
    ) -> None:
        self._address = address
        self._loop = loop
        self._connections: set[Connection] = set()
        self._sessions = Sessions(loop)
        self._make = partial(Connection, store, gatherer, self._sessions, self._connections)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """See `serve.door.Door`."""
        return self._address.url

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self) -> None:
        """See `serve.door.Door`. `NotPermitted` for an address that other machines can reach."""
        address = self._address
        if not address.is_loopback:
            raise NotPermitted(
                f"other machines could connect to {self.url}, which takes credentials and TLS; the "
                "local protocol has neither: listen at 127.0.0.1, or at a Unix socket"
            )
        if address.path is not None:
            self._server = await self._loop.create_unix_server(
                self._make, sock=_listening(address.path), backlog=_BACKLOG
            )
            return
        try:
            self._server = await self._loop.create_server(
                self._make, address.host, address.port, backlog=_BACKLOG
            )
        except OSError as e:
            raise AddressInUse(
                f"{self.url} can't be opened: {e.strerror or e}; choose another port"
            ) from e
        port = self._server.sockets[0].getsockname()[1]
        self._address = Address(None, address.host, port)

    async def stop(self, drain: float) -> None:
        """See `serve.door.Door`."""
        if self._server is not None:
            self._server.close()
            if self._address.path is not None:
                self._address.path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.take_no_more()
        until = self._loop.time() + drain
        while self._sessions.is_busy and self._loop.time() < until:
            await asyncio.sleep(_LOOK)
        self._sessions.end_all()
        for connection in list(self._connections):
            connection.close()
        while self._connections and self._loop.time() < until:
            await asyncio.sleep(_LOOK)
        for connection in list(self._connections):
            connection.drop()


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
