"""Source place: a place with archives that a caller names, which need not be any of the store's.

The idea: the caller gives the place's address and settings; those that are left out are the
store's. Each archive there is opened, and describes itself; of many only the last few stay
open.

Invariant: the place is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kvstore.clock import Clock
from kvstore.config import ArchiveAccess
from kvstore.files import Files
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.manifest import Manifest
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.bucket import ArchiveObject, open_several
from tiering.keys.crypto import KeyProvider
from tiering.keys.key_file import provider_of
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote
from tiering.worker.store_side import Progress

K = TypeVar("K")
OPEN_BYTES: Final = 64 << 20
"""Bytes of memory for the archives that stay open."""


class SourcePlace(NamedTuple):
    """An opened place, the store whose archives are asked for there (None: the only store), and the
    keys of encrypted topics.
    """

    place: Place
    store_id: str | None
    keys: KeyProvider | None


def open_source_place(
    source: str | Path,
    options: Mapping[str, object] | None,
    keys: KeyProvider | None,
    access: ArchiveAccess,
    files: Files,
    clock: Clock,
) -> SourcePlace:
    """Opens a place. `options` are its settings, and `store_id`. Raises PlaceError."""
    given = dict(options or {})
    store_id = given.pop("store_id", None)
    if is_remote(str(source)):
        given = {**access.options, **given}
    if keys is None:
        keys = provider_of(access.keys, files)
    place = open_place(source, options=given, files=files, clock=clock)
    return SourcePlace(place, None if store_id is None else str(store_id), keys)


class OpenedArchive(NamedTuple):
    """An archive's object, and its manifest."""

    object: ArchiveObject
    manifest: Manifest
    open: Callable[[], Archive]

    @property
    def archive(self) -> Archive:
        """The archive; opened again if it was closed meanwhile. Raises as its opening does."""
        return self.open()


def open_all(
    place: Place,
    objects: Sequence[ArchiveObject],
    keys: KeyProvider | None,
    tell: Progress,
    damaged: Callable[[ArchiveObject, Exception], None] | None = None,
) -> list[OpenedArchive]:
    """Opens some archives (`bucket.open_several`); the last ones asked for stay open."""

    def open_one(number: int) -> Archive:
        one = objects[number]
        return open_lazily(place.source(one.key, one.size), keys=keys)

    kept = OpenArchives(open_one, OPEN_BYTES)

    def look(number: int) -> OpenedArchive:
        archive = kept.get(number)
        assert archive.directory is not None, "it is decoded, or raises"
        return OpenedArchive(objects[number], archive.manifest, partial(kept.get, number))

    tell_of = None if damaged is None else lambda number, e: damaged(objects[number], e)
    return open_several(range(len(objects)), look, tell_of, tell=tell)


class LazyArchives(Mapping[K, Archive]):
    """Archives by names, each opened when it is asked for."""

    def __init__(self, openers: Mapping[K, Callable[[], Archive]]) -> None:
        self._openers = openers

    def __getitem__(self, name: K) -> Archive:
        return self._openers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._openers

    def __iter__(self) -> Iterator[K]:
        return iter(self._openers)

    def __len__(self) -> int:
        return len(self._openers)
