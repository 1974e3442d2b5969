"""Pipeline: works on the next items on threads while the last result is used.

The idea: building an archive takes long and touches no store. Handing it over is short, and is done
one after the other, in order. So the next archives are begun on threads, as many as the executor
builds at once; the threads only wait for it. Even with one at a time, the next is built while the
last is handed over, and neither waits for the other.

Invariants: results are taken in the order of the items, and an item's error is raised where its
result is taken; items are begun in their order, by the caller's thread; when the caller is done,
after an error too, no work is under way any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from kvstore.process.locks import Signal, result_of
from tiering.errors import TieringStopped

J = TypeVar("J")
T = TypeVar("T")
Check = Callable[[], None]
"""Called now and then by work that takes long; raises to end it."""


def pipelined(
    width: int, check: Check, items: Iterable[J], work: Callable[[J, Check], T]
) -> Generator[tuple[J, Callable[[], T]], None, None]:
    """Yields each item with a function that returns its result, or raises its error.

    By then `width` more are begun, and as many are worked on at a time. `work` gets the item and a
    check, which raises once the caller wants no more, or `check` raises. The iterator is to be
    closed (`contextlib.closing`).
    """
    given_up = Signal()

    def wanted() -> None:
        if given_up.is_set():
            raise TieringStopped("what was begun ahead is not wanted any more")
        check()

    begun: deque[tuple[J, Future[T]]] = deque()
    with ThreadPoolExecutor(width, thread_name_prefix="kvmq-ahead") as threads:
        try:
            for item in items:
                begun.append((item, threads.submit(work, item, wanted)))
                if len(begun) > width:
                    yield _first(begun)
            while begun:
                yield _first(begun)
        finally:
            given_up.set()
            for _, future in begun:
                future.cancel()


def go_on() -> None:
    """A check for work that nobody stops."""


def _first(begun: deque[tuple[J, Future[T]]]) -> tuple[J, Callable[[], T]]:
    item, future = begun.popleft()
    return item, lambda: result_of(future)
