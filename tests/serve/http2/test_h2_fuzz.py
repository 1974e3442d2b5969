"""Whatever bytes a connection is told of, it goes on or ends by GOAWAY, sends whole frames, and
leaves nothing behind.

`make test` tries ten thousand sessions, the same ones each time; `make fuzz` tries a million
others.
"""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import Any, Final

from hpack import Decoder, Encoder

from kvstore.serve.http2.h2_connection import H2Connection
from kvstore.serve.http2.h2_limits import H2Limits
from kvstore.serve.http2.h2_server import H2Server
from tests.core.fuzzing import change
from tests.reference import frames as plain
from tests.support.grpc_serving import ECHO
from tests.support.h2_client import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    frame,
    prefixed,
    settings,
    window,
)

INPUTS: Final = int(os.environ.get("FUZZ_INPUTS", "10000"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "0"))
_LIMITS: Final = H2Limits(
    streams=4, idle_frames=30, resets=5, message_bytes=500, held_bytes=900, unsent_bytes=900,
    stream_window=1000, connection_window=70_000, written_bytes=300, header_list_bytes=400,
)  # fmt: skip


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed, "a closed connection writes"
        self.data += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


def _fields(rng: Random) -> dict[str, str]:
    fields = {
        ":method": rng.choice(("POST", "POST", "POST", "GET")),
        ":scheme": "http",
        ":path": rng.choice((*ECHO, *ECHO, "/none")),
        "content-type": rng.choice(("application/grpc", "application/grpc", "text/html")),
    }
    if rng.random() < 0.2:
        fields["grpc-timeout"] = rng.choice(("1n", "5S", "99999999H", "x"))
    if rng.random() < 0.2:
        fields["content-length"] = rng.choice(("5", "10", "x", "0"))
    if rng.random() < 0.1:
        fields["grpc-encoding"] = rng.choice(("gzip", "br"))
    if rng.random() < 0.1:
        fields["x-long"] = "x" * rng.randint(0, 500)
    return fields


def _headers(rng: Random, encoder: Encoder, stream: int) -> list[bytes]:
    block = encoder.encode([(n.encode(), v.encode()) for n, v in _fields(rng).items()])
    end = rng.choice((0, 0, 0, END_STREAM))
    if rng.random() < 0.8:
        return [frame(HEADERS, END_HEADERS | end, stream, block)]
    at = rng.randint(0, len(block))
    return [
        frame(HEADERS, end, stream, block[:at]),
        frame(CONTINUATION, END_HEADERS, stream, block[at:]),
    ]


def _frames(rng: Random) -> list[bytes]:
    encoder, made, last = Encoder(), list[bytes](), -1
    for _ in range(rng.randint(1, 16)):
        choice = rng.randrange(40) if last > 0 else 0
        stream = rng.randrange(1, last + 1, 2) if rng.random() < 0.4 and last > 0 else last
        if choice < 14:
            last += rng.choice((2, 2, 2, 4))
            made += _headers(rng, encoder, last)
        elif choice < 32:
            message = prefixed(rng.choice((b"", b"9:abc", b"3:" + bytes(300), bytes(600))))
            end = rng.choice((END_STREAM, END_STREAM, 0))
            made.append(frame(DATA, end, stream, message))
        elif choice < 34:
            made.append(window(rng.choice((0, stream)), rng.choice((1, 1000, 5000))))
        elif choice < 36:
            made.append(settings({rng.choice((1, 4, 4, 6, 9)): rng.choice((0, 1, 10, 16384))}))
        elif choice < 38:
            made.append(frame(RST_STREAM, 0, stream, bytes(4)))
        elif choice == 38:
            kind = rng.randrange(12)
            made.append(frame(kind, rng.randrange(256), stream, rng.randbytes(8)))
        else:
            number = rng.choice((1, 2, 3, 4, 5, 6))
            made.append(settings({number: rng.choice((2, 1 << 31, (1 << 31) - 1))}))
    return made


def _session(rng: Random) -> bytes:
    frames = _frames(rng)
    if rng.random() < 0.3:
        at = rng.randrange(len(frames))
        frames[at] = bytes(change(rng, frames[at]))
    first = PREFACE + settings({4: rng.choice((0, 10, 65_535))})
    if rng.random() < 0.05:
        first = bytes(change(rng, first))
    return first + b"".join(frames)


def _check(written: bytes) -> None:
    """Frames are whole and legal, and header blocks can be read in their order."""
    frames, used = plain.split(written, 1 << 20)
    assert used == len(written)
    decoder = Decoder()
    for number, (kind, _, _, payload, _, fault) in enumerate(frames):
        assert fault == 0, frames[number]
        if kind == HEADERS:
            decoder.decode(payload)
        assert kind != GOAWAY or number == len(frames) - 1


async def _tell(server: H2Server, rng: Random, session: bytes) -> None:
    connection, transport = H2Connection(server), Written()
    connection.connection_made(transport)
    at = 0
    while at < len(session) and not transport.is_closed:
        size = rng.choice((1, 9, 100, len(session)))
        part = session[at : at + size]
        at += size
        server.buffer[: len(part)] = part
        connection.buffer_updated(len(part))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if rng.random() < 0.05:
            connection.pause_writing()
        if rng.random() < 0.2:
            connection.resume_writing()
        assert len(connection.calls) <= _LIMITS.streams
    for _ in range(4):
        await asyncio.sleep(0)
    transport.is_closed = False
    _check(bytes(transport.data))
    connection.connection_lost(None)
    assert not connection.calls
    assert not connection.unsent
    assert not connection.held


async def _fuzz(inputs: int, seed: int) -> None:
    server = H2Server(ECHO, _LIMITS)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    for number in range(inputs):
        rng = Random(f"{seed} {number}")
        session = _session(rng)
        try:
            await _tell(server, rng, session)
        except Exception as e:
            raise AssertionError(f"seed {seed}, input {number}: {session!r:.2000}") from e
        assert not faults, f"seed {seed}, input {number}: {faults}"
    await server.close()
    assert not server.connections
    assert len(asyncio.all_tasks()) == 1


def test_any_session_is_answered_by_whole_frames_and_leaves_nothing() -> None:
    asyncio.run(_fuzz(INPUTS, SEED))
