"""A door for RocketMQ's clients, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from kvstore import Store
from kvstore.clock import Clock
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.rocketmq_door import RocketmqDoor
from kvstore.serve.grpc.service_table import Services
from kvstore.serve.server import Gathers
from kvstore.sharding.membership import Membership
from tests.support import inside


class OpenDoor:
    """A door that takes clients until it is left; `endpoint` is where."""

    def __init__(
        self,
        store: Store,
        port: int = 0,
        credentials: Path | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        gathers: Gathers = Gatherer,
        cluster: Membership | None = None,
    ) -> None:
        self._clock = store.config.clock if clock is None else clock
        self._gathers = gathers
        self.access = AccessControl(credentials, LocalFiles(), store.config.clock)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.door, self.gatherer = self.run(self._open(store, port, tls, cluster))
        except BaseException:
            self._end_loop()
            raise

    async def _open(
        self,
        store: Store,
        port: int,
        tls: ssl.SSLContext | None,
        cluster: Membership | None,
    ) -> tuple[RocketmqDoor, Gatherer]:
        gatherer = self._gathers(store)
        access = self.access
        limits = ClientLimits(access.limits, self._clock)
        door = RocketmqDoor(
            "127.0.0.1", port, self._loop, store, gatherer, access, limits, tls=tls, cluster=cluster
        )
        try:
            await door.start()
        except BaseException:
            await gatherer.close()
            raise
        return door, gatherer

    @property
    def endpoint(self) -> str:
        url: str = self.door.url
        return url

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    @property
    def services(self) -> Services:
        services: Services = inside.door_services(self.door)
        return services

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine, in the door's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of a function, in the door's loop."""

        async def called() -> Any:
            return work()

        return self.run(called())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._stop())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self.gatherer.end_polls()
        await self.door.stop(5.0)
        await self.gatherer.close()
