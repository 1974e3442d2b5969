"""The tiering worker within a server: segments become archives while clients put, read and pop, and
a signal ends a job under way.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kvstore
import tiering
from kvstore import Message, StoreConfig
from tests.support.contents import read_queue
from tests.support.waiting import until
from tiering.places.work_folder import WORK

SEGMENT: Final = 64 << 10
OLD: Final = 12
"""Segments that are there when the server starts."""
DRAINS_WITHIN: Final = 10
QUEUES: Final = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store whose segments are due."""
    folder = tmp_path / "s"
    with kvstore.open(folder, StoreConfig(segment_size=SEGMENT)) as store:
        store.create_topic("t", queues=QUEUES)
        store.create_group("g")
        for number in range(OLD * 60):
            body = b"old-%d " % number + bytes(900)
            store.put_batch([Message("t", body, keys=[f"old-{number}"])])
    return folder


@contextlib.contextmanager
def serving(folder: Path, *options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A server in another process, which is killed if it still runs in the end."""
    words = [sys.executable, "-m", "kvstore", "serve", str(folder), *map(str, options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"kvmq+unix" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def policy_file(folder: Path, more: str = "") -> Path:
    path = folder.parent / "policy.toml"
    path.write_text(f'hot_for = 0\nwarm = "s/archive"\n{more}')
    return path


class Clients:
    """Threads that put, pop and read by connections of their own until they are told to stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self.put: list[bytes] = []
        self.popped: list[bytes] = []
        self.rounds = 0
        self.failures: list[BaseException] = []
        works = (self._put, self._put, self._pop, self._pop, self._read)
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: object) -> None:
        try:
            with kvstore.connect(self._folder) as client:
                while not self._stop.is_set():
                    work(client)  # type: ignore[operator]  # one of those above
        except BaseException as e:
            self.failures.append(e)

    def _put(self, client: kvstore.ServedStore) -> None:
        name = b"%d-%d" % (threading.get_ident(), len(self.put))
        client.put_batch([Message("t", name + b" " + bytes(900), keys=[name.decode()])])
        self.put.append(name)

    def _pop(self, client: kvstore.ServedStore) -> None:
        found = client.pop("g", "t", 8, invisible_for=3600, wait=0.1)
        for result in client.ack_batch([one.receipt for one in found]):
            assert result is True
        self.popped += [one.message.body for one in found]

    def _read(self, client: kvstore.ServedStore) -> None:
        """All of each queue, without a gap, whichever tier has it; and some by their keys."""
        for queue in range(QUEUES):
            offset = 0
            while (found := client.pull("t", queue, offset, 100)).messages:
                offsets = [message.offset for message in found.messages]
                assert offsets == list(range(offset, offset + len(offsets)))
                offset = found.next_offset
        for number in range(0, OLD * 60, 97):
            (message,) = client.query("t", f"old-{number}")
            assert message.body.startswith(b"old-%d " % number)
        self.rounds += 1

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert self.failures == []


def test_segments_become_archives_under_clients_that_put_read_and_pop(folder: Path) -> None:
    policy = policy_file(folder)
    with serving(folder, "--policy", policy) as server:
        clients = Clients(folder)
        with kvstore.connect(folder) as client:
            worker = tiering.ServedWorker(client)

            def archived() -> int:
                assert clients.failures == []
                with contextlib.suppress(tiering.TieringBusy):
                    worker.run_once()
                return sum(archive.messages for archive in worker.archives())

            # Also segments that the clients have filled.
            until(lambda: archived() > OLD * 60 + 200, patience=60)
            before = clients.rounds
            until(lambda: clients.rounds > before + 1, patience=60)
        clients.end()
        server.send_signal(signal.SIGTERM)
        assert server.wait(DRAINS_WITHIN) == 0
    with kvstore.open(folder) as store:
        bodies = [m.body for q in range(QUEUES) for m in read_queue(store, "t", q)]
        held = Counter(body.partition(b" ")[0] for body in bodies)
        assert set(clients.put) <= set(held)
        assert set(held.values()) == {1}
        assert Counter(clients.popped) <= Counter(bodies)
        assert store.verify().problems == []
        with tiering.Worker(store, tiering.Policy()) as checker:
            assert checker.verify().problems == []


@pytest.mark.parametrize("whose", ["the server's", "a client's"])
def test_a_signal_ends_a_tier_job_under_way_and_the_server_within_its_time(
    folder: Path, whose: str
) -> None:
    """The job would take half a minute."""
    path = policy_file(folder, "read_rate = 25000\n")
    with serving(folder, *(("--policy", path) if whose == "the server's" else ())) as server:
        raised: list[BaseException] = []
        with kvstore.connect(folder, reconnect_for=0) as client:
            thread = None
            if whose == "a client's":
                own = tiering.Policy.from_toml(path.read_text(), relative_to=folder.parent)
                told = threading.Event()
                progress = lambda *_: told.set()  # noqa: E731  # the shortest

                def run() -> None:
                    try:
                        tiering.ServedWorker(client, own, progress=progress).run_once()
                    except kvstore.StoreError as e:
                        raised.append(e)

                thread = threading.Thread(target=run)
                thread.start()
                assert told.wait(20)
            until(lambda: list((folder / WORK / "made").glob("*/*")))
            assert client.put("t", b"meanwhile").queue in range(QUEUES)
            server.send_signal(signal.SIGTERM)
            assert server.wait(DRAINS_WITHIN) == 0
            if thread is not None:
                thread.join(10)
        assert [type(e) for e in raised] == ([tiering.TieringStopped] if thread else [])
    with kvstore.open(folder) as store:
        assert sum(len(read_queue(store, "t", queue)) for queue in range(QUEUES)) == OLD * 60 + 1
        with tiering.Worker(store, tiering.Policy(hot_for=0, warm="archive")) as again:
            assert again.run_once().failed == {}
            assert again.verify().problems == []
