"""Audits the archives: compares every archive's bytes, the catalog and the places.

The idea: each archive of the catalog is read whole. Its size and crc32c must be those of the
catalog, everything in it must agree with everything else in it (`archive.archive_check`), and its
manifest with the catalog. Then the places are listed. An object of this store that the catalog does
not have is an orphan, left by a worker that was cut off, and may be removed; so may the remains of
a put that was cut off in the middle. Archives are checked here, or as jobs of a worker's executor
(`check_archive`), many at once.

Invariants: a fault of one archive is reported, and the others are looked at; an object is removed
only when asked, and only if its name begins with this store's id, the catalog, read after the list,
does not have it, and it is older than the grace time; a place that doesn't answer has no orphans.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import msgspec

from kvstore.clock import Clock, whole_ms
from kvstore.errors import StoreError
from kvstore.index.archived import Attaches, Catalog
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.tail import Source
from tiering.catalog.catalog import ArchiveRow, decode_rows, disagreements
from tiering.catalog.pipeline import go_on
from tiering.errors import PlaceError
from tiering.executor.pool import Executor
from tiering.keys.crypto import KeyProvider, KeysAtHand, keys_at_hand
from tiering.places.objects import NAME
from tiering.places.place import ObjectInfo, Place, open_place
from tiering.places.publish import checksum
from tiering.places.settings import is_remote
from tiering.worker.store_protocols import Progress, none_since

GRACE: Final = 3600.0
_MEMORY: Final = 32 << 20
"""Bytes of an object that are kept in memory while it is checked; of larger ones none."""


class AuditProblem(msgspec.Struct, frozen=True):
    """A fault of an archive; `block` -1: not in one block alone. If `archive` names a place, that
    could not be listed.
    """

    archive: str
    block: int
    reason: str


class Orphan(msgspec.Struct, frozen=True):
    """An object that the catalog does not have; `modified` is ms since the epoch. It is `young`
    within the grace time: a worker may be about to put it into the catalog. `unfinished`: only a
    part of an object, left by a put that was cut off; the name is the place's own.
    """

    place: str
    key: str
    bytes: int
    modified: int
    young: bool
    removed: bool = False
    unfinished: bool = False


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The archives that an audit looked at, and its findings. `retired` objects wait for their end,
    unread.
    """

    archives: int = 0
    messages: int = 0
    bytes: int = 0
    retired: int = 0
    problems: list[AuditProblem] = []
    orphans: list[Orphan] = []

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; orphans cost space, and nothing else."""
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditContext:
    """The parts of a store that an audit needs. `catalog` reads the present catalog. `places` are
    looked through beside those of the archives. Without the `keys` of encrypted topics only the
    checksums are checked. The executor's jobs open places with `options` where these are object
    stores; `check` is called meanwhile, and may raise to give up. `arrivals` counts attaches.
    """

    catalog: Callable[[], Catalog]
    place_of: Callable[[ArchiveRow], Place]
    places: Iterable[Place]
    clock: Clock
    executor: Executor
    options: Mapping[str, object]
    keys: KeyProvider | None = None
    check: Callable[[], None] = go_on
    progress: Progress | None = None
    arrivals: Callable[[], Attaches] = Attaches


def audit(
    context: AuditContext, *, grace: float = GRACE, remove_orphans: bool = False
) -> AuditReport:
    """Checks all of a catalog's archives, and looks for orphans older than `grace`, in seconds.

    `remove_orphans` is only for a process that has the store open for writing. While an attach is
    under way nothing is removed: it may belong to that attach.
    """
    rows = decode_rows(context.catalog().rows)
    live = [row for row in rows if row.state == "live"]
    total = sum(row.size for row in live)
    faults: list[tuple[ArchiveRow, AuditProblem]] = []
    done = 0
    known: dict[str, Place] = {place.name: place for place in context.places}
    used: set[str] = set()
    found: list[tuple[ArchiveRow, Place | PlaceError]] = []
    for row in rows:
        try:
            place = context.place_of(row)
        except PlaceError as e:
            found.append((row, e))
            continue
        known.setdefault(place.name, place)
        used.add(place.name)
        if row.state == "live":
            found.append((row, place))
    jobs = [
        CheckJob(
            row=row, place=place.name, keys=_keys_of(row, place, context.keys),
            options=dict(context.options) if is_remote(place.name) else {},
        )
        for row, place in found
        if not isinstance(place, PlaceError)
    ]  # fmt: skip
    checks = context.executor.each(context.check, check_archive, jobs)
    for row, there in found:
        if isinstance(there, PlaceError):
            faults.append((row, AuditProblem(row.name, -1, str(there))))
            continue
        if context.progress is not None:
            context.progress("checking archives", done, total)
        faults += [(row, problem) for problem in next(checks)]
        done += row.size
    # An archive that was replaced, or went elsewhere, meanwhile has none.
    current = {row.number: row for row in decode_rows(context.catalog().rows)} if faults else {}
    problems = [problem for row, problem in faults if current.get(row.number) == row]
    before = context.clock.now_ms() - whole_ms(grace)
    seen = context.arrivals()
    orphans = find_orphans(context.catalog, known.values(), before, problems, used)
    if not none_since(seen, context.arrivals()):
        orphans = [msgspec.structs.replace(orphan, young=True) for orphan in orphans]
    if remove_orphans:
        orphans = [_without(orphan, known, problems) for orphan in orphans]
    return AuditReport(
        archives=len(live),
        messages=sum(row.messages for row in live),
        bytes=total,
        retired=len(rows) - len(live),
        problems=problems,
        orphans=orphans,
    )


# --- one archive ---


class CheckJob(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to check: its row, where it is, and the keys it takes."""

    row: ArchiveRow
    place: str
    options: dict[str, object] = {}
    keys: KeysAtHand | None = None

    def __repr__(self) -> str:
        return f"CheckJob({self.row.name})"


def check_archive(job: CheckJob) -> list[AuditProblem]:
    """The faults of an archive: the task that another process is given."""
    try:
        place = open_place(job.place, options=job.options or None)
    except StoreError as e:
        return [AuditProblem(job.row.name, -1, str(e))]
    return _problems(job.row, place, job.keys)


def _keys_of(row: ArchiveRow, place: Place, keys: KeyProvider | None) -> KeysAtHand | None:
    """The keys that reading an archive takes, as far as there are any."""
    if keys is None or not row.is_encrypted:
        return None
    try:
        manifest = open_lazily(place.source(row.key, row.size)).manifest
    except (StoreError, OSError):
        return None  # the check finds the reason
    return keys_at_hand(
        keys, [], {(t.name, t.key_id) for t in manifest.topics if t.key_id is not None}
    )


def _problems(row: ArchiveRow, place: Place, keys: KeyProvider | None) -> list[AuditProblem]:
    """The faults of an archive."""
    found: list[AuditProblem] = []
    try:
        size = place.size(row.key)
        if size != row.size:
            told = f"has {size} bytes, the catalog says {row.size}"
            found.append(AuditProblem(row.name, -1, told))
        # An object store charges for the bytes that are read: the check reads each byte once.
        with tempfile.SpooledTemporaryFile(max_size=_MEMORY) as copy:
            is_far = is_remote(row.place)
            source: Source = place.source(row.key, size)
            crc = checksum(source, take=copy.write if is_far else None)
            # A catalog that was found again doesn't know it.
            if row.crc and crc != row.crc:
                told = f"its crc32c is {crc:#010x}, the catalog says {row.crc:#010x}"
                found.append(AuditProblem(row.name, -1, told))
            if is_far:
                source = _Copy(row.name, size, copy)  # type: ignore[arg-type]
            archive = Archive.open(source, keys=keys)
            found += [AuditProblem(row.name, p.block, p.reason) for p in archive_problems(archive)]
            found += [
                AuditProblem(row.name, -1, told) for told in disagreements(row, archive.manifest)
            ]
    except (StoreError, OSError) as e:
        found.append(AuditProblem(row.name, -1, str(e)))
    return found


class _Copy:
    """An object that was read whole, as a source."""

    def __init__(self, name: str, size: int, file: BinaryIO) -> None:
        self.name = name
        self.size = size
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """See `Source.read`."""
        self._file.seek(offset)
        return self._file.read(size)


# --- orphans ---


def find_orphans(
    catalog: Callable[[], Catalog],
    places: Iterable[Place],
    before: int,
    problems: list[AuditProblem],
    used: Collection[str],
) -> list[Orphan]:
    """The orphans in these places, and the remains of cut-off puts; young ones were last written at
    `before` or later. A place that can't be listed is among the `problems`, if it is among those
    that are `used`: another may still be made.
    """
    listed: list[Orphan] = []
    unfinished: list[Orphan] = []
    prefix = f"{catalog().store_id.hex()}/"
    for place in places:
        try:
            listed += [
                _orphan(place, info, before)
                for info in place.list(prefix)
                if NAME.fullmatch(info.key)
            ]
            unfinished += [
                msgspec.structs.replace(_orphan(place, info, before), unfinished=True)
                for info in place.leftovers(prefix)
            ]
        except (StoreError, OSError) as e:
            if place.name in used:
                problems.append(AuditProblem(place.name, -1, f"can't be listed: {e}"))
    # The catalog is read after the list: an archive that came meanwhile is in the list only if it
    # is in the catalog.
    # A name is given once, and a place has many spellings: the name alone decides.
    named = {row.key for row in decode_rows(catalog().rows)}
    return [orphan for orphan in listed if orphan.key not in named] + unfinished


def _orphan(place: Place, info: ObjectInfo, before: int) -> Orphan:
    return Orphan(place.name, info.key, info.size, info.modified, info.modified >= before)


def _without(orphan: Orphan, known: Mapping[str, Place], problems: list[AuditProblem]) -> Orphan:
    """Removes an orphan, unless it is young."""
    if orphan.young:
        return orphan
    try:
        place = known[orphan.place]
        (place.remove_leftover if orphan.unfinished else place.delete)(orphan.key)
    except (StoreError, OSError) as e:
        problems.append(AuditProblem(f"{orphan.place}/{orphan.key}", -1, f"stays: {e}"))
        return orphan
    return msgspec.structs.replace(orphan, removed=True)
