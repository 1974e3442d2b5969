"""A shard that is killed under load, with its supervisor: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Popped, ShardedStore
from kvstore.sharding import shards
from kvstore.wire.cluster_file import ShardEntry, read_cluster
from tests.support.contents import read_queue
from tests.support.free_ports import free_ports
from tests.support.rocketmq_client import RocketmqClient
from tests.support.waiting import PATIENCE, until

SHARDS = 3
KILLS = 6


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """A folder with three shards, and the process of each by its name, as it is now."""
    port = free_ports(SHARDS)
    words = ("serve", str(tmp_path / "s"), "--shards", str(SHARDS), "--create", "--json",
             "--grpc", f"127.0.0.1:{port}")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "kvstore", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    lines, pids = process.stdout, dict[str, int]()

    def read() -> None:
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if said["door"] == "gRPC door":  # its last: the others are open
                pids[said["shard"]] = said["pid"]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until(lambda: len(pids) == SHARDS)
        yield tmp_path / "s", pids
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        reader.join()
        lines.close()


def test_nothing_acknowledged_is_lost_when_shards_are_killed_and_clients_go_on(
    supervised: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to start a shard again than callers wait for one.
    monkeypatch.setattr(shards, "DOWN_WAIT", PATIENCE)
    folder, pids = supervised
    acknowledged: list[list[str]] = [[], [], []]
    handled: Counter[str] = Counter()
    ends = threading.Event()

    def put(client: ShardedStore, number: int) -> None:
        count = 0
        while not ends.is_set():
            bodies = [f"{number}.{count + n}" for n in range(4)]
            count += 4
            queues = [None if number else n for n in range(4)]
            client.put_batch(
                [Message("t", b.encode(), queue=q) for b, q in zip(bodies, queues, strict=True)]
            )
            acknowledged[number] += bodies
            ends.wait(0.01)  # the consumer is to keep up

    def handle(popped: Popped) -> None:
        handled[popped.message.body.decode()] += 1

    with kvstore.connect(folder) as store:
        assert isinstance(store, ShardedStore)
        store.create_topic("t", queues=6)
        store.create_group("g")
        putters = [threading.Thread(target=put, args=(store, n)) for n in range(3)]
        for thread in putters:
            thread.start()
        with store.consume("g", "t", handle, concurrency=2, invisible_for=5):
            for n in range(KILLS):
                victim = f"shard-{n % SHARDS}"
                killed, before = pids[victim], sum(map(len, acknowledged))
                os.kill(killed, signal.SIGKILL)
                until(lambda before=before: sum(map(len, acknowledged)) > before + 100)
                until(lambda victim=victim, killed=killed: pids[victim] != killed)
            ends.set()
            for thread in putters:
                thread.join(60)
                assert not thread.is_alive()
            put_bodies = {body for bodies in acknowledged for body in bodies}
            until(lambda: put_bodies <= handled.keys())

        stored = Counter(
            message.body.decode() for queue in range(6) for message in read_queue(store, "t", queue)
        )
        assert put_bodies <= stored.keys()
        assert set(stored.values()) == {1}


def _takes_connections(shard: ShardEntry) -> bool:
    assert shard.endpoint is not None
    with contextlib.suppress(OSError):
        socket.create_connection(shard.endpoint, 5).close()
        return True
    return False


def test_a_client_of_rocketmq_goes_on_when_a_shard_is_killed(
    supervised: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    folder, pids = supervised
    with kvstore.connect(folder) as store:
        store.create_topic("t", queues=SHARDS)
    listed = read_cluster(folder / "cluster.toml").shards
    acknowledged, received = set[str](), set[str]()
    with RocketmqClient(listed[0].grpc, tmp_path) as client:
        client.do("producer", topics=["t"])
        for n in range(90):
            if n == 30:
                os.kill(pids["shard-1"], signal.SIGKILL)
            try:
                client.do("send", topic="t", body=str(n))
            except RuntimeError:
                continue  # after three trials; its program would send it again
            acknowledged.add(str(n))
        assert len(acknowledged) >= 60
        until(lambda: _takes_connections(listed[1]))  # the client asks any broker that it knows
        client.do("simple", group="g", topics={"t": ["tag", "*"]}, wait=1)
        while not acknowledged <= received:
            for message in client.do("receive", invisible=30):
                client.do("ack", at=message["at"])
                received.add(message["body"])
