"""The applications that a new user tries first: each runs, and says what it did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.free_ports import free_ports
from tests.support.served import ServerThread
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
SAID = {
    "reminder": "ann: water the plants\nbob: call the bank\n",
    "outbox": "o-1 is there already\no-1: 1200 cents\no-2: 80 cents\n",
    "hourly_job": "the next report is at minute 0\ntick\ntick\n",
    "retried_request": (
        "http://shaky/ took an order\ngiven up: ConnectionError: no answer from http://gone/\n"
    ),
}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.parametrize("name", SAID)
def test_an_example_does_what_its_text_says(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        check=False, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == (SAID[name], 0), ran.stderr


@contextmanager
def running(server: ServerThread, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment(STORE=server.url), cwd=ROOT
    )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


def asked(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(url, body, timeout=20) as answer:
        return json.load(answer)


def is_up(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_web_process_and_two_workers_share_a_store(server: ServerThread) -> None:
    port = free_ports(1)
    web = ("flask", "--app", "examples.flask_orders", "run", "--port", str(port))
    with ExitStack() as stack:
        stack.enter_context(running(server, *web))
        workers = [stack.enter_context(running(server, "examples.flask_worker")) for _ in range(2)]
        until(lambda: is_up(port), 60)
        orders = f"http://127.0.0.1:{port}/orders/"
        first = asked(f"{orders}o-0", b"shoes")
        assert asked(f"{orders}o-0", b"shoes") == {"id": first["id"], "again": True}
        for n in range(1, 30):
            assert not asked(f"{orders}o-{n}", b"box")["again"]
        until(lambda: all(asked(f"{orders}o-{n}")["state"] == "shipped" for n in range(30)), 60)
        found = {asked(f"{orders}o-{n}")["by"] for n in range(30)}
        assert found <= {f"worker {worker.pid}" for worker in workers}
        until(lambda: has_none_left(server))
        # As after the death of a worker whose orders are not acked: they come again.
        server.store.reset_offset("shipping", "orders", to="begin")
        until(lambda: has_none_left(server))
        bounds = [server.store.bounds("shipped", queue) for queue in range(4)]
        assert sum(one.next_offset for one in bounds) == 30


def has_none_left(server: ServerThread) -> bool:
    """Whether all orders are shipped and acked."""
    (stats,) = server.store.group_stats("shipping", "orders")
    return (stats.unread, stats.in_flight) == (0, 0)


def test_a_consumer_lives_as_long_as_its_application(server: ServerThread) -> None:
    port = free_ports(1)
    with running(server, "uvicorn", "examples.fastapi_orders:app", "--port", str(port)) as web:
        until(lambda: is_up(port), 60)
        orders = f"http://127.0.0.1:{port}/orders/"
        asked(f"{orders}o-1", b"shoes")
        until(lambda: asked(f"{orders}o-1")["shipped"])
        web.send_signal(signal.SIGTERM)
        web.wait(60)
    (stats,) = server.store.group_stats("shipping", "orders")
    assert (stats.unread, stats.in_flight) == (0, 0)
