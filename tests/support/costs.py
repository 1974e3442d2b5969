"""Counting what a call costs: RocksDB's operations, files' operations, and requests to a place.

The idea: times of a loaded machine say little, counts say all: what a call does at ten times the
size it may not do more often. The counts are taken at the seams, `Families` and `Files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvstore.files import LocalFiles
from kvstore.index.families import Families


class _Iterator:
    """A RocksDB iterator whose moves are counted."""

    def __init__(self, it: Any, counts: Counter[str]) -> None:
        self._it = it
        self._counts = counts

    def seek(self, key: bytes) -> None:
        self._counts["seek"] += 1
        self._it.seek(key)

    def seek_for_prev(self, key: bytes) -> None:
        self._counts["seek"] += 1
        self._it.seek_for_prev(key)

    def next(self) -> None:
        self._counts["next"] += 1
        self._it.next()

    def prev(self) -> None:
        self._counts["next"] += 1
        self._it.prev()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it, name)


class Costs:
    """What is counted while it is installed, by operation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        counts, get, iterate = self.counts, Families.get, Families.iter

        def counted_get(families: Families, name: str, key: bytes) -> bytes | None:
            counts["get"] += 1
            return get(families, name, key)

        def counted_iter(families: Families, name: str, options: Any = None) -> Any:
            return _Iterator(iterate(families, name, options), counts)

        monkeypatch.setattr(Families, "get", counted_get)
        monkeypatch.setattr(Families, "iter", counted_iter)
        for name in ("map", "read"):
            self._count(monkeypatch, LocalFiles, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        real, counts = getattr(owner, name), self.counts

        def counted(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """What is done within, filled in at its end."""
        before, found = self.counts.copy(), Counter[str]()
        yield found
        found.update(self.counts - before)
