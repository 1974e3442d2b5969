"""Shards in the test's own process: several stores, each with a server, which can be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import kvstore
from kvstore import Store, StoreConfig
from tests.support.served import ServerThread


class ServedShards:
    """Open stores with their servers; `stores` are behind the shards, in their order."""

    def __init__(
        self, folder: Path, count: int, opened: ExitStack, config: StoreConfig | None
    ) -> None:
        self.stores: list[Store] = [
            opened.enter_context(kvstore.open(folder / f"shard-{n}", config)) for n in range(count)
        ]
        self._servers = [ServerThread(store) for store in self.stores]
        self.urls = [server.url for server in self._servers]

    def stop(self, number: int) -> None:
        """Stops one server; its store stays open."""
        self._servers[number].stop()

    def start(self, number: int) -> None:
        """Starts it again."""
        self._servers[number] = ServerThread(self.stores[number])

    def ends(self, topic: str) -> list[int]:
        """How many messages were put to each shard."""
        return [
            sum(store.bounds(topic, queue).next_offset for queue in range(info.read_queues))
            for store in self.stores
            for info in [store.topic(topic)]
        ]

    def close(self) -> None:
        """Stops all servers."""
        for server in self._servers:
            server.stop()


@contextmanager
def served_shards(
    folder: Path, count: int, config: StoreConfig | None = None
) -> Iterator[ServedShards]:
    """So many shards, for the time of the block."""
    with ExitStack() as opened:
        shards = ServedShards(folder, count, opened, config)
        try:
            yield shards
        finally:
            shards.close()
