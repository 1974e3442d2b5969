"""Segments: the folder of segment files, with their maps, their making and their removal.

The idea: a segment is a file of fixed size named by its first position in 20 digits; its number is
position // segment size. Maps are opened when first read, and the least recently opened sealed ones
are closed, so a store of a thousand segments opens as fast as one of two.

Invariants:

- A mapped segment has its full size.
- A file that can't be a segment (foreign name, wrong size, unreadable) is kept out and reported,
  never guessed at.
- A file or folder in the way of a new segment is moved aside.
- Every refusal of the disk is a typed error.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Collection, Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Final

from kvstore.errors import DiskFull, SegmentDamaged
from kvstore.files import Files, MappedFile, SegmentBuffer
from kvstore.process.forking import release_in_child

NAME_DIGITS: Final = 20
_NEW: Final = ".new"
_WHOLE: Final = ".whole"
_GONE: Final = ".gone"
_COPIED: Final = 8 << 20
MAPS_MAX: Final = 256
"""Mapped sealed segments: each holds a descriptor, of which a process has 1,024 by default."""


NUMBERS_END: Final = 1 << 31
"""No segment has this number or a higher one: in the index those are archives."""
GAP_MAX: Final = 1000
"""Segments that may be missing in a row. Files beyond a larger gap are not of this log."""

_log = logging.getLogger("kvmq")


def segment_name(position: int) -> str:
    """A segment's file name."""
    return f"{position:0{NAME_DIGITS}d}"


def named_position(name: str) -> int | None:
    """The position that a segment's file name says; None if the name is no segment's."""
    # Python also takes other digits than ASCII's, which no other reader of this folder does.
    is_one = len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    return int(name) if is_one else None


class Segments:
    """The segment files of one store."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        size: int,
        *,
        writable: bool,
        gone: Collection[int] = (),
    ) -> None:
        self.folder = folder
        self.size = size
        self._gone = gone
        self.problems: dict[int, str] = {}
        """Segments that can't be used, and why."""
        self.foreign: list[str] = []
        """Names in the folder that are no segment's."""
        self.files = files
        self._writable = writable
        self.maps: dict[int, MappedFile] = {}
        """Those that are open, by number; only changed in here."""
        release_in_child(self)
        self._lock = threading.Lock()
        self.writable_from = 1 << 62
        """Segments below this number are mapped for reading only; recovery lowers it to the active
        one.
        """
        self.numbers: list[int] = []
        """Those of all segments that exist, rising; `_there` has the same."""
        self._there: frozenset[int] = frozenset()
        """The segments there are, rising; changed only by replacing the list."""
        self.unremoved: set[int] = set()
        """Segments that have left the log, and whose files could not be removed so far."""
        self.removals = 0
        """Counts removals: a reader that failed compares it, to learn whether one is the reason."""
        self.left: frozenset[int] = frozenset()
        """In a folder that is opened for reading only: segments that have left the log."""
        self.retired_below = 0
        """In a folder that is opened for reading only: the writer has removed all segments below.
        """
        self._scan()

    def _scan(self) -> None:
        numbers = []
        with disk_errors(self.folder, "read"):
            names = self.files.list_dir(self.folder)
        for name in names:
            position = named_position(name)
            if name.endswith((_NEW, _WHOLE, _GONE)):
                self._unfinished(self.folder / name)
            elif position is None or position % self.size or position // self.size >= NUMBERS_END:
                self.foreign.append(name)
            else:
                numbers.append(position // self.size)
                self._check(numbers[-1])
        self._keep(self._without_strays(sorted(numbers)))

    def _keep(self, numbers: list[int]) -> None:
        """Makes these, rising, the numbers of all segments."""
        self.numbers, self._there = numbers, frozenset(numbers)

    def _unfinished(self, path: Path) -> None:
        """Removes the files of work that a crash cut short: an allocation or copy, which never was
        part of the log, or an erasure. For a reader they are the writer's work, which may be done
        by now.
        """
        if not path.is_file():
            if path.exists():
                self.foreign.append(path.name)
        elif self._writable and path.name.endswith(_GONE):
            with disk_errors(path, "erased"):
                self._erase(path)
        elif self._writable:
            with disk_errors(path, "removed"):
                self.files.remove(path)

    def _without_strays(self, numbers: list[int]) -> list[int]:
        """The numbers that belong to one log. Where more than `GAP_MAX` segments are missing
        between two, they are of different clusters, and the cluster with the most good files is the
        log. The others are foreign: scanning up to them would take hours, and taking one for the
        log's beginning would lose the log. Segments that are known to have left the log are no gap.
        """
        groups: list[list[int]] = []
        there = frozenset(numbers)
        for number in sorted(there.union(self._gone)):
            if not groups or number - groups[-1][-1] > GAP_MAX:
                groups.append([])
            groups[-1].append(number)
        if len(groups) < 2:
            return numbers
        log = max(groups, key=lambda g: sum(n in there and n not in self.problems for n in g))
        log = [number for number in log if number in there]
        for number in numbers:
            if number not in log:
                self.foreign.append(self.path(number).name)
                self.problems.pop(number, None)
        return log

    def _check(self, number: int) -> None:
        path = self.path(number)
        if not path.is_file():
            self.problems[number] = f"{path} is not a file"
            return
        with disk_errors(path, "looked at"):
            found = self.files.size(path)
        if found != self.size:
            self.problems[number] = (
                f"{path} has {found} bytes; a segment of this store has {self.size}"
            )

    def path(self, number: int) -> Path:
        """A segment's file."""
        return self.folder / segment_name(number * self.size)

    def rescan(self) -> None:
        """Forgets the segments that the writer's retention has removed; for a folder that is opened
        for reading only.

        Those are the oldest ones, while newer ones are there. Any other missing segment is damage.
        """
        numbers = self.numbers
        if self._writable or not numbers or self.files.size(self.path(numbers[0])) is not None:
            return
        named = (named_position(name) for name in self.files.list_dir(self.folder))
        there = {position // self.size for position in named if position is not None}
        newest = max(there, default=0)
        with self._lock:
            left = list(dropwhile(lambda n: n not in there and n < newest, self.numbers))
            for number in self.numbers[: len(self.numbers) - len(left)]:
                self.retired_below = number + 1
                self._drop(number)
            self._keep(left)
            self.removals += 1

    def forget(self, numbers: Collection[int]) -> None:
        """Forgets segments that the writer has handed over or removed, whether or not their files
        are gone by now; for a folder that is opened for reading only.
        """
        with self._lock:
            for number in numbers:
                self._drop(number)
            gone = frozenset(numbers)
            self._keep([n for n in self.numbers if n not in gone])
            self.left |= gone
            self.removals += 1
            if not self.numbers:
                self.retired_below = max(self.retired_below, max(numbers, default=-1) + 1)

    def _drop(self, number: int) -> None:
        self.problems.pop(number, None)
        found = self.maps.pop(number, None)
        if found is not None:
            found.close()

    @property
    def oldest(self) -> int:
        """The oldest existing segment; 0 where there never was one."""
        numbers = self.numbers
        return numbers[0] if numbers else self.retired_below

    def has(self, number: int) -> bool:
        """Whether a segment exists, sound or not."""
        return number in self._there

    def is_usable(self, number: int) -> bool:
        """Whether a segment exists and its file is sound, so that it should open."""
        return number in self._there and number not in self.problems

    def map(self, number: int) -> MappedFile:
        """A segment's map; `SegmentDamaged` if it is not there or can't be used."""
        found = self.maps.get(number)
        return found if found is not None else self._open(number)

    def buffer(self, number: int) -> SegmentBuffer:
        """The bytes of a segment; see `map`."""
        return self.map(number).buffer

    def _open(self, number: int) -> MappedFile:
        with self._lock:
            found = self.maps.get(number)
            if found is not None:
                return found
            path = self.path(number)
            problem = self.problems.get(number)
            if problem is None and number not in self._there:
                problem = f"{path} is not there"
            if problem is not None:
                raise SegmentDamaged(
                    f"{problem}; bring the file back, or let retention pass it", str(path)
                )
            # Only segments behind the last sealed one are written to.
            writable = self._writable and number >= self.writable_from
            with disk_errors(path, "opened"):
                found = self.files.map(path, writable=writable)
            if len(self.maps) >= MAPS_MAX:
                # A map that the flusher may be syncing stays: closing takes its descriptor away.
                oldest = next((n for n in self.maps if n < self.writable_from), None)
                if oldest is not None:
                    self.maps.pop(oldest).close()
            self.maps[number] = found
            return found

    def reserve(self, number: int, end: int) -> None:
        """Allocates the disk's blocks for a segment's bytes below `end`, and some more; `DiskFull`.
        Only then may the bytes be written.
        """
        found = self.map(number)
        with disk_errors(found.path, "given room"):
            found.reserve(end)

    def remap(self, number: int) -> None:
        """Forgets a map, for example a read-only one of a segment that has to be written to now."""
        with self._lock:
            found = self.maps.pop(number, None)
            if found is not None:
                found.close()

    def create(self, number: int) -> None:
        """Makes a segment of zeros, without blocks on the disk; nothing if it is there. `DiskFull`,
        or `SegmentDamaged` if the disk refuses it for another reason.

        A folder in the way, or a file that can't be a segment, is moved aside: the log has to go on
        at this position, and nowhere else.
        """
        with self._lock:
            if self.is_usable(number):
                return
            path = self.path(number)
            with disk_errors(path, "made"):
                if path.exists() or path.is_symlink():
                    self._move_aside(path)
                self.files.create(path, self.size)
            self.problems.pop(number, None)
            self._keep(sorted({*self.numbers, number}))

    def _move_aside(self, path: Path) -> None:
        count = 1
        while (aside := path.with_name(f"{path.name}.damaged-{count}")).exists():
            count += 1
        self.files.rename(path, aside)
        self.foreign.append(aside.name)
        _log.warning("%s was in the place of the next segment; it is now %s", path, aside)

    def extend(self, number: int) -> None:
        """Gives a segment that is too short its full size, with zeros; its bytes stay."""
        path = self.path(number)
        whole = path.with_name(path.name + _WHOLE)
        with self._lock, disk_errors(path, "filled up"):
            self.files.create(whole, self.size)
            with contextlib.closing(self.files.map(whole, writable=True)) as target:
                at = 0
                while data := self.files.read(path, at, _COPIED):
                    target.write(at, data)
                    at += len(data)
                target.sync()
            self.files.rename(whole, path)
            self.problems.pop(number, None)

    def unshare(self, number: int) -> None:
        """Copies a segment whose file has a second name (a hard link), before a write to it."""
        path = self.path(number)
        with disk_errors(path, "copied"):
            if self.files.links(path) > 1:
                self.remap(number)
                self.files.copy(path, path)

    def zero_from(self, number: int, offset: int) -> int:
        """Makes a segment zero from `offset` on, on the disk; returns how many bytes were not."""
        found = self.map(number)
        with disk_errors(found.path, "zeroed"):
            return found.zero_from(offset)

    def remove(self, number: int, *, erase: bool = False) -> None:
        """Removes a segment's file; with `erase`, overwrites it first unless it has another name
        too (a hard link). Anything but a file (a folder, a pipe) stays, and is still reported as a
        problem, but is no segment any more.
        """
        path = self.path(number)
        with self._lock:
            found = self.maps.pop(number, None)
            self._keep([n for n in self.numbers if n != number])
            self.removals += 1
            if path.exists() and not path.is_file():
                self.problems.setdefault(number, f"{path} is not a file")
                return
            self.problems.pop(number, None)
            self.unremoved.add(number)
        if found is not None:
            found.close()
        gone = path.with_name(path.name + _GONE)
        with disk_errors(path, "removed"):
            if erase and self.files.size(path):
                # The file gets another name first: a process that has the folder open for reading
                # then finds it gone, and zeros that it still sees in a map are no damage.
                self.files.rename(path, gone)
            if erase and self.files.size(gone) is not None:
                self._erase(gone)
            else:
                self.files.remove(path)
        self.unremoved.discard(number)

    def _erase(self, path: Path) -> None:
        if self.files.size(path) and self.files.links(path) == 1:
            self.files.erase(path)
        self.files.remove(path)

    def sync(self, number: int) -> None:
        """Puts a segment on the disk; `SegmentDamaged` if the disk refused."""
        found = self.map(number)
        try:
            found.sync()
        except OSError as e:
            # The error is never `DiskFull`, after which a caller may try again: the pages may be
            # gone.
            raise _refused(found.path, "put on the disk", e) from e

    def forked(self) -> None:
        """Closes the maps in a forked child, without the lock: a thread of the parent may have held
        it. The memory is let go as well: frames of threads that only the parent has keep it.
        """
        for found in self.maps.values():
            found.close()
            with contextlib.suppress(BufferError):
                found.buffer.close()
        self.maps.clear()

    def close(self) -> None:
        """Closes all maps."""
        with self._lock:
            for found in self.maps.values():
                found.close()
            self.maps.clear()


@contextlib.contextmanager
def disk_errors(path: Path, done: str) -> Iterator[None]:
    """Within this block errors of the operating system become errors of kvmq."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{path} can't be {done}: {e.strerror}; free disk space") from e
        raise _refused(path, done, e) from e


def _refused(path: Path, done: str, why: OSError) -> SegmentDamaged:
    return SegmentDamaged(
        f"{path} can't be {done}: {why.strerror or why}; see to the disk, then try again", str(path)
    )
