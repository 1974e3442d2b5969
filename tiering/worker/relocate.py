"""Relocates archives to the cold place, lets them expire, and removes their objects.

The idea: an archive keeps its number when its object moves, so that no place in the index changes.
The object is copied and read back (`copy`), of several archives at once if the executor does
several jobs at a time. Then one batch makes the catalog name the copy (`switch`). The old object
gets a row of its own, "retired", as the object of an expired archive does. It goes when the grace
time is over.

Invariants: the object that the catalog names is there and was read back; an object goes only when
its row says retired, and its time has come; before an archive expires, its contents are judged by
its topics as they are today.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kvstore.clock import whole_ms
from tiering.catalog.catalog import ArchiveRow, encode_row, is_own, kept_as
from tiering.places.publish import CopyJob, Intent, ObjectCopy, announced, checksum, copy_remotely
from tiering.places.work_folder import WORK, overwrite_all
from tiering.policy.retention_classes import RetentionClass
from tiering.worker.context import WorkContext
from tiering.worker.publisher import Publisher


class ColdCopy(NamedTuple):
    """An archive's object in the cold place, which the catalog does not name yet."""

    number: int
    where: str
    key: str
    crc: int


class Relocator:
    """Copies, expires and removes the archives of one store."""

    def __init__(self, context: WorkContext, publisher: Publisher) -> None:
        self._context = context
        self._side = context.side
        self._publisher = publisher
        self._copies = context.store.path / WORK / "shifting"

    def remove_copies(self) -> list[str]:
        """Removes the local copies of an interrupted worker; returns their names."""
        found = overwrite_all(self._copies, self._context.files)
        return [f"{self._copies.name}/{name}" for name in found]

    def copy(self, row: ArchiveRow, number: int, check: Callable[[], None]) -> ColdCopy:
        """Copies an archive to the cold place, under the name with that number. Several threads may
        do this at once; `switch` comes next. Raises the error that prevented it; the object is
        removed then.
        """
        context = self._context
        source, target = context.place_of(row), context.places["cold"]
        key = self._publisher.name(row, number)
        where = kept_as(target.name, context.store.path)
        # The note says the crc32c, which a catalog that was found again does not know.
        crc = row.crc or checksum(source.source(row.key, row.size), pace=context.pace.reading)
        job = CopyJob(
            source=source.name, key=row.key, target=target.name,
            intent=Intent(number, where, key, row.size, crc),
            source_options=context.options_of(source), target_options=context.options_of(target),
        )  # fmt: skip
        path = self._copies / f"{number:010d}"
        copy = ObjectCopy(source, target, job, path, context.files, context.pace)
        with announced(self._publisher.intents, job.intent, target):
            context.executor.transfer(check, copy_remotely, copy)
        return ColdCopy(number, where, key, crc)

    def switch(self, row: ArchiveRow, copy: ColdCopy) -> None:
        """Makes the catalog name the copy as the archive's object, and retires the old object."""
        cold = msgspec.structs.replace(
            row, place=copy.where, key=copy.key, tier="cold", crc=copy.crc
        )
        old = self._retired(row, copy.number, self._context.trusted.now_ms())
        self._side.set_rows([(r.catalog_key, encode_row(r)) for r in (cold, old)])
        self._publisher.intents.forget(copy.number)

    def expire(self, row: ArchiveRow, kind: RetentionClass, now: int) -> bool:
        """Removes an archive from the store, if all its messages are over by its class of today;
        returns whether it did.
        """
        if not kind.is_over(now - row.last_stored_at):
            return False
        number = self._side.take_number()
        gone = self._retired(row, number, now)
        rows = [(row.catalog_key, None), (gone.catalog_key, encode_row(gone))]
        self._side.let_go(row.number, row.name, rows)
        return True

    def _retired(self, row: ArchiveRow, number: int, now: int) -> ArchiveRow:
        """A row that only keeps an object until its time has come."""
        delete_at = now + whole_ms(self._context.policy.grace)
        return msgspec.structs.replace(row, number=number, state="retired", delete_at=delete_at)

    def remove_retired(self, row: ArchiveRow, now: int) -> bool:
        """Removes a retired archive's object, if its time has come; returns whether it did."""
        if row.delete_at is not None and now < row.delete_at:
            return False
        if is_own(row, self._side.store_id):
            self._context.place_of(row).delete(row.key)
        self._side.set_rows([(row.catalog_key, None)])
        return True
