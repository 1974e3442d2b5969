"""Putting: an archive comes to where it belongs, announced before and read back after.

The idea: the name is noted, the object put on condition that the name is free, and read back. What
goes wrong takes the object away again; so does the next worker, if this one was killed in between.
A copy from one place to another can be made by somebody else (`copy_remotely`); who announced it
before and settles it after is the worker.

Invariant: only what was put here is ever taken away. A name that somebody else was first to take
(another worker, another copy of this store) is theirs, and stays.
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
    """Put the file at `path` under the intent's name. The intent is to be forgotten once the
    catalog has it. Raises PlaceError, ArchiveDamaged, TieringStopped: then the object is removed
    again, or stays announced where the place refuses that too, and the next run removes it.
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
    """An object that is to be copied: `key` in a place, to where its intent says. Places are told
    with their settings; `target` is the intent's, as this machine calls it.
    """

    name: str
    """What errors call it."""
    source: str
    key: str
    target: str
    intent: Intent
    source_options: dict[str, object] = {}
    target_options: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"CopyJob({self.name} -> {self.target}/{self.intent.key})"


def copy_remotely(job: CopyJob) -> None:
    """Copy an object, and read it back: what a task is asked to do. Made twice at once it is the
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
    """A file with the bytes of an object, which errors call `name`, and its crc32c: the object
    itself where the place is a folder of this machine; else a copy of it, at `copy`, as long as
    this lasts. Raises as `fetch_checked` does.
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
    """Copy an object, which errors call `name`, to a file; returns its crc32c. Raises
    `ArchiveDamaged` if that is not the one that is due (0: a catalog that was found again doesn't
    know it).
    """
    found = fetch(place, key, size, path, files or LocalFiles(), pace=pace)
    _check_crc(found, due, name)
    return found


def _at_once(size: int) -> None:
    """No pace: the worker took its share before it asked."""


def take_away(place: Place, intent: Intent) -> bool:
    """Have what was announced and never came into the catalog gone, if it is there and is what was
    announced; returns whether something went. Raises PlaceError.
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
