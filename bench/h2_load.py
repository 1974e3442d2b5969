"""A light client of unary gRPC calls: 4 connections with 64 calls in flight each, 1 KiB a call.

The idea: its frames are made once, and of the answers only the ends of streams are counted, so that
the servers that are measured do most of the work.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from hpack import Encoder

from bench.grpc_connection import DATA, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE
from kvstore.core.transport.h2_frames import frame_of, split_frames

CONNECTIONS: Final = 4
IN_FLIGHT: Final = 64


class Asked(msgspec.Struct, frozen=True):
    """A load."""

    port: int
    path: str
    calls: int
    size: int


class _Client(asyncio.Protocol):
    def __init__(self, asked: Asked, calls: int) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._to_begin = self._to_end = calls
        self._stream = -1
        self._rest = b""
        self._received = 0
        encoder = Encoder()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", asked.path),
            (":authority", f"127.0.0.1:{asked.port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-bench"),
            ("grpc-timeout", "30S"),
        ]
        self._first = bytes(encoder.encode(fields))
        self._again = bytes(encoder.encode(fields))
        self._body = b"\0" + asked.size.to_bytes(4, "big") + bytes(asked.size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PREFACE)
        self._begin(IN_FLIGHT)

    def _begin(self, count: int) -> None:
        out = []
        for _ in range(min(count, self._to_begin)):
            self._stream += 2
            self._to_begin -= 1
            out.append(frame_of(HEADERS, 0x4, self._stream, self._first))
            self._first = self._again
            out.append(frame_of(DATA, 0x1, self._stream, self._body))
        self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        frames, used = split_frames(self._rest + data, 1 << 20)
        self._rest = (self._rest + data)[used:]
        ended = 0
        for kind, flags, _, payload, size, _ in frames:
            if kind == DATA:
                self._received += size
            elif kind == PING and not flags & 1:
                self._transport.write(frame_of(PING, 1, 0, payload))
            elif kind == SETTINGS and not flags & 1:
                self._transport.write(frame_of(SETTINGS, 1, 0, b""))
            if kind <= HEADERS and flags & 1:
                ended += 1
        if self._received > 1 << 24:
            more = self._received.to_bytes(4, "big")
            self._transport.write(frame_of(WINDOW_UPDATE, 0, 0, more))
            self._received = 0
        self._to_end -= ended
        if ended:
            self._begin(ended)
        if not self._to_end and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server ended the connection"))


async def _run(asked: Asked) -> float:
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    clients = []
    for _ in range(CONNECTIONS):
        made = await loop.create_connection(
            lambda: _Client(asked, max(asked.calls // CONNECTIONS, 1)), "127.0.0.1", asked.port
        )
        clients.append(made)
    for _, client in clients:
        await client.done
    seconds = time.perf_counter() - begun
    for transport, _ in clients:
        transport.close()
    return seconds


def run_load(asked: Asked) -> float:
    """The seconds that all calls took."""
    return asyncio.run(_run(asked))
