"""Redis Streams: a server of our own, a stream for each queue, append-only file."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import redis

from bench.peers.peer import Item, Peer

_GROUP = "group"


class Streams(Peer):
    """Over a socket file. Streams have no index of keys."""

    def __init__(self, folder: Path, sync: bool, of: Streams | None = None) -> None:
        super().__init__(folder, sync)
        self._own = of is None
        self._queues: int
        path = str(folder / "redis.sock")
        if of is None:
            server = shutil.which("redis-server") or "redis-server"
            fsync = "always" if sync else "everysec"
            options: tuple[str, ...] = (
                "--port",
                "0",
                "--unixsocket",
                path,
                "--dir",
                str(folder),
                "--save",
                "",
            )
            options += ("--appendonly", "yes", "--appendfsync", fsync)
            self._server = subprocess.Popen(
                [server, *options],
                stdout=subprocess.DEVNULL,
            )
        else:
            self._server = of._server
        self._redis = redis.Redis(unix_socket_path=path)
        while True:
            try:
                self._redis.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.01)
        self._queues = of._queues if of else 0

    def create(self, topics: int, queues: int) -> None:
        """The group on the streams of topic 0."""
        self._queues = queues
        for queue in range(queues):
            self._redis.xgroup_create(f"0:{queue}", _GROUP, "0", mkstream=True)

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """One pipeline."""
        pipe = self._redis.pipeline(transaction=False)
        names = [f"{i.topic}:{i.queue}" for i in batch]
        for name, i in zip(names, batch, strict=True):
            fields = {"b": i.body, "t": i.tag, "k": i.key, "r": i.region, "u": i.unique}
            pipe.xadd(name, fields)
        return list(zip(names, pipe.execute(), strict=True))

    def pull(self, topic: int, queue: int, after: Any) -> tuple[list[tuple[Any, ...]], Any]:
        """The cursor is an id; the client makes all fields."""
        found = self._redis.xrange(
            f"{topic}:{queue}", f"({after.decode()}" if after else "-", count=32
        )
        rows = [(f[b"b"], f[b"t"], f[b"k"], f[b"r"], f[b"u"]) for _, f in found]
        return rows, found[-1][0] if found else after

    def get(self, place: Any) -> bytes:
        """By stream and id."""
        name, at = place
        [(_, fields)] = self._redis.xrange(name, at, at)
        return bytes(fields[b"b"])

    def pop(self, limit: int) -> list[Any]:
        """A read of the group from all streams of the topic, divided among them."""
        names = {f"0:{queue}": ">" for queue in range(self._queues)}
        each = max(1, limit // self._queues)
        found: Any = []
        if limit > 1:
            found = self._redis.xreadgroup(_GROUP, "c", names, count=each)
        else:
            # A count holds for each stream, so one message is asked of one stream after the other.
            for name in names:
                found = self._redis.xreadgroup(_GROUP, "c", {name: ">"}, count=1)
                if found:
                    break
        return [(name, at) for name, rows in found for at, fields in rows if fields[b"b"]]

    def ack(self, handles: list[Any]) -> None:
        """One pipeline."""
        pipe = self._redis.pipeline(transaction=False)
        for name, at in handles:
            pipe.xack(name, _GROUP, at)
        pipe.execute()

    def another(self) -> Peer:
        """A connection of its own."""
        return Streams(self.folder, self.sync, self)

    def pids(self) -> list[int]:
        """The server."""
        return [self._server.pid]

    def close(self) -> None:
        """Ends the server."""
        if self._own:
            self._server.terminate()
            self._server.wait()
