"""Context: the parts of a worker that all of its steps share.

The idea: a worker opens its places, chooses an executor and reads its policy once. Each step is
given these as one value, and reaches archives through it. A policy names places as texts, and only
a store can resolve a relative one. So `open_places` finds the conflicts that no text shows: two
names of one folder, and folders that are the store's own.

A new archive gets a number that was never given, and its object a name with that number. It is
published (`places.publish`), and its catalog row is returned. Until the caller has the row in the
catalog, a note in the store's folder says that the object may have to be removed.

Invariants: no archive is ever put where the store keeps, or clears away, other files; the
object of a live archive is never removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from kvstore.clock import Clock, cut_ms, whole_ms
from kvstore.errors import KeyMissing, StoreError
from kvstore.files import Files
from kvstore.index.archived import Catalog
from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import Manifest
from tiering.archive.writer import ArchiveSettings, WrittenArchive
from tiering.catalog.catalog import (
    ArchiveRow,
    Tier,
    decode_rows,
    is_own,
    kept_as,
    open_archive,
    row_of,
)
from tiering.catalog.pipeline import Check, pipelined
from tiering.errors import PlaceError, PolicyIllegal
from tiering.executor.pool import Executor
from tiering.keys.crypto import KeyProvider, KeysAtHand, keys_at_hand
from tiering.merge.partition import MergeInput
from tiering.places.objects import object_key
from tiering.places.place import Place, open_kept
from tiering.places.publish import Intent, Intents, Pacing, publish, remove_announced
from tiering.places.settings import is_remote, is_url
from tiering.places.work_folder import WORK
from tiering.policy.policy import Policy, expanded
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.store_protocols import HandOver, Progress, Store

_OWN: Final = frozenset({"commitlog", "index", WORK})
"""Folders of a store that may not be places for archives."""


def open_places(
    policy: Policy, folder: Path, options: Mapping[str, object], files: Files, clock: Clock
) -> dict[Tier, Place]:
    """The places by tier; `options` are settings of object stores. Raises PolicyIllegal, and the
    errors of opening a place.
    """
    found: dict[Tier, Place] = {}
    tiers: tuple[tuple[Tier, str | None], ...] = ("warm", policy.warm), ("cold", policy.cold)
    for tier, where in tiers:
        if where is not None:
            kept = where if is_url(where) else expanded(where)
            place = open_kept(kept, folder, options=options, files=files, clock=clock)
            _check_outside(tier, place, folder)
            found[tier] = place
    if len(found) > 1 and _identity(found["warm"]) == _identity(found["cold"]):
        raise PolicyIllegal(
            f"warm and cold are both {found['cold'].name!r}: what goes cold would stay where it "
            "is; give them two places, or leave one out"
        )
    return found


def _identity(place: Place) -> str:
    """A place's identity under all its names: its URL, or its folder's real path. A folder's place
    is named by a path, also where it was given by a `file://` URL.
    """
    return place.name if is_remote(place.name) else str(Path(place.name).resolve())


def _check_outside(tier: Tier, place: Place, folder: Path) -> None:
    path, inside = Path(_identity(place)), folder.resolve()
    if is_remote(place.name) or not path.is_relative_to(inside):
        return
    first = path.relative_to(inside).parts[:1]
    if not first or first[0] in _OWN:
        raise PolicyIllegal(
            f"{tier} is {place.name!r}, where the store keeps its own files; name another folder, "
            f"such as {str(folder / 'archive')!r}"
        )


J = TypeVar("J")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkContext:
    """`places` are the policy's places by tier, and `options` the settings of object stores.
    `settings` are those of new archives. Archives are built in the folder `built`, which no other
    process uses. `check` raises to end a step, and `tell` reports progress.
    """

    store: Store
    policy: Policy
    settings: ArchiveSettings
    places: Mapping[Tier, Place]
    options: Mapping[str, object]
    executor: Executor
    pace: Pacing
    publisher: Publisher
    trusted: TrustedClock
    built: Path
    check: Callable[[], None]
    tell: Progress

    @property
    def handover(self) -> HandOver:
        """The store's calls for tiering."""
        return self.store.handover

    @property
    def files(self) -> Files:
        """The store's file system."""
        return self.store.config.files

    @property
    def clock(self) -> Clock:
        """The store's clock."""
        return self.store.config.clock

    @property
    def keys(self) -> KeyProvider | None:
        """The provider of the topics' keys."""
        return self.settings.keys

    def pipelined(
        self, items: Iterable[J], work: Callable[[J, Check], T], most: int | None = None
    ) -> Generator[tuple[J, Callable[[], T]], None, None]:
        """Works on several items ahead, as many as the executor does at a time, or `most`; see
        `catalog.pipeline.pipelined`.
        """
        width = self.executor.width if most is None else min(self.executor.width, most)
        return pipelined(width, self.check, items, work)

    def grace_ends(self) -> int:
        """When an object goes that is replaced now, ms since the epoch."""
        grace = whole_ms(self.policy.grace)
        return self.trusted.now_ms() + (grace and grace + cut_ms(self.clock))

    # --- archives ---

    def catalog(self) -> Catalog:
        """The store's id, and the rows of its catalog."""
        return Catalog(self.handover.store_id, list(self.handover.rows()))

    def rows(self, state: str = "live") -> list[ArchiveRow]:
        """The archives of the catalog that are live, or retired."""
        return [row for row in decode_rows(self.handover.rows()) if row.state == state]

    def place_of(self, row: ArchiveRow) -> Place:
        """The place of an archive, whether or not the policy still names it."""
        for place in self.places.values():
            if kept_as(place.name, self.store.path) == row.place:
                return place
        return open_kept(
            row.place, self.store.path, options=self.options, files=self.files, clock=self.clock
        )

    def all_places(self) -> dict[str, Place]:
        """The policy's places, and all others where the catalog has archives, by name."""
        found = {place.name: place for place in self.places.values()}
        for row in decode_rows(self.handover.rows()):
            place = self.place_of(row)
            found.setdefault(place.name, place)
        return found

    def options_of(self, place: Place) -> dict[str, object]:
        """The settings with which another process opens a place."""
        return dict(self.options) if is_remote(place.name) else {}

    def input_of(self, row: ArchiveRow, unkept: frozenset[int] = frozenset()) -> MergeInput:
        """An archive as a job for another process names it."""
        place = self.place_of(row)
        return MergeInput(place=place.name, row=row, options=self.options_of(place), unkept=unkept)

    def open_archive(self, row: ArchiveRow) -> Archive:
        """Opens an archive, without keys."""
        return open_archive(row, self.place_of(row).source(row.key, row.size))

    def manifest_of(self, row: ArchiveRow) -> Manifest:
        """The manifest of an archive."""
        return self.open_archive(row).manifest

    def remove_retired(self, row: ArchiveRow) -> bool:
        """Removes a retired archive's object and row; returns whether the object is gone: another
        store's stays. A file is overwritten first if the object was to go at once: it may hold
        messages that are erased.
        """
        own = is_own(row, self.handover.store_id)
        if own:
            place = self.place_of(row)
            if row.delete_at is None:
                self.overwrite(place, row.key)
            place.delete(row.key)
        self.handover.set_rows([(row.catalog_key, None)])
        return own

    def overwrite(self, place: Place, key: str) -> None:
        """Overwrites an object that is a file; not if it has another name, under which it stays."""
        if not is_remote(place.name):
            path = Path(place.name) / key
            if self.files.size(path) is not None and self.files.links(path) == 1:
                self.files.erase(path)

    def keys_for(self, manifests: Sequence[Manifest]) -> KeysAtHand | None:
        """The keys for reading archives, and for writing their messages anew. Raises `KeyMissing`
        if the provider does not know a key, and does not know that it was destroyed either.
        """
        topics = [topic for manifest in manifests for topic in manifest.topics]
        used = {(t.name, t.key_id) for t in topics if t.key_id is not None}
        found = keys_at_hand(self.keys, [t.name for t in topics], used)
        for name, key_id in sorted(used):
            if found is None or not (
                (name, key_id) in found.reading or found.is_gone(name, key_id)
            ):
                raise KeyMissing(
                    f"an archive has messages of topic {name!r} encrypted with key {key_id}, of "
                    "which the key provider knows nothing; it stays as it is", name,
                )  # fmt: skip
        return found


class Publisher:
    """Publishes archives of a store; `notes` is the folder of the intents."""

    def __init__(self, store: Store, notes: Path, tell: Progress, pace: Pacing) -> None:
        self._store = store
        self._handover = store.handover
        self._tell = tell
        self._pace = pace
        self.intents = Intents(notes, store.config.files)

    def name(self, said: Manifest | ArchiveRow, number: int) -> str:
        """The name of an archive's object, by the archive's number."""
        return object_key(
            self._handover.store_id, said.first_position, number, said.retention_class
        )

    def publish(self, made: WrittenArchive, tier: Tier, place: Place) -> ArchiveRow:
        """Publishes an archive; returns its row, which is to be confirmed or withdrawn. Raises as
        `places.publish.publish` does.
        """
        number = self._handover.take_number()
        key = self.name(made.manifest, number)
        where = kept_as(place.name, self._store.path)
        self._tell(f"putting {key}", 0, made.size)
        intent = Intent(number, where, key, made.size, made.crc)
        publish(self.intents, intent, place, made.path, self._pace)
        return row_of(
            made.manifest, number=number, place=where, key=key, tier=tier, size=made.size,
            crc=made.crc, made_at=self._store.config.clock.now_ms(),
        )  # fmt: skip

    def confirm(self, rows: Iterable[ArchiveRow]) -> None:
        """Forgets the notes of archives that the catalog has now."""
        for row in rows:
            self.intents.forget(row.number)

    def withdraw(self, rows: Iterable[ArchiveRow], place: Place) -> None:
        """Removes archives that were published and did not come into the catalog; where that fails,
        the next `clean_up` does it.
        """
        for row in rows:
            intent = Intent(row.number, row.place, row.key, row.size, row.crc)
            with suppress(StoreError, OSError):
                remove_announced(place, intent)
                self.intents.forget(row.number)

    def clean_up(
        self,
        places: Collection[Place],
        known: Collection[str],
        failed: Callable[[str, PlaceError], None],
    ) -> list[str]:
        """Removes announced objects that are not in the catalog, which has the objects named
        `known`; returns their names. `failed` is told of a place that can't be asked. Its notes
        stay, and so do those of places that are not given.
        """
        by_name = {kept_as(place.name, self._store.path): place for place in places}
        removed = []
        for intent in self.intents.unfinished(known):
            place = by_name.get(intent.place)
            if place is None:
                continue
            try:
                if self._remove(place, intent):
                    removed.append(f"{place.name}/{intent.key}")
            except PlaceError as e:
                del by_name[intent.place]
                failed(f"tidying {place.name}", e)
        return removed

    def _remove(self, place: Place, intent: Intent) -> bool:
        """Removes an announced object; returns whether there was anything. Raises PlaceError."""
        is_gone = remove_announced(place, intent)
        # The process that put it is gone, so the remains of its put belong to nobody.
        parts = list(place.leftovers(intent.key))
        for part in parts:
            place.remove_leftover(part.key)
        self.intents.forget(intent.number)
        return is_gone or bool(parts)
