"""Restores a store from archives: founds it with an empty log that goes on behind them.

The idea: `tiering.operations.restore` reads the archives and gives, as plain data, the topics, the
archive of each stretch of each queue, and the position that the log had reached. This module makes
an index of that, beside the place where one belongs, and moves it there when it is whole.

Invariants: there is a store with everything it was founded on, or none; positions, topic ids and
archive numbers that the archives know of are never given again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvstore.config import StoreConfig
from kvstore.index.archived import ArchivedRange, ArchivedTopic
from kvstore.index.families import Batch
from kvstore.index.handover import locate_again
from kvstore.index.index import Index
from kvstore.index.keys import (
    ARCHIVES,
    CHECKPOINT,
    LOG_START,
    META,
    NEXT_ARCHIVE,
    NEXT_TOPIC_ID,
    STORE_ID,
    TOPICS,
    U32,
    U64,
    Checkpoint,
    checkpoint_value,
)
from kvstore.meta.topic import TopicInfo
from kvstore.opening import store_folder


class Restored(NamedTuple):
    """The facts on which a store is founded from archives alone: catalog rows, topics, the contents
    of each archive, the position behind all archived records, the greatest store time, and the ids
    and numbers to go on with. With `store_id` None the store gets a new id.
    """

    store_id: bytes | None
    position: int
    stored_at: int
    next_topic: int
    next_archive: int
    topics: Sequence[ArchivedTopic]
    held: Sequence[ArchivedRange]
    rows: Sequence[tuple[bytes, bytes]]

    def put_rows(self, index: Index, batch: Batch, config: StoreConfig) -> None:
        """Puts the rows of a store whose log goes on behind the archives."""
        size = config.segment_size
        # The log goes on at a segment's beginning: all positions before that have been given.
        position = -(-self.position // size) * size
        if self.store_id is not None:
            batch.put(META, STORE_ID, self.store_id)
        for topic in self.topics:
            info = msgspec.convert({"name": topic.name, "id": topic.id, **topic.fields}, TopicInfo)
            batch.put(TOPICS, topic.name.encode(), msgspec.msgpack.encode(info))
        for key, value in self.rows:
            batch.put(ARCHIVES, key, value)
        locate_again(index.families, batch, {h.archive for h in self.held}, self.held)
        batch.put(META, NEXT_TOPIC_ID, U32.pack(self.next_topic))
        batch.put(META, NEXT_ARCHIVE, U32.pack(self.next_archive))
        batch.put(META, LOG_START, U64.pack(position))
        # An epoch above 0: a topic that a record names and no row knows must not be made up.
        at = Checkpoint(position, position, 1, self.stored_at, clean=True)
        batch.put(META, CHECKPOINT, checkpoint_value(at))


def found_store(path: Path, restored: Restored, config: StoreConfig) -> bytes:
    """Founds a store in a folder that has none; returns its id. Raises `StoreLocked` or
    `DiskFull`.
    """
    lock = store_folder.folder_lock(path, config)
    try:
        store_folder.acquire(lock, path, config)
        store_id = store_folder.found_beside(path, config, restored.put_rows)
        config.files.rename(path / store_folder.NEW_INDEX, path / store_folder.INDEX)
        lock.mark()
    finally:
        lock.release()
    return store_id
