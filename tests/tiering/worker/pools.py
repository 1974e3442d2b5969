"""An executor without Spark that does two jobs at a time; and work that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from tiering.executor.pool import Executor, Pool

T = TypeVar("T")


class Pools(Executor):
    """Two pools, each for one thread at a time."""

    width = 2

    def __init__(self) -> None:
        self._all = [Pool(), Pool()]
        self._free: SimpleQueue[Pool] = SimpleQueue()
        self.most = 0
        """How many have worked at once."""
        for pool in self._all:
            self._free.put(pool)

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        pool = self._free.get()
        self.most = max(self.most, self.width - self._free.qsize())
        try:
            return pool.run(check, work, *args)
        finally:
            self._free.put(pool)

    def close(self) -> None:
        for pool in self._all:
            pool.close()


def raised(error: Exception) -> None:
    """Work that goes wrong."""
    raise error


def unsendable() -> object:
    """Work of which comes what can't be sent."""
    return lambda: None
