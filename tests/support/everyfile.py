"""A file layer of which a test may let every operation fail, those that only read as well."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kvstore.files import FolderLock
from tests.support.files import WatchedFiles

_HALVES: Final = frozenset({"write", "write_whole", "write_private", "erase", "copy", "append"})
_READING: Final = frozenset({"map", "list_dir", "facts", "read", "links", "disk_used"})


class Fault(NamedTuple):
    """The `nth` operation of a kind fails with an error, maybe after half of its work."""

    kind: str
    nth: int
    error: int
    half: bool


def faults(counts: Counter[str]) -> Iterator[Fault]:
    """Every fault to try where so many operations of each kind happen."""
    for kind, count in sorted(counts.items()):
        for nth in sorted({1, (count + 1) // 2, count}):
            yield Fault(kind, nth, errno.EIO, half=False)
            if kind not in _READING:  # what only reads needs no room
                yield Fault(kind, nth, errno.ENOSPC, half=False)
            if kind in _HALVES:
                yield Fault(kind, nth, errno.EIO, half=True)


def spread_faults(counts: Counter[str]) -> Iterator[Fault]:
    """The same uses of each kind with one error each: all errors strike each kind, and another use
    of the next kind.
    """
    for turn, (kind, count) in enumerate(sorted(counts.items())):
        due = [f for f in faults(Counter({kind: count})) if f.nth == 1]
        for number, nth in enumerate((1, (count + 1) // 2, count)):
            yield due[(number + turn) % len(due)]._replace(nth=nth)


class EveryFile(WatchedFiles):
    """See the module."""

    def make_dir(self, path: Path) -> None:
        self.happens("make_dir", path)
        super().make_dir(path)

    def list_dir(self, path: Path) -> list[str]:
        self.happens("list_dir", path)
        return super().list_dir(path)

    def facts(self, path: Path) -> os.stat_result | None:
        self.happens("facts", path)
        return super().facts(path)

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        self.happens("read", path)
        return super().read(path, offset, size)

    def links(self, path: Path) -> int:
        self.happens("links", path)
        return super().links(path)

    def disk_used(self, path: Path) -> float:
        self.happens("disk_used", path)
        return super().disk_used(path)

    def lock(self, path: Path) -> FolderLock:
        self.happens("lock", path)
        return super().lock(path)
