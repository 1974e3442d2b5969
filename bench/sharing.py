"""Whether threads that pop would gain by sharing writes: group commit, at its best.

Each thread writes the rows of one pop after another. In the other way the threads meet: the last
that comes writes the rows of all and wakes the others, so nobody waits who could work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.figure import Figure, Options
from kvstore.index.families import Families, KeyValue
from kvstore.index.keys import LOCKS, OFFSETS

_THREADS: Final = (4, 16)
_TURNS: Final = 8
_LOCK: Final = bytes(18)
_OFFSET: Final = (bytes(12), bytes(12))


class _Meeting:
    """Where so many threads meet for each write."""

    def __init__(self, families: Families, size: int) -> None:
        self._families = families
        self._size = size
        self._lock = threading.Lock()
        self._rows: list[KeyValue] = []
        self._waiters: list[threading.Lock] = []

    def write(self, row: KeyValue) -> None:
        """Returns when the row is written, with those of all others."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            self._rows.append(row)
            self._waiters.append(waiter)
            together = None
            if len(self._rows) == self._size:
                together = self._rows, self._waiters
                self._rows, self._waiters = [], []
        if together is None:
            waiter.acquire()
            return
        rows, waiters = together
        try:
            self._families.write_rows((LOCKS, rows), (OFFSETS, [_OFFSET]))
        finally:
            for one in waiters:
                one.release()


def run(folder: Path, options: Options) -> list[Figure]:
    """The rows of single pops, by 4 and 16 threads: written alone, and by one for all."""
    count = max(_THREADS[-1], (options.messages or 160_000) // _TURNS)
    families = Families(folder / "rows", read_only=False, create=True)

    def alone(row: KeyValue) -> None:
        families.write_rows((LOCKS, [row]), (OFFSETS, [_OFFSET]))

    figures = []
    try:
        for threads in _THREADS:
            seconds = [0.0, 0.0]
            # In turn, so that what else this machine does meets both alike.
            for _ in range(_TURNS):
                seconds[0] += _cost(alone, threads, count)
                seconds[1] += _cost(_Meeting(families, threads).write, threads, count)
            each = [1e6 * spent / (_TURNS * count) for spent in seconds]
            names = f"a pop's rows, {threads} threads write", f"the same, one writes for {threads}"
            figures += [
                Figure(name, value, "us", better="lower")
                for name, value in zip(names, each, strict=True)
            ]
    finally:
        families.close()
    return figures


def _cost(write: Callable[[KeyValue], None], threads: int, count: int) -> float:
    """Seconds of a processor that threads take to write so many rows together."""

    def work(number: int) -> None:
        for turn in range(count // threads):
            write((number.to_bytes(4, "big") + turn.to_bytes(24, "big"), _LOCK))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    begin = time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.process_time() - begin
