"""The parts of an open store to which the calls are handed, as the store wires them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from kvstore.config import StoreConfig
from kvstore.engine.upkeep import Upkeep
from kvstore.engine.writer import Writer
from kvstore.errors import (
    CallerError,
    StoreClosed,
    shown,
)
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.meta.groups import Groups
from kvstore.meta.namespaces import Namespaces
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topics
from kvstore.pop.group_stats import Flying
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.popper import Popper
from kvstore.pop.progress_history import ProgressHistory
from kvstore.read.find import Finder
from kvstore.read.reader import Reader

T = TypeVar("T")


def listed(name: str, values: Iterable[T]) -> list[T]:
    """The several values a caller gave, as a list; `CallerError` if they are none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise CallerError(f"{name} is {shown(values)}; it must be a list")
    return list(values)


class Parts:
    """The parts of a store. A read-only store has no `_writer`, `_upkeep`, `_popping` and
    `_progress`.
    """

    path: Path
    config: StoreConfig
    _closed: bool
    _log: CommitLog
    _index: Index
    _topics: Topics
    _groups: Groups
    _offsets: Offsets
    _namespaces: Namespaces
    _reader: Reader
    _finder: Finder
    _writer: Writer
    _upkeep: Upkeep
    _popping: Popper
    _progress: ProgressHistory

    def __reduce__(self) -> NoReturn:
        # Pickling's own error would not help a program that gave a store to another process.
        raise CallerError(
            f"the store in {self.path} can't be pickled or copied, nor given to another process: "
            "only the process that opened it uses it. Give the process the messages; have it "
            "answer, and ack here"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")

    def _flights(self) -> InflightTables:
        """The in-flight tables. A reader pops nothing: it has them for one look alone."""
        if self._log.writable:
            return self._popping.flights
        return InflightTables(self._index.families, self._offsets, self._reader.bounds)

    def _flying(self, group: int, topic: int) -> Flying:
        """Gives the group's in-flight table in a topic, to look at."""
        flights = self._flights()
        if self._log.writable:
            return partial(flights.flying, group, topic)
        found = flights.look(group, topic)
        return lambda: nullcontext(found)
