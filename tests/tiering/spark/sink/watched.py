"""A place whose calls are counted, and can be stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiering.places.place import ObjectInfo, Place, open_place


class Watched:
    """A place whose calls are counted; `before` and `after` are told each that changes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.inner: Place = open_place(folder)
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str, str], None] = nothing
        self.after: Callable[[str, str], None] = nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, key: str, given: Any, **more: Any) -> ObjectInfo:
        self.counts["put"] += 1
        self.before("put", key)
        done = self.inner.put(key, given, **more)
        self.after("put", key)
        return done

    def delete(self, key: str) -> None:
        self.counts["delete"] += 1
        self.before("delete", key)
        self.inner.delete(key)
        self.after("delete", key)

    def size(self, key: str) -> int:
        self.counts["looked at"] += 1
        return self.inner.size(key)

    def read(self, key: str, offset: int, size: int) -> bytes:
        self.counts["read"] += 1
        self.counts["bytes"] += size
        return self.inner.read(key, offset, size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in self.inner.list(prefix):
            self.counts["listed"] += 1
            yield info

    def folders(self) -> Any:
        found = self.inner.folders()
        self.counts["listed"] += len(found)
        return found


def nothing(*_: str) -> None:
    pass
