"""The inside of in-flight tables and of pops, for tests that look at what they keep in memory.

Only this module knows under which names they keep it; see `tests.support.inside`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pytest

from kvstore import Popped, Store
from kvstore.core.popping.inflight import InflightRows
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.pop import Poll
from kvstore.pop.popper import Popper
from tests.support import inside
from tests.support.inside import Step

Tables = OrderedDict[tuple[int, int], InflightTable]
"""Group and topic -> their table."""


def kept_tables(tables: InflightTables) -> Tables:
    """The tables that are in memory."""
    return tables._tables


def tables_ahead(tables: InflightTables) -> Tables:
    """The tables that are noted as having read ahead."""
    return tables._ahead


class _Looks(Tables):
    """Counts how many tables are looked at."""

    count = 0

    def move_to_end(self, key: tuple[int, int], last: bool = True) -> None:
        self.count += 1
        super().move_to_end(key, last)


def counted_looks(store: Store, monkeypatch: pytest.MonkeyPatch) -> _Looks:
    """Counts, in `count`, how many tables are looked at for others to have room."""
    tables = inside.tables(store)
    looks = _Looks(tables._tables)
    monkeypatch.setattr(tables, "_tables", looks)
    return looks


def looks_of_polls(monkeypatch: pytest.MonkeyPatch) -> list[Poll]:
    """The polls of pops that wait, one for each look from now on."""
    looks: list[Poll] = []
    look = Poll.look

    def counted(poll: Poll) -> list[Popped]:
        looks.append(poll)
        return look(poll)

    monkeypatch.setattr(Poll, "look", counted)
    return looks


def is_read(tables: InflightTables, group: int) -> bool:
    """Whether the rows of a group were read."""
    return group in tables._groups


def bytes_of_dead_groups(tables: InflightTables) -> int:
    """The bytes that the ids of all deleted groups take."""
    return len(tables._dead_groups._bits)


def offsets_set_back(tables: InflightTables) -> int:
    """How many of the times are kept at which an offset was set back."""
    kept = sum(map(len, tables._set_back.values()))
    assert kept == tables._settings, "they are counted"
    return kept


def kinds_checked(popper: Popper) -> int:
    """Of how many kinds of pops the arguments are known as checked."""
    return len(popper.pop._checked)


class TableSizes(NamedTuple):
    """How much a table of one queue, whose group is counted, has in memory."""

    buckets: int
    pages: int
    """Of locked offsets."""
    counts: int
    coming: int
    """The times in the tally, and those that are still to come."""


def sizes_of(table: InflightTable) -> TableSizes:
    tally = table.tally
    return TableSizes(
        len(table._buckets),
        len(table._queues[0].locked.pages),
        len(tally._counts),
        len(tally._coming),
    )


def lowest_offsets(rows: InflightRows) -> list[int | None]:
    """The lowest locked or parked offset of each queue that has had rows."""
    return [queue.lowest() for queue in rows._queues.values()]


def look_of_redrive(store: Store) -> Step:
    """Looks which letters of a queue are a group's."""
    return Step(inside.popping(store).redrive, "_look")
