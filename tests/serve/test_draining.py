"""The end of a server: clients from which it awaits nothing but that they go do not hold it up."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import ServedStore, Store
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles
from kvstore.serve import server as server_module
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.rocketmq_door import RocketmqDoor
from kvstore.serve.http.http_door import HttpDoor, HttpSettings
from kvstore.wire.addresses import Address
from tests.support.certificates import make_certificate
from tests.support.served import ServerThread
from tests.support.waiting import until

DRAIN = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO = b"\x16\x03\x01"


@pytest.fixture
def pem(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    certificate, key = make_certificate(tmp_path)
    return certificate, tls_context(LocalFiles(), Path(certificate), Path(key))


def idle(client: ServedStore) -> None:
    client.topics()


def polling(client: ServedStore) -> None:
    client.create_topic("t", exist_ok=True)
    client.create_group("g")
    assert client.pop("g", "t", wait=0.01) == []


@pytest.mark.parametrize("used", [idle, polling])
def test_a_client_of_threads_that_reads_nothing_of_tls_does_not_hold_up_the_end(
    store: Store,
    pem: tuple[str, ssl.SSLContext],
    used: Callable[[ServedStore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "DRAIN", DRAIN)
    server = ServerThread(store, Address(None, "127.0.0.1", 0, is_tls=True), tls=pem[1])
    client = kvstore.connect(server.url, tls=pem[0], reconnect_for=0)
    used(client)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    until(lambda: not stopping.is_alive())
    client.close()


@pytest.mark.parametrize(
    ("kind", "has_tls", "sent"),
    [
        ("http", False, b""),
        ("http", False, b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"),
        ("http", False, b"POST /do/redrive HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n"),
        ("http", True, HELLO),
        ("grpc", False, PREFACE),
        ("grpc", False, HELLO),
        ("grpc", True, HELLO),
    ],
)
def test_a_connection_that_is_not_whole_does_not_hold_up_the_end(
    store: Store, pem: tuple[str, ssl.SSLContext], kind: str, has_tls: bool, sent: bytes
) -> None:
    async def main() -> None:
        loop, gatherer = asyncio.get_running_loop(), Gatherer(store)
        access, clock = AccessControl(None, LocalFiles(), SystemClock()), SystemClock()
        limits, tls = ClientLimits(access.limits, clock), pem[1] if has_tls else None
        door: HttpDoor | RocketmqDoor
        if kind == "http":
            settings = HttpSettings("127.0.0.1", 0, access, limits, clock, "1", tls)
            door = HttpDoor(settings, loop, store, gatherer)
        else:
            door = RocketmqDoor("127.0.0.1", 0, loop, store, gatherer, access, limits, tls=tls)
        await door.start()
        with socket.create_connection(("127.0.0.1", int(door.url.rpartition(":")[2]))) as raw:
            raw.sendall(sent)
            await asyncio.sleep(0.05)
            await asyncio.wait_for(door.stop(DRAIN), 20)
        await gatherer.close()

    asyncio.run(main())
