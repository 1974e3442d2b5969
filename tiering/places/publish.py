"""Publish: announces an archive, puts it into its place, and reads it back.

The idea: an object that was put and never came into the catalog is an orphan. A list of a bucket
can't tell an orphan from another store's object. So the name is noted first, in a small file (an
intent). The object is put on condition that the name is free, and it is read back. After a failure
the object is removed again. If this process was killed in between, the next one looks through the
notes and removes the object (`remove_announced`). The same goes for a copy from one place to
another (`ObjectCopy`), which another process may make. An archive is read in steps of 8 MiB, each
after `pace` was asked.

Invariants: a name is noted, on the disk, before its object can exist; it is forgotten once the
catalog has the archive, or the object is gone or another caller's. Only an object that was put here
is ever removed, and none that is in the catalog. A name that another caller was first to take
(another worker, another copy of this store) is theirs, and stays. Never more than one step of an
archive is in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files, LocalFiles
from tiering.archive.tail import Source
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError, TieringStopped
from tiering.places.objects import CHUNK, Pace
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote

_SUFFIX: Final = ".intent"
_WHOLE: Final = "whole"
"""The file that says that all announced objects are there."""


class Intent(msgspec.Struct, frozen=True):
    """An object that may exist: its place (path or URL), its name there, its size in bytes and
    crc32c.
    """

    number: int
    place: str
    key: str
    size: int = -1
    crc: int = 0


class Intents:
    """The notes in a folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files

    def note(self, intent: Intent) -> None:
        """Writes the note; it is on the disk when this returns."""
        self._files.make_dir(self._folder)
        self._files.write_whole(self._path(intent.number), msgspec.json.encode(intent))

    def forget(self, number: int) -> None:
        """Removes the note: the archive is in the catalog, or the object is gone."""
        if self._files.size(self._path(number)) is not None:
            self._files.remove(self._path(number))

    def unfinished(self, known: Collection[str]) -> Iterator[Intent]:
        """The notes of objects that are not in the catalog, which has the objects named `known`;
        notes of objects in the catalog are forgotten. (A copy's number is in the catalog only until
        the first object is gone.)
        """
        for name in self._files.list_dir(self._folder) if self._folder.is_dir() else ():
            if not name.endswith(_SUFFIX):
                continue
            path = self._folder / name
            try:
                intent = msgspec.json.decode(self._files.read(path), type=Intent)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                # Cut off while it was written: the put that it was to announce had not begun.
                self._files.remove(path)
                continue
            if intent.key in known:
                self.forget(intent.number)
            else:
                yield intent

    def announced(self) -> set[str]:
        """The names of objects that a catalog which is made anew must leave out: of announced ones,
        unless all of them are there.
        """
        if self._files.size(self._folder / _WHOLE) is not None:
            return set()
        return {intent.key for intent in self.unfinished(())}

    def set_whole(self, is_whole: bool) -> None:
        """Notes whether all objects are there that were announced; it is on the disk when this
        returns.
        """
        path = self._folder / _WHOLE
        if is_whole:
            self._files.write_whole(path, b"")
        elif self._files.size(path) is not None:
            self._files.remove(path)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}{_SUFFIX}"


def checksum(
    source: Source, *, pace: Pace | None = None, take: Callable[[bytes], object] | None = None
) -> int:
    """Reads a source whole; returns its crc32c. `take` is given each step's bytes."""
    crc = 0
    for data in _steps(source, pace):
        crc = google_crc32c.extend(crc, data)
        if take is not None:
            take(data)
    return crc


def verify_copy(
    source: Source, size: int, crc: int, otherwise: str, *, pace: Pace | None = None,
    into: tuple[Path, Files] | None = None,
) -> None:  # fmt: skip
    """Raises `ArchiveDamaged` if a source has another size or crc32c than were put there; the error
    ends with `otherwise`. The bytes are also put `into` a file, if one is given.
    """
    found = None
    if source.size == size:
        found = checksum(source, pace=pace) if into is None else fetch(source, *into, pace=pace)
    if found != crc:
        has = f"{source.size} bytes" if found is None else f"crc32c {found:#010x}"
        due = f"{size} bytes" if found is None else f"{crc:#010x}"
        raise ArchiveDamaged(
            f"{source.name} is not what was put there: it has {has}, not {due}; {otherwise}",
            source.name,
        )


def fetch(source: Source, path: Path, files: Files, *, pace: Pace | None = None) -> int:
    """Copies a source to a file, which is there whole or not at all; returns its crc32c."""
    crc = 0

    def chunks() -> Iterator[bytes]:
        nonlocal crc
        for data in _steps(source, pace):
            crc = google_crc32c.extend(crc, data)
            yield data

    files.write_new(path, chunks(), replace=True)
    return crc


def _steps(source: Source, pace: Pace | None) -> Iterator[bytes]:
    for at in range(0, source.size, CHUNK):
        wanted = min(CHUNK, source.size - at)
        if pace is not None:
            pace(wanted)
        yield source.read(at, wanted)


def no_pace(size: int) -> None:
    """A pace that waits for nothing."""


class Pacing(NamedTuple):
    """The paces of reading and of uploading."""

    reading: Pace = no_pace
    uploading: Pace = no_pace


def publish(intents: Intents, intent: Intent, place: Place, path: Path, pace: Pacing) -> None:
    """Puts the file at `path` under the intent's name, and reads it back. The caller forgets the
    intent once the catalog has the archive. Raises as `put_verified` does, after `announced`.
    """
    with announced(intents, intent, place):
        put_verified(place, intent, path, pace)


@contextmanager
def announced(intents: Intents, intent: Intent, place: Place) -> Iterator[None]:
    """Notes an object for the block that puts it. If the block fails, the object is removed and
    the note forgotten. The note stays, for the next run, where the place refuses that, and where
    the block was ended by another error: the put may still be under way then.
    """
    intents.note(intent)
    try:
        yield
    except ObjectExists:
        intents.forget(intent.number)
        raise
    except (PlaceError, ArchiveDamaged):
        with suppress(PlaceError):
            remove_announced(place, intent)
            intents.forget(intent.number)
        raise


def put_verified(place: Place, intent: Intent, path: Path, pace: Pacing) -> None:
    """Puts a file under the intent's name, and reads it back. An object with other bytes is removed
    again. Raises PlaceError, ArchiveDamaged, TieringStopped.
    """
    place.put(intent.key, path, pace=pace.uploading)
    try:
        source = place.source(intent.key, place.size(intent.key))
        stays = "nothing was changed, and the next try puts it again"
        verify_copy(source, intent.size, intent.crc, stays, pace=pace.reading)
    except (PlaceError, ArchiveDamaged, TieringStopped):
        with suppress(PlaceError):
            place.delete(intent.key)
        raise


def remove_announced(place: Place, intent: Intent) -> bool:
    """Removes an announced object that never came into the catalog, if it is there and has the
    announced bytes; returns whether it was removed. Raises PlaceError.
    """
    try:
        if place.size(intent.key) != intent.size:
            return False
        if checksum(place.source(intent.key, intent.size)) != intent.crc:
            return False
    except ObjectNotFound:
        return False
    place.delete(intent.key)
    return True


class CopyJob(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of one object: from `key` in a place to the intent's place. Places come with their
    settings; `target` is the path or URL of the intent's place on this machine.
    """

    source: str
    key: str
    target: str
    intent: Intent
    source_options: dict[str, object] = {}
    target_options: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"CopyJob({self.source}/{self.key} -> {self.target}/{self.intent.key})"


def copy_remotely(job: CopyJob) -> None:
    """Makes a copy with the places of this machine: the task that another process is given. Two at
    once make the same object.
    """
    source = open_place(job.source, options=job.source_options or None)
    target = open_place(job.target, options=job.target_options or None)
    with tempfile.TemporaryDirectory(prefix="kvmq-copy-") as folder:
        copy = ObjectCopy(source, target, job, Path(folder) / "archive", LocalFiles(), Pacing())
        copy.here()


class ObjectCopy(NamedTuple):
    """A copy between two opened places. Of a place that is far, its bytes are in the file at `path`
    meanwhile.
    """

    source: Place
    target: Place
    job: CopyJob
    path: Path
    files: Files
    pace: Pacing

    def here(self) -> None:
        """Makes the copy, at its pace. Raises as `put_verified` does."""
        with self.local_file() as path:
            put_verified(self.target, self.job.intent, path, self.pace)

    def remote(self) -> CopyJob:
        """The job for `copy_remotely`, after the copy's whole share of the paces was taken."""
        size = self.job.intent.size
        self.pace.reading(2 * size)
        self.pace.uploading(size)
        return self.job

    @contextmanager
    def local_file(self) -> Iterator[Path]:
        """A file with the source's bytes: the object itself where its place is a folder."""
        intent, pace = self.job.intent, self.pace.reading
        source = self.source.source(self.job.key, intent.size)
        stays = "it stays where it is; `kvmq tier verify` tells which parts can be read"
        if not is_remote(self.source.name):
            verify_copy(source, intent.size, intent.crc, stays, pace=pace)
            yield Path(self.source.name) / self.job.key
            return
        self.files.make_dir(self.path.parent)
        into = self.path, self.files
        try:
            verify_copy(source, intent.size, intent.crc, stays, pace=pace, into=into)
            yield self.path
        finally:
            self.files.remove(self.path)
