"""Makes a store's index from an existing log: rebuilds ours, imports RocketMQ's.

The idea of a rebuild: `opening.rebuild` leaves a folder that the next opening rebuilds, and this
module does that opening. The idea of an import: the log is taken into a folder beside the target
(full files as hard links, the last one as a copy), the index is built there, and the folder gets
the target's name when all files are on the disk.

Invariant of an import: the target is there whole or not at all; no byte of the source changes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.api.store import Store
from kvstore.config import StoreConfig
from kvstore.files import local_path
from kvstore.opening.adopting import Adopted, Adoption, summary
from kvstore.opening.rebuild import prepare_rebuild
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.rocketmq.adopt import stage_log
from kvstore.rocketmq.folder_staging import publish
from kvstore.rocketmq.source import read_source


class RebuildReport(msgspec.Struct):
    """The result of a rebuild: `set_aside` is where an index that could not be used is now; the
    rest as in `RecoveryReport`. If its `damage` says that segments are missing at the log's end,
    the offsets of their messages are given again: if the segments still exist elsewhere, put them
    back and rebuild once more before anything is put.
    """

    recovery: RecoveryReport
    set_aside: str | None


class ImportReport(msgspec.Struct, frozen=True):
    """The result of an import. `cut_reason` says why the log ends where it does, unless nothing was
    written behind; `lost_records` are whole records behind that end, which RocketMQ would not reach
    either.
    """

    target: str
    adopted: Adopted
    linked_files: int
    copied_files: int
    cut_reason: str
    lost_records: int
    recovery: RecoveryReport


def rebuild(
    path: str | Path, config: StoreConfig | None = None, *, progress: Progress | None = None
) -> RebuildReport:
    """Makes a store's index anew from its log. The store must not be open.

    Raises `StoreNotFound`, `StoreLocked`, `FormatTooNew`, and what opening raises.
    """
    folder = local_path(path)
    given = config if config is not None else StoreConfig()
    set_aside = prepare_rebuild(folder, given, progress)
    with Store(folder, given, progress=progress) as store:
        return RebuildReport(store.recovery, set_aside)


def import_rocketmq(
    source: str | Path,
    target: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
) -> ImportReport:
    """Makes a store at `target` of the RocketMQ store at `source` (its storePathRootDir); the
    broker must not be running.

    Log, topics, groups, consumer offsets and delay offsets are taken over; the index is built anew.
    Messages that were delayed and not delivered wait in the new store, and so do prepared ones
    whose transactions had not ended.
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
