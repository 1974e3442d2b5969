"""A bucket: which archives of which store a place has, and which of them hold.

The idea: objects are named by store, position and number, and each says itself what stretches of
the log it is of. Of two that are of the same stretches and the same class the one of the higher
generation holds: a merge has made it of the other. What a job made counts if its commit names it.

Invariant: objects that are no archives by their name are passed over, and so is what nobody has
committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from tiering.archive.manifest import Manifest
from tiering.commits import CommittedArchive, read_commits
from tiering.contents import FOLDER, not_superseded
from tiering.errors import NothingToRestore, StoresAmbiguous
from tiering.objectnames import COMMIT_NAME, NAME
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


_LOOKS_MAX: Final = 5


class Found(NamedTuple):
    """What a place has of one store: archives that a worker put there, and those of the jobs."""

    store_id: str
    own: list[ArchiveObject]
    committed: list[CommittedArchive]


def found_in(place: Place, store_id: str | None) -> Found | None:
    """What a place has of a store; None if nothing. Without `store_id` it is of the only one there
    is. Raises StoresAmbiguous, PlaceError, FormatError, FormatTooNew.
    """
    for look in range(_LOOKS_MAX):
        stores: dict[str, list[ArchiveObject]] = {}
        commits: dict[str, list[str]] = {}
        for info in place.list("" if store_id is None else f"{store_id}/"):
            found = ArchiveObject.named(info.key, info.size)
            if found is not None:
                stores.setdefault(info.key.partition("/")[0], []).append(found)
            elif COMMIT_NAME.fullmatch(info.key):
                commits.setdefault(info.key.partition("/")[0], []).append(info.key)
        every = sorted({*stores, *commits})
        if not every:
            return None
        if len(every) > 1:
            raise StoresAmbiguous(
                f"{place.name} has archives of {len(every)} stores; say which by store_id: "
                f"{', '.join(every)}",
                every,
            )
        one = every[0]
        counting = read_commits(place, commits.get(one, []))
        # Of a job that was just replaced the commit may be gone: then its successor's is there.
        if counting is not None or look == _LOOKS_MAX - 1:
            made = [archive for commit in counting or [] for archive in commit.archives]
            return Found(one, stores.get(one, []), made)
    return None


def objects_of(place: Place, store_id: str | None) -> tuple[str, list[ArchiveObject]]:
    """The archives of one store in a place, and its id; those of jobs have numbers behind all
    others. Raises NothingToRestore, StoresAmbiguous, PlaceError, FormatError, FormatTooNew.
    """
    found = found_in(place, store_id)
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
    """Those that no other supersedes, in the order of the log, and how many are superseded."""
    found = sorted(every, key=lambda f: (-f.manifest.generation, -f.object.number))
    kept = list(not_superseded(found, lambda f: f.manifest))
    kept.sort(key=lambda f: (f.manifest.first_position, f.object.number))
    return kept, len(every) - len(kept)
