"""What a worker asks of the store it works for.

The idea: `kvstore.Store` meets tiering in one place; here is what of it tiering relies on, so that
nothing below it is reached for.

Invariant: nothing but these calls changes a store.
"""

# ruff: noqa: D102  # what each of them is, is said where the store has it
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kvstore.access import ArchiveAccess
from kvstore.archived import (
    Archived,
    ArchivedTopic,
    Arriving,
    Entries,
    Here,
    Queue,
    Row,
    Sealed,
    Stretch,
)
from kvstore.clock import Clock
from kvstore.config import Retention
from kvstore.files import Files
from tiering.survey import Stats

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and the whole (0: not known)."""


class Settings(Protocol):
    """See `kvstore.StoreConfig`."""

    @property
    def clock(self) -> Clock: ...
    @property
    def files(self) -> Files: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def watermarks(self) -> tuple[float, float, float]: ...
    @property
    def archives(self) -> ArchiveAccess: ...


class TopicFacts(Protocol):
    """See `kvstore.TopicInfo`."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
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
    def retention(self) -> Retention: ...
    @property
    def attributes(self) -> dict[str, str]: ...
    @property
    def compress_above(self) -> int | None: ...
    @property
    def compression(self) -> str | None: ...


class GroupFacts(Protocol):
    """See `kvstore.GroupInfo`."""

    @property
    def dead_letters(self) -> str: ...


class LogFigures(Protocol):
    """See `kvstore.StoreStats`."""

    @property
    def first_position(self) -> int: ...
    @property
    def end_position(self) -> int: ...


class HandOver(Protocol):
    """See `kvstore.handover.HandOver`."""

    @property
    def store_id(self) -> bytes: ...
    @property
    def folder(self) -> Path: ...
    @property
    def segment_size(self) -> int: ...
    def sealed(self) -> list[Sealed]: ...
    def segment_path(self, segment: int) -> Path: ...
    def stats(self, segments: Sequence[int]) -> Iterator[Stats]: ...
    def entries(self, segment: int) -> Iterator[Entries]: ...
    def rows(self) -> Iterator[tuple[bytes, bytes]]: ...
    def archived(self) -> Archived: ...
    def attach(self) -> None: ...
    def detach(self) -> None: ...
    def take_number(self) -> int: ...
    def hand_over(
        self,
        segments: Sequence[int],
        arriving: Sequence[Arriving],
        unkept: Collection[Queue] = (),
        *,
        erase: bool = False,
    ) -> int: ...
    def swap(
        self,
        old: Collection[int],
        arriving: Sequence[Arriving] = (),
        *,
        queues: Iterable[Queue] | None = None,
        rows: Iterable[Row] = (),
    ) -> None: ...
    def here(self, topic: int, queue: int) -> tuple[list[Here], int]: ...
    def give_up(self, segments: int, topics: int) -> tuple[int, int]: ...
    def take_in(
        self,
        arriving: Sequence[Arriving],
        stretches: Sequence[Stretch],
        ends: Mapping[Queue, int],
        topics: Sequence[ArchivedTopic] = (),
    ) -> None: ...
    def set_rows(self, rows: Iterable[Row]) -> None: ...


class Store(Protocol):
    """See `kvstore.Store`."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Settings: ...
    @property
    def handover(self) -> HandOver: ...
    def segments(self, progress: Progress | None = None) -> Sequence[Stats]: ...
    def topics(self) -> Sequence[TopicFacts]: ...
    def groups(self) -> Sequence[GroupFacts]: ...
    def stats(self) -> LogFigures: ...
    def checkpoint(self) -> None: ...
    def seal(self) -> None: ...
