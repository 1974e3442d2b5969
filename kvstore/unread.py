"""Unread: which messages of a segment no group has taken, before the segment is deleted.

The idea: the index says which offsets of which queues a segment holds, and each group's offset says
how far it has come. Nothing of the log is read, and memory grows with the segment's queues alone.
"""

from __future__ import annotations

from kvstore.errors import FormatError
from kvstore.index.families import Families
from kvstore.index.keys import OFFSETS, RUNS, read_offset_key, read_run_key, segment_range
from kvstore.index.runs import count_of
from kvstore.meta.offsets import read_offset

Queue = tuple[int, int]
"""Topic id and queue."""


def unread_in(families: Families, segment: int) -> dict[int, int]:
    """The messages of a segment that were handed out to no group, nor passed over by a commit:
    topic id -> how many. Topics without any are not in it.
    """
    held: dict[Queue, list[tuple[int, int]]] = {}
    for key, value in families.rows(RUNS, *segment_range(segment, segment + 1)):
        run = read_run_key(key)
        try:
            held.setdefault((run.topic, run.queue), []).append(
                (run.first, run.first + count_of(value))
            )
        except FormatError:
            continue  # a damaged run's messages can't be counted; the segment goes all the same
    taken = dict.fromkeys(held, 0)
    for key, row in families.rows(OFFSETS, b""):
        _, topic, queue = read_offset_key(key)
        if (topic, queue) in taken:
            taken[topic, queue] = max(taken[topic, queue], read_offset(row)[0])
    found: dict[int, int] = {}
    for (topic, queue), runs in held.items():
        count = sum(max(0, end - max(first, taken[topic, queue])) for first, end in runs)
        if count:
            found[topic] = found.get(topic, 0) + count
    return found
