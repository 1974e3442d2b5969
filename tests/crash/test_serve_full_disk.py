"""A disk that fills under the load of several clients, through both doors."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
from kvstore import DiskFull, ServedStore
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles
from tests.crash.test_full_disk import CONFIG
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import CODES, add_message, answer, answers, request_of
from tests.support.served import serving
from tests.support.waiting import until

CLIENTS = 4
MORE = 50
"""Messages that each client puts once there is room."""


class Putter:
    """A client that puts by itself, and goes on after each refusal for a full disk."""

    def __init__(self, url: str, number: int) -> None:
        self.most = 1_000_000
        self.placed: list[bytes] = []
        self.refused = 0
        self.failures: list[BaseException] = []
        self._url = url
        self._number = number
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with kvstore.connect(self._url) as client:
                while len(self.placed) < self.most:
                    self._put(client)
        except BaseException as e:
            self.failures.append(e)

    def _put(self, client: ServedStore) -> None:
        body = b"%d-%d " % (self._number, len(self.placed)) + os.urandom(2000)
        try:
            client.put("t", body)
            self.placed.append(body)
        except DiskFull:
            self.refused += 1
            SystemClock().sleep(0.02)


def send(client: RocketmqClient) -> str:
    """The code that RocketMQ's protocol has for a message that is sent now."""
    request = request_of("SendMessage")
    del request.messages[:]
    add_message(request, message_id=f"grpc-{os.urandom(4).hex()}").body = os.urandom(2000)
    (entry,) = answer(client, "SendMessage", request).entries
    return CODES[entry.status.code]


def receive(client: RocketmqClient) -> list[Any]:
    """Handles of messages that are received by RocketMQ's protocol."""
    request = request_of("ReceiveMessage", group="h")
    found = answers(client, "ReceiveMessage", request)
    return [a.message.system_properties.receipt_handle for a in found if a.HasField("message")]


def ack(client: RocketmqClient, handles: list[Any]) -> set[str]:
    """The codes of their acks."""
    request = request_of("AckMessage", group="h")
    for handle in handles:
        request.entries.add(receipt_handle=handle)
    return {CODES[entry.status.code] for entry in answer(client, "AckMessage", request).entries}


class RealDisk(LocalFiles):
    """The file system itself; elsewhere in the tests disks are half full."""

    def disk_used(self, path: Path) -> float:
        found = os.statvfs(path)
        return 1 - found.f_bavail / found.f_blocks


@pytest.mark.parametrize("watermark", [0.75, 1.0])
def test_a_full_disk_is_told_to_clients_of_both_doors_and_puts_go_on_once_there_is_room(
    small_disk: Path, tmp_path: Path, watermark: float
) -> None:
    """Pops and acks go on meanwhile, unless the log is allowed the disk's last blocks."""
    config = msgspec.structs.replace(CONFIG, watermarks=(watermark,) * 3, files=RealDisk())
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(10 << 20))
    with kvstore.open(small_disk / "s", config) as store:
        store.create_topic("t", queues=2)
        for group in "gh":
            store.create_group(group)
        with (
            serving(store) as server,
            OpenDoor(store) as door,
            RocketmqClient(door.endpoint, tmp_path) as grpc,
            kvstore.connect(server.url) as client,
        ):
            sent = [send(grpc)]
            assert sent == ["OK"]
            putters = [Putter(server.url, n) for n in range(CLIENTS)]
            until(lambda: all(one.refused > 2 or one.failures for one in putters), patience=60)
            assert [one.failures for one in putters] == [[]] * CLIENTS
            # Upkeep may have freed some blocks: this client and the putters take them.
            while sent[-1] == "OK":
                sent.append(send(grpc))
            assert sent[-1] == "INTERNAL_SERVER_ERROR"

            assert len(client.pull("t", 0, 0, 100).messages) == 100
            if watermark == 1.0:
                with pytest.raises(DiskFull):
                    client.pop("g", "t", 16)
            done = Counter[bytes]()
            for _ in range(20 if watermark < 1.0 else 0):
                found = client.pop("g", "t", 16, invisible_for=600)
                assert len(found) == 16
                assert client.ack_batch([one.receipt for one in found]) == [True] * 16
                done.update(one.message.body for one in found)
                handles = receive(grpc)
                assert len(handles) == 4
                assert ack(grpc, handles) == {"OK"}
            assert set(done.values()) <= {1}
            assert all(one.refused > 2 for one in putters)

            for one in putters:
                one.most = len(one.placed) + MORE
            ballast.unlink()
            for one in putters:
                one.thread.join(60)
                assert one.failures or len(one.placed) >= one.most
            assert [one.failures for one in putters] == [[]] * CLIENTS
            sent.append(send(grpc))
            assert sent[-1] == "OK"
            assert len(receive(grpc)) == len(client.pop("g", "t", 4)) == 4
    with kvstore.open(small_disk / "s", config) as store:
        held = Counter(
            m.body
            for queue in range(2)
            for offset in range(0, store.bounds("t", queue).next_offset, 500)
            for m in store.pull("t", queue, offset, 500).messages
        )
        assert all(held[body] == 1 for one in putters for body in one.placed)
        assert sum(held.values()) == sum(len(one.placed) for one in putters) + sent.count("OK")
        assert store.verify().problems == []
