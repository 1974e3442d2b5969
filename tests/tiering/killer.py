"""Every state in which a kill may leave a store that a worker works for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.files import Effect, WatchedFiles, copy_folder

ON_THE_WAY = ("tiering", "archive", "cold", "commitlog")


class Killer(WatchedFiles):
    """Keeps a copy of the store's folder as it is before each effect of the worker's."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Path | None = None
        self.copies: list[tuple[str, Path]] = []
        self.before = self._look
        self._looking = threading.Lock()

    def _look(self, effect: Effect) -> None:
        if self.store is None or not set(effect.path.parts).intersection(ON_THE_WAY):
            return
        if effect.kind in ("map", "write"):
            return
        with self._looking:  # of two threads, the other may go on
            target = self.store.with_name(f"killed{len(self.copies)}")
            copy_folder(self.store, target)
            self.copies.append((f"{effect.kind} {effect.path.name}", target))

    @contextmanager
    def killing(self, store: Path) -> Iterator[None]:
        """Copies are made of the store in this folder meanwhile."""
        self.store = store
        yield
        self.store = None

    def check_each(self, check: Callable[[Path], None], every: int = 1) -> None:
        """Runs a check on each copy, or on every so many of them; says which one failed."""
        assert len(self.copies) > 8
        for step, copy in self.copies[::every]:
            try:
                check(copy)
            except BaseException as e:
                e.add_note(f"killed before: {step}")
                raise
