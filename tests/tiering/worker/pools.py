"""Executors without Spark: two processes at once, or none but this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from tiering.executor.pool import Pool

T = TypeVar("T")
J = TypeVar("J")


class Pools:
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

    def each(
        self, check: Callable[[], None], work: Callable[[J], T], jobs: Sequence[J]
    ) -> Iterator[T]:
        for job in jobs:
            yield self.run(check, work, job)

    def close(self) -> None:
        for pool in self._all:
            pool.close()


class Here:
    """Does the work in this process: what is tried is no process, and starting one takes long."""

    width = 1

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        check()
        return work(*args)

    def each(
        self, check: Callable[[], None], work: Callable[[J], T], jobs: Sequence[J]
    ) -> Iterator[T]:
        return (self.run(check, work, job) for job in jobs)

    def close(self) -> None:
        pass


def raised(error: Exception) -> None:
    """Work that goes wrong."""
    raise error


def unsendable() -> object:
    """Work of which comes what can't be sent."""
    return lambda: None
