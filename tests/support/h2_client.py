"""A client of HTTP/2 that sends the frames it is told to, for tests.

The package `hpack` encodes its header blocks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self

from hpack import Decoder, Encoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8

PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
REFUSED_STREAM: Final = 7
ENHANCE_YOUR_CALM: Final = 11
_PATIENCE: Final = 20.0


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == RST_STREAM else self.payload[4:8])


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(values: dict[int, int]) -> bytes:
    payload = b"".join(n.to_bytes(2, "big") + v.to_bytes(4, "big") for n, v in values.items())
    return frame(SETTINGS, payload=payload)


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def prefixed(message: bytes, *, is_compressed: bool = False) -> bytes:
    return bytes((is_compressed,)) + len(message).to_bytes(4, "big") + message


class Answer(NamedTuple):
    """One stream's answer: all its fields, and its bytes."""

    fields: dict[str, str]
    data: bytes

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at + 1 : at + 5])
            found.append(self.data[at + 5 : at + 5 + size])
            at += 5 + size
        return found


class RawClient:
    """A connection. It answers nothing by itself."""

    def __init__(self, port: int, values: dict[int, int] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        self.encoder = Encoder()
        self._decoder = Decoder(max_header_list_size=1 << 20)
        # SETTINGS_HEADER_TABLE_SIZE: larger tables of the server are an error.
        self._decoder.max_allowed_table_size = (values or {}).get(1, 4096)
        self._rest = b""
        self.send(PREFACE, settings(values or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def frames(self) -> Iterator[Frame]:
        """Frames as they come, until the server ends the connection."""
        while True:
            while len(self._rest) >= 9:
                size = int.from_bytes(self._rest[:3])
                if len(self._rest) < 9 + size:
                    break
                stream = int.from_bytes(self._rest[5:9])
                payload = self._rest[9 : 9 + size]
                found = Frame(self._rest[3], self._rest[4], stream, payload)
                self._rest = self._rest[9 + size :]
                yield found
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            if not more:
                return
            self._rest += more

    def until(self, is_wanted: Callable[[Frame], bool]) -> Frame:
        """The next frame that is wanted. The others are passed over, but their headers are read."""
        for found in self.frames():
            if found.kind == HEADERS and not is_wanted(found):
                self.decode(found.payload)
            if is_wanted(found):
                return found
        raise AssertionError("the connection ended before")

    def until_kind(self, kind: int) -> Frame:
        return self.until(lambda found: found.kind == kind and not (kind == PING and found.flags))

    def decode(self, block: bytes) -> dict[str, str]:
        raw = self._decoder.decode(block, raw=True)
        return {bytes(name).decode(): bytes(value).decode("latin-1") for name, value in raw}

    def answer(self, stream: int) -> Answer:
        """The answer of a stream, to its end."""
        fields: dict[str, str] = {}
        data = b""
        for found in self.frames():
            block = self.decode(found.payload) if found.kind == HEADERS else {}
            if found.stream != stream:
                continue
            assert found.kind in (HEADERS, DATA, WINDOW_UPDATE), found
            fields |= block
            data += found.payload if found.kind == DATA else b""
            if found.kind in (HEADERS, DATA) and found.flags & END_STREAM:
                return Answer(fields, data)
        raise AssertionError("the connection ended before")

    def block(self, path: str, more: dict[str, str] | None = None) -> bytes:
        """A header block of a call."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "here",
            "te": "trailers",
            "content-type": "application/grpc",
            **(more or {}),
        }
        return self.encoder.encode([(n.encode(), v.encode("latin-1")) for n, v in fields.items()])

    def call(
        self, stream: int, path: str, message: bytes, more: dict[str, str] | None = None
    ) -> bytes:
        """The frames of a call with one request."""
        data = prefixed(message)
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
        return frame(HEADERS, END_HEADERS, stream, self.block(path, more)) + b"".join(
            frame(DATA, END_STREAM * (number == len(pieces)), stream, piece)
            for number, piece in enumerate(pieces, 1)
        )
