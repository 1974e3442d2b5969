"""A file system that a test watches, breaks, and cuts the power of.

The idea: `WatchedFiles` does what `LocalFiles` does, notes every effect before it happens, and
asks the test whether it shall happen. Of every segment it keeps the last synced image, so that
`power_cut` can write a folder as a disk might hold it: each page dirtied since the last sync is
there or not, as the test chooses.

Not modelled are a sync that reaches the disk in part, and RocksDB's own files, which are copied as
they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kvstore.errors import DiskFull
from kvstore.files import LocalFiles, LocalMappedFile, LocalScratch, MappedFile

PAGE: Final = 4096
_TRIES: Final = 100
_PAUSE: Final = 0.01


class Effect(NamedTuple):
    """Something that changes the disk, or (for "map") a file in use."""

    kind: str
    path: Path
    size: int = 0


class Page(NamedTuple):
    """A page of a segment that was changed and not synced."""

    path: Path
    number: int


class HalfDone(OSError):
    """A write that fails after its first half."""


Choose = Callable[[list[Page]], Collection[Page]]


def none(_: list[Page]) -> Collection[Page]:
    """No dirty page reached the disk."""
    return ()


def every(pages: list[Page]) -> Collection[Page]:
    """All dirty pages reached the disk."""
    return pages


class WatchedFiles(LocalFiles):
    """See the module. `effects` is what happened, in order; `used`, if set, is the disk's share."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.used: float | None = None
        self.open_maps: dict[Path, int] = {}
        """How many maps of a file are held open."""
        self.before: Callable[[Effect], None] = lambda _: None
        """Called before each effect; what it raises, the effect raises."""
        self.failed = 0
        """How many effects were made to fail."""
        self._faults: list[_Fault] = []
        self._synced: dict[Path, bytes] = {}
        self._lock = threading.RLock()

    # --- what a test asks for ---

    def fail(
        self,
        kind: str,
        *,
        nth: int = 1,
        error: int = errno.EIO,
        times: int = 1,
        path: str = "",
        half: bool = False,
    ) -> None:
        """Let the `nth` effect of a kind from now on fail, and the `times` - 1 behind it; of those
        on files with `path` in theirs. With `half` the first half of a write reaches the file.
        """
        self._faults.append(_Fault(kind, nth, times, error, path, half=half))

    def mend(self) -> None:
        """Have nothing fail any more."""
        self._faults.clear()

    def kinds(self) -> list[str]:
        """The kinds of the effects so far."""
        return [e.kind for e in self.effects]

    def dirty(self) -> list[Page]:
        """The pages that a power cut may lose."""
        with self._lock:
            return [
                Page(path, number)
                for path, image in sorted(self._synced.items())
                for number in _differing(path.read_bytes(), image)
            ]

    def power_cut(
        self, store: Path, target: Path, keep: Choose = none, *, index: Path | None = None
    ) -> Path:
        """Write what a disk may hold of `store` after a power cut, maybe with another `index`."""
        copy_folder(store / "index" if index is None else index, target / "index")
        with self._lock:
            dirty = self.dirty()
            kept = frozenset(keep(dirty))
            shutil.copyfile(store / "lock", target / "lock")
            (target / "commitlog").mkdir()
            for path in sorted((store / "commitlog").iterdir()):
                (target / "commitlog" / path.name).write_bytes(self._image(path, kept))
        return target

    def _image(self, path: Path, kept: Collection[Page]) -> bytes:
        data = path.read_bytes()
        image = self._synced.get(path)
        if image is None:
            return data
        out = bytearray(image)
        for number in _differing(data, image):
            if Page(path, number) in kept:
                out[number * PAGE : (number + 1) * PAGE] = data[number * PAGE : (number + 1) * PAGE]
        return bytes(out)

    # --- Files ---

    def happens(self, kind: str, path: Path, size: int = 0) -> None:
        """Note an effect that is about to happen; raises if it shall fail."""
        effect = Effect(kind, path, size)
        self.before(effect)
        with self._lock:
            self.effects.append(effect)
            fault = next((f for f in self._faults if f.hits(effect)), None)
        if fault is not None:
            self.failed += 1
            raise (HalfDone if fault.half else OSError)(
                fault.error, os.strerror(fault.error), str(path)
            )

    def create(self, path: Path, size: int) -> None:
        with _no_room(f"for a segment of {size} bytes at {path}"):
            self.happens("create", path, size)
        super().create(path, size)
        with self._lock:
            self._synced[path] = bytes(size)

    def map(self, path: Path, *, writable: bool) -> MappedFile:
        self.happens("map", path)
        with self._lock:
            found = WatchedMap(self, path, writable=writable)
            self._synced.setdefault(path, path.read_bytes())
            self.open_maps[path] = self.open_maps.get(path, 0) + 1
        return found

    def write_whole(self, path: Path, data: bytes) -> None:
        try:
            self.happens("write_whole", path, len(data))
        except HalfDone:
            path.with_name(path.name + ".new").write_bytes(data[: len(data) // 2])
            raise
        super().write_whole(path, data)

    def write_new(self, path: Path, chunks: Iterable[bytes], *, replace: bool = False) -> None:
        self.happens("write_new", path)
        super().write_new(path, self._written(path, chunks), replace=replace)

    def _written(self, path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            try:
                self.happens("write", path, len(chunk))
            except HalfDone:
                yield chunk[: len(chunk) // 2]
                raise
            yield chunk

    def scratch(self, folder: Path) -> LocalScratch:
        with _no_room(f"for a scratch file in {folder}"):
            self.happens("scratch", folder)
        return WatchedScratch(self, folder)

    def write_private(self, path: Path, data: bytes) -> None:
        try:
            self.happens("write_private", path, len(data))
        except HalfDone:
            path.with_name(path.name + ".new").write_bytes(data[: len(data) // 2])
            raise
        super().write_private(path, data)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        self.happens("link", target)
        return super().link_or_copy(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self.happens("rename", target)
        with self._lock:
            super().rename(source, target)
            image = self._synced.pop(source, None)
            if image is not None:
                self._synced[target] = image
            else:
                self._synced.pop(target, None)

    def remove(self, path: Path) -> None:
        self.happens("remove", path)
        with self._lock:
            super().remove(path)
            self._synced.pop(path, None)

    def erase(self, path: Path) -> None:
        try:
            self.happens("erase", path)
        except HalfDone:
            with path.open("rb+") as f:
                f.write(bytes(path.stat().st_size // 2))
            raise
        super().erase(path)
        self.is_synced(path)

    def copy(self, source: Path, target: Path) -> None:
        try:
            self.happens("copy", target)
        except HalfDone:
            data = source.read_bytes()
            target.with_name(target.name + ".new").write_bytes(data[: len(data) // 2])
            raise
        super().copy(source, target)

    def disk_used(self, path: Path) -> float:
        return super().disk_used(path) if self.used is None else self.used

    def is_synced(self, path: Path, image: bytes | None = None) -> None:
        """Note that the disk has a file as it is, or as it was when `image` was taken."""
        with self._lock:
            self._synced[path] = path.read_bytes() if image is None else image


class WatchedMap(LocalMappedFile):
    """A map whose syncs are noted; they don't wait for the disk: what is lost is up to the test."""

    def __init__(self, files: WatchedFiles, path: Path, *, writable: bool) -> None:
        super().__init__(path, writable=writable)
        self._files = files
        self.closed = False

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        try:
            self._files.happens("write", self.path, len(data))
        except HalfDone:
            super().write(offset, data[: len(data) // 2])
            raise
        super().write(offset, data)

    def reserve(self, end: int) -> None:
        self._files.happens("reserve", self.path, end)
        super().reserve(end)

    def zero_from(self, offset: int) -> int:
        self._files.happens("zero", self.path, offset)
        changed = super().zero_from(offset)
        if changed:
            self._files.is_synced(self.path)
        return changed

    def sync(self) -> None:
        # Taken first: what is stored while the disk is at work need not have reached it.
        image = bytes(self.buffer)
        self._files.happens("sync", self.path)
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._files.is_synced(self.path, image)

    def close(self) -> None:
        super().close()
        if not getattr(self, "closed", True):
            self.closed = True
            self._files.open_maps[self.path] -= 1


class _Fault:
    def __init__(
        self, kind: str, nth: int, times: int, error: int, path: str, *, half: bool
    ) -> None:
        self.half = half
        self._path = path
        self._kind = kind
        self._left = nth
        self._times = times
        self.error = error

    def hits(self, effect: Effect) -> bool:
        """Count an effect; whether it is one that fails."""
        if effect.kind != self._kind or self._path not in str(effect.path):
            return False
        self._left -= 1
        return -self._times < self._left <= 0


def _differing(data: bytes, image: bytes) -> list[int]:
    return [
        at // PAGE
        for at in range(0, len(data), PAGE)
        if data[at : at + PAGE] != image[at : at + PAGE]
    ]


class WatchedScratch(LocalScratch):
    """A scratch file whose uses are effects."""

    def __init__(self, files: WatchedFiles, folder: Path) -> None:
        super().__init__(folder)
        self._files = files
        self._folder = folder

    def append(self, data: bytes) -> None:
        with _no_room(self._what):
            try:
                self._files.happens("append", self._folder, len(data))
            except HalfDone:
                super().append(data[: len(data) // 2])
                raise
        super().append(data)

    def read(self, offset: int, size: int) -> bytes:
        self._files.happens("read", self._folder)
        return super().read(offset, size)


@contextlib.contextmanager
def _no_room(what: str) -> Iterator[None]:
    """A full disk, as LocalFiles says it."""
    try:
        yield
    except OSError as e:
        if e.errno == errno.ENOSPC:
            raise DiskFull(f"no room {what}") from e
        raise


def copy_folder(source: Path, target: Path) -> Path:
    """Copy a folder that is in use, as it was at one moment: RocksDB may finish a file, and remove
    the ones before it, between the first file copied and the last.
    """
    for _ in range(_TRIES):
        before = _seen(source)
        try:
            shutil.copytree(source, target)
            if _seen(source) == before:
                return target
        except (FileNotFoundError, shutil.Error):
            pass
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(_PAUSE)
    raise AssertionError(f"{source} did not hold still")


def _seen(folder: Path) -> set[tuple[str, int, int]]:
    """Name, size and time of change of every file but RocksDB's own diary."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.name.startswith("LOG"):
                stat = path.stat()
                found.add((str(path), stat.st_size, stat.st_mtime_ns))
    return found
