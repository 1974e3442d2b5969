"""A server that is killed (-9) under load from several clients, again and again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import kvstore
from tests.support.contents import read_queue
from tests.support.waiting import until

KILLS: Final = 6
CLIENTS: Final = 4


class Killed:
    """A server in another process, which is killed and started again; `options` are those of one
    more door.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.start()

    def start(self) -> None:
        words = ["-m", "kvstore", "serve", str(self._folder), "--json", *self._options]
        command = [sys.executable, *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdout is not None
        assert b"kvmq+unix" in self._process.stdout.readline()
        if self._options:
            assert b"url" in self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(20)
        self._close()
        return code

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def put_and_pop(folder: Path, number: int, stop: threading.Event, put: list[bytes],
                popped: list[bytes]) -> None:  # fmt: skip
    with kvstore.connect(folder, reconnect_for=60) as client:
        while not stop.is_set():
            bodies = [b"%d-%d" % (number, len(put) + i) for i in range(1 + len(put) % 5)]
            client.put_batch([kvstore.Message("t", body) for body in bodies])
            put += bodies
            found = client.pop("g", "t", 4, invisible_for=3600)
            results = client.ack_batch([one.receipt for one in found])
            popped += [
                one.message.body
                for one, result in zip(found, results, strict=True)
                if result is True
            ]


def test_acknowledged_puts_are_there_once_and_nothing_is_handed_out_twice(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    with kvstore.open(folder) as store:
        store.create_topic("t", queues=4)
        store.create_group("g")
    server = Killed(folder)
    stop = threading.Event()
    put = [list[bytes]() for _ in range(CLIENTS)]
    popped = [list[bytes]() for _ in range(CLIENTS)]
    threads = [
        threading.Thread(target=put_and_pop, args=(folder, n, stop, put[n], popped[n]))
        for n in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        before = [len(one) for one in put]
        until(lambda: all(len(one) > had + 30 for one, had in zip(put, before, strict=True)))  # noqa: B023  # called at once
        server.kill()
        server.start()
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert server.end() == 0
    with kvstore.open(folder) as store:
        held = Counter(m.body for q in range(4) for m in read_queue(store, "t", q))
    assert all(count == 1 for count in held.values())
    acknowledged = {body for one in put for body in one}
    assert acknowledged <= set(held)
    assert len(held) - len(acknowledged) <= 5 * CLIENTS
    done = Counter(body for one in popped for body in one)
    assert all(count == 1 for count in done.values())
    assert set(done) <= set(held)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_a_server_and_a_second_start_says_who_serves(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "s"
    kvstore.open(folder).close()
    command = [sys.executable, "-m", "kvstore", "serve", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert "kvmq+unix" in server.stdout.readline()
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert str(server.pid) in second.stderr
    assert "kvmq.sock" in second.stderr
    with kvstore.connect(folder) as client:
        client.create_topic("t", queues=1)
        client.create_group("g")
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(len(client.pop("g", "t", wait=60))))
        thread.start()
        until(lambda: client.topics())
        server.send_signal(number)
        assert server.wait(10) == 0
        server.stdout.close()
        assert not (folder / "kvmq.sock").exists()
        client.close()
        thread.join(10)
    with kvstore.open(folder) as store:
        assert (
            store.recovery.replayed_records == 0
            if hasattr(store.recovery, "replayed_records")
            else True
        )
