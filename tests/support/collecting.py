"""Garbage collections amid other work: wherever an object is made that the collector watches.

Up to Python 3.11 one may begin there, also within a function of the core, and run code: finalizers,
and meanwhile other threads. Later versions collect between two steps of the interpreter alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle


@contextmanager
def amid_collections(run: Callable[[], object]) -> Iterator[None]:
    """Calls `run` in each collection, of which there are as many as can be."""

    def called(phase: str, _: object) -> None:
        if phase == "start":
            gc.set_threshold(next(gaps))
            run()

    # Objects between two collections; not always as many, so that each has its turn.
    gaps = cycle((1, 2, 3))
    gc.collect()
    # Tuples that were let go are taken again without a collection; so are those of the work itself.
    taken = [tuple(range(size)) for size in range(1, 20) for _ in range(3000)]
    before = gc.get_threshold()
    gc.callbacks.append(called)
    gc.set_threshold(next(gaps))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(called)
        del taken
