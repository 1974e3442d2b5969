"""Two Java programs and a Python program that share a store, as their README starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kvstore
from tests.support.java_programs import class_path, java

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples/java_orders"


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=60)


def test_orders_go_from_java_to_python_and_back(tmp_path: Path) -> None:
    classes = class_path(EXAMPLE, tmp_path / "program")
    with kvstore.open(tmp_path / "data") as store:
        for topic in ("orders", "shipped"):
            store.create_topic(topic)
    serve = ("kvstore", "serve", "data", "--grpc", "127.0.0.1:0", "--json")
    with running(tmp_path, *serve) as server:
        assert server.stdout is not None
        doors = [json.loads(server.stdout.readline()) for _ in range(2)]
        (endpoint,) = (door["url"] for door in doors if "unix" not in door["url"])
        with running(tmp_path, "examples.java_orders.ship_orders", "data"):
            took = java(classes, tmp_path, "TakeOrders", endpoint, "o-1", "o-2")
            told = java(classes, tmp_path, "TellCustomers", endpoint, "2")
        with kvstore.connect(tmp_path / "data") as store:
            (order,) = store.query("orders", "o-1")
    assert took[0] == f"took o-1 as {order.message_id}"
    assert sorted(told) == ["o-1: shoes to eu", "o-2: shoes to eu"]


def test_the_readme_names_what_is_there() -> None:
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for name in ("TakeOrders", "TellCustomers"):
        assert f" {name} " in text
        assert (EXAMPLE / f"src/main/java/{name}.java").is_file()
    assert re.search(r"-m (\S+)", text).group(1) == "examples.java_orders.ship_orders"  # type: ignore[union-attr]  # else it fails all the same
