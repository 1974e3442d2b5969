"""A bucket: which archives of which store a place has, and which of them hold.

The idea: objects are named by store, position and number, and each says itself what stretches of
the log it is of. Of two that are of the same stretches and the same class the one of the higher
generation holds: a merge has made it of the other.

Invariant: objects that are no archives by their name are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from tiering.archive.manifest import Manifest
from tiering.contents import FOLDER, not_superseded
from tiering.errors import NothingToRestore, StoresAmbiguous
from tiering.objectnames import NAME
from tiering.place import Place


class ArchiveObject(NamedTuple):
    """An archive in a place: its number, the position its name says, its size in bytes."""

    key: str
    number: int
    position: int
    size: int

    @classmethod
    def named(cls, key: str, size: int) -> ArchiveObject | None:
        """What an object's name says of it; None if it is no archive's."""
        name = NAME.fullmatch(key)
        return cls(key, int(name[3]), int(name[2]), size) if name is not None else None


class Opened(Protocol):
    """An archive's object and manifest."""

    @property
    def object(self) -> ArchiveObject:
        """Where it is."""
        ...

    @property
    def manifest(self) -> Manifest:
        """What it says of itself."""
        ...


One = TypeVar("One", bound=Opened)


def objects_of(place: Place, store_id: str | None) -> tuple[str, list[ArchiveObject]]:
    """The archives of one store in a place, and its id. Raises NothingToRestore, StoresAmbiguous,
    PlaceError.
    """
    stores: dict[str, list[ArchiveObject]] = {}
    for info in place.list("" if store_id is None else f"{store_id}/"):
        found = ArchiveObject.named(info.key, info.size)
        if found is not None:
            stores.setdefault(info.key.partition("/")[0], []).append(found)
    if not stores:
        which = "archives" if store_id is None else f"archives of store {store_id}"
        raise NothingToRestore(
            f"{place.name} has no {which}; name the place itself, such as DIR/{FOLDER}"
        )
    if len(stores) > 1:
        raise StoresAmbiguous(
            f"{place.name} has archives of {len(stores)} stores; say which by store_id: "
            f"{', '.join(sorted(stores))}",
            sorted(stores),
        )
    return next(iter(stores.items()))


def newest(every: Sequence[One]) -> tuple[list[One], int]:
    """Those that no other supersedes, in the order of the log, and how many are superseded."""
    found = sorted(every, key=lambda f: (-f.manifest.generation, -f.object.number))
    kept = list(not_superseded(found, lambda f: f.manifest))
    kept.sort(key=lambda f: (f.manifest.first_position, f.object.number))
    return kept, len(every) - len(kept)
