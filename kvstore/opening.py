"""Opening a folder: what is there, whose is it, and may we have it.

The idea: a folder is new, ours, or RocketMQ's; which one is told by what is in it, before anything is written. What is fixed in an
existing store (segment size, format) comes from the store, not from the settings.

Invariant: an opening that fails leaves the folder as it was, and lets go of its lock.
"""

from __future__ import annotations

import secrets
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import IndexDamaged, StoreNotFound
from kvstore.files import LOCK_MARK, FolderLock
from kvstore.index.index import Index
from kvstore.index.keys import FORMAT, FORMAT_VERSION, META, SEGMENT_SIZE, STORE_ID, U32, U64
from kvstore.log.segments import NAME_DIGITS

LOCK: Final = "lock"
COMMITLOG: Final = "commitlog"
INDEX: Final = "index"


class Found(Enum):
    """What a folder is."""

    NOTHING = "nothing"
    OURS = "a kvmq store"
    OURS_WITHOUT_INDEX = "a kvmq store without its index"
    LOG_ONLY = "a commit log that another program wrote"


def look(path: Path, config: StoreConfig) -> Found:
    """What is at `path`; changes nothing. `StoreNotFound` if it is not a folder."""
    files = config.files
    if path.exists() and not path.is_dir():
        raise StoreNotFound(f"{path} is a file; a store is a folder")
    has_index = files.size(path / INDEX / "CURRENT") is not None
    has_log = any(len(n) == NAME_DIGITS and n.isdigit() for n in files.list_dir(path / COMMITLOG))
    if has_index:
        return Found.OURS
    lock = path / LOCK
    marked = (
        files.size(lock) is not None and files.read(lock, 0, len(LOCK_MARK)) == LOCK_MARK.encode()
    )
    if has_log:
        return Found.OURS_WITHOUT_INDEX if marked else Found.LOG_ONLY
    return Found.NOTHING


def take(path: Path, config: StoreConfig) -> FolderLock:
    """Make the folder if need be and lock it; `StoreLocked` if another holds it."""
    config.files.make_dir(path)
    return config.files.lock(path / LOCK)


def open_index(
    path: Path, config: StoreConfig, found: Found, *, read_only: bool
) -> tuple[Index, StoreConfig]:
    """Open or make the index; returns it with the settings that hold for this store."""
    if found is Found.OURS_WITHOUT_INDEX:
        raise IndexDamaged(
            f"{path} is a kvmq store whose index is missing; `kvmq rebuild {path}` makes it anew from the log (topic settings, "
            "groups and offsets that only the index had are lost)"
        )
    if read_only and found is not Found.OURS:
        raise StoreNotFound(
            f"there is no kvmq store at {path}; open it without read_only=True to create or adopt one"
        )
    new = found is not Found.OURS
    if new:
        config.files.make_dir(path / COMMITLOG)
    index = Index(path / INDEX, config.segment_size, read_only=read_only, create=new)
    try:
        if new:
            _found(index, config)
        index.check_format()
        size = index.families.get(META, SEGMENT_SIZE)
        if size is None:
            raise IndexDamaged(
                f"the index of {path} does not say its segment size; `kvmq rebuild {path}` makes it anew"
            )
        config = msgspec.structs.replace(config, segment_size=U64.unpack(size)[0])
        index.set_segment_size(config.segment_size)
    except BaseException:
        index.close()
        raise
    return index, config


def _found(index: Index, config: StoreConfig) -> None:
    batch = index.families.batch()
    batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
    batch.put(META, STORE_ID, secrets.token_bytes(16))
    batch.put(META, SEGMENT_SIZE, U64.pack(config.segment_size))
    index.families.write(batch, sync=True)
