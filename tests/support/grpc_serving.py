"""A server of gRPC calls in a thread of its own, for tests."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from kvstore.serve.http2.grpc_call import (
    Bidirectional,
    Call,
    Gathered,
    Method,
    ServerStream,
    Unary,
)
from kvstore.serve.http2.h2_limits import H2Limits
from kvstore.serve.http2.h2_server import H2Server

PATIENCE: Final = 30
T = TypeVar("T")


class Serving:
    """A server, its loop, and the ways of tests to them."""

    def __init__(self, server: H2Server, door: socket.socket) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.address = door.getsockname()
        self.port: int = self.address[1] if isinstance(self.address, tuple) else 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the server's loop, and waits for its end."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)


@contextmanager
def serving(
    methods: Mapping[str, Method],
    limits: H2Limits | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    is_plain: bool = True,
    door: socket.socket | None = None,
) -> Iterator[Serving]:
    """Serves on a free port of loopback, or at a door; closes at the end."""
    door = door or socket.create_server(("127.0.0.1", 0), backlog=500)
    made: list[Serving] = []
    is_ready = threading.Event()
    ends: list[asyncio.Event] = []

    async def main() -> None:
        server = H2Server(methods, limits, tls, is_plain=is_plain)
        made.append(Serving(server, door))
        server.listen(door)
        ends.append(asyncio.Event())
        is_ready.set()
        await ends[0].wait()
        await server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert is_ready.wait(PATIENCE)
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(ends[0].set)
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def echo(call: Call, request: bytes) -> bytes:
    return request


def echo_all(calls: list[Call]) -> None:
    for call in calls:
        call.finish(call.request)


async def repeat(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """The bytes behind the colon, as often as the number before it says."""
    count, _, message = request.partition(b":")
    for _ in range(int(count)):
        yield message


async def talk(call: Call, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for request in requests:
        yield request


ECHO: Final[dict[str, Method]] = {
    "/test.Echo/One": Unary(echo),
    "/test.Echo/All": Gathered(echo_all),
    "/test.Echo/Repeat": ServerStream(repeat),
    "/test.Echo/Talk": Bidirectional(talk),
}
