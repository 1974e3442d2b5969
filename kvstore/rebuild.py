"""Rebuild: drop what the index derives from the log and make it anew.

The idea: with the derived families empty and the checkpoint at the log's beginning, opening is
rebuilding: recovery replays the whole log, in checkpoints. So it is resumable for nothing: a
rebuild that was cut short goes on at the next opening.

Invariant: topics, groups and offsets stay, unless RocksDB itself can't be opened: then its folder
is set aside, never deleted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore import opening
from kvstore.config import StoreConfig
from kvstore.errors import IndexDamaged, StoreNotFound
from kvstore.log.segments import NAME_DIGITS
from kvstore.recovery import Progress, RecoveryReport
from kvstore.store import Store


class RebuildReport(msgspec.Struct):
    """What was done: `set_aside` is where an index that could not be opened is now; the rest as in
    `RecoveryReport`.
    """

    recovery: RecoveryReport
    set_aside: str | None


def rebuild(
    path: str | Path, config: StoreConfig | None = None, *, progress: Progress | None = None
) -> RebuildReport:
    """Make a store's index anew from its log. The store must not be open.

    Raises `StoreNotFound`, `StoreLocked`, and what opening raises.
    """
    folder = Path(path)
    given = config if config is not None else StoreConfig()
    found = opening.look(folder, given)
    if found is opening.Found.NOTHING:
        raise StoreNotFound(f"there is no store at {folder} to rebuild")
    lock = opening.take(folder, given)
    try:
        set_aside = None if found is opening.Found.LOG_ONLY else _drop(folder, given, found)
    finally:
        lock.release()
    if set_aside is not None or found is opening.Found.OURS_WITHOUT_INDEX:
        given = msgspec.structs.replace(given, segment_size=_segment_size(folder, given))
        # Without an index the folder is to be taken for a log that somebody wrote, so that opening
        # adopts it.
        given.files.write_whole(folder / opening.LOCK, b"")
    with Store(folder, given, progress=progress) as store:
        return RebuildReport(store.recovery, set_aside)


def _drop(folder: Path, config: StoreConfig, found: opening.Found) -> str | None:
    if found is opening.Found.OURS_WITHOUT_INDEX:
        return None
    try:
        index, _ = opening.open_index(folder, config, found, read_only=False)
    except IndexDamaged:
        number = 1
        while (aside := folder / f"index.damaged-{number}").exists():
            number += 1
        config.files.rename(folder / opening.INDEX, aside)
        return str(aside)
    try:
        index.load()
        index.drop_derived()
    finally:
        index.close()
    return None


def _segment_size(folder: Path, config: StoreConfig) -> int:
    """The size of the segments there are, which nobody else knows any more."""
    commitlog = folder / opening.COMMITLOG
    for name in config.files.list_dir(commitlog):
        if len(name) == NAME_DIGITS and name.isdigit():
            return config.files.size(commitlog / name) or config.segment_size
    return config.segment_size
