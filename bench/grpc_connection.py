"""One connection of a light gRPC client: its calls, and their answers as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from hpack import Encoder

from kvstore.core.transport.h2_frames import frame_of, split_frames

DATA: Final = 0
HEADERS: Final = 1
_RESET: Final = 3
SETTINGS: Final = 4
PING: Final = 6
WINDOW_UPDATE: Final = 8
_ENDS: Final = 1
_WINDOW_MAX: Final = (1 << 31) - 1
PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame_of(SETTINGS, 0, 0, b"\0\4" + _WINDOW_MAX.to_bytes(4, "big"))
    + frame_of(WINDOW_UPDATE, 0, 0, (_WINDOW_MAX - 65_535).to_bytes(4, "big"))
)
"""The beginning of a connection with the widest windows."""
_FRAME: Final = 16_384
Ended = Callable[[list[bytes]], None]


class GrpcConnection(asyncio.Protocol):
    """See the module. `metadata` goes with each call."""

    def __init__(self, port: int, metadata: Mapping[str, str]) -> None:
        self._encoder = Encoder()
        self._port = port
        self._metadata = list(metadata.items())
        self._blocks: dict[str, bytes] = {}
        """By path: the header block of one more call, which has numbers of the table alone."""
        self._stream = -1
        self._rest = b""
        self._received = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._ended: dict[int, Ended] = {}
        self._parts: dict[int, bytearray] = {}

    @classmethod
    async def open(cls, port: int, metadata: Mapping[str, str]) -> Self:
        """Connects to a port of this machine."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(port, metadata), "127.0.0.1", port)
        return made

    def close(self) -> None:
        """Ends it, with all of its calls."""
        self._transport.close()

    @property
    def under_way(self) -> int:
        """How many calls are not answered yet."""
        return len(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PREFACE)

    def _head(self, path: str) -> bytes:
        block = self._blocks.get(path)
        if block is not None:
            return block
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", f"127.0.0.1:{self._port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-bench"),
            ("grpc-timeout", "30S"),
            *self._metadata,
        ]
        first, again = (bytes(self._encoder.encode(fields)) for _ in range(2))
        if first != again:
            self._blocks.clear()  # the table has new fields, so others have other numbers
        self._blocks[path] = again
        return first

    def begin(self, path: str, request: bytes, ended: Ended) -> None:
        """Begins a call; `ended` is given its answers when all are there."""
        if self._transport.is_closing():
            raise ConnectionError("the connection has ended")
        self._stream += 2
        stream = self._stream
        self._ended[stream], self._parts[stream] = ended, bytearray()
        data = b"\0" + len(request).to_bytes(4, "big") + request
        out = [frame_of(HEADERS, 0x4, stream, self._head(path))]
        for at in range(0, len(data), _FRAME):
            flags = _ENDS if at + _FRAME >= len(data) else 0
            out.append(frame_of(DATA, flags, stream, data[at : at + _FRAME]))
        self._transport.write(b"".join(out))

    async def call(self, path: str, request: bytes) -> list[bytes]:
        """The answers of a call."""
        future = self._future()
        self.begin(path, request, future.set_result)
        found: list[bytes] = await future
        return found

    async def repeat(self, path: str, request: bytes, count: int, in_flight: int) -> None:
        """Makes a call many times, some of them at a time."""
        future = self._future()
        begun = ended = 0

        def one_more() -> None:
            nonlocal begun
            if begun < count:
                begun += 1
                self.begin(path, request, end)

        def end(_: list[bytes]) -> None:
            nonlocal ended
            ended += 1
            one_more()
            if ended == count:
                future.set_result(None)

        for _ in range(in_flight):
            one_more()
        await future

    def _future(self) -> asyncio.Future[Any]:
        """A future that fails when the connection is lost."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`: a load whose server is gone has no figures."""
        self._ended.clear()
        for future in self._waiting:
            if not future.done():
                future.set_exception(exc or ConnectionError("the server ended the connection"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        frames, used = split_frames(self._rest + data, 1 << 20)
        self._rest = (self._rest + data)[used:]
        for kind, flags, stream, payload, size, _ in frames:
            if kind == DATA:
                self._received += size
                self._parts[stream] += payload
            elif kind == PING and not flags & 1:
                self._transport.write(frame_of(PING, 1, 0, payload))
            elif kind == SETTINGS and not flags & 1:
                self._transport.write(frame_of(SETTINGS, 1, 0, b""))
            if (kind <= HEADERS and flags & _ENDS) or kind == _RESET:
                self._ended.pop(stream)(_messages(self._parts.pop(stream)))
        if self._received > 1 << 24:
            more = self._received.to_bytes(4, "big")
            self._transport.write(frame_of(WINDOW_UPDATE, 0, 0, more))
            self._received = 0


def _messages(data: bytearray) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        found.append(bytes(data[at + 5 : at + 5 + size]))
        at += 5 + size
    return found
