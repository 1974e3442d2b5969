"""Files: the one way to change the log's files, and to make them durable.

The idea: each change that the log makes in the file system goes through a `Files`, and every byte
that is appended goes through the `MappedFile` that it hands out. Tests put a twin in its place that
records, fails or forgets. RocksDB writes its own files.

Invariants: a mapped file has its full size from the start, and its blocks below `reserved`; nothing
is stored into the map above that, so that no store can end the process (a store into a hole of a
full disk is a SIGBUS); a file that was created or renamed is on disk under that name when the call
returns (file and folder are synced).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar, Final, Protocol

from kvstore.errors import CallerError, DiskFull, SegmentDamaged, shown
from kvstore.process.forking import module_lock, release_in_child
from kvstore.process.lock_holders import lock_holder, locked_error

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash, because a Path has lost the second."""
_WANTED: Final = "give a path on this machine, such as 'data' or '~/data'"


def local_path(given: object, what: str = "a store") -> Path:
    """The path that a caller gave, with `~` and `~user` as homes; `what` names its object in the
    error.

    >>> local_path("data/orders")
    PosixPath('data/orders')

    Raises CallerError for a URL, an empty text, and a value that is neither a text nor a Path.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text or "\0" in text:
        raise CallerError(f"the path of {what} is {shown(given)}; {_WANTED}")
    url = _URL.match(text)
    if url is not None:
        raise CallerError(
            f"the path of {what} is a {url[1]}:// URL, and there is nothing to connect to: a store "
            f"is files in a folder; {_WANTED}"
        )
    found = os.path.expanduser(text)
    if found.startswith("~"):
        raise CallerError(
            f"the path of {what} is {shown(text)}, and nobody knows that home folder; give the "
            "whole path, or begin it with ./ if ~ is part of the name"
        )
    return Path(found)


_CHUNK = 8 << 20
_RESERVED_MIN = 1 << 20
_RESERVED_MAX = 64 << 20
"""The least and the most bytes that get blocks at a time; between them the reserved part doubles.
A segment of 1 GiB takes 22 calls of 10 us.
"""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
LOCK_MARK = "kvmq"
"""The beginning of our lock files: it tells a folder of ours from one that RocketMQ wrote."""


SegmentBuffer = mmap.mmap
"""The buffer by which a segment is read and written by index; a slice is a copy, as `bytes`."""


class MappedFile(Protocol):
    """One segment file, mapped whole into memory's address space."""

    path: Path
    size: int
    buffer: SegmentBuffer
    """Reading and (if opened so) writing by position; a slice is a copy, as `bytes`."""

    reserved: int
    """The bytes below have their blocks, as far as this map has asked for them."""

    def reserve(self, end: int) -> None:
        """Gives the bytes below `end`, and some behind, their blocks, or raises `OSError`."""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes past the map, with a system call; seen through the map at once."""

    def zero_from(self, offset: int) -> int:
        """Makes all bytes from `offset` on zero, on the disk; returns how many bytes were not."""

    def sync(self) -> None:
        """Returns when everything written so far is on the disk; `OSError` if the disk refused."""

    def close(self) -> None:
        """Closes map and descriptor; readers that still hold the buffer keep it alive."""


class FolderLock(Protocol):
    """The lock of a folder. It is made before a `try` and taken in it, so that whatever comes
    between the two leaves nothing held.
    """

    def acquire(self) -> None:
        """Takes the lock for this process alone; `StoreLocked` names the pid that holds it, and
        `StoreServed` the URL as well.
        """

    def mark(self) -> None:
        """Writes into the lock file, for good, that the folder is a kvmq store."""

    def say_served(self, url: str) -> None:
        """Writes into the lock file where the folder is served; nothing if that is empty."""

    def release(self) -> None:
        """Releases the lock; nothing if it is not held."""


class Scratch(Protocol):
    """A file without a name, which goes when it is closed, or nobody uses it any more."""

    def append(self, data: bytes) -> None:
        """Writes at the end; `DiskFull`."""

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes, which were appended before."""

    def close(self) -> None:
        """Closes it; its bytes are gone."""


class Files(Protocol):
    """A file system, as kvmq needs it."""

    def make_dir(self, path: Path) -> None:
        """Makes the folder (and those above it) if it is not there, durably."""

    def list_dir(self, path: Path) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""

    def size(self, path: Path) -> int | None:
        """A file's bytes; None if there is no such file, or its name leads nowhere."""

    def facts(self, path: Path) -> os.stat_result | None:
        """The system's facts about a name; None where `size` gives None."""

    def create(self, path: Path, size: int) -> None:
        """Makes a file of `size` zero bytes, with no block on the disk yet; `DiskFull`."""

    def map(self, path: Path, *, writable: bool) -> MappedFile:
        """Maps a whole file; `SegmentDamaged` if it is empty or can't be opened."""

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        """Up to `size` bytes from `offset` (all by default)."""

    def write_whole(self, path: Path, data: bytes) -> None:
        """Puts a whole small file in place atomically."""

    def write_new(self, path: Path, chunks: Iterable[bytes], *, replace: bool = False) -> None:
        """Puts a whole file in place atomically and durably, leaving nothing behind if that fails;
        `FileExistsError` if one is there and is not to be replaced; `DiskFull`."""

    def write_private(self, path: Path, data: bytes) -> None:
        """As `write_whole`, with a file that its owner alone may read."""

    def scratch(self, folder: Path) -> Scratch:
        """A new file without a name on the disk of a folder."""

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """Gives a file a second name; copies it where that is impossible. True if linked."""

    def copy(self, source: Path, target: Path) -> None:
        """Copies a file durably; its holes stay holes."""

    def links(self, path: Path) -> int:
        """How many names the file has; more than one means somebody else has its bytes too."""

    def rename(self, source: Path, target: Path) -> None:
        """Renames durably, replacing `target`."""

    def remove(self, path: Path) -> None:
        """Removes a file durably; nothing if it is not there."""

    def erase(self, path: Path) -> None:
        """Overwrites a file's bytes with zeros, on disk; its holes, which hold nothing, stay."""

    def disk_used(self, path: Path) -> float:
        """The share of the file system in use, 0 to 1, as an ordinary user sees it."""

    def lock(self, path: Path) -> FolderLock:
        """A lock by this file, which it does not take yet."""


class LocalFiles:
    """The file system itself."""

    def make_dir(self, path: Path) -> None:
        """See `Files.make_dir`."""
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in missing:
            self._sync_dir(made.parent)

    def list_dir(self, path: Path) -> list[str]:
        """See `Files.list_dir`."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int | None:
        """See `Files.size`."""
        found = self.facts(path)
        return None if found is None else found.st_size

    def facts(self, path: Path) -> os.stat_result | None:
        """See `Files.facts`."""
        try:
            return path.stat()
        except OSError as e:
            if e.errno in _NOT_THERE:  # nothing can be there, or links lead nowhere
                return None
            raise

    def create(self, path: Path, size: int) -> None:
        """See `Files.create`."""
        part = path.with_name(path.name + ".new")
        with _made(part, f"for a segment of {size} bytes at {path}", " or lower segment_size"):
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)
        self.rename(part, path)

    def map(self, path: Path, *, writable: bool) -> MappedFile:
        """See `Files.map`."""
        return LocalMappedFile(path, writable=writable)

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        """See `Files.read`."""
        with path.open("rb") as f:
            f.seek(offset)
            return f.read(size)

    def write_whole(self, path: Path, data: bytes) -> None:
        """See `Files.write_whole`."""
        self._write_new(path, data, 0o666)

    def write_private(self, path: Path, data: bytes) -> None:
        """See `Files.write_private`."""
        self._write_new(path, data, 0o600)

    def _write_new(self, path: Path, data: bytes, mode: int) -> None:
        part = path.with_name(path.name + ".new")
        # A file that a crash left behind may have another mode.
        part.unlink(missing_ok=True)
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        self.rename(part, path)

    def write_new(self, path: Path, chunks: Iterable[bytes], *, replace: bool = False) -> None:
        """See `Files.write_new`."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        try:
            with _made(part, f"for {path}"):
                with part.open("xb", buffering=0) as f:
                    at = 0
                    for chunk in chunks:
                        _write(f.fileno(), at, chunk)
                        at += len(chunk)
                    os.fsync(f.fileno())
                if replace:
                    part.replace(path)
                else:
                    path.hardlink_to(part)  # unlike a rename, a link refuses a name that is taken
                    part.unlink()
        except FileExistsError:
            self._sync_dir(path.parent)  # the first one may not have come to this yet
            raise
        self._sync_dir(path.parent)

    def scratch(self, folder: Path) -> Scratch:
        """See `Files.scratch`."""
        return LocalScratch(folder)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """See `Files.link_or_copy`."""
        try:
            os.link(source, target)
        except OSError:
            self.copy(source, target)
            return False
        self._sync_dir(target.parent)
        return True

    def copy(self, source: Path, target: Path) -> None:
        """See `Files.copy`."""
        part = target.with_name(target.name + ".new")
        with _made(part, f"to copy {source}"), source.open("rb") as old, part.open("wb") as new:
            size = os.fstat(old.fileno()).st_size
            for at, data in _data(old.fileno(), 0, size):
                _write(new.fileno(), at, data)
            os.ftruncate(new.fileno(), size)
            os.fsync(new.fileno())
        self.rename(part, target)

    def links(self, path: Path) -> int:
        """See `Files.links`."""
        return path.stat().st_nlink

    def rename(self, source: Path, target: Path) -> None:
        """See `Files.rename`."""
        source.replace(target)
        self._sync_dir(target.parent)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            self._sync_dir(path.parent)

    def erase(self, path: Path) -> None:
        """See `Files.erase`."""
        with path.open("rb+", buffering=0) as f:
            fd = f.fileno()
            for at, data in _data(fd, 0, os.fstat(fd).st_size):
                _write(fd, at, bytes(len(data)))
            os.fsync(fd)

    def disk_used(self, path: Path) -> float:
        """See `Files.disk_used`."""
        s = os.statvfs(path)
        used = s.f_blocks - s.f_bfree
        total = used + s.f_bavail
        return used / total if total else 0.0

    def lock(self, path: Path) -> FolderLock:
        """See `Files.lock`."""
        return LocalLock(path)

    def _sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class LocalMappedFile:
    """See `MappedFile`."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self.reserved = 0
        self._fd = -1
        try:
            self._fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            self.size = os.fstat(self._fd).st_size
            if self.size == 0:
                self.close()
                raise SegmentDamaged(
                    f"{path} is empty; a segment has its full size from the start", str(path)
                )
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self.buffer = mmap.mmap(self._fd, self.size, mmap.MAP_SHARED, prot)
        except OSError as e:
            self.close()
            raise SegmentDamaged(f"{path} can't be opened: {e.strerror}", str(path)) from e

    def reserve(self, end: int) -> None:
        """See `MappedFile.reserve`. Blocks that are there, as all are in RocketMQ's files, stay."""
        step = min(max(self.reserved, _RESERVED_MIN), _RESERVED_MAX)
        behind = min(self.size, max(end, self.reserved + step))
        if behind == self.reserved:
            return
        try:
            os.posix_fallocate(self._fd, self.reserved, behind - self.reserved)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            if end <= self.reserved:
                return
            behind = end  # there is no room for more than is needed now
            os.posix_fallocate(self._fd, self.reserved, behind - self.reserved)
        self.reserved = behind

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """See `MappedFile.write`."""
        _write(self._fd, offset, data)

    def zero_from(self, offset: int) -> int:
        """See `MappedFile.zero_from`: looks only where the file has data."""
        changed = 0
        for at, data in _data(self._fd, offset, self.size):
            left = len(data) - data.count(0)
            if left:
                changed += left
                self.write(at, bytes(len(data)))
        if changed:
            os.fsync(self._fd)
        return changed

    def sync(self) -> None:
        """See `MappedFile.sync`; fdatasync takes pages dirtied through the map with it."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """See `MappedFile.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalScratch:
    """See `Scratch`."""

    def __init__(self, folder: Path) -> None:
        self._what = f"for a scratch file in {folder}"
        with _made(None, self._what):
            self._file = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close
        self._size = 0

    def append(self, data: bytes) -> None:
        """See `Scratch.append`."""
        with _made(None, self._what):
            _write(self._file.fileno(), self._size, data)
        self._size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        """See `Scratch.read`."""
        found = os.pread(self._file.fileno(), size, offset)
        if len(found) < size:
            raise OSError(errno.EIO, f"a scratch file lost its end: {size} bytes at {offset}")
        return found

    def close(self) -> None:
        """See `Scratch.close`."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


@contextlib.contextmanager
def _made(part: Path | None, what: str, or_else: str = "") -> Iterator[None]:
    """Within this block a file is made at `part`, where nothing stays if that fails; `DiskFull`."""
    try:
        yield
    except BaseException as e:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        if isinstance(e, OSError) and e.errno in (*_FULL, errno.EFBIG):
            raise DiskFull(f"no room {what}: {e.strerror}; free disk space{or_else}") from e
        raise


def _write(fd: int, offset: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        offset += done
        view = view[done:]


def _data(fd: int, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """A file's bytes from `offset` on without its holes, and where they stand."""
    ranges = []
    while offset < end:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as e:
            if e.errno != errno.ENXIO:  # a file system that can't tell
                ranges.append((offset, end))
            break
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        ranges.append((start, offset))
    # Only now: bytes that are read ahead behind a range would count as data of the next.
    for start, stop in ranges:
        for at in range(start, stop, _CHUNK):
            yield at, os.pread(fd, min(_CHUNK, stop - at), at)


class LocalLock:
    """An exclusive lock on a file, held until released or the process ends.

    Invariant: a file that this process holds is not opened again by it: closing any descriptor of
    a file drops all of the process's POSIX locks on it, and those are what a JVM sees.
    """

    _held: ClassVar[dict[tuple[int, int], int]] = {}
    """The files that this process holds, by device and inode, and its id."""
    _guard: ClassVar = module_lock()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._word = ""
        self._url = ""
        self._identity = _NO_FILE
        release_in_child(self)

    def acquire(self) -> None:
        """See `FolderLock.acquire`."""
        with self._guard:
            holder = self._held.get(_identity(self._path))
            if holder is not None:
                raise locked_error(self._path, holder, lock_holder(self._path)[1])
            try:
                self._take()
                self._identity = _identity(self._path)
                self._held[self._identity] = os.getpid()
            except BaseException:
                self._close()
                raise

    def _take(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # flock keeps out other Stores, of this process too; lockf is what a JVM's FileLock
            # sees.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise locked_error(self._path, *lock_holder(self._path)) from e
        self._word = (
            LOCK_MARK
            if os.pread(self._fd, len(LOCK_MARK), 0) == LOCK_MARK.encode()
            else "opened-by"
        )
        self._write()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._held.pop(self._identity, None)

    def mark(self) -> None:
        """See `FolderLock.mark`."""
        self._word = LOCK_MARK
        self._write()

    def say_served(self, url: str) -> None:
        """See `FolderLock.say_served`."""
        self._url = url
        self._write()

    def _write(self) -> None:
        said = f"{self._word} {os.getpid()} {self._url}".rstrip().encode() + b"\n"
        with _made(None, f"for {self._path}"):
            # Written over what is there, and cut behind: a full disk must not cost the mark.
            os.pwrite(self._fd, said, 0)
            os.ftruncate(self._fd, len(said))

    def release(self) -> None:
        """See `FolderLock.release`."""
        if self._fd >= 0:
            with self._guard:
                os.ftruncate(self._fd, len(self._word))
                # A child that was forked while the file was being opened may have it open, too.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._close()

    def forked(self) -> None:
        """The lock is the parent's until the parent releases it: it is not unlocked, and its file
        is not written to; but it must not outlive the parent here.
        """
        self._held.clear()
        self._close()


_NO_FILE: Final = (-1, -1)


def _identity(path: Path) -> tuple[int, int]:
    """The identity of a file, independent of its name; (-1, -1) if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return _NO_FILE
    return found.st_dev, found.st_ino
