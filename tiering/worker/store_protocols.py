"""The store as a worker sees it: the calls and values of `kvstore` that tiering relies on.

The idea: `kvstore.Store` meets tiering in one place. This module names every call of the store that
tiering uses, so that nothing below them is reached for.

An attach brings messages that may be older than the store's messages of a key. A compaction drops a
tombstone because nothing older is there. Each looks, and then changes the store. A step that holds
the store's lock (`Arrivals.lock`) from the look to the change has not missed the other. Objects
that an attach has put are in no catalog until it ends, however long it takes. So a step that
removes such objects as orphans asks first whether an attach is under way.

Invariants: nothing but these calls changes a store; one attach at a time, and one worker.
"""

# ruff: noqa: D102  # the store documents them

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from kvstore.config import StoreConfig
from kvstore.index.archived import (
    Archived,
    ArchivedTopic,
    Arrivals,
    Arriving,
    AttachedRange,
    Attaches,
    EndedWaits,
    Entries,
    HeldRange,
    Meant,
    PlannedWaits,
    Queue,
    Row,
    Sealed,
)
from kvstore.process.background import Background
from tiering.errors import TieringBusy
from tiering.policy.schedule import Stats, Topic

Progress = Callable[[str, int, int], None]
"""Called with the step's name, the amount done and the total (0: unknown)."""


class TopicFacts(Topic, Protocol):
    """See `kvstore.TopicInfo`."""

    @property
    def write_queues(self) -> int: ...
    @property
    def read_queues(self) -> int: ...
    @property
    def since(self) -> int: ...
    @property
    def key_index(self) -> str: ...
    @property
    def key_history(self) -> Sequence[tuple[int, str]]: ...
    @property
    def attributes(self) -> dict[str, str]: ...
    @property
    def compress_above(self) -> int | None: ...
    @property
    def compression(self) -> str | None: ...
    @property
    def takes_delays(self) -> bool: ...
    @property
    def dedup_window(self) -> float | None: ...


class GroupFacts(Protocol):
    """See `kvstore.GroupInfo`."""

    @property
    def dead_letter_topics(self) -> tuple[str, ...]: ...


class LogFigures(Protocol):
    """See `kvstore.StoreStats`."""

    @property
    def first_position(self) -> int: ...
    @property
    def end_position(self) -> int: ...


class HandOver(Protocol):
    """See `kvstore.engine.segment_handover.SegmentHandover`."""

    @property
    def store_id(self) -> bytes: ...
    @property
    def folder(self) -> Path: ...
    @property
    def segment_size(self) -> int: ...
    @property
    def arrivals(self) -> Arrivals: ...
    @property
    def worker_turn(self) -> threading.Lock: ...
    def sealed(self) -> list[Sealed]: ...
    def stuck(self) -> Collection[int]: ...
    def remove_left(self) -> None: ...
    def segment_path(self, segment: int) -> Path: ...
    def stats(self, segments: Sequence[int]) -> Iterator[Stats]: ...
    def entries(self, segment: int) -> Iterator[Entries]: ...
    def rows(self) -> Iterator[tuple[bytes, bytes]]: ...
    def archived(self) -> Archived: ...
    def worker_begins(self) -> None: ...
    def worker_ends(self) -> None: ...
    def end_waits(self, meant: Meant) -> EndedWaits: ...
    def planned_waits(self, meant: Meant) -> PlannedWaits: ...
    def take_number(self) -> int: ...
    def hand_over(
        self,
        segments: Sequence[int],
        arriving: Sequence[Arriving],
        unkept: Collection[Queue] = (),
        *,
        over: Collection[Queue] = (),
        erase: bool = False,
    ) -> int: ...
    def swap(
        self,
        old: Collection[int],
        arriving: Sequence[Arriving] = (),
        *,
        queues: Iterable[Queue] | None = None,
        rows: Iterable[Row] = (),
        over: Mapping[int, Collection[int]] = ...,
    ) -> None: ...
    def expire_archive(
        self, archive: int, name: str, rows: Iterable[Row], topics: Collection[int] | None = ...
    ) -> None: ...
    def held_ranges(self, topic: int, queue: int) -> tuple[list[HeldRange], int]: ...
    def reserve(self, segments: int, topics: int) -> tuple[int, int]: ...
    def take_in(
        self,
        arriving: Sequence[Arriving],
        stretches: Sequence[AttachedRange],
        ends: Mapping[Queue, int],
        topics: Sequence[ArchivedTopic] = (),
    ) -> None: ...
    def forget_keys(self) -> None: ...
    def set_rows(self, rows: Iterable[Row]) -> None: ...


class Store(Protocol):
    """See `kvstore.Store`."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> StoreConfig: ...
    @property
    def handover(self) -> HandOver: ...
    @property
    def threads(self) -> list[Background]: ...
    def segments(self, progress: Progress | None = None) -> Sequence[Stats]: ...
    def topics(self) -> Sequence[TopicFacts]: ...
    def groups(self) -> Sequence[GroupFacts]: ...
    def stats(self) -> LogFigures: ...
    def checkpoint(self) -> None: ...
    def seal(self) -> None: ...


def none_since(before: Attaches, now: Attaches) -> bool:
    """Whether no attach was under way at any time between the two."""
    return before == now and now.begun == now.ended


@contextmanager
def attaching(side: HandOver) -> Iterator[None]:
    """Holds the only turn to attach for the block. Raises `TieringBusy` if another is under way."""
    if not side.arrivals.begin():
        raise TieringBusy(f"something is being attached to {side.folder}; wait for its end")
    try:
        yield
    finally:
        side.arrivals.end()
