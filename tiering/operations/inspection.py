"""Inspects a store and changes nothing: its plan, its places, the topics that share archives.

The idea: a worker plans for the store it works for; `kvmq tier plan` asks a store that another
process may write to. Both look at segments, topics, the catalog and the trusted time.

An archive goes whole, when the messages of all its topics are over. So a topic whose retention was
shortened keeps its archived messages for as long as its neighbours do. The catalog says which
archives these are, without opening one: by the ids of topics in a row, or, for an archive of more
topics than a row names, by the places of the topic's queues in the index.

Invariant: nothing is changed, not even what is known of the clock.
"""

# ruff: noqa: D102  # the store documents them

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from kvstore.config import StoreConfig
from kvstore.index.archived import Catalog
from tiering.archive.archive_reader import open_lazily
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, decode_rows, read_topics
from tiering.errors import PlaceUnavailable, PolicyIllegal
from tiering.keys.key_file import provider_of
from tiering.places.place import Place, open_kept
from tiering.places.settings import is_remote
from tiering.places.work_folder import WORK
from tiering.policy.effective_class import ClassResolver, Today
from tiering.policy.plan import Plan, make_plan
from tiering.policy.policy import Policy, check_with_store
from tiering.policy.retention_classes import read_class
from tiering.policy.schedule import Stats, encrypted_of, segments_of, traits_of
from tiering.policy.trusted_clock import clock_before, observe
from tiering.worker.store_protocols import Progress, Store, TopicFacts


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
    def config(self) -> StoreConfig: ...
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
        _resolver(store).archives(decode_rows(store.catalog().rows), today, now),
        now_ms=now,
        hour=config.clock.local_hour(),
        disk_used=stats.disk_used,
        other_bytes=(stats.segments - len(found)) * stats.segment_size,
        ratio=ratio,
        read_share=read_share,
    )


def _resolver(store: ReadableStore) -> ClassResolver:
    """Resolves archives' classes; for a plan it opens none of those in object stores."""
    place_of, _ = places_of(store, ())

    def manifest_of(row: ArchiveRow) -> Manifest:
        if is_remote(row.place):
            raise PlaceUnavailable(f"{row.place} is not asked for a plan", row.place)
        return open_lazily(place_of(row).source(row.key, row.size)).manifest

    return ClassResolver(manifest_of)


def places_of(
    store: ReadableStore, others: Iterable[str]
) -> tuple[Callable[[ArchiveRow], Place], list[Place]]:
    """A function that opens the place of a store's archive, and `others`, opened; relative ones are
    folders in the store's.
    """
    config = store.config
    options = config.archives.options

    @cache
    def opened(where: str) -> Place:
        return open_kept(where, store.path, options=options, files=config.files, clock=config.clock)

    return lambda row: opened(row.place), [opened(where) for where in others]


_EVER: Final = float("inf")


class Together(NamedTuple):
    """Live archives that hold a topic together with others: their names, by first position, and
    when the last of them ends (ms since the epoch) by the retention class that it was made as; None
    if that one has no end. Without such archives there is no time, too.
    """

    archives: list[str]
    until: int | None


def held_together(store: Store, topic: str) -> Together:
    """The archives of a store that hold a topic together with others. `Worker.part`, and `kvmq tier
    merge --topic`, part them. A topic that is not there is in none.
    """
    handover = store.handover
    found = next((info for info in store.topics() if info.name == topic), None)
    if found is None:
        return Together([], None)
    queues = range(max(found.read_queues, found.write_queues))
    rows = [row for row in decode_rows(handover.rows()) if row.state == "live"]
    indexed: set[int] = set()
    if any(row.topics is None for row in rows):
        indexed = {
            one.archive
            for queue in queues
            for one in handover.held_ranges(found.id, queue)[0]
            if one.archive is not None
        }
    return together(rows, found.id, indexed)


def together(rows: Iterable[ArchiveRow], topic: int, indexed: Collection[int]) -> Together:
    """See `held_together`, of the rows of live archives; `indexed` are the numbers of archives
    where the index has places of the topic. Pure.
    """
    held = [row for row in rows if _holds(row, topic, indexed) and not _is_alone(row)]
    last = max((_end_of(row) for row in held), default=_EVER)
    return Together([row.name for row in held], None if last == _EVER else int(last))


def _holds(row: ArchiveRow, topic: int, indexed: Collection[int]) -> bool:
    if row.topics is None:
        return row.number in indexed
    return topic in read_topics(row.topics)


def _is_alone(row: ArchiveRow) -> bool:
    """Whether an archive has one topic. (A row that names none is of very many.)"""
    return row.topics is not None and len(read_topics(row.topics)) == 1


def _end_of(row: ArchiveRow) -> float:
    try:
        ends = read_class(row.retention_class).ends
    except PolicyIllegal:
        return _EVER  # made elsewhere, as a class that this version does not know
    return _EVER if ends is None else row.last_stored_at + ends
