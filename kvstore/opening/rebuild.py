"""Rebuild: drops all that the index derives from the log, and makes it anew.

The idea: with the derived families empty and the checkpoint at the log's beginning, opening is
rebuilding: recovery replays the whole log, in checkpoints. An index that can't be opened or read is
set aside and another one founded, with that same checkpoint: with all rows the log can't tell, if
those can be read. If not, nobody knows the durable end any more either, so the log is read for it
first. The new one is founded beside the old one and takes its place when it is whole.

A rebuild that was cut short: from the checkpoint at the log's beginning on, the next opening goes
on from the last checkpoint that was written. After the old index is set aside and before the new
one has its place there is no index: every opening says so, and another rebuild goes on with the new
one.

Invariants: topics, groups and offsets stay, unless they themselves can't be read; an index that is
not used any more is set aside, never deleted; one that is not damaged (the disk is full, a file may
not be read) is not touched. No good record of a log that is ours is cut off for damage before it. A
folder that was never ours is adopted as by any opening, and nothing in it is set aside.
"""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from kvstore.config import StoreConfig
from kvstore.core.scan import Scan
from kvstore.errors import Damaged, IndexDamaged, SegmentDamaged, StoreError, StoreNotFound
from kvstore.files import Files, FolderLock
from kvstore.index.checkpoint import put_log_time
from kvstore.index.families import Batch, Row
from kvstore.index.handover import kept_locations, mark_unlocated
from kvstore.index.index import Index
from kvstore.index.keys import (
    AHEAD,
    ARCHIVES,
    CHECKPOINT,
    DERIVED,
    FAMILIES,
    FORMAT,
    META,
    PLACES,
    SEALED,
    checkpoint_value,
)
from kvstore.log.segments import Segments, named_position
from kvstore.opening import store_folder
from kvstore.opening.adopting import Adoption
from kvstore.opening.recovery import Progress
from kvstore.record.walk import walk
from kvstore.rocketmq.configuration import read_configuration
from kvstore.rocketmq.file_layouts import CONFIG
from kvstore.rocketmq.source import RocketMQSource

_KEPT: Final = tuple(name for name in FAMILIES if name not in DERIVED)
"""The families that the log can't tell."""


def prepare_rebuild(path: Path, config: StoreConfig, progress: Progress | None) -> str | None:
    """Changes a store's folder so that opening it makes the index anew; returns the folder of the
    old index if that could not be used. The store must not be open.

    Raises `StoreNotFound`, `StoreLocked`, `FormatTooNew`.
    """
    if store_folder.look(path, config) is store_folder.FolderKind.NOTHING:
        raise StoreNotFound(f"there is no store at {path} to rebuild")
    lock = store_folder.folder_lock(path, config)
    try:
        store_folder.acquire(lock, path, config)
        return _prepare(path, config, lock, progress)
    finally:
        lock.release()


def _prepare(
    folder: Path, config: StoreConfig, lock: FolderLock, progress: Progress | None
) -> str | None:
    """Prepares the folder so that opening it rebuilds; returns where the old index is now, if it
    could not be used.
    """
    # Looked at under the lock: before it was ours, another process may have changed the folder.
    found = store_folder.look(folder, config)
    is_kept = False
    _check_segments(folder, config.files)
    if found is store_folder.FolderKind.OURS:
        if _is_unfounded(folder, config):
            return None  # and so opening founds it
        is_kept = _can_be_kept(folder, config)
        if is_kept and drop_derived(folder, config):
            return None
    elif found is not store_folder.FolderKind.OURS_WITHOUT_INDEX:
        return None
    # The lock file of a copied folder may not say so; from here on only it tells whose folder this
    # is.
    lock.mark()
    if found is store_folder.FolderKind.OURS_WITHOUT_INDEX and _is_founded(folder, config):
        config.files.rename(folder / store_folder.NEW_INDEX, folder / store_folder.INDEX)
        return None
    shutil.rmtree(folder / store_folder.NEW_INDEX, ignore_errors=True)
    try:
        if is_kept:
            # Opened before the new one is made: to open an index removes what a rebuild left.
            old, _ = _open_index(folder, config)
            with closing(old):
                store_folder.found_beside(folder, config, partial(_copy_old, old))
        else:
            adoption = _own_log(folder, config, progress)
            store_folder.found_beside(folder, adoption.sized(config), adoption.put_rows)
    except BaseException:
        # Nothing was set aside yet; what there is of a new one takes room of a disk that may be
        # full.
        shutil.rmtree(folder / store_folder.NEW_INDEX, ignore_errors=True)
        raise
    return _swap(folder, config)


def _check_segments(folder: Path, files: Files) -> None:
    """Raises `SegmentDamaged` for a segment that is there and can't be opened: an index made now
    would be without its messages, and their offsets would be given again.

    A segment that is missing, or a file that can't be one, is another matter: it will not get
    better.
    """
    commitlog = folder / store_folder.COMMITLOG
    for name in files.list_dir(commitlog):
        path = commitlog / name
        if named_position(name) is None or not path.is_file() or not files.size(path):
            continue
        try:
            files.map(path, writable=False).close()
        except (SegmentDamaged, OSError) as e:
            raise SegmentDamaged(
                f"{e}; nothing was changed: make the file readable and rebuild again, or move it "
                "out of the folder to rebuild without its messages",
                str(path),
            ) from e


# --- the old index ---


def _is_unfounded(folder: Path, config: StoreConfig) -> bool:
    try:
        return store_folder.is_unfounded(folder, config)
    except IndexDamaged:
        return False


def _can_be_kept(folder: Path, config: StoreConfig) -> bool:
    """Whether all rows that the log can't tell can be read."""
    return _read_whole(folder, config, _KEPT)


def drop_derived(folder: Path, config: StoreConfig) -> bool:
    """Empties the derived families of an index; False if they are damaged.

    They are read whole before: dropped rows stay in their files for a while, and an unreadable
    block would stop everything that is put beside it.
    """
    return _read_whole(folder, config, DERIVED, Index.drop_derived)


def _read_whole(
    folder: Path,
    config: StoreConfig,
    names: Iterable[str],
    then: Callable[[Index], None] = lambda index: None,
) -> bool:
    """Reads families of an index, and then does something with it; False if it is damaged."""
    try:
        index, _ = _open_index(folder, config)
        with closing(index):
            index.load()
            for name in names:
                deque(index.families.rows(name, b""), maxlen=0)
            then(index)
    except Damaged:
        return False
    return True


def _open_index(folder: Path, config: StoreConfig) -> tuple[Index, StoreConfig]:
    return store_folder.open_index(
        folder, config, store_folder.FolderKind.OURS, read_only=False, to_rebuild=True
    )


def _copy_old(old: Index, index: Index, batch: Batch, config: StoreConfig) -> None:
    """Puts the rows of the old index that the log can't tell, and the checkpoint at the log's
    beginning.
    """
    # The newest store time has a row of its own: in the checkpoint a resumed replay would take it
    # for that of the records before, and give it to all that follow.
    before = old.load()
    back = before._replace(position=0, stored_at=0, clean=False)
    index.families.write_many(_kept_rows(old))
    for key, value in _kept_meta(old):
        batch.put(META, key, value)
    batch.put(META, CHECKPOINT, checkpoint_value(back))
    put_log_time(old.families, batch, before.stored_at)
    if next(old.families.rows(ARCHIVES, b""), None) is not None:
        mark_unlocated(batch)


def _kept_meta(old: Index) -> Iterator[tuple[bytes, bytes]]:
    for key, value in old.families.rows(META, b""):
        if key not in (SEALED, CHECKPOINT, AHEAD, FORMAT):
            yield key, value


def _kept_rows(old: Index) -> Iterator[Row]:
    """The rows that the log can't tell, without those of `meta`; of the locations, those that can
    be read.
    """
    for name in _KEPT:
        if name != META:
            yield from ((name, key, value) for key, value in old.families.rows(name, b""))
    with suppress(Damaged):
        for key, value in kept_locations(old.families):
            yield PLACES, key, value


def _is_founded(folder: Path, config: StoreConfig) -> bool:
    """Whether there is a new index, and it is complete."""
    new = folder / store_folder.NEW_INDEX
    if not new.exists():
        return False
    try:
        with closing(Index(new, config.segment_size, read_only=True, create=False)) as index:
            return index.families.get(META, FORMAT) is not None
    except StoreError:
        return False


def _swap(folder: Path, config: StoreConfig) -> str | None:
    """Moves an old index away, if there is one, and the new one into its place; returns where the
    old one is now, None if there was none.
    """
    new, there = folder / store_folder.NEW_INDEX, folder / store_folder.INDEX
    if not there.exists() and not there.is_symlink():
        config.files.rename(new, there)
        return None
    number = 1
    while (aside := folder / f"index.damaged-{number}").exists():
        number += 1
    config.files.rename(there, aside)
    try:
        config.files.rename(new, there)
    except BaseException:
        config.files.rename(aside, there)
        raise
    return str(aside)


# --- a log of ours, without any of its rows ---


def _own_log(folder: Path, config: StoreConfig, progress: Progress | None) -> Adoption:
    """The log as the foundation of a store. It ends behind its last good record, whatever is
    damaged before that: kvmq put that record there after all records before it.
    """
    files = config.files
    size = _segment_size(folder, config)
    segments = Segments(folder / store_folder.COMMITLOG, files, size, writable=False)
    first = segments.numbers[0] * size if segments.numbers else 0
    end = max(_ends(segments, progress), default=first)
    # RocketMQ's files beside a log that was adopted in place are better than nothing.
    source = RocketMQSource(
        path=folder,
        segment_size=size,
        segments=[(n * size, segments.path(n)) for n in segments.numbers],
        configuration=read_configuration(folder / CONFIG, files),
        closed_cleanly=False,
    )
    return Adoption(source, end, [], has_archives=True)


def _ends(segments: Segments, progress: Progress | None) -> Iterator[int]:
    """The positions behind good records, in order, of all segments that can be read; also of those
    of a wrong size.
    """
    total = len(segments.numbers) * segments.size
    for done, number in enumerate(segments.numbers):
        base = number * segments.size
        try:
            mapped = segments.files.map(segments.path(number), writable=False)
        except SegmentDamaged:
            continue  # recovery reports it
        try:
            end = min(mapped.size, segments.size)
            for found in walk(mapped.buffer, base, 0, end):
                if not isinstance(found, Scan):
                    continue
                yield base + found.end
                if progress is not None:
                    at = done * segments.size + found.end
                    progress("looking for the log's end", at, total)
        finally:
            mapped.close()


def _segment_size(folder: Path, config: StoreConfig) -> int:
    """The size of the existing segments, which nothing else tells any more: the size of most files,
    of the sizes that divide all first positions.
    """
    commitlog = folder / store_folder.COMMITLOG
    starts = {
        name: start
        for name in config.files.list_dir(commitlog)
        if (start := named_position(name)) is not None and (commitlog / name).is_file()
    }
    sizes = Counter(_size(commitlog / name, config.files) for name in starts)
    sizes_that_fit = [
        (count, size)
        for size, count in sizes.items()
        if size and not any(start % size for start in starts.values())
    ]
    return max(sizes_that_fit)[1] if sizes_that_fit else config.segment_size


def _size(path: Path, files: Files) -> int:
    return files.size(path) or 0
