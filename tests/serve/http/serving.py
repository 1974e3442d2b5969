"""A store with an HTTP door, in a loop of its own, for tests and for the pictures of the page."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kvstore import Store
from kvstore.cli.tier.plan import tier_costs
from kvstore.clock import Clock
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.limits import AccessLimits, ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.http.http_door import HttpDoor, HttpSettings
from kvstore.serve.metrics.server_counts import ServerCounts
from tiering.policy.policy import Policy


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Serving:
    """An open door; `url` is where."""

    def __init__(self, url: str, counts: ServerCounts, stop: threading.Event) -> None:
        self.url = url
        self.counts = counts
        self.stop = stop
        self.tls: ssl.SSLContext | None = None
        """Whom the asking side trusts."""

    def ask(self, path: str, body: str | None = None, **headers: str) -> Answer:
        """One request, by POST if it has a body; `_` in names of headers is `-`."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        host, port = parts.hostname, parts.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=20)
            if parts.scheme == "http"
            else http.client.HTTPSConnection(host, port, timeout=20, context=self.tls)
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, path, body.encode() if body is not None else None, named)
            found = connection.getresponse()
            text = found.read().decode("utf-8", "replace")
            return Answer(found.status, {k.lower(): v for k, v in found.headers.items()}, text)
        finally:
            connection.close()


@contextmanager
def serving(
    store: Store,
    clock: Clock,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Path | None = None,
    limits: AccessLimits | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Serving]:
    """Serves a store over HTTP for the time of the block."""
    settings = HttpSettings(
        host, port, AccessControl(credentials, LocalFiles(), clock),
        ClientLimits(limits or AccessLimits(), clock), clock, "0.0.0", tls,
        tier_costs(Policy()),
    )  # fmt: skip
    ready, stop = threading.Event(), threading.Event()
    opened: list[tuple[HttpDoor, ServerCounts]] = []
    failures: list[BaseException] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        gatherer = Gatherer(store)
        door = HttpDoor(settings, loop, store, gatherer)
        try:
            await door.start()
            gatherer.counts.watch(door)
            opened.append((door, gatherer.counts))
            ready.set()
            await loop.run_in_executor(None, stop.wait)
            await door.stop(5.0)
        finally:
            await gatherer.close()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as e:
            failures.append(e)
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        if failures:
            raise failures[0]
        door, counts = opened[0]
        yield Serving(door.url, counts, stop)
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
