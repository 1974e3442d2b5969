"""Makes an index of archives: of them alone for a restored store, or their part of a rebuilt one.

The idea: an archive itself says which messages of which queue it holds. The room
`tiering.operations` reads the archives and gives, as plain data, the topics, the archive of each
stretch of each queue, and the position that the log had reached. `found_store` makes an index of
that, beside the place where one belongs, and moves it there when it is whole: a store with an empty
log that goes on behind the archives.

An index that is made anew gets the locations of archived messages by `place_archives`, before the
log is replayed: a queue whose messages are all archived goes on behind them. If the catalog itself
is lost, the archives in the store's own folder are found again, and with them the topics that only
they know.

Invariants: there is a store with everything it was founded on, or none; positions, topic ids and
archive numbers that the archives know of are never given again. The messages of an archive that
can't be read now keep their locations as they are; all is one batch, and until it is written the
next opening does it all again; messages of a segment in the log are not taken from an archive too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import ArchiveDamaged, ArchiveUnavailable
from kvstore.index.archived import Archived, ArchivedRange, ArchivedTopic, Contents
from kvstore.index.attach import forget
from kvstore.index.checkpoint import put_log_time
from kvstore.index.families import Batch
from kvstore.index.handover import locate_again, put_gone, read_gone
from kvstore.index.index import Index
from kvstore.index.keys import (
    ARCHIVES,
    CHECKPOINT,
    COMING,
    LOG_START,
    META,
    NEXT_ARCHIVE,
    NEXT_TOPIC_ID,
    STORE_ID,
    TOPICS,
    U32,
    U64,
    UNPLACED,
    Checkpoint,
    checkpoint_value,
    read_archive_key,
)
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topic import TopicInfo
from kvstore.opening import store_folder

_log = logging.getLogger("kvmq")


def topic_info(topic: ArchivedTopic) -> TopicInfo:
    """The row of a topic that archives know."""
    return msgspec.convert({"name": topic.name, "id": topic.id, **topic.fields}, TopicInfo)


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
            batch.put(TOPICS, topic.name.encode(), msgspec.msgpack.encode(topic_info(topic)))
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


def place_archives(index: Index, log: CommitLog, archives: Callable[[], Archived]) -> None:
    """Makes the locations of archived messages anew, if that is to be done."""
    families = index.families
    if families.get(META, COMING) is not None:
        # An attach was cut short, and will never end.
        archives().forget_attach()
        batch = families.batch()
        forget(batch)
        families.write(batch)
    if families.get(META, UNPLACED) is None:
        return
    batch = families.batch()
    archived = archives()
    is_lost = next(families.rows(ARCHIVES, b""), None) is None
    if is_lost:
        _find_again(index, batch, archived, log)
    held: dict[int, Contents] = {}
    for number in archived.numbers():
        try:
            held[number] = archived.contents(number)
        except (ArchiveDamaged, ArchiveUnavailable) as e:
            _log.error(
                "%s: locations of its messages stay as they are: %s", log.folder.parent, str(e)
            )
    known = _place_topics(index, batch, held.values())
    mine = [h for c in held.values() for h in c.held if h.topic in known]
    locate_again(families, batch, held, archived.split_overlaps(mine))
    if is_lost:
        put_log_time(families, batch, max((c.last_stored_at for c in held.values()), default=0))
    size, there = log.segment_size, log.segments.numbers
    stretches = {
        n for c in held.values() for a, b in c.segments for n in range(a // size, -(-b // size))
    }
    # A segment that is wholly in catalogued archives was handed over, even if its file is there.
    whole = {
        n for c in held.values() for a, b in c.segments for n in range(-(-a // size), b // size)
    }
    leaving = stretches - (set(there) - whole)
    if leaving:
        put_gone(batch, read_gone(families), leaving, there, size)
    batch.delete(META, UNPLACED)
    families.write(batch, sync=True)


def _find_again(index: Index, batch: Batch, archived: Archived, log: CommitLog) -> None:
    noted = index.families.get(META, NEXT_ARCHIVE)
    number = U32.unpack(noted)[0] if noted else 0
    store_id = index.families.get(META, STORE_ID) or b""
    size, there = log.segment_size, set(log.segments.numbers)
    rows = archived.find_again(store_id, number, lambda position: position // size in there)
    archived.note(rows)
    for key, value in rows:
        batch.put(ARCHIVES, key, value)
    if rows:
        following = max(read_archive_key(key)[1] for key, _ in rows) + 1
        batch.put(META, NEXT_ARCHIVE, U32.pack(following))


def _place_topics(index: Index, batch: Batch, held: Iterable[Contents]) -> set[int]:
    """The ids of the topics there are, with those that only archives know: these get rows."""
    rows = {
        key.decode("utf-8", "replace"): msgspec.msgpack.decode(row, type=TopicInfo)
        for key, row in index.families.rows(TOPICS, b"")
    }
    known = {info.id for info in rows.values()}
    found = index.families.get(META, NEXT_TOPIC_ID)
    following = U32.unpack(found)[0] if found else 1
    # The newest archive describes a topic: an older one may have fewer queues, and a retention by
    # which messages end too early.
    newest = sorted(held, key=lambda c: max((end for _, end in c.segments), default=0))
    described = {(topic.id, topic.name): topic for c in newest for topic in c.topics}
    for topic in sorted(described.values(), key=lambda t: t.id, reverse=True):
        if topic.name in rows or topic.id < following:
            continue
        info = topic_info(topic)
        rows[topic.name] = info
        known.add(info.id)
        batch.put(TOPICS, topic.name.encode(), msgspec.msgpack.encode(info))
    if known:
        batch.put(META, NEXT_TOPIC_ID, U32.pack(max(following, *(i + 1 for i in known))))
    return known
