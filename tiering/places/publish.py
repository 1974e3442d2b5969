"""Publish: announces an archive, puts it into its place, and reads it back.

The idea: the name is noted, the object is put on condition that the name is free, and it is read
back. After a failure the object is removed again. If this process was killed in between, the next
one removes the object (`remove_announced`). The same goes for a copy from one place to another
(`ObjectCopy`), which another process may make.

Invariant: only an object that was put here is ever removed. A name that another caller was first to
take (another worker, another copy of this store) is theirs, and stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files, LocalFiles
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError, TieringStopped
from tiering.places.intents import Intent, Intents
from tiering.places.objects import Pace
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote
from tiering.places.verify_copy import checksum, verify_copy


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
        stays = "it stays where it is; `kvmq tier verify` tells what of it can be read"
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
