"""Shifting: archives that go cold, expire, and are removed.

The idea: an archive keeps its number when its object moves, so that no place in the index changes:
the object is copied, read back, and one row of the catalog says where it is now. What nothing needs
any more gets a row of its own, "retired", and its object goes when the grace time is over.

Invariants: the object that the catalog names is there and was read back; an object goes only when
its row says retired, and its time has come; what an archive holds is judged by its topics as they
are today before it is let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvstore.errors import ArchiveDamaged
from tiering.catalog import ArchiveRow, Tier, decode_rows, encode_row, is_own, kept_as
from tiering.classes import RetentionClass
from tiering.copying import fetch
from tiering.intents import Intent, Intents
from tiering.moving import WORK
from tiering.objectnames import object_key
from tiering.place import Place, open_kept
from tiering.policy import Policy
from tiering.putting import put_announced
from tiering.ratelimit import RateLimit
from tiering.storeside import Store
from tiering.trustedclock import TrustedClock


class Shifter:
    """See the module."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        places: Mapping[Tier, Place],
        intents: Intents,
        reading: RateLimit,
        uploading: RateLimit,
        options: Mapping[str, object],
        trusted: TrustedClock,
    ) -> None:
        self._trusted = trusted
        self._side = store.handover
        self._policy = policy
        self._places = places
        self._intents = intents
        self._reading = reading
        self._uploading = uploading
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
        left = self._files.list_dir(self._work) if self._work.is_dir() else []
        for name in left:
            self._files.remove(self._work / name)
        return [f"{self._work.name}/{name}" for name in left]

    def to_cold(self, row: ArchiveRow) -> None:
        """Copy an archive to the cold place and have the catalog say so."""
        source, target = self.place_of(row), self._places["cold"]
        number = self._side.take_number()
        key = object_key(self._side.store_id, row.first_position, number, row.retention_class)
        where = kept_as(target.name, self._folder)
        copy = self._work / f"{number:010d}"
        self._files.make_dir(self._work)
        try:
            crc = self._fetch(source, row, copy)
            put_announced(
                self._intents, Intent(number, where, key, row.size, crc), target, copy,
                self._uploading.take, self._reading.take,
            )  # fmt: skip
        finally:
            self._files.remove(copy)
        moved = msgspec.structs.replace(row, place=where, key=key, tier="cold", crc=crc)
        old = self._retired(row, number, self._trusted.now_ms())
        self._side.set_rows([(r.catalog_key, encode_row(r)) for r in (moved, old)])
        self._intents.forget(number)

    def _fetch(self, source: Place, row: ArchiveRow, copy: Path) -> int:
        """Copy an object to a file; returns its crc32c."""
        found = fetch(source, row.key, row.size, copy, self._files, pace=self._reading.take)
        # A catalog that was found again doesn't know it (0).
        if row.crc and found != row.crc:
            raise ArchiveDamaged(
                f"{row.name} is not what was put there: crc32c {found:#010x}, not {row.crc:#010x}; "
                "it stays where it is; `kvmq tier verify` tells what of it can be read",
                row.name,
            )
        return found

    def expire(self, row: ArchiveRow, kind: RetentionClass, now: int) -> bool:
        """Let an archive go, if by its class of today nobody is to have its messages any more."""
        if not kind.is_over(now - row.last_stored_at):
            return False
        number = self._side.take_number()
        gone = self._retired(row, number, now)
        rows = [(row.catalog_key, None), (gone.catalog_key, encode_row(gone))]
        self._side.swap([row.number], rows=rows)
        return True

    def _retired(self, row: ArchiveRow, number: int, now: int) -> ArchiveRow:
        """A row that only keeps an object until its time has come."""
        delete_at = now + round(self._policy.grace * 1000)
        return msgspec.structs.replace(row, number=number, state="retired", delete_at=delete_at)

    def sweep(self, row: ArchiveRow, now: int) -> bool:
        """Remove a retired archive's object, if its time has come."""
        if row.delete_at is not None and now < row.delete_at:
            return False
        if is_own(row, self._side.store_id):
            self.place_of(row).delete(row.key)
        self._side.set_rows([(row.catalog_key, None)])
        return True
