"""Ahead: the next things are being made while one is handed over.

The idea: making an archive takes long and touches no store; handing it over is short, and is done
one after the other, in order. So the next ones are begun on threads, which only wait for them: as
many as are made at once. Where one works, it makes the next while the last is handed over, and
neither waits for the other.

Invariants: what came of things is taken in their order, and each one's error is raised where it is
taken; things are begun in their order, by the caller's thread; when the caller is done, whatever
the reason, nothing is under way any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tiering.errors import TieringStopped

J = TypeVar("J")
T = TypeVar("T")
Check = Callable[[], None]


def ahead(
    width: int, check: Check, items: Iterable[J], work: Callable[[J, Check], T]
) -> Generator[tuple[J, Callable[[], T]], None, None]:
    """Each of the items, with what gives, or raises, what came of it; `width` more are begun by
    then, and as many worked on at a time. `work` asks what it is given beside the item whether to
    go on: `check`, which raises once the caller wants no more. To be closed
    (`contextlib.closing`).
    """
    given_up = threading.Event()

    def asked() -> None:
        if given_up.is_set():
            raise TieringStopped("what was begun ahead is not wanted any more")
        check()

    begun: deque[tuple[J, Future[T]]] = deque()
    with ThreadPoolExecutor(width, thread_name_prefix="kvmq-ahead") as threads:
        try:
            for item in items:
                begun.append((item, threads.submit(work, item, asked)))
                if len(begun) > width:
                    yield _next(begun)
            while begun:
                yield _next(begun)
        finally:
            given_up.set()
            for _, future in begun:
                future.cancel()


def go_on() -> None:
    """A check for work that nobody stops."""


def _next(begun: deque[tuple[J, Future[T]]]) -> tuple[J, Callable[[], T]]:
    item, future = begun.popleft()
    return item, future.result
