"""Bucket: the archives of each store in a place, and which of them are current.

The idea: objects are named by store, position and number, and each archive states its ranges of the
log. Of two archives with the same ranges and the same class the one of the higher generation is
current: a merge has made it of the other. A job's archive counts if a commit names it.

Invariant: objects whose names are no archives' are ignored, and so are archives of jobs that nobody
has committed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kvstore.errors import FormatTooOld
from tiering.archive.manifest import Manifest
from tiering.catalog.contents import FOLDER, not_superseded
from tiering.errors import NothingToRestore, StoresAmbiguous
from tiering.places.commits import FORMAT, CommitLogs, CommittedArchive
from tiering.places.objects import NAME, OF_VERSION_1
from tiering.places.place import Place

_STORE_FOLDER: Final = re.compile(r"([0-9a-f]{32})(?:-jobs)?")
"""The folder of a store's own archives, or of its jobs: store id."""


class ArchiveObject(NamedTuple):
    """An archive in a place: its number, the position in its name, its size in bytes."""

    key: str
    number: int
    position: int
    size: int

    @classmethod
    def named(cls, key: str, size: int) -> ArchiveObject | None:
        """The number and position in an object's name; None if the name is no archive's."""
        name = NAME.fullmatch(key)
        return cls(key, int(name[3]), int(name[2]), size) if name is not None else None


class Opened(Protocol):
    """An archive's object and manifest."""

    @property
    def object(self) -> ArchiveObject:
        """The archive's object."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The archive's description of itself."""
        ...


One = TypeVar("One", bound=Opened)


class StoreArchives(NamedTuple):
    """The archives of one store in a place: those that a worker put, and those of the jobs."""

    store_id: str
    own: list[ArchiveObject]
    committed: list[CommittedArchive]


def stores_in(place: Place) -> list[str]:
    """The ids of the stores whose archives a place may have, from the names of its folders."""
    named = (_STORE_FOLDER.fullmatch(name) for name in place.folders())
    return sorted({name[1] for name in named if name is not None})


def own_archives(place: Place, store_id: str) -> list[ArchiveObject]:
    """The archives that a store's worker put. Raises PlaceError, FormatTooOld."""
    found = []
    for info in place.list(f"{store_id}/"):
        one = ArchiveObject.named(info.key, info.size)
        if one is not None:
            found.append(one)
        elif OF_VERSION_1.fullmatch(info.key):
            raise FormatTooOld(
                f"{place.name}/{info.key} is a commit of format 1, and this version of kvmq reads "
                f"those from {FORMAT} on: read the place with the version that wrote it, and write "
                "it anew to another folder", 1, FORMAT,
            )  # fmt: skip
    return found


def check_single_store(place: Place, stores: Sequence[str]) -> None:
    """Raises StoresAmbiguous if there are several stores."""
    if len(stores) > 1:
        raise StoresAmbiguous(
            f"{place.name} has archives of {len(stores)} stores; say which by store_id: "
            f"{', '.join(stores)}",
            stores,
        )


def archives_in(
    place: Place, store_id: str | None, jobs: CommitLogs | None = None
) -> StoreArchives | None:
    """The archives of a store in a place; None if there are none. Without `store_id` the place must
    have only one store. `jobs` spares reading commits again. Raises StoresAmbiguous, PlaceError,
    FormatError, FormatTooNew, FormatTooOld.
    """
    jobs = CommitLogs(place) if jobs is None else jobs
    every = []
    for one in stores_in(place) if store_id is None else [store_id]:
        log = jobs.log(one)
        log.look()
        made = [archive for commit in log.counting() for archive in commit.archives]
        found = StoreArchives(one, own_archives(place, one), made)
        if found.own or found.committed:
            every.append(found)
    check_single_store(place, [found.store_id for found in every])
    return every[0] if every else None


def objects_of(
    place: Place, store_id: str | None, jobs: CommitLogs | None = None
) -> tuple[str, list[ArchiveObject]]:
    """The archives of one store in a place, and its id. Archives of jobs have numbers behind all
    others. `jobs` as for `archives_in`. Raises NothingToRestore, StoresAmbiguous, PlaceError,
    FormatError, FormatTooNew.
    """
    found = archives_in(place, store_id, jobs)
    if found is None or not (found.own or found.committed):
        which = "archives" if store_id is None else f"archives of store {store_id}"
        raise NothingToRestore(
            f"{place.name} has no {which}; name the place itself, such as DIR/{FOLDER}"
        )
    following = max((one.number for one in found.own), default=0) + 1
    made = sorted(found.committed, key=lambda one: (one.first_position, one.key))
    return found.store_id, found.own + [
        ArchiveObject(one.key, following + i, one.first_position, one.size)
        for i, one in enumerate(made)
    ]


def newest(every: Sequence[One]) -> tuple[list[One], int]:
    """The archives that no other supersedes, in log order, and the number of the others."""
    found = sorted(every, key=lambda f: (-f.manifest.generation, -f.object.number))
    kept = list(not_superseded(found, lambda f: f.manifest))
    kept.sort(key=lambda f: (f.manifest.first_position, f.object.number))
    return kept, len(every) - len(kept)
