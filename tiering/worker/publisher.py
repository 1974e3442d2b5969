"""Publisher: names a store's new archives, publishes them, and removes those that came to nothing.

The idea: an archive gets a number that was never given, and its object a name with that number. It
is published (`places.publish`), and its catalog row is returned. Until the caller has the row in
the catalog, a note in the store's folder says that the object may have to be removed.

Invariant: an object that is in the catalog is never removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kvstore.errors import StoreError
from tiering.archive.manifest import Manifest
from tiering.archive.writer import WrittenArchive
from tiering.catalog.catalog import ArchiveRow, Tier, kept_as
from tiering.catalog.contents import row_of
from tiering.errors import PlaceError
from tiering.places.objects import object_key
from tiering.places.place import Place
from tiering.places.publish import Intent, Intents, Pacing, publish, remove_announced
from tiering.worker.store_side import Progress, Store


class Publisher:
    """Publishes archives of a store; `notes` is the folder of the intents."""

    def __init__(self, store: Store, notes: Path, tell: Progress, pace: Pacing) -> None:
        self._store = store
        self._side = store.handover
        self._tell = tell
        self._pace = pace
        self.intents = Intents(notes, store.config.files)

    def name(self, said: Manifest | ArchiveRow, number: int) -> str:
        """The name of an archive's object, by the archive's number."""
        return object_key(self._side.store_id, said.first_position, number, said.retention_class)

    def publish(self, made: WrittenArchive, tier: Tier, place: Place) -> ArchiveRow:
        """Publishes an archive; returns its row, which is to be confirmed or withdrawn. Raises as
        `places.publish.publish` does.
        """
        number = self._side.take_number()
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
