"""Clients of the local protocol that do not mean well: they cost their own memory, for a time.

Named here: HELD_MAX, LOST_MAX, UNFINISHED_MAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import ConnectionLost, Message, ServedStore, Store
from kvstore.files import LocalFiles
from kvstore.serve import connection_watch, local_connection, local_door, sessions
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.replies import reply_room
from kvstore.wire.addresses import Address
from kvstore.wire.frames import HELLO, LENGTH, NAME, VERSION, framed
from tests.serve.test_frames import HELLO_FRAME, Raw, request
from tests.support.certificates import make_certificate
from tests.support.served import ServerThread, serving
from tests.support.waiting import until

BODY = bytes(60_000)


@pytest.fixture
def raw(server: ServerThread) -> Iterator[Raw]:
    client = Raw(server)
    yield client
    client.socket.close()


def is_cut_off(client: socket.socket) -> bool:
    """Whether the server has closed a connection, after all that the client reads now."""
    client.settimeout(5)
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass
    return True


def test_a_client_that_reads_nothing_is_cut_off_in_time_and_others_are_served(
    raw: Raw, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "STALLED_AFTER", 0.1)
    client.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
    raw.send(HELLO_FRAME + b"".join(request(n, "pull", "t", 0, 0, 8) for n in range(1, 50)))
    # Its connection goes while it still reads nothing: a write to it fails.
    raw.socket.settimeout(20)

    def is_closed() -> bool:
        try:
            raw.socket.send(request(99, "topics"))
        except OSError:
            return True
        return client.bounds("t", 0).next_offset != 8

    until(is_closed)
    assert client.bounds("t", 0) == (0, 8)


def test_a_client_that_reads_slowly_but_reads_is_served(
    raw: Raw, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "STALLED_AFTER", 10.0)
    client.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
    raw.send(HELLO_FRAME + b"".join(request(n, "pull", "t", 0, 0, 8) for n in range(1, 20)))
    assert raw.next()[0] == 0
    assert {raw.next()[1] for _ in range(19)} == set(range(1, 20))


def test_frames_that_come_byte_by_byte_are_requests_like_others(raw: Raw, store: Store) -> None:
    for byte in HELLO_FRAME + request(1, "put_batch", [["t", b"x", 0]]):
        raw.socket.send(bytes([byte]))
    assert raw.next()[0] == 0
    assert raw.next()[:2] == [1, 1]
    assert store.bounds("t", 0) == (0, 1)


def test_a_frame_that_never_ends_is_refused_in_time(
    raw: Raw, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "FRAME_WITHIN", 0.1)
    raw.send(HELLO_FRAME + LENGTH.pack(1 << 20) + bytes(100))
    assert raw.next()[0] == 0
    name, text = raw.goodbye()
    assert name == "FormatError"
    assert "did not come within" in text
    assert client.topic("t").name == "t"


def test_unfinished_frames_are_bounded_and_the_largest_goes(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_watch, "UNFINISHED_MAX", 100_000)
    clients = [Raw(server) for _ in range(3)]
    put = request(1, "put_batch", [["t", BODY, 0]])
    for n, (raw, part) in enumerate(zip(clients, (30_000, 45_000, 40_000), strict=True)):
        raw.send(framed(HELLO, NAME, VERSION, bytes(15) + bytes([n]), 0, None) + put[:part])
        assert raw.next()[0] == 0
        client.topics()
    assert clients[1].goodbye()[0] == "StoreBusy"
    for raw, part in ((clients[0], 30_000), (clients[2], 40_000)):
        raw.send(put[part:])
        assert raw.next()[:2] == [1, 1]
    for raw in clients:
        raw.socket.close()


def stuffed(server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch) -> Raw:
    """A client that reads nothing of a reply which its socket can't hold, and is read from."""
    monkeypatch.setattr(local_connection, "_WRITE_MAX", 1 << 30)
    client.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
    raw = Raw(server)
    raw.send(HELLO_FRAME + request(1, "pull", "t", 0, 0, 8))
    until(lambda: len(raw.socket.recv(1 << 12, socket.MSG_PEEK)) == 1 << 12)
    return raw


def test_a_client_that_does_not_read_its_goodbye_is_cut_off_in_time(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "STALLED_AFTER", 0.1)
    raw = stuffed(server, client, monkeypatch)
    raw.send(framed(9))
    ended = select.poll()
    ended.register(raw.socket, 0)
    until(lambda: bool(ended.poll(0)))
    raw.socket.close()


def test_a_client_that_does_not_read_its_goodbye_keeps_no_unfinished_frame(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = request(2, "put_batch", [["t", BODY, 0]])
    clients = [stuffed(server, client, monkeypatch)]
    monkeypatch.setattr(connection_watch, "UNFINISHED_MAX", 100_000)
    clients[0].send(put[:59_000])
    for n, part in enumerate((45_000, 44_000, 43_000)):
        raw = Raw(server)
        clients.append(raw)
        raw.send(framed(HELLO, NAME, VERSION, bytes(15) + bytes([n]), 0, None) + put[:part])
        assert raw.next()[0] == 0
        client.topics()
    assert clients[1].goodbye()[0] == "StoreBusy"
    for raw in clients:
        raw.socket.close()


def greeted(server: ServerThread, number: int, received: int = 0) -> tuple[Raw, bool]:
    """A client of a session, and whether the server knew it."""
    raw = Raw(server)
    raw.send(framed(HELLO, NAME, VERSION, bytes(15) + bytes([number]), received, None))
    return raw, raw.next()[3]


def test_what_is_kept_for_all_sessions_is_bounded_and_the_one_that_keeps_most_ends(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", 330_000)
    client.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
    for number, count in enumerate((2, 3, 1)):
        raw, is_known = greeted(server, number)
        assert not is_known
        raw.send(request(1, "pull", "t", 0, 0, count))
        assert raw.next()[:2] == [1, 1]
        raw.socket.close()
    for number, wanted in ((0, True), (1, False), (2, True)):
        raw, is_known = greeted(server, number)
        assert is_known == wanted
        if wanted:
            assert raw.next()[:2] == [1, 1], "the reply is sent again"
        raw.socket.close()
    assert client.bounds("t", 0) == (0, 8)


def test_a_connection_whose_session_keeps_too_much_is_told_so_or_cut_off(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", 330_000)
    client.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
    reader = Raw(server)
    reader.send(HELLO_FRAME)
    assert reader.next()[0] == 0
    for number in range(1, 6):
        reader.send(request(number, "pull", "t", 0, 0, 1))
        assert reader.next()[:2] == [1, number]
    reader.send(request(6, "pull", "t", 0, 0, 1))
    name, text = reader.goodbye()
    assert (name, "too many replies" in text) == ("StoreBusy", True)
    reader.socket.close()

    stuck, _ = greeted(server, 1)
    for number in range(1, 9):
        stuck.send(request(number, "pull", "t", 0, 0, 5))
        client.topics()
    assert is_cut_off(stuck.socket)
    stuck.socket.close()
    assert client.bounds("t", 0) == (0, 8)
    again, is_known = greeted(server, 1)
    assert not is_known
    again.socket.close()


def test_sessions_without_a_connection_are_bounded_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "LOST_MAX", 2)
    keys = [("", bytes([number]) * 16) for number in range(4)]

    async def known() -> list[bool]:
        held = sessions.Sessions(asyncio.get_running_loop(), reply_room.ReplyRooms())
        for key in keys:
            held.lost(held.get(key)[0])
        found = [held.get(key)[1] for key in reversed(keys)]
        held.end_all()
        return found

    assert asyncio.run(known()) == [True, True, False, False]


@pytest.mark.parametrize("sent", [b"", HELLO_FRAME[:3], HELLO_FRAME[:-1]])
def test_a_client_that_does_not_say_hello_is_told_so_in_time(
    server: ServerThread, client: ServedStore, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(local_connection, "HELLO_WITHIN", 0.1)
    raw = Raw(server)
    raw.send(sent)
    assert raw.goodbye()[0] == "ProtocolMismatch"
    raw.socket.close()


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"])
def test_tls_that_does_not_come_about_ends_in_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(local_door, "HELLO_WITHIN", 0.1)
    context, access, trusted = _tls(store, tmp_path)
    with serving(store, Address(None, "127.0.0.1", 0, is_tls=True), access, context) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 20) as raw:
            raw.sendall(sent)
            assert is_cut_off(raw)

        def is_served() -> bool:
            # On a busy machine this client may be too slow as well.
            with (
                contextlib.suppress(ConnectionLost),
                kvstore.connect(server.url, tls=trusted) as client,
            ):
                return client.topic("t").name == "t"
            return False

        until(is_served)


def test_tls_that_comes_byte_by_byte_is_tls(store: Store, tmp_path: Path) -> None:
    context, access, trusted = _tls(store, tmp_path)
    with serving(store, Address(None, "127.0.0.1", 0, is_tls=True), access, context) as server:
        port = int(server.url.rpartition(":")[2])
        came, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = ssl.create_default_context(cafile=trusted).wrap_bio(
            came, to_send, server_hostname="localhost"
        )
        with socket.create_connection(("127.0.0.1", port), 20) as raw:

            def done(step: Callable[[], bytes | int | None]) -> bytes | int | None:
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        trickle()
                        came.write(raw.recv(1 << 16))

            def trickle() -> None:
                for byte in to_send.read():
                    raw.send(bytes([byte]))

            done(tls.do_handshake)
            done(lambda: tls.write(HELLO_FRAME))
            welcome = done(lambda: tls.read(100))
        assert isinstance(welcome, bytes)
        assert b"kvmq" in welcome


def _tls(store: Store, folder: Path) -> tuple[ssl.SSLContext, AccessControl, Path]:
    chain, key = map(Path, make_certificate(folder))
    files = LocalFiles()
    return tls_context(files, chain, key), AccessControl(None, files, store.config.clock), chain
