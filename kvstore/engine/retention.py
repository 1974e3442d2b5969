"""Decides which segments of the log may be deleted, and counts their unread messages.

The idea: a segment is as old as its last message, which is as old as the first one behind it.
Expired segments go at the set hour, or at any time above the first watermark; above the second
watermark the oldest goes, expired or not, until the disk is below it again. They go one at a time,
with a pause between.

The index says which offsets of which queues a segment or an archive holds, and each group's offset
says how far it has come. So neither the log nor an archive is read to count unread messages, and
memory grows only with the queues of the segment or archive that goes.

Invariants:

- Nothing goes from a store without a retention of its own, nor from one whose segments go to
  archives, however full the disk is (its puts stop instead).
- Only a full disk makes a segment go that may have a message whose dedup id is still remembered.
- A segment stays where moving its messages that wait would free nothing (`leaving`), however old it
  is and however full the disk.
- The active segment stays, and so does one that is not wholly checkpointed.
- A segment leaves the index before its file goes, so a minimum offset never points into nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kvstore.config import Retention, StoreConfig
from kvstore.errors import FormatError
from kvstore.index.families import Families
from kvstore.index.keys import (
    OFFSETS,
    RUNS,
    read_offset_key,
    read_run_key,
    segment_range,
)
from kvstore.index.queue_locations import locations_in
from kvstore.index.runs import count_of
from kvstore.meta.offsets import read_offset

Queue = tuple[int, int]
"""Topic id and queue."""


class Aged(NamedTuple):
    """A sealed segment and its last message's store time, ms; None if that can't be told."""

    number: int
    newest: int | None


class Why(NamedTuple):
    """The next segment to go, and the reason."""

    number: int
    reason: str


def may_delete(retention: Retention, *, is_tiered: bool) -> bool:
    """Whether a store's settings allow that segments are deleted at all."""
    return not is_tiered and (retention.hot_for is not None or retention.max_bytes is not None)


def next_to_go(
    sealed: list[Aged],
    config: StoreConfig,
    *,
    now_ms: int,
    hour: int,
    disk_used: float,
    total_bytes: int,
    is_tiered: bool = False,
    dedup_window: Callable[[], float] = lambda: 0.0,
    is_stuck: Callable[[], bool] = lambda: False,
) -> Why | None:
    """The oldest segment if it has to go now; None if nothing has to. Pure: the caller asks again
    after each. `dedup_window` gives the seconds for which dedup ids are remembered, and `is_stuck`
    says whether the oldest segment stays for its messages that wait; they are asked only where it
    is to go.
    """
    if not sealed or not may_delete(config.retention, is_tiered=is_tiered):
        return None
    oldest = sealed[0]
    clean_at, force_at, _ = config.watermarks
    why, is_forced = None, disk_used >= force_at
    limit, hot_for = config.retention.max_bytes, config.retention.hot_for
    age = None if oldest.newest is None else now_ms - oldest.newest
    if is_forced:
        why = f"the disk is {disk_used:.0%} full, the oldest segment goes from {force_at:.0%} on"
    elif limit is not None and total_bytes > limit:
        why = f"the segments take {total_bytes} bytes, the limit is {limit}"
    elif hot_for is None or age is None or age <= hot_for * 1000:
        return None
    elif config.delete_when is None or hour == config.delete_when:
        why = f"its messages are older than {hot_for:g} s"
    elif disk_used >= clean_at:
        why = f"it is expired, and the disk is {disk_used:.0%} full"
    # A dedup id is known by its message.
    if why is None or (not is_forced and age is not None and _is_within(age, dedup_window())):
        return None
    return None if is_stuck() else Why(oldest.number, why)


def _is_within(age: int, window: float) -> bool:
    return window > 0 and age <= window * 1000


def drop_expired(
    look: Callable[[], Why | None],
    drop: Callable[[Why], None],
    pause: Callable[[float], bool],
    interval: float,
) -> int:
    """Deletes segments until none has to go, `interval` seconds apart; `pause` returns True to stop
    early.
    """
    dropped = 0
    while (why := look()) is not None:
        if dropped and pause(interval):
            break
        drop(why)
        dropped += 1
    return dropped


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


def unread_in_archives(
    families: Families, going: Mapping[int, Collection[int] | None]
) -> dict[int, int]:
    """The messages of archives that were neither handed out to a group nor passed over by a commit:
    topic id -> how many. `going` has by archive number the ids of the topics that go, None for all;
    only locations of these topics are looked through. Offsets that an archive lacks, where
    compaction or damage left gaps, are counted too.
    """
    ids: set[int] | None = set()
    for topics in going.values():
        ids = None if ids is None or topics is None else ids.union(topics)
    held: dict[Queue, list[tuple[int, int]]] = {}
    begun: tuple[Queue, int] | None = None
    for topic, queue, location in locations_in(families, ids):
        if begun is not None and begun[0] == (topic, queue):
            held.setdefault((topic, queue), []).append((begun[1], location.first))
        begun = None
        if location.is_archived and location.archive in going:
            topics = going[location.archive]
            if topics is None or topic in topics:
                begun = (topic, queue), location.first
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
