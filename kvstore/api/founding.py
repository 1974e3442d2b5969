"""Importing: a new store from one that Apache RocketMQ wrote, which stays as it is.

The idea: the log is taken into a folder beside the target (full files as hard links, the last one
as a copy), the index is built in there, and when all of it is on disk the folder gets the target's
name.

Invariant: the target is there whole or not at all; no byte of the source changes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.api.store import Store
from kvstore.config import StoreConfig
from kvstore.files import local_path
from kvstore.opening.adopting import Adopted, Adoption, summary
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.rocketmq.adopt import publish, stage_log
from kvstore.rocketmq.source import read_source


class ImportReport(msgspec.Struct, frozen=True):
    """What was imported. `cut_reason` says why the log ends where it does, if not because nothing
    was written behind; `lost_records` are whole records behind that, which RocketMQ would not reach
    either."""

    target: str
    adopted: Adopted
    linked_files: int
    copied_files: int
    cut_reason: str
    lost_records: int
    recovery: RecoveryReport


def import_rocketmq(
    source: str | Path,
    target: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
) -> ImportReport:
    """Make a store at `target` of the RocketMQ store at `source` (its storePathRootDir); the broker
    must not be running.

    Log, topics, groups, consumer offsets and delay offsets are taken over; the index is built anew.
    Raises `StoreNotFound` if there is no RocketMQ store at `source`, `CallerError` if `target` is
    there and not empty, `SegmentDamaged` for files that are no log."""
    given = config if config is not None else StoreConfig()
    folder = local_path(target)
    found = read_source(local_path(source), given.files)

    def copying(done: int, total: int) -> None:
        if progress is not None:
            progress("reading the log", done, total)

    taken = stage_log(found, folder, given.files, copying)
    adoption = Adoption(found, taken.end, taken.damage)
    with Store(taken.path, given, progress=progress, adopt=adoption) as store:
        recovery = store.recovery
        topics, groups = len(store.topics()), len(store.groups())
    publish(taken.path, folder, given.files)
    return ImportReport(
        target=str(target),
        adopted=summary(adoption, topics, groups),
        linked_files=len(taken.linked),
        copied_files=len(taken.copied),
        cut_reason=taken.cut_reason,
        lost_records=taken.lost_records,
        recovery=recovery,
    )
