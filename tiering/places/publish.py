"""Publish: puts an archive into its place, announced before and read back after.

The idea: the name is noted, the object is put on condition that the name is free, and it is read
back. After a failure the object is removed again; if this worker was killed in between, the next
one removes it. Another process can copy from one place to another (`copy_remotely`); the worker
announces the copy before and settles it after.

Invariant: only an object that was put here is ever removed. A name that another caller was first to
take (another worker, another copy of this store) is theirs, and stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files, LocalFiles
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError, TieringStopped
from tiering.places.intents import Intent, Intents
from tiering.places.place import Place, open_place
from tiering.places.verify_copy import fetch, read_whole

Pace = Callable[[int], object]


def put_announced(
    intents: Intents, intent: Intent, place: Place, path: Path, uploading: Pace, reading: Pace
) -> None:
    """Puts the file at `path` under the intent's name. The caller forgets the intent once the
    catalog has the archive. Raises PlaceError, ArchiveDamaged, TieringStopped. The object is then
    removed again; where the place refuses that too it stays announced, and the next run removes it.
    """
    intents.note(intent)
    try:
        place.put(intent.key, path, pace=uploading)
        _read_back(place, intent, reading)
    except ObjectExists:
        intents.forget(intent.number)
        raise
    except (PlaceError, ArchiveDamaged, TieringStopped):
        with suppress(PlaceError):
            place.delete(intent.key)
            intents.forget(intent.number)
        raise


def _read_back(place: Place, intent: Intent, pace: Pace) -> None:
    found = read_whole(place, intent.key, intent.size, pace=pace)
    if found != intent.crc or place.size(intent.key) != intent.size:
        raise ArchiveDamaged(
            f"{place.name}/{intent.key} is not what was put there: crc32c {found:#010x}, not "
            f"{intent.crc:#010x}; nothing was changed in the store, the next run puts it again",
            f"{place.name}/{intent.key}",
        )


class CopyJob(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of one object: from `key` in a place to the intent's place. Places come with their
    settings; `target` is the path or URL of the intent's place on this machine.
    """

    name: str
    """The object's name in errors."""
    source: str
    key: str
    target: str
    intent: Intent
    source_options: dict[str, object] = {}
    target_options: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"CopyJob({self.name} -> {self.target}/{self.intent.key})"


def copy_remotely(job: CopyJob) -> None:
    """Copies an object, and reads it back, on behalf of the worker. Two copies at once make the
    same object. Raises as `put_announced` does.
    """
    source = open_place(job.source, options=job.source_options or None)
    target = open_place(job.target, options=job.target_options or None)
    intent = job.intent
    with tempfile.TemporaryDirectory(prefix="kvmq-copy-") as folder:
        copy = Path(folder) / "archive"
        with at_hand(source, job.key, intent.size, intent.crc, copy, name=job.name) as (path, _):
            target.put(intent.key, path)
    try:
        _read_back(target, intent, _at_once)
    except (PlaceError, ArchiveDamaged):
        with suppress(PlaceError):
            target.delete(intent.key)
        raise


@contextmanager
def at_hand(
    place: Place, key: str, size: int, due: int, copy: Path, *, name: str,
    pace: Pace | None = None, files: Files | None = None,
) -> Iterator[tuple[Path, int]]:  # fmt: skip
    """A file with the bytes of an object, which errors call `name`, and its crc32c. It is the
    object itself where the place is a folder of this machine; else it is a copy at `copy`, which
    lasts as long as this context. Raises as `fetch_checked` does.
    """
    files = files or LocalFiles()
    if "://" not in place.name:
        found = read_whole(place, key, size, pace=pace)
        _check_crc(found, due, name)
        yield Path(place.name) / key, found
        return
    files.make_dir(copy.parent)
    try:
        yield copy, fetch_checked(place, key, size, due, copy, name=name, pace=pace, files=files)
    finally:
        files.remove(copy)


def _check_crc(found: int, due: int, name: str) -> None:
    if due and found != due:
        raise ArchiveDamaged(
            f"{name} is not what was put there: crc32c {found:#010x}, not {due:#010x}; "
            "it stays where it is; `kvmq tier verify` tells what of it can be read",
            name,
        )


def fetch_checked(
    place: Place, key: str, size: int, due: int, path: Path, *, name: str,
    pace: Pace | None = None, files: Files | None = None,
) -> int:  # fmt: skip
    """Copies an object, which errors call `name`, to a file; returns its crc32c. Raises
    `ArchiveDamaged` if that is not the expected one (0: a catalog that was found again doesn't know
    it).
    """
    found = fetch(place, key, size, path, files or LocalFiles(), pace=pace)
    _check_crc(found, due, name)
    return found


def _at_once(size: int) -> None:
    """No pace: the worker took its share of the rate before it asked."""


def take_away(place: Place, intent: Intent) -> bool:
    """Removes an announced object that never came into the catalog, if it is there and has the
    announced bytes; returns whether it was removed. Raises PlaceError.
    """
    try:
        if place.size(intent.key) != intent.size:
            return False
        if read_whole(place, intent.key, intent.size) != intent.crc:
            return False
    except ObjectNotFound:
        return False
    place.delete(intent.key)
    return True
