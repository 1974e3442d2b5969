"""Counting what a call costs: RocksDB's operations, files' operations, and requests to a place.

The idea: times of a loaded machine say little, counts say all: what a call does at ten times the
size it may not do more often. The counts are taken at the seams, `Families` and `Files`. The
threads of upkeep are not counted: they work when they please, also during a call.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from kvstore.files import LocalFiles
from kvstore.index.families import Families

_UPKEEP: Final = frozenset({"kvmq-housekeeper", "kvmq-offsets", "kvmq-delivery"})


class _Iterator:
    """A RocksDB iterator whose moves are counted."""

    def __init__(self, it: Any, count: Callable[[str], None]) -> None:
        self._it = it
        self._count = count

    def seek(self, key: bytes) -> None:
        self._count("seek")
        self._it.seek(key)

    def seek_for_prev(self, key: bytes) -> None:
        self._count("seek")
        self._it.seek_for_prev(key)

    def next(self) -> None:
        self._count("next")
        self._it.next()

    def prev(self) -> None:
        self._count("next")
        self._it.prev()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it, name)


class Costs:
    """The operations done while it is installed, counted by kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, upkeep: Collection[str] = _UPKEEP) -> None:
        """The threads `upkeep` are not counted."""
        self._upkeep = upkeep
        self.counts: Counter[str] = Counter()
        count, get, iterate = self._count, Families.get, Families.iter

        def counted_get(families: Families, name: str, key: bytes) -> bytes | None:
            count("get")
            return get(families, name, key)

        def counted_iter(families: Families, name: str, options: Any = None) -> Any:
            return _Iterator(iterate(families, name, options), count)

        monkeypatch.setattr(Families, "get", counted_get)
        monkeypatch.setattr(Families, "iter", counted_iter)
        for name in ("map", "read"):
            self._watch(monkeypatch, LocalFiles, name)

    def _count(self, name: str) -> None:
        if threading.current_thread().name not in self._upkeep:
            self.counts[name] += 1

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        real, count = getattr(owner, name), self._count

        def counted(*args: Any, **named: Any) -> Any:
            count(name)
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The counts of the operations within, filled in at its end."""
        before, found = self.counts.copy(), Counter[str]()
        yield found
        found.update(self.counts - before)
