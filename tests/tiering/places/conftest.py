"""Places to test: folders, and buckets of an S3 server on loopback."""

from __future__ import annotations

import http.client
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from kvstore.clock import Clock
from kvstore.files import Files
from tests.support.clock import VirtualClock
from tests.tiering.places.faulty import FaultyServer
from tiering.places.place import Place, open_place

SECRET: Final = "not-to-be-seen-anywhere"
_numbers = itertools.count()

OpenBucket = Callable[..., Place]


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 server."""
    pytest.importorskip("obstore", reason="needs the extra cloud")
    pytest.importorskip("moto", reason="needs moto[server]")
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("s3server.py"))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            server.wait(30)


def make_bucket(s3: str) -> str:
    """A new bucket; its name."""
    name = f"archives-{next(_numbers)}"
    assert ask(s3, "PUT", f"/{name}") == 200
    return name


def ask(s3: str, method: str, target: str) -> int:
    """Ask the server something without a client of S3's; the status."""
    return fetch(s3, method, target)[0]


def fetch(s3: str, method: str, target: str) -> tuple[int, str]:
    """As `ask`, with the answer."""
    connection = http.client.HTTPConnection(urlsplit(s3).netloc, timeout=30)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
def bucket(s3: str) -> str:
    """A bucket of the test's own."""
    return make_bucket(s3)


@pytest.fixture
def clock() -> VirtualClock:
    """Pauses between tries are noted, not made."""
    return VirtualClock()


@pytest.fixture
def faulty(s3: str) -> Iterator[FaultyServer]:
    """A server that breaks what is asked of the S3 server."""
    server = FaultyServer(s3)
    yield server
    server.stop()


def open_bucket(
    endpoint: str,
    bucket: str,
    *,
    clock: Clock | None = None,
    files: Files | None = None,
    **options: object,
) -> Place:
    """A folder of a bucket, as a place; large is what has over 64 KiB."""
    settings: dict[str, object] = {
        "endpoint": endpoint,
        "access_key_id": "tester",
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "whole_put_bytes": 64 << 10,
    }
    return open_place(
        f"s3://{bucket}/store/one", options=settings | options, clock=clock, files=files
    )


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind."""
    if request.param == "folder":
        root = tmp_path / "archives"
        root.mkdir()
        return open_place(root)
    s3 = request.getfixturevalue("s3")
    return open_bucket(s3, make_bucket(s3))
