"""Relocates archives to the cold place, lets them expire, and removes their objects.

The idea: an archive keeps its number when its object moves, so that no place in the index changes.
The object is copied and read back (`copy`: here, or in a task of Spark; several at once, if the
executor does several jobs at a time). Then one row of the catalog says where it is now (`settle`).
An archive that nothing needs any more gets a row of its own, "retired", and its object goes when
the grace time is over.

Invariants: the object that the catalog names is there and was read back; an object goes only when
its row says retired, and its time has come; before an archive is let go, its contents are judged by
its topics as they are today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from kvstore.clock import whole_ms
from tiering.catalog.catalog import ArchiveRow, Tier, decode_rows, encode_row, is_own, kept_as
from tiering.executor.pool import Executor
from tiering.places.intents import Intent
from tiering.places.place import Place, open_kept
from tiering.places.publish import CopyJob, ObjectCopy, Pacing, announced, copy_remotely
from tiering.places.settings import is_remote
from tiering.places.unmade import overwrite_all
from tiering.places.verify_copy import checksum
from tiering.places.waiting import WORK
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import RetentionClass
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.publisher import Publisher
from tiering.worker.store_side import Store


class Copied(NamedTuple):
    """An archive's object in the cold place, which the catalog does not name yet."""

    number: int
    where: str
    key: str
    crc: int


class Shifter:
    """Copies, expires and removes the archives of one store."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        places: Mapping[Tier, Place],
        publisher: Publisher,
        executor: Executor,
        pace: Pacing,
        options: Mapping[str, object],
        trusted: TrustedClock,
    ) -> None:
        self._trusted = trusted
        self._side = store.handover
        self._policy = policy
        self._places = places
        self._publisher = publisher
        self._executor = executor
        self._pace = pace
        self._options = options
        self._files = store.config.files
        self._clock = store.config.clock
        self._folder = store.path
        self._work = store.path / WORK / "shifting"

    def place_of(self, row: ArchiveRow) -> Place:
        """Where an archive is, whether or not the policy still names that place."""
        for place in self._places.values():
            if kept_as(place.name, self._folder) == row.place:
                return place
        return open_kept(
            row.place, self._folder, options=self._options, files=self._files, clock=self._clock
        )

    def places(self) -> list[Place]:
        """The policy's places, and all others where the catalog has archives."""
        found = {place.name: place for place in self._places.values()}
        for row in decode_rows(self._side.rows()):
            place = self.place_of(row)
            found.setdefault(place.name, place)
        return list(found.values())

    def tidy(self) -> list[str]:
        """Remove the copies that a worker that was cut off has left; returns their names."""
        return [f"{self._work.name}/{name}" for name in overwrite_all(self._work, self._files)]

    def take_number(self) -> int:
        """A number for a copy; a caller that makes several takes their numbers in order."""
        return self._side.take_number()

    def copy(self, row: ArchiveRow, number: int, check: Callable[[], None]) -> Copied:
        """Copies an archive to the cold place, under a new name, and reads it back. Several threads
        may do it at once. Raises the error that prevented it; nothing is left then.
        """
        source, target = self.place_of(row), self._places["cold"]
        key = self._publisher.name(row, number)
        where = kept_as(target.name, self._folder)
        # The note says the crc32c, which a catalog that was found again does not know.
        crc = row.crc or checksum(source.source(row.key, row.size), pace=self._pace.reading)
        job = CopyJob(
            source=source.name, key=row.key, target=target.name,
            intent=Intent(number, where, key, row.size, crc),
            source_options=self.options_of(source), target_options=self.options_of(target),
        )  # fmt: skip
        path = self._work / f"{number:010d}"
        copy = ObjectCopy(source, target, job, path, self._files, self._pace)
        with announced(self._publisher.intents, job.intent, target):
            self._executor.transfer(check, copy_remotely, copy)
        return Copied(number, where, key, crc)

    def options_of(self, place: Place) -> dict[str, object]:
        """The settings with which another process opens a place."""
        return dict(self._options) if is_remote(place.name) else {}

    def settle(self, row: ArchiveRow, copied: Copied) -> None:
        """Makes the catalog name the copy as the archive's object."""
        moved = msgspec.structs.replace(
            row, place=copied.where, key=copied.key, tier="cold", crc=copied.crc
        )
        old = self._retired(row, copied.number, self._trusted.now_ms())
        self._side.set_rows([(r.catalog_key, encode_row(r)) for r in (moved, old)])
        self._publisher.intents.forget(copied.number)

    def expire(self, row: ArchiveRow, kind: RetentionClass, now: int) -> bool:
        """Lets an archive go, if by its class of today nobody is to have its messages any more."""
        if not kind.is_over(now - row.last_stored_at):
            return False
        number = self._side.take_number()
        gone = self._retired(row, number, now)
        rows = [(row.catalog_key, None), (gone.catalog_key, encode_row(gone))]
        self._side.let_go(row.number, row.name, rows)
        return True

    def _retired(self, row: ArchiveRow, number: int, now: int) -> ArchiveRow:
        """A row that only keeps an object until its time has come."""
        delete_at = now + whole_ms(self._policy.grace)
        return msgspec.structs.replace(row, number=number, state="retired", delete_at=delete_at)

    def sweep(self, row: ArchiveRow, now: int) -> bool:
        """Remove a retired archive's object, if its time has come."""
        if row.delete_at is not None and now < row.delete_at:
            return False
        if is_own(row, self._side.store_id):
            self.place_of(row).delete(row.key)
        self._side.set_rows([(row.catalog_key, None)])
        return True
