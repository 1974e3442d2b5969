"""Frames that lie, are cut, or say nothing: the server answers with a goodbye and serves others."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import FormatError, Message, ServedStore, Store, StoreError
from kvstore.wire.frames import (
    BYE,
    CANCEL,
    EVENT,
    FAILURE,
    GOODBYE,
    HELLO,
    LENGTH,
    NAME,
    RECEIVED,
    REPLY,
    REQUEST,
    REQUEST_MAX,
    VERSION,
    WELCOME,
    FrameReader,
    elements,
    frame,
    framed,
    request_parts,
)
from kvstore.wire.values import read_arguments, read_batch
from tests.support.served import ServerThread

SESSION = bytes(range(16))
HELLO_FRAME = framed(HELLO, NAME, VERSION, SESSION, 0, None)


class Raw:
    """A client that sends any bytes."""

    def __init__(self, server: ServerThread) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(Path(server.url.removeprefix("kvmq+unix://"))))
        self._reader = FrameReader(1 << 30)
        self._bodies: list[bytes] = []

    def send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def next(self) -> list[Any]:
        """The next frame; none if the server has closed the connection."""
        while not self._bodies:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return []
            self._bodies += self._reader.feed(data)
        found = msgspec.msgpack.decode(self._bodies.pop(0))
        assert isinstance(found, list)
        return found

    def goodbye(self) -> tuple[str, str]:
        """The name and the text of the error that ends the connection."""
        while found := self.next():
            if found[0] == GOODBYE and len(found) == 2:
                assert self.next() == []
                return found[1][0][0], found[1][1]
        raise AssertionError("it ended without a goodbye")


@pytest.fixture
def raw(server: ServerThread) -> Iterator[Raw]:
    client = Raw(server)
    yield client
    client.socket.close()


def request(number: int, method: str, *given: Any, **named: Any) -> bytes:
    return framed(REQUEST, number, method, list(given), named, False)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "FormatError"),
        (bytes(4), "FormatError"),
        (LENGTH.pack(1 << 31), "FormatError"),
        (LENGTH.pack(4097), "FormatError"),
        (frame(b"\xc1"), "FormatError"),
        (frame(b"\x91" * 900), "FormatError"),
        (frame(b"\xdd\xff\xff\xff\xff"), "FormatError"),
        (framed(1, 2, 3), "ProtocolMismatch"),
        (framed("hello"), "FormatError"),
        (framed(HELLO, "other", VERSION, SESSION, 0), "ProtocolMismatch"),
        (framed(HELLO, NAME, VERSION + 1, SESSION, 0), "ProtocolMismatch"),
        (framed(HELLO, NAME, VERSION, b"short", 0, None), "FormatError"),
        (framed(HELLO, NAME, VERSION, SESSION, "x", None), "FormatError"),
        (request(1, "topics"), "ProtocolMismatch"),
        (HELLO_FRAME + LENGTH.pack(REQUEST_MAX + 1), "FormatError"),
        (HELLO_FRAME + framed(9), "FormatError"),
        (HELLO_FRAME + framed(RECEIVED, 5), "FormatError"),
        (HELLO_FRAME + framed(RECEIVED, -1), "FormatError"),
        (HELLO_FRAME + framed(CANCEL, "x"), "FormatError"),
        (HELLO_FRAME + framed(REQUEST, 1, "topics"), "FormatError"),
        (HELLO_FRAME + framed(REQUEST, 0, "topics", [], {}, False), "FormatError"),
        (HELLO_FRAME + framed(REQUEST, "1", "topics", [], {}, False), "FormatError"),
        (HELLO_FRAME + framed(REQUEST, 1, "topics", [], {}, 7), "FormatError"),
        (HELLO_FRAME + HELLO_FRAME, "FormatError"),
        (HELLO_FRAME + framed(RECEIVED, b"x" * (1 << 17)), "FormatError"),
    ],
)
def test_what_is_no_protocol_gets_a_goodbye_and_others_are_served_on(
    raw: Raw, client: ServedStore, data: bytes, error: str
) -> None:
    raw.send(data)
    name, text = raw.goodbye()
    assert name == error
    assert text
    assert [t.name for t in client.topics()] == ["t"]


def test_the_error_for_another_version_says_both(raw: Raw) -> None:
    raw.send(framed(HELLO, NAME, 99, SESSION, 0))
    found = raw.next()
    assert found[1][2] == {"found": 99, "supported": VERSION}


@pytest.mark.parametrize(
    ("method", "given", "error"),
    [
        ("no_such_call", [], "CallerError"),
        ("__init__", [], "CallerError"),
        ("_say_served", ["x"], "CallerError"),
        ("close", [], "CallerError"),
        ("topics", [1, 2, 3], "TypeError"),
        ("put_batch", [], "TypeError"),
        ("put_batch", [5], "FormatError"),
        ("put_batch", [[5]], "MessageIllegal"),
        ("put_batch", [[["t"]]], "FormatError"),
        ("pop", ["g"], "TypeError"),
        ("ack_batch", ["x"], "CallerError"),
        ("on_check", [], "ValueError"),
        ("on_check", [5], "MessageIllegal"),
        ("answer", [1], "ValueError"),
    ],
)
def test_a_request_that_is_none_fails_alone(
    raw: Raw, method: str, given: list[Any], error: str
) -> None:
    raw.send(HELLO_FRAME + request(1, method, *given) + request(2, "topics"))
    assert raw.next()[0] == WELCOME
    answers = {found[1]: found for found in (raw.next(), raw.next())}
    assert answers[1][0] == FAILURE
    assert error in answers[1][2][0]
    assert answers[2][0] == REPLY


def test_arguments_that_can_not_be_read_fail_their_request(raw: Raw) -> None:
    bad = frame(b"\x96\x01\x01\xa6topics" + b"\x91\xd4\x63\x01" + b"\x80" + b"\xc2")
    raw.send(HELLO_FRAME + bad + request(2, "topics"))
    raw.next()
    answers = {found[1]: found for found in (raw.next(), raw.next())}
    assert (answers[1][0], answers[1][2][0][0]) == (FAILURE, "FormatError")
    assert answers[2][0] == REPLY


def test_a_request_that_was_made_is_not_made_again(raw: Raw, store: Store) -> None:
    put = request(1, "put_batch", [["t", b"x", 0, None, [], {}, None, 0, "ID"]])
    raw.send(HELLO_FRAME + put + put + put + request(2, "flush"))
    raw.next()
    assert [raw.next()[1], raw.next()[1]] in ([1, 2], [2, 1])
    assert store.bounds("t", 0) == (0, 1)


def test_a_bye_ends_the_connection(raw: Raw) -> None:
    raw.send(HELLO_FRAME + framed(BYE))
    assert raw.next()[0] == WELCOME
    assert raw.next() == []


def test_a_client_that_reads_nothing_is_not_read_from_either(raw: Raw, client: ServedStore) -> None:
    client.put_batch([Message("t", bytes(60_000), queue=0) for _ in range(8)])
    pull = [request(n, "pull", "t", 0, 0, 8) for n in range(1, 3000)]
    raw.send(HELLO_FRAME)
    raw.socket.settimeout(1)
    sent = 0
    with contextlib.suppress(TimeoutError):
        for one in pull * 20:
            raw.socket.sendall(one)
            sent += 1
    assert sent < len(pull) * 20
    assert client.bounds("t", 0) == (0, 8)


def test_a_checker_that_answers_nonsense_counts_as_unknown(raw: Raw, store: Store) -> None:
    raw.send(HELLO_FRAME + request(1, "on_check", "pay") + request(2, "answer", 1, 7, "x"))
    raw.next()
    kinds = {(found[0], found[1]) for found in (raw.next(), raw.next())}
    assert kinds == {(EVENT, 1), (REPLY, 2)}
    raw.send(framed(CANCEL, 1))
    assert raw.next()[:2] == [REPLY, 1]


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8), st.randoms())
def test_frames_are_found_however_the_stream_is_cut(
    bodies: list[bytes], cuts: random.Random
) -> None:
    stream = b"".join(frame(body) for body in bodies)
    reader, found, at = FrameReader(200), list[bytes](), 0
    while at < len(stream):
        step = cuts.randrange(1, 50)
        found += reader.feed(stream[at : at + step])
        at += step
    assert found == bodies


@given(st.binary(max_size=400))
def test_any_bytes_are_elements_and_arguments_or_a_format_error(data: bytes) -> None:
    for read in (elements, request_parts, read_arguments, read_batch):
        with contextlib.suppress(FormatError):
            read(data)
        with contextlib.suppress(StoreError):
            read(b"\x96\x01" + data)


def test_bytes_at_random_end_no_server(server: ServerThread, client: ServedStore) -> None:
    noise = random.Random(3)
    good = HELLO_FRAME + request(1, "put_batch", [["t", b"x"]]) + request(2, "pop", "g", "t")
    for _ in range(150):
        data = bytearray(good)
        for _ in range(noise.randrange(1, 6)):
            data[noise.randrange(len(data))] = noise.randrange(256)
        raw = Raw(server)
        raw.send(bytes(data[: noise.randrange(len(data))] if noise.random() < 0.3 else data))
        raw.socket.close()
    assert client.topic("t").name == "t"
