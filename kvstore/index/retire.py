"""Retiring: taking what the index knows of a segment's queues out of it.

The idea: `runs` begin with the segment, so they go as one range. Of `places`, each queue of the
segment loses its row; the last one a queue has becomes one that holds nothing and keeps the next
offset, so that offsets are never given twice.

Invariant: whoever calls writes the batch before the segment's file goes; a crash between the two
leaves an orphan file."""

from __future__ import annotations

from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    NOWHERE,
    PLACES,
    RUNS,
    place_key,
    place_value,
    queue_prefix,
    read_place,
    read_run_key,
    segment_range,
    topic_prefix,
)
from kvstore.index.runs import count_of


def retire(families: Families, batch: Batch, segment: int) -> int:
    """Put the removal of a segment's index into a batch; returns how many queues it had."""
    low, high = segment_range(segment, segment + 1)
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for key, value in families.rows(RUNS, low, high):
        run = read_run_key(key)
        first = ends.get((run.topic, run.queue), (run.first, 0))[0]
        ends[run.topic, run.queue] = first, run.first + count_of(value)
    it = families.iter(PLACES)
    for (topic, queue), (first, end) in ends.items():
        batch.delete(PLACES, place_key(topic, queue, first))
        it.seek(place_key(topic, queue, first + 1))
        if not families.valid(it) or not it.key().startswith(queue_prefix(topic, queue)):
            batch.put(PLACES, place_key(topic, queue, end), place_value(NOWHERE, 0))
    batch.delete_range(RUNS, low, high)
    return len(ends)


def retire_topic(families: Families, batch: Batch, topic: int) -> set[int]:
    """Put the removal of a topic's runs and places into a batch; returns the segments it had."""
    # Its places say in which segments it has runs: one that never had a message leaves no
    # tombstone.
    first, end = topic_prefix(topic), topic_prefix(topic + 1)
    segments = {
        read_place(key, value)[2].segment for key, value in families.rows(PLACES, first, end)
    }
    if segments:
        batch.delete_range(PLACES, first, end)
    segments = {segment for segment in segments if segment < ARCHIVE_FIRST}
    for segment in sorted(segments):
        start = segment.to_bytes(4, "big")
        batch.delete_range(RUNS, start + first, start + end)
    return segments
