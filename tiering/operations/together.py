"""Together: finds the archives that hold a topic beside others, and when these let it go.

The idea: an archive goes whole, when the messages of all its topics are over. So a topic whose
retention was shortened keeps its archived messages for as long as its neighbours do. The catalog
says which archives these are, without opening one: by the ids of topics in a row, or, for an
archive of more topics than a row names, by the places of the topic's queues in the index.

Invariant: nothing is opened, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from tiering.catalog.catalog import ArchiveRow, decode_rows, read_topics
from tiering.errors import PolicyIllegal
from tiering.policy.retention_classes import read_class
from tiering.worker.store_side import Store

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
    side = store.handover
    found = next((info for info in store.topics() if info.name == topic), None)
    if found is None:
        return Together([], None)
    queues = range(max(found.read_queues, found.write_queues))
    rows = [row for row in decode_rows(side.rows()) if row.state == "live"]
    indexed: set[int] = set()
    if any(row.topics is None for row in rows):
        indexed = {
            one.archive
            for queue in queues
            for one in side.held_ranges(found.id, queue)[0]
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
