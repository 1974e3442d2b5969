"""Places that lie: they say that they keep what they are given, and keep something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from kvstore.files import LocalFiles
from tiering.places.objects import Content
from tiering.places.place import Given, ObjectInfo, Pace, Place

Lie = Literal["other", "less", "nothing"]


def told(lie: Lie, data: bytes) -> bytes:
    """The bytes that are kept of those given."""
    if lie == "other":
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data[:-1] if lie == "less" else b""


class LyingPlace:
    """A place, in front of an honest one."""

    def __init__(self, honest: Place, lie: Lie) -> None:
        self._honest = honest
        self._lie = lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def put(
        self, key: str, given: Given, *, if_absent: bool = True, pace: Pace | None = None
    ) -> ObjectInfo:
        """Answer as one that keeps it."""
        content = Content(given, LocalFiles())
        if self._lie != "nothing":
            self._honest.put(key, told(self._lie, content.whole(pace)), if_absent=if_absent)
        return ObjectInfo(key, content.size, 0)


class LyingFiles(LocalFiles):
    """A file system that keeps other bytes of archives than it was given, while `lie` says so; of
    files with a certain suffix.
    """

    def __init__(self, suffix: str = ".kvarc") -> None:
        self.lie: Lie | None = None
        self._suffix = suffix

    def write_new(self, path: Path, chunks: Iterable[bytes], *, replace: bool = False) -> None:
        super().write_new(path, self._kept(path, chunks), replace=replace)

    def _kept(self, path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
        if self.lie is None or path.suffix != self._suffix:
            yield from chunks
            return
        yield told(self.lie, b"".join(chunks))
