"""Archives in a directory: a local disk, or a mounted network share.

The idea: an object is a file. It is written under a hidden name, synced, and given its own name by
a hard link, which the file system refuses where the name is taken; then the folder is synced. So a
name leads to the whole object or to nothing, also after a power cut, and of two workers one wins.

Invariants: the root folder is never made by a put, so that a share that is not mounted is an error
and not an archive on the wrong disk. A missing root says nothing about its contents: it is
`PlaceUnavailable`, never `ObjectNotFound`.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kvstore.clock import Clock
from kvstore.errors import CallerError, DiskFull
from kvstore.files import Files
from tiering.errors import (
    ObjectNameIllegal,
    ObjectNotFound,
    ObjectTooShort,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceUnavailable,
    PlaceUnsuitable,
)
from tiering.places.failures import Retry, Transient
from tiering.places.objects import (
    Content,
    Given,
    ObjectInfo,
    ObjectSource,
    Pace,
    check_key,
    check_same,
    is_key,
)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_UNFINISHED: Final = ".part"
_LEFTOVER: Final = re.compile(r"((?:[^/]+/)*)\.([^/]+?)(?:\.[0-9a-f]{16})?\.part")
"""A file that `Files.write_new` has not finished, or a probe: folder, and name of the object."""
_T = TypeVar("_T")


class LocalPlace:
    """A place in a folder; see `tiering.places.place.Place`. `retry_for` is in seconds: for so long
    calls wait for a share that is away.
    """

    def __init__(self, root: Path, *, files: Files, clock: Clock, retry_for: float = 10.0) -> None:
        self._root = root
        self._files = files
        self._retry = Retry(clock, retry_for)
        self.name = str(root)

    def put(
        self, key: str, given: Given, *, if_absent: bool = True, pace: Pace | None = None
    ) -> ObjectInfo:
        """See `Place.put`."""
        path = self._path(key)
        content = Content(given, self._files)

        def write() -> ObjectInfo | None:
            self._require_root()
            self._files.make_dir(path.parent)
            try:
                self._files.write_new(path, content.chunks(pace=pace), replace=not if_absent)
            except FileExistsError:
                return None
            return self._info(key)

        done = self._ask(write, f"put {key}", key)
        return check_same(self, self.info(key), content) if done is None else done

    def read(self, key: str, offset: int, size: int) -> bytes:
        """See `Place.read`."""
        if offset < 0 or size < 0:
            raise CallerError(f"{self.name}/{key}: no {size} bytes can begin at {offset}")
        path = self._path(key)

        def read() -> bytes:
            held = self._info(key).size  # first: a reader allocates the size that it is asked for
            fits = offset + size <= held
            data = self._files.read(path, offset, size) if fits and size else b""
            if len(data) != size:
                raise ObjectTooShort(
                    f"{self.name}/{key} has {held} bytes; asked for were {size} from {offset}",
                    self.name,
                    held,
                )
            return data

        return self._ask(read, f"read {key}", key)

    def info(self, key: str) -> ObjectInfo:
        """See `Place.info`."""
        self._path(key)
        return self._ask(lambda: self._info(key), f"look at {key}", key)

    def size(self, key: str) -> int:
        """See `Place.size`."""
        return self.info(key).size

    def source(self, key: str, size: int | None = None) -> ObjectSource:
        """See `Place.source`."""
        self._path(key)
        return ObjectSource(self, key, self.size(key) if size is None else size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Place.list`."""
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not is_key(folder[:-1]):
            return
        try:
            for found in self._walk(folder):
                if found.key.startswith(prefix) and is_key(found.key):
                    yield found
        except ObjectNotFound:
            return  # no such folder: nothing was ever put into it

    def folders(self) -> Sequence[str]:
        """See `Place.folders`."""

        def is_folder(name: str) -> bool:
            found = self._files.facts(self._root / name)
            return found is not None and stat.S_ISDIR(found.st_mode)

        names = self._ask(lambda: self._names(""), "list", "")
        return sorted(name for name in names if is_key(name) and is_folder(name))

    def delete(self, key: str) -> None:
        """See `Place.delete`."""
        self._remove(self._path(key), key)

    def leftovers(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Place.leftovers`."""
        folder = prefix[: prefix.rfind("/") + 1]
        try:
            for found in self._walk(folder):
                left = _LEFTOVER.fullmatch(found.key)
                if left is not None and f"{left[1]}{left[2]}".startswith(prefix):
                    yield found
        except ObjectNotFound:
            return  # no such folder: nothing was ever put into it

    def remove_leftover(self, key: str) -> None:
        """See `Place.remove_leftover`."""
        folder, _, name = key.rpartition("/")
        if _LEFTOVER.fullmatch(key) is None or (folder and not is_key(folder)):
            raise ObjectNameIllegal(f"{self.name}: {name!r} is no leftover of a put", self.name)
        self._remove(self._root / key, key)

    def check(self, *, create: bool = False) -> None:
        """See `Place.check`."""
        probe = self._root / f".check-{secrets.token_hex(8)}{_UNFINISHED}"

        def try_out() -> bool:
            if create:
                self._files.make_dir(self._root)
            self._require_root()
            try:
                self._files.write_new(probe, [b"kvmq"])
                self._files.write_new(probe, [b"kvmq"])
            except FileExistsError:
                return True
            except OSError as e:
                if e.errno in _NO_LINKS and self._may_write():
                    return False
                raise
            finally:
                self._files.remove(probe)
            return False

        if not self._ask(try_out, "write a probe", ""):
            raise PlaceUnsuitable(
                f"{self.name} has no hard links, so it can't refuse the second of two workers that "
                "put one archive; mount it by a protocol that has them, such as NFS",
                self.name,
            )

    def _may_write(self) -> bool:
        return os.access(self._root, os.W_OK | os.X_OK)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key, self.name)

    def _info(self, key: str) -> ObjectInfo:
        found = self._files.facts(self._root / key)
        if found is None or not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Every file, unfinished ones too; files that vanish meanwhile are passed over."""
        for name in self._ask(lambda: self._names(folder), "list", folder):
            key = folder + name
            path = self._root / key
            found = self._ask(functools.partial(self._files.facts, path), "list", key)
            if found is None:
                continue
            if stat.S_ISREG(found.st_mode):
                yield ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)
            elif stat.S_ISDIR(found.st_mode) and is_key(key):
                yield from self._walk(key + "/")

    def _names(self, folder: str) -> Sequence[str]:
        self._require_root()
        return self._files.list_dir(self._root / folder)

    def _remove(self, path: Path, key: str) -> None:
        def remove() -> None:
            self._require_root()
            self._files.remove(path)

        try:
            self._ask(remove, f"delete {key}", key)
        except ObjectNotFound:
            return

    def _require_root(self) -> None:
        found = self._files.facts(self._root)
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise PlaceUnavailable(
                f"{self.name} is no folder that is there; mount it, or make it "
                "(`check(create=True)` does)",
                self.name,
            )

    def _ask(self, ask: Callable[[], _T], what: str, key: str) -> _T:
        def once() -> _T:
            try:
                return ask()
            except DiskFull as e:
                raise PlaceFull(f"{self.name}: no room to {what}; {e}", self.name) from e
            except OSError as e:
                raise self._failure(e, what, key) from e

        return self._retry.run(once, what, self.name)

    def _failure(self, e: OSError, what: str, key: str) -> Exception:
        said = e.strerror or str(e)
        if e.errno in _FULL:
            return PlaceFull(f"{self.name}: no room to {what}: {said}; free space", self.name)
        if e.errno in _DENIED:
            return PlaceDenied(
                f"{self.name}: may not {what}: {said}; give this user the right, or mount it "
                "for writing",
                self.name,
            )
        if e.errno in _NOT_THERE:
            self._require_root()
            return ObjectNotFound(f"{self.name} has no object {key}", self.name)
        if e.errno == errno.ENAMETOOLONG:
            return PlaceError(f"{self.name}: could not {what}: {said}", self.name)
        return Transient(said)
