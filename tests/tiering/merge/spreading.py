"""An executor that does jobs in two processes, in an order that nobody would expect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tiering.executor.pool import Executor, Pool

T = TypeVar("T")
J = TypeVar("J")


class Shuffled(Executor):
    """See `tiering.executor.pool.Executor`; `draw` says who does which job, and when. `done` are
    the names of what was done.
    """

    width = 2

    def __init__(self) -> None:
        self.draw = random.Random(1)
        self.done: list[str] = []
        self._pools = [Pool(), Pool()]

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        self.done.append(work.__name__)
        return self.draw.choice(self._pools).run(check, work, *args)

    def each(
        self, check: Callable[[], None], work: Callable[[J], T], jobs: Sequence[J]
    ) -> Iterator[T]:
        order = list(range(len(jobs)))
        self.draw.shuffle(order)
        found = {number: self.run(check, work, jobs[number]) for number in order}
        yield from (found[number] for number in range(len(jobs)))

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
