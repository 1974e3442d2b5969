"""NATS JetStream: a server of our own, one stream on files, a subject for each queue."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.errors import TimeoutError as NothingThere
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from bench.peers.peer import Item, Peer

T = TypeVar("T")
_STREAM = "messages"


class JetStream(Peer):
    """Over loopback. No index of keys; a batch is published without waiting between."""

    def __init__(self, folder: Path, sync: bool, of: JetStream | None = None) -> None:
        super().__init__(folder, sync)
        self._loop = asyncio.new_event_loop()
        self._own = of is None
        if of is None:
            self._port = _free_port()
            config = folder / "nats.conf"
            interval = "always" if sync else "500ms"
            config.write_text(
                f'listen: "127.0.0.1:{self._port}"\n'
                f'jetstream {{ store_dir: "{folder}/js", sync_interval: {interval} }}\n',
                encoding="utf-8",
            )
            server = os.environ.get("NATS_SERVER", "nats-server")
            self._server = subprocess.Popen([server, "-c", config], stderr=subprocess.DEVNULL)
        else:
            self._port, self._server = of._port, of._server
        self._run(self._connect())
        self._subscription: Any = None
        self._left = 0
        self._reader: Any = None

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    async def _connect(self) -> None:
        for _ in range(500):
            try:
                self._nc = await nats.connect(
                    f"nats://127.0.0.1:{self._port}", allow_reconnect=False
                )
                break
            except (OSError, nats.errors.Error):
                await asyncio.sleep(0.02)
        self._js = self._nc.jetstream(timeout=60)

    def create(self, topics: int, queues: int) -> None:
        """The stream, and the consumer that pops."""

        async def create() -> None:
            await self._js.add_stream(StreamConfig(name=_STREAM, subjects=["t.*.*"]))
            config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30, max_ack_pending=-1)
            await self._js.pull_subscribe("t.0.*", durable="group", config=config)

        self._run(create())

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """All are sent, then all acknowledgements are awaited."""

        async def put() -> list[Any]:
            return [
                ack.seq
                for ack in await asyncio.gather(
                    *(
                        self._js.publish(
                            f"t.{i.topic}.{i.queue}",
                            i.body,
                            headers={"t": i.tag, "k": i.key, "r": i.region, "u": i.unique},
                        )
                        for i in batch
                    )
                )
            ]

        return self._run(put())

    def pull(self, topic: int, queue: int, after: Any) -> tuple[list[tuple[Any, ...]], Any]:
        """A consumer without acks of one queue; the cursor is how many messages it has left."""

        async def pull() -> tuple[list[tuple[Any, ...]], Any]:
            left = after
            if left is None:
                config = ConsumerConfig(ack_policy=AckPolicy.NONE)
                self._reader = await self._js.pull_subscribe(f"t.{topic}.{queue}", config=config)
                left = (await self._reader.consumer_info()).num_pending
            if not left:
                return [], 0
            found = await self._reader.fetch(min(32, left), timeout=5)
            rows = [(m.data, m.headers["t"], m.headers["k"], m.headers["r"]) for m in found]
            return rows, found[-1].metadata.num_pending

        return self._run(pull())

    def get(self, place: Any) -> bytes:
        """By its number in the stream, from the server itself."""

        async def get() -> bytes:
            return bytes((await self._js.get_msg(_STREAM, place, direct=False)).data)

        return self._run(get())

    def pop(self, limit: int) -> list[Any]:
        """A fetch, of no more messages than there are: it would wait for others."""

        async def pop() -> list[Any]:
            if self._subscription is None:
                self._subscription = await self._js.pull_subscribe_bind("group", _STREAM)
            if not self._left:
                self._left = (await self._subscription.consumer_info()).num_pending
            if not self._left:
                return []
            try:
                found = await self._subscription.fetch(min(limit, self._left), timeout=5)
            except NothingThere:
                return []
            self._left = found[-1].metadata.num_pending
            return [m for m in found if m.data]

        return self._run(pop())

    def ack(self, handles: list[Any]) -> None:
        """Each by the server confirmed, all at once."""

        async def ack() -> None:
            await asyncio.gather(*(handle.ack_sync(timeout=60) for handle in handles))

        self._run(ack())

    def another(self) -> Peer:
        """A connection of its own."""
        return JetStream(self.folder, self.sync, self)

    def pids(self) -> list[int]:
        """The server."""
        return [self._server.pid]

    def close(self) -> None:
        """Ends the server."""
        if self._own and self._server.poll() is None:
            self._run(self._nc.close())
            self._server.terminate()
            self._server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
