"""Unary gRPC calls of 1 KiB: this server's, and grpcio.aio's, each doing the same echo."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.figure import Figure, Options
from bench.h2_load import Asked, run_load
from kvstore.serve.http2.grpc_call import Call, Gathered, Unary
from kvstore.serve.http2.h2_server import H2Server

_PATH: Final = "/bench.Echo/"
_WARM: Final = 2000
_PEERS_SHARE: Final = 8
"""The peer makes so many times fewer calls, so that it takes no longer."""
_ROUNDS: Final = 3


class _Measured(NamedTuple):
    rate: float
    cpu: float
    """Microseconds of the server's processor time a call."""


def run(folder: Path, options: Options) -> list[Figure]:
    """Calls a second and processor time of the HTTP/2 server, beside grpcio.aio's."""
    size = 1024 if options.size is None else options.size
    calls = options.messages or 80_000
    some = max(calls // _PEERS_SHARE, 1)
    rounds = [
        (
            _measure(_serve_own, "All", calls, size),
            _measure(_serve_own, "One", calls, size),
            _measure(_serve_peer, "One", some, size),
        )
        for _ in range(_ROUNDS)
    ]
    all_, one, peer = (_median(list(each)) for each in zip(*rounds, strict=True))
    return [
        Figure("calls, gathered", all_.rate, "calls/s"),
        Figure("calls, a task each", one.rate, "calls/s"),
        Figure("calls of grpcio.aio", peer.rate, "calls/s"),
        Figure("cpu of a gathered call", all_.cpu, "us", better="lower"),
        Figure("cpu of a call with a task", one.cpu, "us", better="lower"),
        Figure("cpu of a call of grpcio.aio", peer.cpu, "us", better="lower"),
    ]


def _median(measured: list[_Measured]) -> _Measured:
    middle = len(measured) // 2
    rate, cpu = (sorted(column)[middle] for column in zip(*measured, strict=True))
    return _Measured(rate, cpu)


def _measure(serve: Callable[[Connection], None], method: str, calls: int, size: int) -> _Measured:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        port = ours.recv()
        path = _PATH + method
        run_load(Asked(port, path, _WARM, size))
        before = _cpu(ours)
        seconds = run_load(Asked(port, path, calls, size))
        return _Measured(calls / seconds, 1e6 * (_cpu(ours) - before) / calls)
    finally:
        server.kill()
        server.join()


def _cpu(server: Connection) -> float:
    server.send(None)
    return float(server.recv())


# --- the servers, each in a process of its own ---


def _run_server(control: Connection, start: Coroutine[Any, Any, tuple[int, object]]) -> None:
    async def main() -> None:
        # A server that nobody keeps ends.
        port, _kept = await start
        control.send(port)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            control.recv()
            control.send(time.process_time())

        loop.add_reader(control.fileno(), tell)
        await loop.create_future()

    asyncio.run(main())


async def _one(call: Call, request: bytes) -> bytes:
    return request


def _all(calls: list[Call]) -> None:
    for call in calls:
        call.finish(call.request)


def _serve_own(control: Connection) -> None:
    async def start() -> tuple[int, object]:
        server = H2Server({_PATH + "One": Unary(_one), _PATH + "All": Gathered(_all)})
        door = socket.create_server(("127.0.0.1", 0))
        server.listen(door)
        return door.getsockname()[1], server

    _run_server(control, start())


def _serve_peer(control: Connection) -> None:
    import grpc

    async def one(request: bytes, context: object) -> bytes:
        return request

    async def start() -> tuple[int, object]:
        server = grpc.aio.server()
        handlers = {"One": grpc.unary_unary_rpc_method_handler(one)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_PATH.strip("/"), handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return port, server

    _run_server(control, start())
