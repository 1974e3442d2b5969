"""Figures about an open store: for `Store.stats` and `kvmq stats`, and of sealed segments, topic by
topic, for `Store.segments` and tiering's plans.

The idea: the runs of a segment have sizes and store times of all its entries; they are summed by
topic with numpy, a few thousand entries at a time. No record is read.

Invariants: a segment that is not wholly checkpointed is left out; messages of deleted topics are
not counted; a run that can't be read is left out (`verify` reports it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from kvstore.engine.engine_context import EngineContext
from kvstore.errors import FormatError
from kvstore.index.archived import Archived, TierStats
from kvstore.index.keys import RUNS, read_run_key, segment_range
from kvstore.index.runs import HEADER, count_of, unpack_many
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.process.background import Background, ThreadStats
from kvstore.process.durations import DurationStats
from kvstore.timing.delayed_message import DelayStats

_ENTRIES: Final = 1 << 17
"""Entries that are unpacked at a time."""


class StoreStats(msgspec.Struct, frozen=True):
    """Sizes are bytes, positions bytes of the log. `tail_*` are not checkpointed yet; `index_bytes`
    are SST files by family.

    `syncs` counts fdatasyncs of segments since the store was opened. `disk_used` is a share, 0 to
    1. `refuses_puts` is why puts are refused now; None if they are not. `deleted_unread` counts
    messages that retention deleted since the opening and that no group had read, `expired` those
    that pops passed over since then because they had expired, `redelivered` those that pops handed
    out since then for a second attempt or a later one. `recovery` is what opening the store
    did. `tiers` are the archives' (the log's is not among them). `threads` are those that work by
    themselves in this process; a store that is opened read-only has none. `delays` are of delayed
    messages. `appended` counts the records that came since the opening, of the topics that the
    store writes for itself too, and with those that recovery found. `sync_durations` are of putting
    the log on the disk, `checkpoint_durations` of checkpoints that had something to do."""

    path: str
    topics: int
    segments: int
    segment_size: int
    first_position: int
    end_position: int
    durable_position: int
    checkpointed_position: int
    log_bytes: int
    tail_entries: int
    tail_keys: int
    syncs: int
    index_bytes: dict[str, int]
    disk_used: float
    recovery: RecoveryReport
    tiers: list[TierStats] = []
    refuses_puts: str | None = None
    deleted_unread: int = 0
    expired: int = 0
    redelivered: int = 0
    threads: list[ThreadStats] = []
    delays: DelayStats = DelayStats()
    appended: int = 0
    sync_durations: DurationStats = DurationStats()
    checkpoint_durations: DurationStats = DurationStats()


def collect(
    context: EngineContext,
    recovery: RecoveryReport,
    archived: Archived | None,
    deleted_unread: int,
    expired: int,
    redelivered: int,
    threads: Sequence[Background],
    delays: DelayStats,
    appended: int,
    checkpoints: DurationStats,
) -> StoreStats:
    """Collects all figures once."""
    log, index = context.log, context.index
    path = log.folder.parent
    tails = index.tails.oldest_first()
    return StoreStats(
        path=str(path),
        topics=context.topics.count(),
        segments=len(log.segments.numbers),
        segment_size=log.segment_size,
        first_position=log.first,
        end_position=log.end,
        durable_position=log.durable,
        checkpointed_position=index.checkpoint.position,
        log_bytes=log.end - log.first,
        tail_entries=sum(len(t) for t in tails),
        tail_keys=sum(t.keys_held for t in tails),
        syncs=log.syncs,
        index_bytes=index.families.file_bytes(),
        disk_used=log.files.disk_used(path),
        recovery=recovery,
        tiers=archived.stats() if archived is not None else [],
        refuses_puts=log.refusal(),
        deleted_unread=deleted_unread,
        expired=expired,
        redelivered=redelivered,
        threads=[thread.stats() for thread in threads],
        delays=delays,
        appended=appended,
        sync_durations=log.sync_durations.stats(),
        checkpoint_durations=checkpoints,
    )


class TopicShare(msgspec.Struct, frozen=True):
    """One topic's share of a segment: messages, bytes of their records, and the store times (ms) of
    the oldest and the newest.
    """

    topic: str
    messages: int
    bytes: int
    oldest: int
    newest: int


class SegmentStats(msgspec.Struct, frozen=True):
    """A sealed segment: `bytes` is the size of its file, `record_bytes` of the records of topics
    that are there. Store times are ms, None if it holds no message.
    """

    number: int
    position: int
    bytes: int
    record_bytes: int
    oldest: int | None
    newest: int | None
    topics: list[TopicShare]


class _Sum:
    """The sums so far of one topic in one segment."""

    __slots__ = ("bytes", "messages", "newest", "oldest")

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.oldest, self.newest = 1 << 63, -1


def segment_stats(context: EngineContext, progress: Progress | None) -> list[SegmentStats]:
    """Figures of every sealed segment that is wholly checkpointed."""
    log = context.log
    end = min(log.end, context.index.checkpoint.position) // log.segment_size
    return list(stats_of([n for n in log.segments.numbers if n < end], context, progress))


def stats_of(
    numbers: Sequence[int], context: EngineContext, progress: Progress | None = None
) -> Iterator[SegmentStats]:
    """Looks at these segments, one after the other."""
    names = {info.id: info.name for info in context.topics.all()}
    for done, number in enumerate(numbers):
        if progress is not None:
            progress("looking at segments", done, len(numbers))
        rows = context.index.families.rows(RUNS, *segment_range(number, number + 1))
        yield _stats(number, context.log.segment_size, _sums(rows), names)


def _stats(number: int, size: int, sums: dict[int, _Sum], names: dict[int, str]) -> SegmentStats:
    shares = [
        TopicShare(names[topic], s.messages, s.bytes, s.oldest, s.newest)
        for topic, s in sums.items()
        if topic in names
    ]
    return SegmentStats(
        number,
        number * size,
        size,
        sum(share.bytes for share in shares),
        min((share.oldest for share in shares), default=None),
        max((share.newest for share in shares), default=None),
        sorted(shares, key=lambda share: share.topic),
    )


def _sums(rows: Iterable[tuple[bytes, bytes]]) -> dict[int, _Sum]:
    out: dict[int, _Sum] = {}
    for topics, values in _chunks(rows):
        try:
            _add(out, topics, values)
        except FormatError:
            for topic, value in zip(topics, values, strict=True):
                try:
                    _add(out, [topic], [value])
                except FormatError:
                    continue
    return out


def _chunks(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[list[int], list[bytes]]]:
    topics: list[int] = []
    values: list[bytes] = []
    entries = 0
    for key, value in rows:
        topics.append(read_run_key(key).topic)
        values.append(value)
        entries += count_of(value) if len(value) >= HEADER.size else 0
        if entries >= _ENTRIES:
            yield topics, values
            topics, values, entries = [], [], 0
    if values:
        yield topics, values


def _add(out: dict[int, _Sum], topics: list[int], values: list[bytes]) -> None:
    columns, starts = unpack_many(values)
    sizes = np.add.reduceat(columns.sizes, starts)
    counts = np.diff(starts, append=len(columns.sizes))
    # Not the first and the last: store times of imported messages may not rise.
    oldest = np.minimum.reduceat(columns.stored_at, starts)
    newest = np.maximum.reduceat(columns.stored_at, starts)
    for topic, n, size, low, high in zip(
        topics, counts.tolist(), sizes.tolist(), oldest.tolist(), newest.tolist(), strict=True
    ):
        found = out.get(topic)
        if found is None:
            found = out[topic] = _Sum()
        found.messages += n
        found.bytes += size
        found.oldest = min(found.oldest, low)
        found.newest = max(found.newest, high)
