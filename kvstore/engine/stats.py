"""Figures about an open store, for `Store.stats` and `kvmq stats`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvstore.config import StoreConfig
from kvstore.engine.upkeep import Upkeep
from kvstore.index.archived import Archived, TierStats
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topics import Topics
from kvstore.opening.recovery import RecoveryReport
from kvstore.process.background import Background, ThreadStats


class StoreStats(msgspec.Struct, frozen=True):
    """Sizes are bytes, positions bytes of the log. `tail_*` are not checkpointed yet; `index_bytes`
    are SST files by family.

    `syncs` counts fdatasyncs of segments since the store was opened. `disk_used` is a share, 0 to
    1. `refuses_puts` is why puts are refused now; None if they are not. `deleted_unread` counts
    messages that retention deleted since the opening and that no group had read. `recovery` is what
    opening the store did. `tiers` are the archives' (the log's is not among them). `threads` are
    those that work by themselves in this process; a store that is opened read-only has none."""

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
    threads: list[ThreadStats] = []


def collect(
    path: Path,
    log: CommitLog,
    index: Index,
    topics: Topics,
    config: StoreConfig,
    recovery: RecoveryReport,
    archived: Archived | None = None,
    *,
    upkeep: Upkeep | None = None,
    threads: Sequence[Background] = (),
) -> StoreStats:
    """Collects all figures once."""
    tails = [t for t in index.tails if t is not None]
    return StoreStats(
        path=str(path),
        topics=topics.count(),
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
        disk_used=config.files.disk_used(path),
        recovery=recovery,
        tiers=archived.stats() if archived is not None else [],
        refuses_puts=log.refusal(),
        deleted_unread=0 if upkeep is None else upkeep.deleted_unread,
        threads=[thread.stats() for thread in threads],
    )
