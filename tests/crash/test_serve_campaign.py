"""A server that is killed (-9) twenty times under eight clients: four by the local protocol, and
four of RocketMQ's own.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Final

import kvstore
from tests.crash.test_serve_kill import Killed, put_and_pop
from tests.support.contents import read_queue
from tests.support.free_ports import free_ports
from tests.support.rocketmq_client import RocketmqClient
from tests.support.waiting import until

KILLS: Final = 20
CLIENTS: Final = 4
"""Of each kind."""
PUT_BETWEEN: Final = 20
SENT_BETWEEN: Final = 5
"""Messages that each client has put, or sent, from one kill to the next."""
PATIENCE: Final = 120.0
"""Seconds for all clients to go on: a channel of gRPC waits longer after each failure."""


class Load:
    """A client of RocketMQ that sends, receives and acks, until it is told to stop."""

    def __init__(self, endpoint: str, folder: Path, number: int, stop: threading.Event) -> None:
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.acked: list[bytes] = []
        self._number = number
        self._stop = stop
        self._client = RocketmqClient(endpoint, folder)
        self._client.do("producer", topics=["t"])
        self._client.do("simple", group="g", topics={"t": ["tag", "*"]})
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        tried = 0
        with self._client as client:
            while not self._stop.is_set():
                tried += 1
                body = f"grpc-{self._number}-{tried}"
                try:
                    client.do("send", topic="t", body=body)
                    self.sent.append(body.encode())
                    for message in client.do("receive", count=4, invisible=3600):
                        self.received.append(message["body"].encode())
                        client.do("ack", at=message["at"])
                        self.acked.append(message["body"].encode())
                except RuntimeError:
                    continue  # the server is gone: whether the call was made is not known


def test_twenty_kills_lose_nothing_acknowledged_and_hand_out_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with kvstore.open(folder) as store:
        store.create_topic("t", queues=4)
        store.create_group("g")
    endpoint = f"127.0.0.1:{free_ports(1)}"
    server = Killed(folder, "--grpc", endpoint)
    stop = threading.Event()
    put = [list[bytes]() for _ in range(CLIENTS)]
    popped = [list[bytes]() for _ in range(CLIENTS)]
    loads = [Load(endpoint, tmp_path, n, stop) for n in range(CLIENTS)]
    threads = [
        threading.Thread(target=put_and_pop, args=(folder, n, stop, put[n], popped[n]))
        for n in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    threads += [load.thread for load in loads]

    def went_on(puts: list[int], sends: list[int]) -> bool:
        return all(
            len(one) > had + PUT_BETWEEN for one, had in zip(put, puts, strict=True)
        ) and all(
            len(load.sent) > had + SENT_BETWEEN for load, had in zip(loads, sends, strict=True)
        )

    for _ in range(KILLS):
        before = [len(one) for one in put], [len(load.sent) for load in loads]
        until(lambda: went_on(*before), patience=PATIENCE)  # noqa: B023  # called at once
        server.kill()
        server.start()
    before = [len(one) for one in put], [len(load.sent) for load in loads]
    until(lambda: went_on(*before), patience=PATIENCE)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert server.end() == 0
    with kvstore.open(folder) as store:
        held = Counter(m.body for q in range(4) for m in read_queue(store, "t", q))
        assert store.verify().problems == []
    local = {body for one in put for body in one}
    sent = {body for load in loads for body in load.sent}
    assert local | sent <= set(held)
    assert all(held[body] == 1 for body in held if not body.startswith(b"grpc-"))
    # A client of RocketMQ sends a message again whose answer was lost.
    assert sum(held.values()) - len(held) <= KILLS * CLIENTS
    done = Counter(body for one in popped for body in one)
    done += Counter(body for load in loads for body in load.received)
    assert done <= held
    assert all(len(load.acked) > KILLS for load in loads)
