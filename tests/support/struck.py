"""An error behind a write of RocksDB, as when memory is full just then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kvstore import Store
from kvstore.index.families import Batch
from tests.support import inside


def struck_behind(store: Store, number: int, work: Callable[[], object]) -> int:
    """Does some work, and raises a MemoryError behind the write with this number, from 1; returns
    how many writes there were.
    """
    families, count = inside.families(store), 0
    write = families.write

    def watched(batch: Batch, *, sync: bool = False) -> None:
        nonlocal count
        write(batch, sync=sync)
        count += 1
        if count == number:
            raise MemoryError

    families.write = watched  # type: ignore[method-assign]  # to strike between two steps
    try:
        with contextlib.suppress(MemoryError):
            work()
    finally:
        families.write = write  # type: ignore[method-assign]  # as it was
    return count
