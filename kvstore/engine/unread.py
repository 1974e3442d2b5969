"""Counts the messages that no group has taken before they are deleted.

The idea: the index says which offsets of which queues a segment or an archive holds, and each
group's offset says how far it has come. Neither the log nor an archive is read, and memory grows
only with the queues of the segment or archive that goes.
"""

from __future__ import annotations

from collections.abc import Collection

from kvstore.errors import FormatError
from kvstore.index.families import Families
from kvstore.index.keys import (
    OFFSETS,
    PLACES,
    RUNS,
    read_location,
    read_offset_key,
    read_run_key,
    segment_range,
)
from kvstore.index.runs import count_of
from kvstore.meta.offsets import read_offset

Queue = tuple[int, int]
"""Topic id and queue."""


def unread_in(
    families: Families, segment: int, queues: Collection[Queue] | None = None
) -> dict[int, int]:
    """The messages of a segment (of some queues) that were neither handed out to a group nor passed
    over by a commit: topic id -> how many. Topics without any are not in it.
    """
    held: dict[Queue, list[tuple[int, int]]] = {}
    for key, value in families.rows(RUNS, *segment_range(segment, segment + 1)):
        run = read_run_key(key)
        if queues is not None and (run.topic, run.queue) not in queues:
            continue
        try:
            held.setdefault((run.topic, run.queue), []).append(
                (run.first, run.first + count_of(value))
            )
        except FormatError:
            continue  # a damaged run's messages can't be counted; the segment goes all the same
    return _untaken(families, held)


def unread_in_archive(families: Families, archive: int) -> dict[int, int]:
    """The same of an archive, by the locations that name it. Offsets that the archive lacks, where
    compaction or damage left gaps, are counted too.
    """
    held: dict[Queue, list[tuple[int, int]]] = {}
    begun: tuple[Queue, int] | None = None
    for key, value in families.rows(PLACES, b""):
        topic, queue, location = read_location(key, value)
        if begun is not None and begun[0] == (topic, queue):
            held.setdefault((topic, queue), []).append((begun[1], location.first))
        is_its = location.is_archived and location.archive == archive
        begun = ((topic, queue), location.first) if is_its else None
    return _untaken(families, held)


def _untaken(families: Families, held: dict[Queue, list[tuple[int, int]]]) -> dict[int, int]:
    taken = dict.fromkeys(held, 0)
    for key, row in families.rows(OFFSETS, b"") if held else ():
        _, topic, queue = read_offset_key(key)
        if (topic, queue) in taken:
            taken[topic, queue] = max(taken[topic, queue], read_offset(row)[0])
    found: dict[int, int] = {}
    for (topic, queue), stretches in held.items():
        count = sum(max(0, end - max(first, taken[topic, queue])) for first, end in stretches)
        if count:
            found[topic] = found.get(topic, 0) + count
    return found
