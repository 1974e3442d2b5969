"""The folder of segment files: which there are, their maps, making and removing them.

The idea: a segment is a file of fixed size named by its first position in 20 digits; its number is
position // segment size. Maps are opened when first read and the least recently opened sealed ones
are let go, so a store of a thousand segments opens as fast as one of two.

Invariants: a mapped segment has its full size; a file that can't be one (foreign name, wrong size,
unreadable) is kept out and reported, never guessed at and never touched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from kvstore.errors import SegmentDamaged
from kvstore.files import Files, MappedFile, SegmentBuffer

NAME_DIGITS: Final = 20
_NEW: Final = ".new"
_WHOLE: Final = ".whole"
_COPIED: Final = 8 << 20
MAPS_MAX: Final = 256
"""Mapped sealed segments: each holds a descriptor, of which a process has 1,024 by default."""


def segment_name(position: int) -> str:
    """A segment's file name."""
    return f"{position:0{NAME_DIGITS}d}"


class Segments:
    """See the module."""

    def __init__(self, folder: Path, files: Files, size: int, *, writable: bool) -> None:
        self.folder = folder
        self.size = size
        self.problems: dict[int, str] = {}
        """Segments that can't be used, and why."""
        self.foreign: list[str] = []
        """Names in the folder that are no segment's."""
        self.files = files
        self._writable = writable
        self._maps: dict[int, MappedFile] = {}
        self._lock = threading.Lock()
        self.writable_from = 1 << 62
        """Segments below this number are mapped for reading only; recovery lowers it to the active
        one.
        """
        self.numbers: list[int] = []
        """The segments there are, rising; changed only by replacing the list."""
        self._scan()

    def _scan(self) -> None:
        numbers = []
        for name in self.files.list_dir(self.folder):
            if name.endswith((_NEW, _WHOLE)):
                # An allocation or copy that a crash cut short; it never was part of the log.
                if self._writable:
                    self.files.remove(self.folder / name)
            elif len(name) != NAME_DIGITS or not name.isdigit() or int(name) % self.size:
                self.foreign.append(name)
            else:
                number = int(name) // self.size
                numbers.append(number)
                self._check(number)
        self.numbers = sorted(numbers)

    def _check(self, number: int) -> None:
        path = self.path(number)
        if not path.is_file():
            self.problems[number] = f"{path} is not a file"
            return
        found = self.files.size(path)
        if found != self.size:
            self.problems[number] = (
                f"{path} has {found} bytes; a segment of this store has {self.size}"
            )

    def path(self, number: int) -> Path:
        """A segment's file."""
        return self.folder / segment_name(number * self.size)

    def map(self, number: int) -> MappedFile:
        """A segment's map; `SegmentDamaged` if it is not there or can't be used."""
        found = self._maps.get(number)
        return found if found is not None else self._open(number)

    def buffer(self, number: int) -> SegmentBuffer:
        """The bytes of a segment; see `map`."""
        return self.map(number).buffer

    def _open(self, number: int) -> MappedFile:
        with self._lock:
            found = self._maps.get(number)
            if found is not None:
                return found
            path = self.path(number)
            problem = self.problems.get(number)
            if problem is None and number not in self.numbers:
                problem = f"{path} is not there"
            if problem is not None:
                raise SegmentDamaged(
                    f"{problem}; bring the file back, or let retention pass it", str(path)
                )
            # Only what is behind the last sealed segment is ever written to.
            writable = self._writable and number >= self.writable_from
            found = self.files.map(path, writable=writable)
            if len(self._maps) >= MAPS_MAX:
                # Never one that the flusher may be syncing: closing takes its descriptor away.
                oldest = next((n for n in self._maps if n < self.writable_from), None)
                if oldest is not None:
                    self._maps.pop(oldest).close()
            self._maps[number] = found
            return found

    def remap(self, number: int) -> None:
        """Forget a map, such as one that is read-only and has to be written to now."""
        with self._lock:
            found = self._maps.pop(number, None)
            if found is not None:
                found.close()

    def create(self, number: int) -> None:
        """Make a segment of zeros; nothing if it is there."""
        with self._lock:
            if number in self.numbers:
                return
            self.files.create(self.path(number), self.size)
            self.numbers = sorted([*self.numbers, number])

    def extend(self, number: int) -> None:
        """Give a segment that is too short its full size, with zeros; what it holds stays."""
        path = self.path(number)
        whole = path.with_name(path.name + _WHOLE)
        with self._lock:
            self.files.create(whole, self.size)
            target = self.files.map(whole, writable=True)
            at = 0
            while data := self.files.read(path, at, _COPIED):
                target.write(at, data)
                at += len(data)
            target.sync()
            target.close()
            self.files.rename(whole, path)
            self.problems.pop(number, None)

    def own(self, number: int) -> None:
        """Make sure that nobody else has this segment's bytes (a hard link), before they are
        written to.
        """
        path = self.path(number)
        if self.files.links(path) > 1:
            self.remap(number)
            self.files.copy(path, path)

    def remove(self, number: int, *, erase: bool = False) -> None:
        """Remove a segment's file; with `erase`, overwrite it first unless another folder shares
        its bytes.
        """
        path = self.path(number)
        with self._lock:
            found = self._maps.pop(number, None)
            self.numbers = [n for n in self.numbers if n != number]
            self.problems.pop(number, None)
        if found is not None:
            found.close()
        if erase and self.files.size(path) and self.files.links(path) == 1:
            self.files.erase(path)
        self.files.remove(path)

    def sync(self, number: int) -> None:
        """Put a segment on the disk."""
        self.map(number).sync()

    def close(self) -> None:
        """Let go of all maps."""
        with self._lock:
            for found in self._maps.values():
                found.close()
            self._maps.clear()
