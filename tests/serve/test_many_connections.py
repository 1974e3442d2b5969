"""Ten thousand connections to each door at once: each costs little, and others are served."""

from __future__ import annotations

import json
import resource
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import kvstore
from kvstore.serve.access.credentials import sha256_of
from kvstore.wire.frames import HELLO, NAME, VERSION, framed
from tests.support.certificates import make_certificate
from tests.support.private_files import private_file
from tests.support.waiting import until

CONNECTIONS: Final = 10_000
OWN_FILES: Final = 500
"""Descriptors that the test's process, or the server's, needs beside those of connections."""
TOKEN: Final = "kvmq_the-token-of-the-test"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The beginning of HTTP/2 with empty SETTINGS."""


class Serving(NamedTuple):
    """A server: its process, and the URLs of its doors by their names."""

    pid: int
    doors: dict[str, str]
    chain: str

    def port(self, door: str) -> int:
        return int(self.doors[door].rpartition(":")[2].strip("/"))

    def connections(self, door: str) -> int:
        """The connections of a door, as Prometheus is told."""
        request = urllib.request.Request(
            f"{self.doors['HTTP door']}/metrics", headers={"authorization": f"Bearer {TOKEN}"}
        )
        context = ssl.create_default_context(cafile=self.chain)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            text = answer.read().decode()
        name = f'kvmq_server_connections{{door="{door}"}} '
        (found,) = [line for line in text.splitlines() if line.startswith(name)]
        return int(float(found.removeprefix(name)))

    def memory(self) -> int:
        """Bytes of memory that are the server's alone, without its mapped files."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (found,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
        return int(found.split()[1]) << 10


@pytest.fixture
def many() -> Iterator[int]:
    """How many connections the system allows, 10,000 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(CONNECTIONS, hard - OWN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    clients = private_file(
        tmp_path / "clients.toml",
        f'[[clients]]\nname = "o"\ntoken_sha256 = "{sha256_of(TOKEN)}"\nadmin = ["*"]\n'
        "metrics = true\n",
    )
    chain, key = make_certificate(tmp_path)
    command = [
        sys.executable, "-m", "kvstore", "serve", str(tmp_path / "s"), "--create", "--json",
        "--listen", "kvmq://127.0.0.1:0", "--listen", "kvmq+tls://127.0.0.1:0",
        "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--credentials", str(clients),
        "--tls-certificate", chain, "--tls-key", key,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        doors = dict[str, str]()
        for _ in range(4):
            found = json.loads(process.stdout.readline())
            name = "TLS" if "+tls" in found["url"] else found["door"]
            doors[name] = found["url"]
        yield Serving(process.pid, doors, chain)
        process.terminate()
        assert process.wait(60) == 0


def hello(n: int) -> bytes:
    return framed(HELLO, NAME, VERSION, n.to_bytes(16, "big"), 0, TOKEN)


def connected(port: int, count: int, first: Callable[[int], bytes]) -> list[socket.socket]:
    """Connections that all have sent their first bytes, and then have got an answer."""
    found = list[socket.socket]()
    for n in range(count):
        one = socket.create_connection(("127.0.0.1", port), 60)
        one.sendall(first(n))
        found.append(one)
    for one in found:
        assert one.recv(200), "the server takes all of them"
    return found


@pytest.mark.parametrize(
    ("door", "first", "bytes_max"),
    [("local protocol", hello, 8 << 10), ("gRPC door", lambda n: PREFACE, 8 << 10)],
)
def test_ten_thousand_connections_cost_little_and_others_are_served(
    server: Serving, many: int, door: str, first: Callable[[int], bytes], bytes_max: int
) -> None:
    with kvstore.connect(server.doors["local protocol"], credentials=TOKEN) as client:
        client.create_topic("t", queues=1)
        client.create_group("g")
        for one in connected(server.port(door), 200, first):
            one.close()  # all code is there now
        before = server.memory()
        clients = connected(server.port(door), many, first)
        of_each = (server.memory() - before) / many
        print(f"{many} connections of the {door}: {of_each:.0f} bytes each")
        assert server.connections(door) >= many
        client.put("t", b"x")
        (popped,) = client.pop("g", "t", wait=10)
        client.ack(popped.receipt)
        for one in clients:
            one.close()
        until(lambda: server.connections(door) <= 1, patience=60)
    assert of_each < bytes_max


def test_a_thousand_connections_of_tls_cost_what_tls_takes(server: Serving) -> None:
    context = ssl.create_default_context(cafile=server.chain)

    def secured(n: int) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", server.port("TLS")), 60)
        found = context.wrap_socket(raw, server_hostname="localhost")
        found.sendall(hello(n))
        assert found.recv(200)
        return found

    for n in range(50):
        secured(n).close()
    before = server.memory()
    clients = [secured(n) for n in range(1000)]
    of_each = (server.memory() - before) / 1000
    print(f"1000 connections of TLS: {of_each:.0f} bytes each")
    for one in clients:
        one.close()
    assert of_each < 72 << 10
