"""The folder of a store: which kind it is, whose it is, its lock and its index.

The idea: a folder is new, ours, or RocketMQ's; its files tell which one, before anything is
written. The fixed values of an existing store (segment size, format) come from the store, not from
the settings.

Invariant: after an opening that failed there is the store that was there, or none where none was
(of a new one the folder and a lock file may stay, in which the next opening founds it), and its
lock is free.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import whole_ms
from kvstore.config import StoreConfig
from kvstore.errors import DiskFull, IndexDamaged, SegmentDamaged, StoreNotFound
from kvstore.files import LOCK_MARK, FolderLock
from kvstore.index.families import Batch, check_format, check_writable_here
from kvstore.index.index import Index
from kvstore.index.keys import (
    FORMAT,
    FORMAT_VERSION,
    META,
    SEGMENT_SIZE,
    STORE_ID,
    TRANSACTION_AGE,
    U32,
    U64,
)
from kvstore.log.segments import named_position
from kvstore.process.lock_holders import lock_holder

LOCK: Final = "lock"
COMMITLOG: Final = "commitlog"
INDEX: Final = "index"
CLUSTER_FILE: Final = "cluster.toml"
"""The list of shards, in a folder that has shards and is no store itself."""
NEW_INDEX: Final = "index.new"
"""Folder in which a rebuild founds an index before it takes the place of the old one."""


Source = Callable[[Index, Batch, StoreConfig], None]
"""Puts the rows of which an index is made into its last batch: those of a RocketMQ store, of
archives, or of another index. Where there are many, it writes some before that batch.
"""


class FolderKind(Enum):
    """The kinds of folders."""

    NOTHING = "nothing"
    OURS = "a kvmq store"
    OURS_WITHOUT_INDEX = "a kvmq store without its index"
    LOG_ONLY = "a commit log that another program wrote"


LOG_OR_NOTHING: Final = {True: FolderKind.LOG_ONLY, False: FolderKind.NOTHING}


def look(path: Path, config: StoreConfig) -> FolderKind:
    """The kind of folder at `path`; changes nothing. `StoreNotFound` if it is not a folder,
    `SegmentDamaged` if it is a store without a folder for its log.
    """
    with made(path):
        return _look(path, config)


def _look(path: Path, config: StoreConfig) -> FolderKind:
    files = config.files
    if path.exists() and not path.is_dir():
        raise StoreNotFound(f"{path} is a file; a store is a folder")
    commitlog, index = path / COMMITLOG, path / INDEX
    if (commitlog.exists() or commitlog.is_symlink()) and not commitlog.is_dir():
        raise SegmentDamaged(
            f"{commitlog} is not a folder, and nothing can be read from it; put the log's folder "
            "in its place",
            str(commitlog),
        )
    if files.size(index / "CURRENT") is not None:
        if not commitlog.exists():
            raise SegmentDamaged(
                f"{commitlog} is not there, but {index} knows of a log; put the folder back (is "
                "its disk mounted?), or make an empty one to go on without all messages",
                str(commitlog),
            )
        return FolderKind.OURS
    if has_log(path, config):
        return FolderKind.OURS_WITHOUT_INDEX if is_marked(path, config) else FolderKind.LOG_ONLY
    if files.size(path / CLUSTER_FILE) is not None:
        shards = f"it has shards, which {path / CLUSTER_FILE} lists"
        raise StoreNotFound(
            f"{path} is no store: {shards}; name the folder of one, or use "
            f"kvstore.connect({str(path)!r}) while `kvmq serve {path} --shards N` serves them"
        )
    return FolderKind.NOTHING


def is_marked(path: Path, config: StoreConfig) -> bool:
    """Whether the folder's lock file says that it is kvmq's."""
    files, lock, mark = config.files, path / LOCK, LOCK_MARK.encode()
    return files.size(lock) is not None and files.read(lock, 0, len(mark)) == mark


def has_log(path: Path, config: StoreConfig) -> bool:
    """Whether there are segments."""
    return any(named_position(name) is not None for name in config.files.list_dir(path / COMMITLOG))


def served_url(path: Path) -> str:
    """Where the store in a folder is served, as its lock says; nothing if it is not. A server that
    was killed has left what it said.
    """
    try:
        return lock_holder(path / LOCK)[1]
    except OSError:
        return ""


def folder_lock(path: Path, config: StoreConfig) -> FolderLock:
    """The lock of a folder, for `acquire` in a `try` whose end releases it."""
    with made(path):
        return config.files.lock(path / LOCK)


def acquire(lock: FolderLock, path: Path, config: StoreConfig) -> None:
    """Makes the folder if need be and locks it; `StoreLocked` if another holds it, `StoreForked`,
    with nothing made or locked, if this process can't write a store.
    """
    check_writable_here(path)
    with made(path):
        config.files.make_dir(path)
        lock.acquire()


@contextlib.contextmanager
def made(path: Path) -> Iterator[None]:
    """Turns the operating system's errors about a store's folder into kvmq's own."""
    try:
        yield
    except OSError as e:
        why = e.strerror or e
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for a store at {path}: {why}; free disk space") from e
        raise StoreNotFound(
            f"there can't be a store at {path}: {why} ({e.filename or path}); see to that, or name "
            "another folder"
        ) from e


def open_index(
    path: Path,
    config: StoreConfig,
    found: FolderKind,
    *,
    read_only: bool,
    to_rebuild: bool = False,
) -> tuple[Index, StoreConfig]:
    """Opens the index of a store that is there; returns it with the settings that hold for this
    store. One of an earlier version is for rebuilding alone.
    """
    if found is FolderKind.OURS_WITHOUT_INDEX:
        raise IndexDamaged(
            f"{path} is a kvmq store whose index is missing; `kvmq rebuild {path}` makes it anew "
            "from the log (topic "
            "settings, groups and offsets that only the index had are lost)"
        )
    if found is not FolderKind.OURS:
        raise StoreNotFound(
            f"there is no kvmq store at {path}; open it without read_only=True to create or adopt "
            "one"
        )
    if not read_only and (path / NEW_INDEX).exists():
        # A rebuild was cut short before it set this index aside: the index it founded grows old
        # now.
        shutil.rmtree(path / NEW_INDEX, ignore_errors=True)
    index = Index(path / INDEX, config.segment_size, read_only=read_only, create=False)
    try:
        check_format(index.families, to_rebuild=to_rebuild)
        size = index.families.get(META, SEGMENT_SIZE)
        if size is None:
            raise IndexDamaged(
                f"the index of {path} does not say its segment size; `kvmq rebuild {path}` makes "
                "it anew"
            )
        config = msgspec.structs.replace(config, segment_size=U64.unpack(size)[0])
        index.set_segment_size(config.segment_size)
    except BaseException:
        index.close()
        raise
    return index, config


def found_index(path: Path, config: StoreConfig, source: Source | None, name: str = INDEX) -> Index:
    """Makes an index of a source, without one that of an empty store. There is no store before its
    last batch is written, which has the format.
    """
    with made(path):
        config.files.make_dir(path / COMMITLOG)
    index = Index(path / name, config.segment_size, read_only=False, create=True)
    try:
        batch = index.families.batch()
        batch.put(META, STORE_ID, secrets.token_bytes(16))
        batch.put(META, SEGMENT_SIZE, U64.pack(config.segment_size))
        if source is None:
            batch.put(META, TRANSACTION_AGE, U64.pack(whole_ms(config.transaction_age)))
        else:
            source(index, batch, config)
        batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
        index.families.write(batch, sync=True)
    except BaseException:
        index.close()
        raise
    return index


def found_beside(path: Path, config: StoreConfig, source: Source) -> bytes:
    """Makes an index of a source beside the place of the index; returns the store's id."""
    with contextlib.closing(found_index(path, config, source, NEW_INDEX)) as index:
        return index.families.get(META, STORE_ID) or b""


def is_unfounded(path: Path, config: StoreConfig) -> bool:
    """Whether an index is there that a crash kept from being founded: it holds nothing at all, and
    the folder was never ours. (In a folder of ours a rebuild was cut short: adopting its log would
    end it where RocketMQ would.)
    """
    if is_marked(path, config):
        return False
    index = Index(path / INDEX, config.segment_size, read_only=True, create=False)
    try:
        return (
            index.families.get(META, FORMAT) is None
            and next(index.families.rows(META, b""), None) is None
        )
    finally:
        index.close()
