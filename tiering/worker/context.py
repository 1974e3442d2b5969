"""Context: the parts of a worker that all of its steps share.

The idea: a worker opens its places, chooses an executor and reads its policy once. Each step is
given these as one value, and reaches archives through it.

Invariant: nothing here changes the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvstore.clock import Clock
from kvstore.errors import KeyMissing
from kvstore.files import Files
from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import Manifest
from tiering.archive.writer import ArchiveSettings
from tiering.catalog.catalog import ArchiveRow, Tier, decode_rows, kept_as
from tiering.executor.pipeline import Check, pipelined
from tiering.executor.pool import Executor
from tiering.keys.crypto import KeyProvider
from tiering.keys.sources import KeysAtHand, keys_at_hand
from tiering.merge.merge_job import MergeInput
from tiering.places.place import Place, open_kept
from tiering.places.publish import Pacing
from tiering.places.settings import is_remote
from tiering.policy.policy import Policy
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.store_side import HandOver, Progress, Store

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
    trusted: TrustedClock
    built: Path
    check: Callable[[], None]
    tell: Progress

    @property
    def side(self) -> HandOver:
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
        `executor.pipeline.pipelined`.
        """
        width = self.executor.width if most is None else min(self.executor.width, most)
        return pipelined(width, self.check, items, work)

    # --- archives ---

    def rows(self, state: str = "live") -> list[ArchiveRow]:
        """The archives of the catalog that are live, or retired."""
        return [row for row in decode_rows(self.side.rows()) if row.state == state]

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
        for row in decode_rows(self.side.rows()):
            place = self.place_of(row)
            found.setdefault(place.name, place)
        return found

    def options_of(self, place: Place) -> dict[str, object]:
        """The settings with which another process opens a place."""
        return dict(self.options) if is_remote(place.name) else {}

    def input_of(self, row: ArchiveRow, unkept: frozenset[int] = frozenset()) -> MergeInput:
        """An archive as a job for another process names it."""
        place = self.place_of(row)
        return MergeInput(
            place=place.name, key=row.key, size=row.size, options=self.options_of(place),
            unkept=unkept, store_id=row.key.partition("/")[0],
        )  # fmt: skip

    def open_archive(self, row: ArchiveRow) -> Archive:
        """Opens an archive, without keys."""
        return Archive.open(self.place_of(row).source(row.key, row.size))

    def manifest_of(self, row: ArchiveRow) -> Manifest:
        """The manifest of an archive."""
        return self.open_archive(row).manifest

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
