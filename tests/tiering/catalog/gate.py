"""A place for archives that can be held up, and counts what it is asked."""

from __future__ import annotations

import threading
from typing import Any

from kvstore import Store
from tests.tiering.catalog.moving import tiers
from tiering.places.place import Place


class Gate:
    """A place whose reads wait while it is shut; `asked` are the keys, and which bytes of each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open = threading.Event()
        self._open.set()
        self.asked: list[tuple[str, int, int]] = []
        self.waiting = threading.Semaphore(0)
        """Released by each read that finds it shut."""

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def source(self, key: str, size: int | None = None) -> Any:
        return _Source(self, key, self._place.source(key, size))

    def passed(self, key: str, at: int, size: int) -> None:
        self.asked.append((key, at, size))
        if not self._open.is_set():
            self.waiting.release()
        assert self._open.wait(60)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


class _Source:
    def __init__(self, gate: Gate, key: str, source: Any) -> None:
        self._gate = gate
        self._key = key
        self._source = source

    def read(self, at: int, size: int) -> bytes:
        self._gate.passed(self._key, at, size)
        found: bytes = self._source.read(at, size)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def gated(store: Store) -> Gate:
    """Have a store, which has not read any archive yet, read them by a gate, which is open."""
    found = tiers(store)
    row = found.rows()[0]
    gate = Gate(found.place(row))
    found._places[row.place] = gate
    return gate
