"""Connections frame by frame: the order of HTTP/2, both windows, and each limit."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Final

import pytest

from kvstore.serve.http2.grpc_call import Bidirectional, Call, Gathered, Unary
from kvstore.serve.http2.grpc_status import Code
from kvstore.serve.http2.h2_limits import H2Limits
from tests.support.grpc_serving import ECHO, Serving, serving
from tests.support.h2_client import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    frame,
    prefixed,
    settings,
    window,
)
from tests.support.waiting import until

ONE: Final = "/test.Echo/One"
ALL: Final = "/test.Echo/All"
REPEAT: Final = "/test.Echo/Repeat"
TALK: Final = "/test.Echo/Talk"
INITIAL_WINDOW: Final = 4


@pytest.fixture(scope="module")
def echo() -> Iterator[Serving]:
    with serving(ECHO) as made:
        yield made


@pytest.fixture
def client(echo: Serving) -> Iterator[RawClient]:
    with RawClient(echo.port) as made:
        yield made


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_client_with_a_small_header_table_reads_all_answers(echo: Serving, size: int) -> None:
    with RawClient(echo.port, {1: size}) as client:
        client.send(client.call(1, "/nowhere", b"x"), client.call(3, ONE, b"one"))
        assert client.answer(1).fields["grpc-status"] == str(int(Code.UNIMPLEMENTED))
        assert client.answer(3).messages == [b"one"]
        client.send(client.call(5, ONE, b"two", {":method": "GET"}))
        assert client.answer(5).fields[":status"] == "405"


# --- the order of things ---


def test_the_server_begins_with_its_settings_and_answers_those_of_the_client(
    client: RawClient,
) -> None:
    first = client.until(lambda found: True)
    assert (first.kind, first.flags, len(first.payload)) == (SETTINGS, 0, 18)
    assert client.until_kind(SETTINGS).flags == ACK


def test_a_ping_is_answered_with_its_own_bytes(client: RawClient) -> None:
    client.send(frame(PING, payload=b"12345678"))
    assert client.until(lambda f: f.kind == PING) == (PING, ACK, 0, b"12345678")


def test_no_http_2_is_answered_by_goaway(echo: Serving) -> None:
    with socket.create_connection(("127.0.0.1", echo.port), timeout=20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"this is no HTTP/2" in b"".join(iter(lambda: plain.recv(100), b""))


def test_a_client_that_sends_other_frames_before_its_settings_is_refused(echo: Serving) -> None:
    with socket.create_connection(("127.0.0.1", echo.port), timeout=20) as plain:
        plain.sendall(PREFACE + frame(PING, payload=bytes(8)))
        assert b"SETTINGS must come first" in b"".join(iter(lambda: plain.recv(100), b""))


def test_header_blocks_in_pieces_padding_and_trailers_are_read(client: RawClient) -> None:
    block = client.block(ONE)
    data = bytes((7,)) + prefixed(b"message") + bytes(7)
    client.send(
        frame(HEADERS, PADDED, 1, bytes((3,)) + block[:1] + bytes(3)),
        *(frame(CONTINUATION, 0, 1, block[n : n + 1]) for n in range(1, len(block))),
        frame(CONTINUATION, END_HEADERS, 1),
        frame(DATA, PADDED, 1, data),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, client.encoder.encode([(b"x-sum", b"1")])),
    )
    found = client.answer(1)
    assert found.messages == [b"message"]
    assert found.fields == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "0",
    }


def test_bytes_may_come_one_by_one(client: RawClient) -> None:
    for byte in client.call(1, ONE, b"slowly"):
        client.send(bytes((byte,)))
    assert client.answer(1).messages == [b"slowly"]


def test_priority_and_unknown_frames_are_passed_over(client: RawClient) -> None:
    client.send(frame(PRIORITY, 0, 1, bytes(5)), frame(0x77, 9, 3, b"what"))
    client.send(client.call(1, ONE, b"x"))
    assert client.answer(1).messages == [b"x"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({":method": "GET"}, "405"),
        ({"content-type": "text/html"}, "415"),
        ({"content-type": "application/grpc-web"}, "415"),
        ({"x-long": "x" * 33_000}, "431"),
    ],
)
def test_other_requests_get_a_status_of_http_and_a_text(
    client: RawClient, more: dict[str, str], status: str
) -> None:
    block = client.block(ONE, more)
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    client.send(frame(HEADERS, END_STREAM | (END_HEADERS * (len(pieces) == 1)), 1, pieces[0]))
    for number, piece in enumerate(pieces[1:], 2):
        client.send(frame(CONTINUATION, END_HEADERS * (number == len(pieces)), 1, piece))
    found = client.answer(1)
    assert found.fields[":status"] == status
    assert found.data
    client.send(client.call(3, ONE, b"next"))
    assert client.answer(3).messages == [b"next"]


@pytest.mark.parametrize(
    ("more", "message", "code"),
    [
        ({"grpc-encoding": "br"}, prefixed(b""), Code.UNIMPLEMENTED),
        ({"grpc-timeout": "soon"}, prefixed(b""), Code.INTERNAL),
        ({}, b"", Code.INTERNAL),
        ({}, prefixed(b"cut")[:-1], Code.INTERNAL),
        ({}, prefixed(b"") * 2, Code.INTERNAL),
        ({}, prefixed(b"x", is_compressed=True), Code.INTERNAL),
        ({"grpc-encoding": "gzip"}, prefixed(b"x", is_compressed=True), Code.INTERNAL),
        (
            {"grpc-encoding": "gzip"},
            prefixed(gzip.compress(b"cut", mtime=0)[:-9], is_compressed=True),
            Code.INTERNAL,
        ),
        (
            {"grpc-encoding": "gzip"},
            prefixed(zlib.compress(bytes(9 << 20), wbits=31), is_compressed=True),
            Code.RESOURCE_EXHAUSTED,
        ),
        ({}, b"\0\xff\xff\xff\xff", Code.RESOURCE_EXHAUSTED),
        ({"content-length": "5"}, prefixed(b""), Code.OK),
    ],
)
def test_each_wrong_request_has_its_code(
    client: RawClient, more: dict[str, str], message: bytes, code: Code
) -> None:
    client.send(
        frame(HEADERS, END_HEADERS, 1, client.block(ONE, more)),
        frame(DATA, END_STREAM, 1, message),
    )
    assert client.answer(1).fields["grpc-status"] == str(int(code))


def test_a_call_that_fails_before_its_request_is_whole_is_told_that_nobody_reads(
    client: RawClient,
) -> None:
    client.send(frame(HEADERS, END_HEADERS, 1, client.block("/test.Echo/None")))
    assert client.answer(1).fields["grpc-status"] == str(int(Code.UNIMPLEMENTED))
    assert client.until_kind(RST_STREAM).code == 0
    client.send(frame(DATA, END_STREAM, 1, b"late"), client.call(3, ONE, b"next"))
    assert client.answer(3).messages == [b"next"]


# --- gathering ---


def test_calls_of_one_turn_are_handed_on_together_and_answered_by_one_write() -> None:
    batches: list[int] = []

    def count(calls: list[Call]) -> None:
        batches.append(len(calls))
        for call in calls:
            call.finish(b"x")

    with serving({ALL: Gathered(count)}) as made, RawClient(made.port) as client:
        client.until_kind(SETTINGS)
        client.send(*(client.call(1 + 2 * n, ALL, b"") for n in range(50)))
        for n in range(50):
            assert client.answer(1 + 2 * n).messages == [b"x"]
    assert batches == [50]


def test_a_gathered_call_may_be_answered_later() -> None:
    kept: list[Call] = []
    with serving({ALL: Gathered(kept.extend)}) as made, RawClient(made.port) as client:
        client.send(client.call(1, ALL, b""))
        until(lambda: kept)
        made.loop.call_soon_threadsafe(kept[0].send, b"first")
        made.loop.call_soon_threadsafe(kept[0].finish, b"last")
        made.loop.call_soon_threadsafe(kept[0].finish, b"too late")
        assert client.answer(1).messages == [b"first", b"last"]


# --- windows ---


def test_no_more_is_sent_than_the_windows_allow(echo: Serving) -> None:
    with RawClient(echo.port, {INITIAL_WINDOW: 10}) as client:
        client.send(client.call(1, ONE, b"x" * 95))
        assert len(client.until_kind(DATA).payload) == 10
        client.send(window(1, 20))
        assert len(client.until_kind(DATA).payload) == 20
        client.send(settings({INITIAL_WINDOW: 0}), settings({INITIAL_WINDOW: 15}))
        assert len(client.until_kind(DATA).payload) == 5
        client.send(window(1, 1000))
        assert len(client.until_kind(DATA).payload) == 65
        assert client.until_kind(HEADERS).flags & END_STREAM


def test_the_connections_window_bounds_all_streams(echo: Serving) -> None:
    with RawClient(echo.port, {INITIAL_WINDOW: 1 << 20}) as client:
        client.send(client.call(1, REPEAT, b"9:" + b"x" * 20_000))
        got = 0
        while got < 65_535:
            got += len(client.until_kind(DATA).payload)
        client.send(frame(PING, payload=bytes(8)))
        assert client.until(lambda f: f.kind in (DATA, PING)).kind == PING
        client.send(window(0, 1 << 20))
        assert client.until_kind(DATA).payload


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ((window(0, (1 << 31) - 1),), FLOW_CONTROL_ERROR),
        ((settings({INITIAL_WINDOW: 1 << 31}),), FLOW_CONTROL_ERROR),
        ((settings({2: 2}),), PROTOCOL_ERROR),
        ((settings({5: 100}),), PROTOCOL_ERROR),
        ((window(5, 1),), PROTOCOL_ERROR),
        ((frame(RST_STREAM, 0, 5, bytes(4)),), PROTOCOL_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it_with_its_code(
    client: RawClient, frames: tuple[bytes, ...], code: int
) -> None:
    client.send(*frames)
    assert client.until_kind(GOAWAY).code == code
    assert not list(client.frames())


def test_more_data_than_a_streams_window_ends_the_stream() -> None:
    async def never(call: Call, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(1000)
        yield b""

    with (
        serving({TALK: Bidirectional(never)}, H2Limits(stream_window=30_000)) as made,
        RawClient(made.port) as client,
    ):
        client.send(frame(HEADERS, END_HEADERS, 1, client.block(TALK)))
        client.send(frame(DATA, 0, 1, prefixed(bytes(9_995))) * 3)
        client.send(frame(PING, payload=bytes(8)))
        while (found := client.until(lambda f: f.kind in (WINDOW_UPDATE, PING))).kind != PING:
            assert found.stream == 0, "the handler has taken nothing"
        client.send(frame(DATA, 0, 1, prefixed(b"")))
        assert client.until_kind(RST_STREAM).code == FLOW_CONTROL_ERROR


def test_a_handler_that_takes_requests_lets_the_client_send_more() -> None:
    with (
        serving(ECHO, H2Limits(stream_window=30_000)) as made,
        RawClient(made.port, {INITIAL_WINDOW: 1 << 30}) as client,
    ):
        client.send(frame(HEADERS, END_HEADERS, 1, client.block(TALK)), window(0, 1 << 30))
        for _ in range(20):
            client.send(frame(DATA, 0, 1, prefixed(bytes(14_995))))
            client.until(lambda f: f.kind == WINDOW_UPDATE and f.stream == 1)
        client.send(frame(DATA, END_STREAM, 1))
        assert client.answer(1).fields["grpc-status"] == "0"


# --- limits ---


def endless(made: Callable[[], bytes]) -> Callable[[RawClient], Iterator[bytes]]:
    return lambda client: iter(made, b"")


def _taken_back(client: RawClient) -> Iterator[bytes]:
    for stream in range(1, 1 << 20, 2):
        yield frame(HEADERS, END_HEADERS, stream, client.block(ONE))
        yield frame(RST_STREAM, 0, stream, bytes(4))


def _continued(client: RawClient) -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, client.block(ONE))
    while True:
        yield frame(CONTINUATION, 0, 1, b"\x00\x01a" + b"\x7f\x01" + b"x" * 128)


def _continued_by_nothing(client: RawClient) -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, client.block(ONE))
    while True:
        yield frame(CONTINUATION, 0, 1)


def _empty(client: RawClient) -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, client.block(ONE))
    while True:
        yield frame(DATA, 0, 1)


def _malformed(client: RawClient) -> Iterator[bytes]:
    for stream in range(1, 1 << 20, 2):
        yield frame(HEADERS, END_HEADERS, stream, client.block(ONE, {"Upper": "x"}))


@pytest.mark.parametrize(
    "flood",
    [
        endless(lambda: frame(PING, payload=bytes(8))),
        endless(lambda: settings({})),
        endless(lambda: frame(PRIORITY, 0, 1, bytes(5))),
        endless(lambda: frame(PRIORITY, 0, 1, bytes(4))),
        endless(lambda: window(0, 1)),
        endless(lambda: frame(0x50)),
        _taken_back,
        _continued,
        _continued_by_nothing,
        _empty,
        _malformed,
    ],
    ids=[
        "ping", "settings", "priority", "broken priority", "window", "unknown", "rapid reset",
        "continuation", "empty continuation", "empty data", "malformed",
    ],
)  # fmt: skip
def test_a_flood_ends_its_connection_alone(
    echo: Serving, flood: Callable[[RawClient], Iterator[bytes]]
) -> None:
    with RawClient(echo.port) as other, RawClient(echo.port) as client:
        frames = flood(client)
        ends: list[int] = []
        reader = threading.Thread(
            target=lambda: ends.extend(f.code for f in client.frames() if f.kind == GOAWAY)
        )
        reader.start()
        try:
            while not ends:
                client.send(*(next(frames) for _ in range(500)))
        except (BrokenPipeError, ConnectionResetError):
            pass
        reader.join()
        # A reset by the kernel may overtake GOAWAY.
        assert ends in ([], [ENHANCE_YOUR_CALM])
        other.send(other.call(1, ONE, b"still here"))
        assert other.answer(1).messages == [b"still here"]


def test_a_header_block_above_the_limit_ends_the_connection_before_it_is_whole(
    client: RawClient,
) -> None:
    client.send(frame(HEADERS, 0, 1, client.block(ONE)))
    client.send(*[frame(CONTINUATION, 0, 1, bytes(16_000))] * 5)
    ended = client.until_kind(GOAWAY)
    assert (ended.code, ended.payload[8:]) == (ENHANCE_YOUR_CALM, b"a header block is too large")


def test_one_call_more_than_allowed_is_refused() -> None:
    kept: list[Call] = []
    with (
        serving({ALL: Gathered(kept.extend)}, H2Limits(streams=2)) as made,
        RawClient(made.port) as client,
    ):
        client.send(*(client.call(stream, ALL, b"") for stream in (1, 3, 5)))
        refused = client.until_kind(RST_STREAM)
        assert (refused.stream, refused.code) == (5, REFUSED_STREAM)
        until(lambda: len(kept) == 2)
        made.loop.call_soon_threadsafe(kept[0].finish, b"")
        assert client.answer(1).messages == [b""]
        client.send(client.call(7, ALL, b""))
        until(lambda: len(kept) == 3)


def test_requests_that_are_not_whole_are_bounded() -> None:
    with (
        serving(ECHO, H2Limits(held_bytes=40_000)) as made,
        RawClient(made.port) as client,
    ):
        for stream in (1, 3, 5):
            client.send(frame(HEADERS, END_HEADERS, stream, client.block(ONE)))
            client.send(frame(DATA, 0, stream, prefixed(bytes(20_000))[:16_000]))
        assert client.answer(5).fields["grpc-status"] == str(int(Code.RESOURCE_EXHAUSTED))
        client.send(frame(DATA, END_STREAM, 1, bytes(4_005)))
        assert client.answer(1).messages == [bytes(20_000)]


def test_requests_of_all_clients_that_are_not_whole_are_bounded_and_the_most_go() -> None:
    with (
        serving(ECHO, H2Limits(all_held_bytes=40_000)) as made,
        RawClient(made.port) as one,
        RawClient(made.port) as other,
        RawClient(made.port) as third,
    ):
        for client, size in ((one, 12_000), (other, 16_000), (third, 15_000)):
            client.send(frame(HEADERS, END_HEADERS, 1, client.block(ONE)))
            client.send(frame(DATA, 0, 1, prefixed(bytes(20_000))[:size]))
            if client is not third:
                client.send(frame(PING, payload=bytes(8)))
                client.until(lambda f: f.kind == PING)
        assert other.until_kind(GOAWAY).code == ENHANCE_YOUR_CALM
        for client, size in ((one, 12_000), (third, 15_000)):
            client.send(frame(DATA, 0, 1, prefixed(bytes(20_000))[size : size + 6000]))
            client.send(frame(DATA, END_STREAM, 1, prefixed(bytes(20_000))[size + 6000 :]))
            assert client.answer(1).messages == [bytes(20_000)]


def test_a_client_that_reads_nothing_is_sent_little_and_holds_up_nobody() -> None:
    made_of = 100
    limits = H2Limits(unsent_bytes=1 << 20, stall_seconds=2.0)
    with serving(ECHO, limits) as made, RawClient(made.port, {INITIAL_WINDOW: 1 << 30}) as slow:
        slow.send(window(0, 1 << 30))
        for n in range(made_of):
            slow.send(slow.call(1 + 2 * n, REPEAT, b"1000:" + bytes(50_000)))
        [connection] = list(made.server.connections)
        with RawClient(made.port) as other:
            other.send(other.call(1, ONE, b"quick"))
            assert other.answer(1).messages == [b"quick"]
            # Each stream has one message beyond the bytes up to which it goes on.
            until(lambda: connection.unsent > limits.unsent_bytes)
            assert connection.unsent < made_of * (64 * 1024 + 50_005)
            until(lambda: len(made.server.connections) == 1)
            assert connection.unsent == 0


def test_answers_that_nobody_takes_have_new_calls_refused() -> None:
    limits = H2Limits(unsent_bytes=100_000)
    with serving(ECHO, limits) as made, RawClient(made.port, {INITIAL_WINDOW: 0}) as slow:
        for stream in (1, 3, 5, 7):
            slow.send(slow.call(stream, ONE, bytes(40_000 if stream < 7 else 0)))
            slow.send(frame(PING, payload=bytes(8)))
            slow.until(lambda f: f.kind in (PING, RST_STREAM))
        slow.send(slow.call(9, ONE, b""))
        assert slow.until_kind(RST_STREAM).code == REFUSED_STREAM


@pytest.mark.parametrize(
    "begun",
    [b"", PREFACE[:10], PREFACE, PREFACE + settings({}) + frame(HEADERS, 0, 1, b"\x82")],
    ids=["nothing", "part of a preface", "a preface", "part of a header block"],
)
def test_a_client_that_does_not_go_on_is_cut_off(begun: bytes) -> None:
    with (
        serving(ECHO, H2Limits(first_seconds=0.3)) as made,
        socket.create_connection(("127.0.0.1", made.port), timeout=20) as client,
    ):
        client.sendall(begun)
        try:
            while client.recv(1000):
                pass
        except ConnectionResetError:
            pass
        until(lambda: not made.server.connections)


def test_a_client_that_begins_tls_and_stops_is_cut_off() -> None:
    with (
        serving(ECHO, H2Limits(first_seconds=0.3)) as made,
        socket.create_connection(("127.0.0.1", made.port), timeout=20) as client,
    ):
        client.sendall(b"\x16\x03\x01")
        assert b"this is no HTTP/2" in b"".join(iter(lambda: client.recv(100), b""))


# --- leaving ---


def test_a_server_that_drains_says_so_and_which_calls_are_the_last() -> None:
    kept: list[Call] = []
    with serving({ALL: Gathered(kept.extend)}) as made, RawClient(made.port) as client:
        client.send(client.call(1, ALL, b""))
        until(lambda: kept)
        drained = asyncio.run_coroutine_threadsafe(made.server.drain(20), made.loop)
        assert client.until_kind(GOAWAY).payload == (2**31 - 1).to_bytes(4, "big") + bytes(4)
        ping = client.until_kind(PING)
        client.send(client.call(3, ALL, b""), frame(PING, ACK, 0, ping.payload))
        assert client.until_kind(GOAWAY).payload == (3).to_bytes(4, "big") + bytes(4)
        client.send(client.call(5, ALL, b""))
        assert client.until_kind(RST_STREAM).code == REFUSED_STREAM
        until(lambda: len(kept) == 2)
        for call in kept:
            made.loop.call_soon_threadsafe(call.finish, b"done")
        assert client.answer(1).messages == [b"done"]
        assert client.answer(3).messages == [b"done"]
        assert not list(client.frames())
        drained.result(20)


def test_a_server_that_has_drained_long_enough_cuts_the_rest_off() -> None:
    kept: list[Call] = []
    with serving({ALL: Gathered(kept.extend)}) as made, RawClient(made.port) as client:
        client.send(client.call(1, ALL, b""))
        until(lambda: kept)
        made.run(made.server.drain(0.1))
        assert client.answer(1).fields["grpc-status"] == str(int(Code.UNAVAILABLE))


def test_a_handler_that_ignores_its_end_sends_nothing_more() -> None:
    is_over = threading.Event()

    async def stubborn(call: Call, request: bytes) -> bytes:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            call.send(b"late")
            call.finish(b"late")
            await call.drain()
            is_over.set()
        return b"late"

    with serving({ONE: Unary(stubborn)}) as made, RawClient(made.port) as client:
        client.send(client.call(1, ONE, b""), frame(PING, payload=bytes(8)))
        client.until(lambda f: f.kind == PING)
        client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        assert is_over.wait(20)
        client.send(frame(PING, payload=bytes(8)))
        assert client.until(lambda f: f.kind in (PING, DATA, HEADERS)).kind == PING
