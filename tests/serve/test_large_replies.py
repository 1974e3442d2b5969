"""Replies that are large: in pieces, made by threads, within a limit; and servers that are slow.

Named here: REPLY_BYTES, CONNECT_WITHIN.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import CallerError, ConnectionLost, Message, MessageTooLarge, PullStatus, Store
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles
from kvstore.serve import client_requests
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.connection_watch import ConnectionWatch
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.local_connection import Connection, LocalParts
from kvstore.serve.replies.reply_room import ReplyRoom
from kvstore.serve.sessions import Sessions
from kvstore.wire.frames import framed
from kvstore.wire.values import frame_of_result, read_batch
from tests.serve.test_frames import HELLO_FRAME, Raw, request
from tests.support.served import serving


class SlowTransport(asyncio.Transport):
    """Holds what it is given until it is taken, and says so to its connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.held = bytearray()
        self.has_closed = False
        self.socket = socket.socket(socket.AF_UNIX)
        self._connection = connection

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket

    def is_closing(self) -> bool:
        return self.has_closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += data
        self._connection.pause_writing()

    def taken(self) -> bytes:
        """The bytes that were held; the connection may go on."""
        taken = bytes(self.held)
        self.held.clear()
        self._connection.resume_writing()
        return taken

    def close(self) -> None:
        self.has_closed = True
        self.socket.close()


def test_a_large_reply_goes_out_in_pieces_as_its_client_takes_them(store: Store) -> None:
    frames = [bytes([n]) * size for n, size in enumerate((100, 10 << 20, 50, 300 << 10, 70))]

    async def main() -> None:
        gatherer = Gatherer(store)
        access, clock = AccessControl(None, LocalFiles(), SystemClock()), SystemClock()
        watch, sessions = (
            ConnectionWatch(gatherer.loop, access),
            Sessions(gatherer.loop, gatherer.rooms),
        )
        limits = ClientLimits(access.limits, clock)
        parts = LocalParts(store, gatherer, sessions, watch, access, limits, is_private=True)
        connection = Connection(parts)
        transport = SlowTransport(connection)
        connection.connection_made(transport)
        for frame in frames:
            connection.write(frame)
        await asyncio.sleep(0)
        came = b""
        for turn in itertools.count():
            assert 0 < len(transport.held) <= 512 << 10
            if turn == 1:
                connection.close()
            came += transport.taken()
            await asyncio.sleep(0)
            if transport.has_closed:
                break
        connection.connection_lost(None)
        assert came + bytes(transport.held) == b"".join(frames)
        watch.stop()
        await gatherer.close()

    asyncio.run(main())


def test_the_frame_of_a_large_reply_is_made_by_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def framed(kind: int, number: int, result: object) -> bytes:
        threads[number] = threading.current_thread().name
        return frame_of_result(kind, number, result)

    threads: dict[int, str] = {}
    monkeypatch.setattr(client_requests, "frame_of_result", framed)
    store.create_group("g")
    store.put_batch([Message("t", bytes(20_000), queue=0)] * 30)
    with serving(store) as server, kvstore.connect(server.url) as client:
        assert len(client.pull("t", 0, 0).messages) == 30
        assert len(client.pop("g", "t", 30)) == 30
        assert client.pull_columns("t", 0, 0).next_offset == 30
        client.bounds("t", 0)
    assert [name.startswith("kvmq-call") for _, name in sorted(threads.items())] == [
        True, True, True, False
    ]  # fmt: skip


def test_the_messages_of_a_large_put_are_read_by_a_thread_and_put_in_their_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(data: bytes) -> object:
        threads.append(threading.current_thread().name)
        return read_batch(data)

    threads: list[str] = []
    monkeypatch.setattr(client_requests, "read_batch", read)
    puts = [[["t", b"large", 0]] * 30_000, [["t", b"small", 0]], [["t", "wrong", 0]] * 30_000]
    with serving(store) as server:
        raw = Raw(server)
        raw.send(HELLO_FRAME + b"".join(request(n, "put_batch", puts[n - 1]) for n in (1, 2, 3)))
        assert raw.next()[0] == 0
        found = {number: (kind, value) for kind, number, value in (raw.next() for _ in puts)}
        raw.socket.close()
    assert [found[n][0] for n in (1, 2, 3)] == [1, 1, 2]
    assert found[3][1][0][0] == "MessageIllegal"
    assert sorted(name.startswith("kvmq-lane") for name in threads) == [False, True, True]
    assert store.get("t", 0, 29_999).body == b"large"
    assert store.get("t", 0, 30_000).body == b"small"
    assert store.bounds("t", 0).next_offset == 30_001


@pytest.mark.parametrize("limit", [80, 200])
def test_a_reply_has_no_more_bytes_than_its_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(client_requests, "REPLY_BYTES", 10_000)
    store.create_group("g")
    store.put_batch([Message("t", bytes(1000), queue=0)] * 20)
    with serving(store) as server, kvstore.connect(server.url) as client:
        for most in (None, 1 << 30):
            found = client.pull("t", 0, 0, limit, max_bytes=most)
            assert found.status is PullStatus.FOUND
            assert found.next_offset == len(found.messages) == 8
        assert len(client.pop("g", "t", limit)) == 8
        assert client.pull_columns("t", 0, 0, limit).next_offset == 8


@pytest.mark.parametrize("name", ["timers", "transactions", "in_flight"])
def test_a_page_has_so_many_bytes_and_its_next_leads_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for of in ("kvstore.timing.timer_rows", "kvstore.pop.inflight.listing"):
        monkeypatch.setattr(f"{of}.PAGE_BYTES", 10_000)
    store.create_group("g")
    bodies = [bytes([n]) * (20_000 if n == 5 else 1000) for n in range(20)]
    store.put_batch([Message("t", body, queue=0, delay=100 + n) for n, body in enumerate(bodies)])
    for n, body in enumerate(bodies):
        store.prepare("t", body, queue=0, group="pay", immunity=100 + n)
    store.put_batch([Message("t", body, queue=0) for body in bodies])
    assert len(store.pop("g", "t", 20, queue=0)) == 20
    given = ("g",) if name == "in_flight" else ()
    with serving(store) as server, kvstore.connect(server.url) as client:
        found, counts, after = list[bytes](), list[int](), None
        while True:
            page = getattr(client, name)(*given, limit=64, after=after)
            bodies_of_page = [one.message.body for one in page.messages]
            assert sum(map(len, bodies_of_page)) <= 10_000 or len(bodies_of_page) == 1
            found += bodies_of_page
            counts.append(len(bodies_of_page))
            after = page.next
            if after is None:
                break
        assert found == bodies
        assert len(counts) <= 6


@pytest.mark.parametrize("name", ["query", "timers", "transactions", "in_flight"])
def test_the_room_of_a_client_holds_the_messages_of_a_page_and_a_thread_makes_its_frame(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def framed(kind: int, number: int, result: object) -> bytes:
        threads.append(threading.current_thread().name)
        return frame_of_result(kind, number, result)

    def frame(room: ReplyRoom, size: int) -> None:
        framing.append(size)
        plain(room, size)

    threads, framing, plain = list[str](), list[int](), ReplyRoom.frame
    monkeypatch.setattr(client_requests, "frame_of_result", framed)
    monkeypatch.setattr(ReplyRoom, "frame", frame)
    store.create_group("g")
    body = bytes(20_000)
    store.put_batch([Message("t", body, queue=0, keys=["k"])] * 30)
    store.put_batch([Message("t", body, delay=100)] * 30)
    store.prepare_batch([Message("t", body)] * 30, group="pay")
    store.pop("g", "t", 30, queue=0)
    given = {"query": ("t", "k"), "in_flight": ("g",)}.get(name, ())
    with serving(store) as server, kvstore.connect(server.url) as client:
        threads.clear()
        found = getattr(client, name)(*given)
        assert len(found if name == "query" else found.messages) == 30
    assert threads[0].startswith("kvmq-call")
    assert framing[0] >= 30 * 20_000


def test_a_query_whose_messages_have_too_many_bytes_is_an_error_before_they_are_all_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "REPLY_BYTES", 10_000)
    store.put_batch([Message("t", bytes(1000), queue=0, keys=["k"])] * 20)
    with serving(store) as server, kvstore.connect(server.url) as client:
        with pytest.raises(MessageTooLarge, match="ask for"):
            client.query("t", "k")
        with pytest.raises(MessageTooLarge, match="ask for"):
            client.query("t", "k", max_bytes=1 << 30)
        assert len(client.query("t", "k", limit=8)) == 8
        with pytest.raises(CallerError, match="max_bytes"):
            client.query("t", "k", max_bytes=0)
    assert len(store.query("t", "k")) == 20


def test_a_server_that_does_not_answer_in_time_is_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connected() -> None:
        async with kvstore.aio.connect(url):
            pass

    monkeypatch.setattr("kvstore.client.served_target.CONNECT_WITHIN", 0.05)
    monkeypatch.setattr("kvstore.client.loop_link.CONNECT_WITHIN", 0.05)
    url = f"kvmq+unix://{tmp_path}/silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(ConnectionLost, match="did not answer in time"):
            kvstore.connect(url)
        with pytest.raises(ConnectionLost, match="did not answer in time"):
            asyncio.run(connected())


def test_a_connection_that_is_refused_behind_a_large_reply_is_closed_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_batch([Message("t", bytes(50_000), queue=0) for _ in range(200)])
    with serving(store) as server, caplog.at_level(logging.ERROR):
        for _ in range(5):
            raw = Raw(server)
            raw.send(HELLO_FRAME)
            assert raw.next()[0] == 0
            raw.send(request(1, "pull", "t", 0, 0, 200))
            raw.socket.recv(
                1, socket.MSG_PEEK
            )  # it is on its way, and far too large for the socket
            raw.send(framed(99))
            assert raw.next()[:2] == [1, 1]
            raw.goodbye()
            raw.socket.close()
    assert caplog.records == []
