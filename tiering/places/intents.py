"""Intents: the objects that a worker is about to put into a place, noted before it puts them.

The idea: an object that was put and never came into the catalog is an orphan. A list of a bucket
can't tell an orphan from another store's object. So the worker notes each name in a small file
first, and the store's next worker checks the notes that were not finished.

Invariants: a name is noted, on the disk, before its object can exist; it is forgotten once the
catalog has the archive, or the object is gone or another caller's; no object in the catalog is ever
removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvstore.files import Files

_SUFFIX: Final = ".intent"


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

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}{_SUFFIX}"
