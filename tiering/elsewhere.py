"""Elsewhere: a place with archives that a caller names, which need not be any of the store's.

The idea: whoever brings archives from somewhere says where that is and how it is reached; what is
not said, the settings say. Each archive there is opened, and says what it is.

Invariant: the place is only looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kvstore.access import ArchiveAccess
from kvstore.clock import Clock
from kvstore.files import Files
from tiering.archive.crypto import KeyProvider
from tiering.archive.manifest import Manifest
from tiering.archive.reader import Archive
from tiering.bucket import ArchiveObject
from tiering.keys import provider_of
from tiering.place import Place, open_place
from tiering.places.settings import is_remote


class Elsewhere(NamedTuple):
    """A place that was opened, whose archives are asked for there (None: of the only store), and
    the keys of what is encrypted.
    """

    place: Place
    store_id: str | None
    keys: KeyProvider | None


def open_elsewhere(
    source: str | Path,
    options: Mapping[str, object] | None,
    keys: KeyProvider | None,
    access: ArchiveAccess,
    files: Files,
    clock: Clock,
) -> Elsewhere:
    """Open a place. `options` are its settings, and `store_id`. Raises PlaceError."""
    given = dict(options or {})
    store_id = given.pop("store_id", None)
    if is_remote(str(source)):
        given = {**access.options, **given}
    if keys is None:
        keys = provider_of(access.keys, files)
    place = open_place(source, options=given, files=files, clock=clock)
    return Elsewhere(place, None if store_id is None else str(store_id), keys)


class OpenedArchive(NamedTuple):
    """An archive's object, opened."""

    object: ArchiveObject
    archive: Archive

    @property
    def manifest(self) -> Manifest:
        """What it says of itself."""
        return self.archive.manifest

    @classmethod
    def of(cls, place: Place, one: ArchiveObject, keys: KeyProvider | None) -> OpenedArchive:
        """Open one. What of it can't be read at all is found now. Raises ArchiveDamaged,
        FormatTooNew, PlaceError.
        """
        archive = Archive.open(place.source(one.key, one.size), keys=keys)
        _ = archive.manifest, archive.directory
        return cls(one, archive)
