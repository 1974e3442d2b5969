"""A served store: calls of other processes over its socket, and what serving costs its own calls.

The server is another process, and so is each client; all share this machine's processors.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import kvstore
import kvstore.aio
from bench.figure import Figure, Options
from bench.served import Server, served
from kvstore import Message
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.local_door import LocalDoor
from kvstore.serve.server import Server as StoreServer
from kvstore.wire.addresses import socket_of

_PROCESSES: Final = 4
_BATCH: Final = 32
_IN_FLIGHT: Final = 32
_POLLS: Final = 10_000
_QUEUES: Final = 8
_WITHIN: Final = 600.0
"""Seconds that clients may take to start, and to do their part."""
_STARTS: Final = 60.0
"""Seconds that a server may take to start."""
_spawn: Final = multiprocessing.get_context("spawn")


def run_puts(folder: Path, options: Options) -> list[Figure]:
    """Puts of 32 from 4 processes, and puts of one with 32 in flight, over the socket."""
    count, size = options.messages or 320_000, options.size or 1024
    with served(folder / "s"):
        batches = _rate(folder / "s", count, _put_batches, size)
        single = asyncio.run(_put_in_flight(folder / "s", count // 4, size))
    return [
        Figure(f"put {_BATCH} from {_PROCESSES} processes", batches, "messages/s", 200_000),
        Figure(f"put 1 with {_IN_FLIGHT} in flight", single, "messages/s", 80_000),
    ]


def run_pops(folder: Path, options: Options) -> list[Figure]:
    """Pops of 32, each acked in one call, from 4 processes over the socket."""
    count, size = options.messages or 320_000, options.size or 1024
    with served(folder / "s"):
        _rate(folder / "s", count, _put_batches, size)
        rate = _rate(folder / "s", count, _pop_batches, size)
    return [
        Figure(f"pop {_BATCH} and ack from {_PROCESSES} processes", rate, "messages/s", 200_000)
    ]


def run_latency(folder: Path, options: Options) -> list[Figure]:
    """One call at a time over the socket."""
    count, size = options.messages or 20_000, options.size or 1024
    with served(folder / "s"), kvstore.connect(folder / "s") as store:
        body = bytes(size)
        spent = []
        for _ in range(count):
            begin = time.perf_counter()
            store.put("t", body)
            spent.append(1000 * (time.perf_counter() - begin))
    spent.sort()
    return [
        Figure("one put at a time, p50", spent[count // 2], "ms", 0.12, better="lower"),
        Figure("one put at a time, p99", spent[count * 99 // 100], "ms", 0.3, better="lower"),
    ]


def run_polls(folder: Path, options: Options) -> list[Figure]:
    """The processor time of a server in which 10,000 pops wait, on one connection."""
    seconds = 10.0
    with served(folder / "s") as server:
        share = asyncio.run(_idle_share(folder / "s", server, options.messages or _POLLS, seconds))
    return [Figure("10,000 idle long polls", share, "% of a core", 1.0, better="lower")]


def run_beside(folder: Path, options: Options) -> list[Figure]:
    """Puts of 32 in a process without a server, and beside one that nobody uses, in turns."""
    count, size = options.messages or 320_000, options.size or 1024
    with kvstore.open(folder / "s") as store:
        store.create_topic("t", queues=_QUEUES)
        rates: tuple[list[float], list[float]] = ([], [])
        for turn in range(8):
            if turn % 2:
                with _server_beside(store):
                    rates[1].append(_embedded_rate(store, count // 8, size))
            else:
                rates[0].append(_embedded_rate(store, count // 8, size))
    lost = 100 * (1 - sorted(rates[1])[2] / sorted(rates[0])[2])
    return [Figure("embedded puts lose beside a server", lost, "%", 5.0, better="lower")]


# --- clients ---


def _put_batches(folder: Path, count: int, size: int, together: Barrier) -> None:
    with kvstore.connect(folder) as store:
        batch = [Message("t", os.urandom(size)) for _ in range(_BATCH)]
        together.wait()
        for _ in range(count // _BATCH):
            store.put_batch(batch)
        together.wait()


def _pop_batches(folder: Path, count: int, size: int, together: Barrier) -> None:
    with kvstore.connect(folder) as store:
        together.wait()
        left = count
        while left > 0:
            found = store.pop("g", "t", _BATCH)
            store.ack_batch([one.receipt for one in found])
            if not found:
                break
            left -= len(found)
        together.wait()


def _part(
    client: Callable[..., None], folder: Path, count: int, size: int, together: Barrier
) -> None:
    """A client's process. Nobody waits for one that fails."""
    try:
        client(folder, count, size, together)
    except BaseException:
        together.abort()
        raise


def _rate(folder: Path, count: int, client: Callable[..., None], size: int) -> float:
    """Messages a second of several processes that each do a part, from the time when all are there
    until all are done: how a process starts and ends is no work.
    """
    together = _spawn.Barrier(_PROCESSES + 1, timeout=_WITHIN)
    parts = [
        _spawn.Process(target=_part, args=(client, folder, count // _PROCESSES, size, together))
        for _ in range(_PROCESSES)
    ]
    for part in parts:
        part.start()
    together.wait()
    begin = time.perf_counter()
    together.wait()
    seconds = time.perf_counter() - begin
    for part in parts:
        part.join()
    if any(part.exitcode for part in parts):
        raise RuntimeError("a client failed")
    return count / seconds


async def _put_in_flight(folder: Path, count: int, size: int) -> float:
    async with kvstore.aio.connect(folder) as store:
        body, left = os.urandom(size), itertools.repeat(None, count)

        async def put() -> None:
            for _ in left:
                await store.put("t", body)

        begin = time.perf_counter()
        await asyncio.gather(*(put() for _ in range(_IN_FLIGHT)))
        return count / (time.perf_counter() - begin)


async def _idle_share(folder: Path, server: Server, polls: int, seconds: float) -> float:
    async with kvstore.aio.connect(folder) as store:
        waiting = [asyncio.ensure_future(store.pop("g", "t", wait=600)) for _ in range(polls)]
        await asyncio.sleep(5)
        before = server.cpu()
        await asyncio.sleep(seconds)
        spent = server.cpu() - before
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return 100 * spent / seconds


@contextmanager
def _server_beside(store: kvstore.Store) -> Iterator[None]:
    """A server of the store in a thread of this process."""
    ready, made = threading.Event(), list[Any]()

    async def serve() -> None:
        access = AccessControl(None, store.config.files, store.config.clock)
        limits = ClientLimits(access.limits, store.config.clock)
        door = partial(LocalDoor, socket_of(store.path), access=access, limits=limits)
        server = StoreServer(store, [door])
        made.extend((asyncio.get_running_loop(), server))
        await server.run(lambda _: ready.set())

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not ready.wait(_STARTS):
        raise RuntimeError("the server does not start")
    loop, server = made
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join()


def _embedded_rate(store: kvstore.Store, count: int, size: int) -> float:
    batch = [Message("t", os.urandom(size)) for _ in range(_BATCH)]
    begin = time.perf_counter()
    for _ in range(count // _BATCH):
        store.put_batch(batch)
    return count / (time.perf_counter() - begin)
