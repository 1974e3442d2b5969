"""Served stores in the test's own process: the server has a thread, the test is a client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import kvstore
from kvstore import ServedStore, Store, StoreConfig
from kvstore.client.served_calls import Requests
from kvstore.client.served_target import Target
from kvstore.client.socket_link import SocketLink
from kvstore.clock import Clock, SystemClock
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.local_door import LocalDoor
from kvstore.serve.server import Gathers, Server
from kvstore.wire.addresses import Address, socket_of


class ServerThread:
    """A server with one door, in a thread of its own."""

    def __init__(
        self,
        store: Store,
        address: Address | None = None,
        access: AccessControl | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        gathers: Gathers = Gatherer,
    ) -> None:
        self.store = store
        self._gathers = gathers
        self._gatherer: Gatherer | None = None
        self.url = ""
        self._address = socket_of(store.path) if address is None else address
        clock = store.config.clock if clock is None else clock
        self._access = AccessControl(None, LocalFiles(), clock) if access is None else access
        self._limits = ClientLimits(self._access.limits, clock)
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server")
        self._thread.start()
        self._ready.wait(30)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as e:
            self._failure = e
        finally:
            self._ready.set()

    @property
    def is_ending(self) -> bool:
        """Whether it gives up calls that take long."""
        return self._gatherer is not None and self._gatherer.is_ending

    @property
    def held(self) -> int:
        """The bytes of replies that it holds for all clients."""
        assert self._gatherer is not None
        return self._gatherer.rooms.held

    def _gathers_kept(self, store: Store) -> Gatherer:
        self._gatherer = self._gathers(store)
        return self._gatherer

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        door = partial(
            LocalDoor, self._address, access=self._access, limits=self._limits, tls=self._tls
        )
        self._server = Server(self.store, [door], self._gathers_kept)
        await self._server.run(lambda door: self._is_ready(door.url))

    def _is_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def stop(self) -> None:
        """Drains it; the store stays open."""
        if self._loop is not None and self._server is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(30)


@contextlib.contextmanager
def serving(
    store: Store,
    address: Address | None = None,
    access: AccessControl | None = None,
    tls: ssl.SSLContext | None = None,
    clock: Clock | None = None,
    gathers: Gathers = Gatherer,
) -> Iterator[ServerThread]:
    """A server of an open store, for the time of the block."""
    server = ServerThread(store, address, access, tls, clock, gathers)
    try:
        yield server
    finally:
        server.stop()


class OwnServer(ServedStore):
    """A client of a server of its own; both end together. `store` is the one that is served."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._server = ServerThread(store)
        clock = SystemClock()
        link = SocketLink(Target(socket_of(store.path)), clock, 30.0)
        super().__init__(link, Requests(clock), self._server.url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)  # what is no call is the store's itself

    def close(self) -> None:
        super().close()
        self._server.stop()
        self.store.close()


def open_served(path: Path, config: StoreConfig, **given: Any) -> Store:
    """As `kvstore.open`, by a server of its own; one that is open read-only is not served."""
    store = kvstore.open(path, config, **given)
    if given.get("read_only"):
        return store
    return cast(Store, OwnServer(store))


def opener_of(request: pytest.FixtureRequest) -> Callable[..., Store]:
    """`open_served` for a fixture that is given the parameter "served", else `kvstore.open`."""
    return open_served if getattr(request, "param", "embedded") == "served" else kvstore.open
