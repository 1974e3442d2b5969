"""The inside of archives, of their readers and of pools, for tests that look at a part or strike.

Only this module knows under which names these keep their parts; see `tests.support.inside`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from kvstore import Store
from tests.support.inside import Step
from tiering.archive.archive_reader import Archive
from tiering.archive.block_writer import BlockWriter
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.cache import BlockCache
from tiering.catalog.key_filters import KeyFilters
from tiering.catalog.tiers import Tiers
from tiering.executor.pool import Pool
from tiering.keys import crypto
from tiering.operations.attach_conflicts import BlockTimes
from tiering.places.place import Place
from tiering.policy.effective_class import ClassResolver

# --- the catalog ---


def set_place(tiers: Tiers, name: str, place: Any) -> None:
    """Puts something in the stead of a place of archives."""
    tiers._places[name] = place


class TiersMemory(NamedTuple):
    """How much the reader of archives knows of each kind."""

    scans: int
    found: int
    queues: int
    groups: int


def memory_of(tiers: Tiers) -> TiersMemory:
    return TiersMemory(len(tiers._scans), len(tiers._found), len(tiers._queues), len(tiers._groups))


def filters_of(tiers: Tiers) -> KeyFilters:
    return tiers._filters


def open_archives(tiers: Tiers) -> OpenArchives:
    return tiers._opened


def forget_blocks(tiers: Tiers) -> None:
    """Leaves no block in memory."""
    for row in tiers.rows():
        tiers._cache.forget(row.number)
    tiers._groups.clear()
    tiers._found.clear()


def reading_of_messages() -> Step:
    """Makes messages of rows of a block."""
    return Step(Tiers, "_messages")


def filter_bytes(filters: KeyFilters) -> int:
    """The bytes of the table in which filters lie."""
    return filters._table.rows.nbytes


def coming(store: Store, arriving: Any) -> AbstractContextManager[None]:
    """Tells the store's reader of archives that no location names yet."""
    return store.handover._coming(arriving)


# --- the cache of blocks ---


def set_read(cache: BlockCache, read: Callable[[int, int], Any]) -> None:
    """Has a cache read blocks otherwise."""
    cache._read = read


def reads_under_way(cache: BlockCache) -> int:
    return len(cache._flight.under_way())


def is_closing(cache: BlockCache) -> bool:
    """Whether a cache takes no more reads."""
    return cache._pool._shutdown


# --- archives and places ---


def reading_of_sections() -> Step:
    """Reads a section of an archive."""
    return Step(Archive, "_section")


def keys_of_blocks() -> Step:
    """Gives the keys of the messages of a block that is written."""
    return Step(BlockWriter, "_keys")


def check_of_order() -> Step:
    """Refuses records that are out of order."""
    return Step(BlockWriter, "_check_order")


def has_encryption() -> Step:
    """Whether the package for encryption is installed."""
    return Step(crypto, "_available")


def set_client(place: Place, make: Callable[[Any], Any]) -> Any:
    """Puts another client of an object store before a place's own; returns it."""
    there: Any = place
    there._obstore = client = make(there._obstore)
    return client


def blocks_with_times(times: BlockTimes) -> tuple[int, int]:
    """Of how many blocks, and of how many archives, the times are in memory."""
    return len(times._kept), len(times._blocks)


# --- classes and pools ---


def classes_known(resolver: ClassResolver) -> tuple[int, int]:
    """Of how many archives the topics were read, and how many different ones these are."""
    return len(resolver._learned), len(resolver._same)


def reading_of_manifests(resolver: ClassResolver) -> Step:
    """Reads the manifest of an archive."""
    return Step(resolver, "_manifest_of")


def start_of_pools() -> Any:
    """Starts the process of a pool."""
    return Pool._start


def start_pools_by(start: Any) -> None:
    """Starts the processes of all pools otherwise from here on."""
    Pool._start = start  # type: ignore[method-assign]  # that is the purpose


def process_of(pool: Pool) -> Any:
    """The process of a pool, which has run."""
    assert pool._process is not None
    return pool._process
