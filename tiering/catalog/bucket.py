"""Bucket: the archives of each store in a place, and which of them are current.

The idea: objects are named by store, position and number, and each archive states its ranges of the
log. So a place of archives is a catalog, except for archives that a merge has superseded: of two
archives with the same share of the same ranges the one of the higher generation is current. All
who read a place open its archives by `open_several`, and choose by `newest`. A job's archive counts
if a commit names it.

Invariants: objects whose names are no archives' are ignored, and so are archives of jobs that
nobody has committed; what a store finds again in its own folder is its own, and an unreadable
archive there is left alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from kvstore.errors import ArchiveDamaged, FormatTooNew, FormatTooOld
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import open_lazily
from tiering.archive.manifest import STORE_ID_NONE, Manifest, encode_manifest, shares_of
from tiering.catalog.catalog import FOLDER, encode_row, row_of
from tiering.catalog.pipeline import go_on, pipelined
from tiering.errors import (
    NothingToRestore,
    ObjectNotFound,
    ObjectTooShort,
    PlaceError,
    StoresAmbiguous,
)
from tiering.places.commits import FORMAT, CommitLogs, CommittedArchive
from tiering.places.objects import NAME, OF_VERSION_1, is_of_jobs
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
    def of(cls, key: str, size: int) -> ArchiveObject:
        """An object that is an archive by its content, whatever its name."""
        return cls.named(key, size) or cls(key, 0, 0, size)

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


K = TypeVar("K")
T = TypeVar("T")
One = TypeVar("One", bound=Opened)
AT_ONCE: Final = 16
"""Archives that are opened at once: a bucket takes its time for each."""
DAMAGE: Final = (ArchiveDamaged, FormatTooNew, FormatTooOld, ObjectNotFound, ObjectTooShort)
"""The errors that cost an archive, and no more."""

_log = logging.getLogger("kvmq")


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


def open_several(
    objects: Sequence[K],
    look: Callable[[K], T],
    damaged: Callable[[K, Exception], None] | None = None,
    *,
    tell: Callable[[str, int, int], None] | None = None,
    width: int = AT_ONCE,
) -> list[T]:
    """Opens archives with `look`, `width` at once, and returns the results. `damaged` is told of
    each that can't be read for its own fault (`DAMAGE`); without it, the error is raised, as is
    that of a place that doesn't answer. `tell` reports progress.
    """
    out = []
    with closing(pipelined(width, go_on, objects, lambda one, _: look(one))) as each:
        for number, (one, found) in enumerate(each):
            if tell is not None:
                tell("opening archives", number, len(objects))
            try:
                out.append(found())
            except DAMAGE as e:
                if damaged is None:
                    raise
                damaged(one, e)
    return out


def newest(every: Iterable[One]) -> list[One]:
    """The archives that no other supersedes, in log order. An archive is superseded if those of
    higher generations have all its shares of the log.
    """
    kept = []
    covered: set[tuple[str, tuple[int, int]]] = set()
    for one in sorted(every, key=lambda one: (-one.manifest.generation, -one.object.number)):
        shares = shares_of(one.manifest)
        mine = {(name, stretch) for name, ranges in shares.items() for stretch in ranges}
        if not (mine and covered.issuperset(mine)):
            covered |= mine
            kept.append(one)
    return sorted(kept, key=lambda one: (one.manifest.first_position, one.object.number))


class FoundArchive(NamedTuple):
    """An archive's object and manifest."""

    object: ArchiveObject
    manifest: Manifest


def find_again(
    place: Place,
    store_id: str,
    number: int,
    *,
    in_log: Callable[[int], bool],
    delete_at: int,
    coming: Collection[str] = (),
) -> list[tuple[bytes, bytes]]:
    """Rows of the archives in a store's own folder, numbered from `number` on. Superseded ones are
    retired, and go at `delete_at`: they may hold messages that are erased later. `in_log` says
    whether the log has the segment of a position; archives of such segments are left alone, unless
    a merge that can be read whole shows that they were handed over. So are those named in `coming`,
    which an attach had not put all.
    """

    def look(one: ArchiveObject) -> FoundArchive:
        try:
            return FoundArchive(one, open_lazily(place.source(one.key, one.size)).manifest)
        except PlaceError as e:
            raise ArchiveDamaged(str(e), one.key) from e

    def damaged(one: ArchiveObject, error: Exception) -> None:
        _log.error("%s/%s is left alone: %s", place.name, one.key, str(error))

    found: list[FoundArchive] = []
    try:
        listed = [ArchiveObject.of(info.key, info.size) for info in place.list()]
        objects = [one for one in listed if not is_of_jobs(one.key) and one.key not in coming]
        found = open_several(objects, look, damaged)
    except PlaceError as e:
        _log.warning("no archives are found again in %s: %s", place.name, str(e))
    own = _own_ids([one.manifest for one in found], store_id)
    for one in found:
        if one.manifest.store_id not in own:
            _log.warning(
                "%s/%s is of store %s, and left alone; `kvmq restore` makes a store from it",
                place.name, one.object.key, one.manifest.store_id,
            )  # fmt: skip
    mine = [one for one in found if one.manifest.store_id in own and one.manifest.segments]
    # Only archives of the catalog are merged, so the log has given up these segments.
    left = [
        segment
        for one in mine
        if one.manifest.generation
        and (not any(in_log(first) for first, _ in one.manifest.segments) or _is_whole(place, one))
        for segment in one.manifest.segments
    ]

    def is_in_log(position: int) -> bool:
        return in_log(position) and not any(first <= position < end for first, end in left)

    mine = [one for one in mine if not any(is_in_log(first) for first, _ in one.manifest.segments)]
    live = newest(mine)
    current = {one.object.key for one in live}
    superseded = [one for one in mine if one.object.key not in current]
    rows: list[tuple[bytes, bytes]] = []
    for one in [*live, *superseded]:
        row = row_of(
            one.manifest, number=number + len(rows), place=FOLDER, key=one.object.key, tier="warm",
            size=one.object.size, crc=0,
        )  # fmt: skip
        if one.object.key not in current:
            row = msgspec.structs.replace(row, state="retired", delete_at=delete_at)
        rows.append((row.catalog_key, encode_row(row)))
    return rows


def _is_whole(place: Place, one: FoundArchive) -> bool:
    """Whether all of a merged archive can be read. If not, its segments that are in the log again
    are the better copy, which goes if the archive is taken.
    """
    try:
        archive = open_lazily(place.source(one.object.key, one.object.size))
        problem = next(archive_problems(archive), None)
        reason = problem.reason if problem is not None else None
    except (ArchiveDamaged, PlaceError) as e:
        reason = str(e)
    if reason is not None:
        _log.error(
            "%s/%s is left alone, because the log has one of its segments again: %s",
            place.name, one.object.key, reason,
        )  # fmt: skip
    return reason is None


def _own_ids(found: Sequence[Manifest], store_id: str) -> set[str]:
    """The ids under which a store has made archives, as the archives in its folder show them.

    A store that was restored, or lost its index, has archives of the ids before, and those that it
    merged name them. Its log went on behind them, so no range belongs to the archives of two ids,
    merged ones aside; a range that does shows that two stores put their archives there. But a
    segment that was archived when the index was lost may still have been in the log, and is
    archived again: then the archives of both ids say the same.
    """
    ids = {manifest.store_id for manifest in found}
    later: dict[str, str] = {}
    says = [(manifest, _without_id(manifest)) for manifest in found]
    same = {said: manifest.store_id for manifest, said in says}

    def last(one: str) -> str:
        while one in later:
            one = later[one]
        return one

    for manifest, said in says:
        for ancestor in manifest.ancestors:
            if last(ancestor) != last(manifest.store_id):
                later[last(ancestor)] = last(manifest.store_id)
        other = same[said]
        if last(other) != last(manifest.store_id):
            later[last(manifest.store_id)] = last(other)
    mine = {one for one in ids if last(one) == last(store_id)}
    owners: dict[tuple[int, bool], set[str]] = {}
    own = says if not mine else [(m, said) for m, said in says if m.store_id in mine]
    for manifest, said in own:
        for first, _ in manifest.segments:
            owners.setdefault((first, True), set()).add(last(manifest.store_id))
            if not manifest.ancestors:
                owners.setdefault((first, False), set()).add(same[said])
    is_one = len(ids) == 1 or all(len(them) == 1 for them in owners.values())
    return (mine or ids) | {STORE_ID_NONE} if is_one else {store_id, STORE_ID_NONE}


def _without_id(manifest: Manifest) -> bytes:
    """All that an archive says of itself but the store's id, and the topics' settings."""
    return encode_manifest(msgspec.structs.replace(manifest, store_id=STORE_ID_NONE, topics=()))
