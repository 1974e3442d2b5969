"""A store with sealed segments, and an S3 server on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Store
from kvstore.files import Files, LocalFiles
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import make_bucket
from tests.tiering.places.faulty import FaultyServer
from tests.tiering.stores import QUEUES, config, fill


@pytest.fixture
def files() -> Files:
    return LocalFiles()


@pytest.fixture
def empty(tmp_path: Path, clock: VirtualClock, files: Files) -> Iterator[Store]:
    """A store without topics, with small segments."""
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as opened:
        yield opened


@pytest.fixture
def store(empty: Store, clock: VirtualClock, request: pytest.FixtureRequest) -> Store:
    """A store of 300 messages that are two days old, unless the mark `filled` says otherwise."""
    mark = request.node.get_closest_marker("filled")
    said = mark.kwargs if mark else {}
    for topic, queues in QUEUES.items():
        empty.create_topic(topic, queues=queues)
    fill(empty, said.get("count", 300))
    clock.advance(said.get("days", 2) * 86_400.0)
    return empty


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 server."""
    pytest.importorskip("obstore", reason="needs the extra cloud")
    pytest.importorskip("moto", reason="needs moto[server]")
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).parent / "places" / "s3server.py"),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(30)


@pytest.fixture
def bucket(s3: str) -> str:
    """A bucket of the test's own."""
    return make_bucket(s3)


@pytest.fixture
def faulty(s3: str) -> Iterator[FaultyServer]:
    """A server that breaks what is asked of the S3 server."""
    server = FaultyServer(s3)
    yield server
    server.stop()
