"""Plans for a store that is only read, and opens its places for a check.

The idea: a worker plans for the store it works for; `kvmq tier plan` asks a store that another
process may write to. Both look at segments, topics, the catalog and the trusted time.

Invariant: nothing is changed, not even what is known of the clock.
"""

# ruff: noqa: D102  # the store documents them
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from kvstore.index.archived import Catalog
from tiering.archive.archive_reader import open_lazily
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, decode_rows
from tiering.errors import PlaceUnavailable
from tiering.keys.sources import provider_of
from tiering.places.place import Place, open_kept
from tiering.places.settings import is_remote
from tiering.places.work_folder import WORK
from tiering.policy.effective_class import Judge, Today
from tiering.policy.plan import Plan, make_plan
from tiering.policy.policy import Policy, check_with_store
from tiering.policy.schedule import Stats, encrypted_of, segments_of, traits_of
from tiering.policy.trusted_clock import clock_before, observe
from tiering.worker.store_side import Progress, Settings, TopicFacts


class StoreFigures(Protocol):
    """See `kvstore.StoreStats`."""

    @property
    def segments(self) -> int: ...
    @property
    def segment_size(self) -> int: ...
    @property
    def disk_used(self) -> float: ...


class ReadableStore(Protocol):
    """See `kvstore.Store`; it may be open for reading only."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Settings: ...
    def catalog(self) -> Catalog: ...
    def segments(self, progress: Progress | None = None) -> Sequence[Stats]: ...
    def topics(self) -> Sequence[TopicFacts]: ...
    def stats(self) -> StoreFigures: ...


def plan_of(
    store: ReadableStore,
    policy: Policy,
    *,
    ratio: float | None = None,
    read_share: float = 0.0,
    progress: Progress | None = None,
) -> Plan:
    """The steps of a worker with that policy now; see `plan.make_plan`. Raises `PolicyIllegal`."""
    config = store.config
    check_with_store(policy, config.retention, config.watermarks)
    found = store.segments(progress)
    topics = store.topics()
    keys = provider_of(config.archives.keys, config.files)
    stats = store.stats()
    before = clock_before(store.path / WORK / "clock.json", config.files)
    now = observe(before, config.clock.now_ms(), None, policy.clock_doubt).now_ms
    traits = traits_of(topics, encrypted_of(topics, keys))
    today = Today(policy, {topic.id: topic.name for topic in topics}, traits)
    return make_plan(
        policy,
        segments_of(policy, found, traits),
        _judge(store).archives(decode_rows(store.catalog().rows), today, now),
        now_ms=now,
        hour=config.clock.local_hour(),
        disk_used=stats.disk_used,
        other_bytes=(stats.segments - len(found)) * stats.segment_size,
        ratio=ratio,
        read_share=read_share,
    )


def _judge(store: ReadableStore) -> Judge:
    """A judge of archives; for a plan it opens none of those in object stores."""
    place_of, _ = places_of(store, ())

    def manifest_of(row: ArchiveRow) -> Manifest:
        if is_remote(row.place):
            raise PlaceUnavailable(f"{row.place} is not asked for a plan", row.place)
        return open_lazily(place_of(row).source(row.key, row.size)).manifest

    return Judge(manifest_of)


def places_of(
    store: ReadableStore, others: Iterable[str]
) -> tuple[Callable[[ArchiveRow], Place], list[Place]]:
    """A function that opens the place of a store's archive, and `others`, opened; relative ones are
    folders in the store's.
    """
    config = store.config
    options = config.archives.options

    def opened(where: str) -> Place:
        return open_kept(where, store.path, options=options, files=config.files, clock=config.clock)

    known: dict[str, Place] = {}

    def place_of(row: ArchiveRow) -> Place:
        found = known.get(row.place)
        if found is None:
            found = known[row.place] = opened(row.place)
        return found

    return place_of, [opened(where) for where in others]
