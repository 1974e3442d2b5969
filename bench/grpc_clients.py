"""A served store and RocketMQ's clients: sending, receiving and acking, and a message's delay.

The server is another process. The load has 4 connections, and makes the requests of the official
clients with all their metadata, but reads no more of the answers than it needs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

import kvstore
from bench.figure import Figure, Options
from bench.grpc_connection import GrpcConnection
from kvstore.serve.grpc.protocol.protocol_tables import MESSAGING
from kvstore.serve.grpc.protocol.wire import message_class, set_ms, set_seconds

CONNECTIONS: Final = 4
_IN_FLIGHT: Final = 64
_BATCH: Final = 32
_POLLS: Final = 4
"""Receives of one connection that are under way."""
_RATES: Final = (8_000, 10_000)
_LATENCY_SECONDS: Final = 8.0
_TURN: Final = 0.001
_ID: Final = b"0102FC00000001651E0B18C2DF"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
METADATA: Final[Mapping[str, str]] = {
    "x-mq-client-id": "bench@1@0@kvmq",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-version": "5.0.8",
    "x-mq-date-time": "20261125T190000Z",
    "x-mq-request-id": "b2d2eea8-4561-4e53-8698-33cf56f513e0",
    "x-mq-namespace": "",
}


class Server(NamedTuple):
    """A server that is measured: its port, and its process."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time that it took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """A new store with topic "t" and group "g", served."""
    with kvstore.open(folder) as store:
        store.create_topic("t", queues=8)
        store.create_group("g")
    command = [sys.executable, "-m", "kvstore", "serve", str(folder), "--json"]
    command += ["--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        door = process.stdout.readline()
        port = int(door.rpartition("127.0.0.1:")[2].partition('"')[0])
        try:
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait(20)


def run_send(folder: Path, options: Options) -> list[Figure]:
    """Messages of 1 KiB sent by 4 connections: one a request, 64 in flight, and 32 a request."""
    count, size = options.messages or 60_000, options.size or 1024
    figures = []
    with served(folder / "s") as server:
        for batch, in_flight in ((1, _IN_FLIGHT), (_BATCH, 8)):
            asyncio.run(send_all(server, 4_000, size, batch, in_flight))
            cpu, begun = server.cpu(), time.perf_counter()
            asyncio.run(send_all(server, count, size, batch, in_flight))
            seconds = time.perf_counter() - begun
            name = f"send, {batch} a request"
            figures.append(Figure(name, count / seconds, "messages/s"))
            used = 1e6 * (server.cpu() - cpu) / count
            figures.append(Figure(f"cpu of {name}", used, "s/million", better="lower"))
    return figures


def run_receive(folder: Path, options: Options) -> list[Figure]:
    """Messages of 1 KiB received 32 at a time and acked, by 4 connections."""
    count, size = options.messages or 60_000, options.size or 1024
    with served(folder / "s") as server:
        asyncio.run(send_all(server, count, size, _BATCH, 8))
        cpu, begun = server.cpu(), time.perf_counter()
        received, ended = asyncio.run(receive_all(server, count))
        seconds = ended - begun
        used = 1e6 * (server.cpu() - cpu) / received
    return [
        Figure("receive 32 + ack", received / seconds, "messages/s"),
        Figure("cpu of receive 32 + ack", used, "s/million", better="lower"),
    ]


def run_latency(folder: Path, options: Options) -> list[Figure]:
    """The time from a message's send to its receipt, at set rates, one message a request."""
    figures = []
    for rate in _RATES:
        with served(folder / f"s{rate}") as server:
            delays = asyncio.run(_latency(server, rate, options.size or 1024))
        cuts = quantiles(delays, n=100)
        figures.append(
            Figure(f"end to end at {rate}/s, p50", 1000 * cuts[49], "ms", better="lower")
        )
        figures.append(
            Figure(f"end to end at {rate}/s, p99", 1000 * cuts[98], "ms", better="lower")
        )
    return figures


# --- requests ---


def _send_request(size: int, batch: int) -> bytes:
    request = message_class("SendMessageRequest")()
    for n in range(batch):
        message = request.messages.add()
        message.topic.name = "t"
        message.body = bytes(size)
        system = message.system_properties
        system.message_id = f"{_ID.decode()}{n:08X}"
        system.body_encoding = system.message_type = 1
        system.born_host = "bench"
        set_ms(system.born_timestamp, 1_795_631_321_290)
    packed: bytes = request.SerializeToString()
    return packed


def _receive_request() -> bytes:
    request = message_class("ReceiveMessageRequest")()
    request.group.name = "g"
    request.message_queue.topic.name = "t"
    request.filter_expression.expression = "*"
    request.filter_expression.type = 1
    request.batch_size = _BATCH
    set_seconds(request.invisible_duration, 30)
    set_seconds(request.long_polling_timeout, 5)
    packed: bytes = request.SerializeToString()
    return packed


def _ack_request(handles: list[tuple[str, str]]) -> bytes:
    request = message_class("AckMessageRequest")()
    request.group.name, request.topic.name = "g", "t"
    for message_id, handle in handles:
        request.entries.add(message_id=message_id, receipt_handle=handle)
    packed: bytes = request.SerializeToString()
    return packed


# --- loads ---


async def _connected(server: Server, work: Callable[[GrpcConnection], Awaitable[Any]]) -> list[Any]:
    """Does some work on each of the connections; what each returns."""
    made = [await GrpcConnection.open(server.port, METADATA) for _ in range(CONNECTIONS)]
    try:
        return await asyncio.gather(*(work(connection) for connection in made))
    finally:
        for connection in made:
            connection.close()


async def send_all(server: Server, count: int, size: int, batch: int, in_flight: int) -> None:
    """Sends so many messages, by `in_flight` requests of each connection at a time."""
    request, path = _send_request(size, batch), MESSAGING + "SendMessage"

    async def send(connection: GrpcConnection) -> None:
        left = count // batch // CONNECTIONS
        await connection.repeat(path, request, left, in_flight)

    await _connected(server, send)


async def receive_all(server: Server, count: int) -> tuple[int, float]:
    """Receives and acks until so many came; how many did, and when the last ack was answered. Polls
    that wait then are not counted.
    """
    done, ended = 0, 0.0

    async def poll(connection: GrpcConnection) -> None:
        nonlocal done, ended
        while done < count:
            handles = [(m.message_id, m.receipt_handle) for m, _ in await _receive(connection)]
            if not handles:
                return
            await connection.call(MESSAGING + "AckMessage", _ack_request(handles))
            done += len(handles)
            ended = time.perf_counter()

    async def receive(connection: GrpcConnection) -> None:
        await asyncio.gather(*(poll(connection) for _ in range(_POLLS)))

    await _connected(server, receive)
    return done, ended


async def _receive(connection: GrpcConnection) -> list[tuple[Any, bytes]]:
    """The system properties and bodies of one receive."""
    kind = message_class("ReceiveMessageResponse")
    answers = await connection.call(MESSAGING + "ReceiveMessage", _receive_request())
    found = [kind.FromString(raw).message for raw in answers[1:-1]]
    return [(message.system_properties, message.body) for message in found]


async def _latency(server: Server, rate: int, size: int) -> list[float]:
    delays: list[float] = []
    until = time.monotonic() + _LATENCY_SECONDS
    template = _send_request(size, 1)
    at = template.index(bytes(size))

    async def send(connection: GrpcConnection) -> None:
        begun, sent = time.monotonic(), 0
        while (now := time.monotonic()) < until:
            due = int((now - begun) * rate / CONNECTIONS)
            while sent < due:
                stamp = b"%024.9f" % time.monotonic()
                request = template[:at] + stamp + template[at + len(stamp) :]
                connection.begin(MESSAGING + "SendMessage", request, _ignored)
                sent += 1
            await asyncio.sleep(_TURN)

    async def poll(connection: GrpcConnection) -> None:
        while time.monotonic() < until:
            found = await _receive(connection)
            now = time.monotonic()
            delays.extend(now - float(body[:24]) for _, body in found)
            handles = [(system.message_id, system.receipt_handle) for system, _ in found]
            if handles:
                connection.begin(MESSAGING + "AckMessage", _ack_request(handles), _ignored)

    async def both(connection: GrpcConnection) -> None:
        await asyncio.gather(send(connection), *(poll(connection) for _ in range(_POLLS)))

    await _connected(server, both)
    return delays[len(delays) // 10 :]


def _ignored(_: list[bytes]) -> None:
    """The answer is not looked at."""
