"""A server and RocketMQ's clients: sending, receiving and acking, a message's delay, and memory.

The server is another process. The load has 4 connections, and makes the requests of the official
clients with all their metadata, but reads no more of the answers than it needs.
"""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.figure import Figure, Options
from bench.grpc_connection import GrpcConnection
from bench.memory import anonymous_bytes
from bench.served import Server, served
from kvstore.serve.grpc.protocol.protocol_tables import MESSAGING
from kvstore.serve.grpc.protocol.wire import message_class, set_ms, set_seconds

RATES: Final = (8_000, 10_000)
"""Messages a second whose delays are measured."""
_CONNECTIONS: Final = 4
_MANY: Final = 1_000
"""Connections whose memory is measured."""
_BATCH: Final = 32
_IN_FLIGHT: Final = {1: 64, _BATCH: 8}
"""Sends of one connection at a time, by the messages of a request."""
_POLLS: Final = 4
"""Receives of one connection that are under way."""
_LATENCY_SECONDS: Final = 8.0
_TURN: Final = 0.001
_UNDER_WAY: Final = 1_024
"""Calls of one connection at a time, at most; servers refuse more than some thousands."""
_STAMP: Final = struct.Struct(">d")
_ID: Final = "0102FC00000001651E0B18C2DF"
_SEND: Final = MESSAGING + "SendMessage"
_ACK: Final = MESSAGING + "AckMessage"
METADATA: Final[Mapping[str, str]] = {
    "x-mq-client-id": "bench@1@0@kvmq",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-version": "5.0.8",
    "x-mq-date-time": "20261125T190000Z",
    "x-mq-request-id": "b2d2eea8-4561-4e53-8698-33cf56f513e0",
    "x-mq-namespace": "",
}


def run_send(folder: Path, options: Options) -> list[Figure]:
    """Messages of 1 KiB sent by 4 connections: one a request, 64 in flight, and 32 a request."""
    with served(folder / "s") as server:
        return measure_send(server, options.messages or 60_000, options.size or 1024)


def run_receive(folder: Path, options: Options) -> list[Figure]:
    """Messages of 1 KiB received 32 at a time and acked, by 4 connections."""
    count = options.messages or 60_000
    with served(folder / "s") as server:
        asyncio.run(_send_all(server, count, options.size or 1024, _BATCH))
        return measure_receive(server, count)


def run_latency(folder: Path, options: Options) -> list[Figure]:
    """The time from a message's send to its receipt, at set rates, one message a request."""
    figures = []
    for rate in RATES:
        with served(folder / f"s{rate}") as server:
            figures += measure_latency(server, rate, options.size or 1024)
    return figures


def run_memory(folder: Path, options: Options) -> list[Figure]:
    """The server's memory beside mapped files, while 1,000 connections are open that have sent."""
    with served(folder / "s") as server:
        return measure_memory(server, options.messages or 60_000, options.size or 1024)


# --- what is measured, of any server ---


def warm(server: Server, count: int, size: int) -> None:
    """Sends so many messages, off the clock."""
    asyncio.run(_send_all(server, count, size, 1))


def measure_send(server: Server, count: int, size: int) -> list[Figure]:
    """See `run_send`: `count` messages each way."""
    figures = []
    for batch in _IN_FLIGHT:
        asyncio.run(_send_all(server, 4_000, size, batch))
        cpu, begun = server.cpu(), time.perf_counter()
        asyncio.run(_send_all(server, count, size, batch))
        seconds = time.perf_counter() - begun
        figures += _load(f"send, {batch} a request", count, seconds, server.cpu() - cpu)
    return figures


def measure_receive(server: Server, count: int) -> list[Figure]:
    """See `run_receive`."""
    cpu, begun = server.cpu(), time.perf_counter()
    received, ended = asyncio.run(_receive_all(server, count))
    return _load("receive 32 + ack", received, ended - begun, server.cpu() - cpu)


def measure_latency(server: Server, rate: int, size: int) -> list[Figure]:
    """See `run_latency`."""
    delays = sorted(asyncio.run(_latency(server, rate, size)))
    return [
        Figure(
            f"end to end at {rate:,}/s, p{percent}", 1000 * delays[len(delays) * percent // 100],
            "ms", better="lower",
        )
        for percent in (50, 99)
    ]  # fmt: skip


def measure_memory(server: Server, count: int, size: int) -> list[Figure]:
    """See `run_memory`: all connections together send `count` messages."""
    used = asyncio.run(_memory(server, count, size))
    return [Figure(f"memory, {_MANY:,} connections", used / 1e6, "MB", better="lower")]


def _load(name: str, count: int, seconds: float, cpu: float) -> list[Figure]:
    return [
        Figure(name, count / seconds, "messages/s"),
        Figure(f"cpu of {name}", 1e6 * cpu / count, "s/million", better="lower"),
    ]


# --- requests ---


def _send_request(size: int, batch: int) -> bytes:
    request = message_class("SendMessageRequest")()
    for n in range(batch):
        message = request.messages.add()
        message.topic.name = "t"
        message.body = bytes(size)
        system = message.system_properties
        system.message_id = f"{_ID}{n:08X}"
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


@asynccontextmanager
async def _connections(
    server: Server, count: int = _CONNECTIONS
) -> AsyncIterator[list[GrpcConnection]]:
    """So many connections."""
    made = [await GrpcConnection.open(server.port, METADATA) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


async def _send_all(server: Server, count: int, size: int, batch: int) -> None:
    """Sends so many messages."""
    async with _connections(server) as made:
        request, each = _send_request(size, batch), count // batch // len(made)
        await asyncio.gather(*(one.repeat(_SEND, request, each, _IN_FLIGHT[batch]) for one in made))


async def _receive_all(server: Server, count: int) -> tuple[int, float]:
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
            await connection.call(_ACK, _ack_request(handles))
            done += len(handles)
            ended = time.perf_counter()

    async with _connections(server) as made:
        await asyncio.gather(*(poll(one) for one in made * _POLLS))
    return done, ended


async def _receive(connection: GrpcConnection) -> list[tuple[Any, bytes]]:
    """The system properties and bodies of one receive."""
    kind = message_class("ReceiveMessageResponse")
    answers = await connection.call(MESSAGING + "ReceiveMessage", _receive_request())
    found = [kind.FromString(raw).message for raw in answers[1:-1]]
    return [(message.system_properties, message.body) for message in found]


async def _latency(server: Server, rate: int, size: int) -> list[float]:
    """Seconds from the moment at which each message was to be sent, which is in its body, to its
    receipt: infinity where it did not come. The first tenth is left out.
    """
    delays: list[float] = []
    begun, seconds = time.monotonic(), _LATENCY_SECONDS
    count = int(seconds * rate / _CONNECTIONS)
    template = _send_request(size, 1)
    before, _, behind = template.partition(bytes(size))

    async def send(connection: GrpcConnection) -> None:
        for number in range(count):
            due = begun + number * seconds / count
            while time.monotonic() < due or connection.under_way >= _UNDER_WAY:
                await asyncio.sleep(_TURN)
            body = _STAMP.pack(due).ljust(size, b"\0")
            connection.begin(_SEND, before + body + behind, _ignored)

    async def poll(connection: GrpcConnection) -> None:
        while len(delays) < count * _CONNECTIONS:
            found = await _receive(connection)
            now = time.monotonic()
            if not found and now > begun + seconds:
                return
            stamps = [_STAMP.unpack_from(body)[0] for _, body in found]
            # Others are of a load before this one.
            delays.extend(now - stamp for stamp in stamps if stamp >= begun)
            handles = [(system.message_id, system.receipt_handle) for system, _ in found]
            if handles:
                connection.begin(_ACK, _ack_request(handles), _ignored)

    async with _connections(server) as made:
        polls = [asyncio.ensure_future(poll(one)) for one in made * _POLLS]
        await asyncio.gather(*map(send, made))
        await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*polls, return_exceptions=True)
    lost = count * _CONNECTIONS - len(delays)
    return delays[len(delays) // 10 :] + [math.inf] * lost


async def _memory(server: Server, count: int, size: int) -> int:
    """Bytes of memory while many connections are open, which have sent so many messages."""
    async with _connections(server, _MANY) as made:
        request, each = _send_request(size, 1), max(count // _MANY, 1)
        await asyncio.gather(*(one.repeat(_SEND, request, each, 1) for one in made))
        return anonymous_bytes(server.pid)


def _ignored(_: list[bytes]) -> None:
    """The answer is not looked at."""
