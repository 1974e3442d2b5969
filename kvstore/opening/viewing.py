"""Views a store at one moment, for programs that read its files without opening it.

The idea: the index is opened for reading only, beside any writer, and asked for its catalog, its
topics and how far the log is on the disk; then it is closed. The log itself is not read: only
messages below a checkpoint are known to be there. A view can be sent to other machines, and read
there.

Invariants: a view names only files that are on the disk; a segment that left the log between the
look at the index and the look at the folder is looked for again, so that no message is in neither.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kvstore.config import StoreConfig
from kvstore.index.archived import ArchivedTopic, Catalog, Queue
from kvstore.index.attach import first_attaching
from kvstore.index.index import Index
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    ARCHIVES,
    META,
    PLACES,
    STORE_ID,
    behind,
    location_key,
    queue_prefix,
    read_location,
)
from kvstore.log.segments import named_position, segment_name
from kvstore.meta.topics import Topics
from kvstore.opening import store_folder
from kvstore.record.ids import HOST_V4_SIZE

_LOOKS: Final = 5
_log = logging.getLogger("kvmq")


class LogFile(NamedTuple):
    """A segment's file: its records stand from `first_position` to before `end_position`, and are
    on the disk.
    """

    path: Path
    first_position: int
    end_position: int


class View(NamedTuple):
    """A store's contents at one moment, for a process that reads its files without opening it: the
    catalog, the topics, and the log as far as it is on the disk, which is to before `position`.
    Later archives have numbers from `next_archive` on.
    """

    catalog: Catalog
    topics: Sequence[ArchivedTopic]
    log: Sequence[LogFile]
    position: int
    next_archive: int


class Reach(NamedTuple):
    """The offsets of queues, by topic id and queue: the first held offset and the next offset,
    counting only records below `position` in the log.
    """

    position: int
    queues: Mapping[Queue, tuple[int, int]]


def view_store(path: Path, config: StoreConfig) -> View:
    """Looks at a store that other processes may be writing to. Raises the errors of opening it for
    reading, as do the other functions.
    """
    found, missing = _view(path, config)
    for _ in range(_LOOKS):
        if not missing:
            break
        # They may have gone after the look at the index: then the index says so by now.
        before = missing
        found, missing = _view(path, config)
        if missing == before:
            break
    lost = [n for n in missing if found.log and n >= found.log[0].first_position]
    if lost:
        _log.warning("the log of %s has lost the segments at %s", path, lost)
    return found


def _view(path: Path, config: StoreConfig) -> tuple[View, list[int]]:
    """Scans the folder once; returns the view and the first positions of missing segments."""
    with _opened(path, config) as (index, size):
        families = index.families
        topics = [
            ArchivedTopic(info.id, info.name, msgspec.to_builtins(info))
            for info in _topics(index, config).all()
        ]
        catalog = _catalog(index)
        durable = index.checkpoint.durable
        log, missing = _files(path, config, index, size)
        return View(catalog, topics, log, durable, first_attaching(families)), missing


def read_catalog(path: Path, config: StoreConfig) -> Catalog:
    """The catalog that a store has now. To a store that is open for reading only its own is that of
    its opening.
    """
    with _opened(path, config) as (index, _):
        return _catalog(index)


def _catalog(index: Index) -> Catalog:
    families = index.families
    return Catalog(families.get(META, STORE_ID) or b"", list(families.rows(ARCHIVES, b"")))


def reach(path: Path, config: StoreConfig, queues: Iterable[Queue] | None) -> Reach:
    """The offsets of some queues; None: of all. Costs a few seeks for each queue."""
    with _opened(path, config) as (index, size):
        if queues is None:
            queues = (
                (info.id, queue)
                for info in _topics(index, config).all()
                for queue in range(max(info.read_queues, info.write_queues))
            )
        first_segment = index.gone().below // size
        found = {}
        for topic, queue in queues:
            end = _covered_end(index, topic << 32 | queue)
            if end:
                found[topic, queue] = _first(index, topic, queue, first_segment, end), end
        return Reach(index.checkpoint.position, found)


def homes(path: Path, config: StoreConfig, spans: Iterable[tuple[Queue, int, int]]) -> set[int]:
    """The numbers of the archives that hold offsets of queues: each with its first offset, and the
    one behind its last.
    """
    found: set[int] = set()
    with _opened(path, config) as (index, _):
        it = index.families.iter(PLACES)
        for (topic, queue), low, end in spans:
            prefix = queue_prefix(topic, queue)
            it.seek_for_prev(location_key(topic, queue, low))
            if not index.families.valid(it) or not it.key().startswith(prefix):
                it.seek(prefix)
            while index.families.valid(it) and it.key().startswith(prefix):
                location = read_location(it.key(), it.value())[2]
                if location.first >= end:
                    break
                if location.is_archived:
                    found.add(location.archive)
                it.next()
    return found


def written(path: Path, config: StoreConfig) -> tuple[object, ...]:
    """A value that differs as soon as a view may differ; costs a look at some files."""
    folder, files = path / store_folder.INDEX, config.files
    return tuple(
        (name, files.size(folder / name))
        for name in sorted(files.list_dir(folder))
        if name.endswith(".log") or name.startswith("MANIFEST")
    )


@contextmanager
def _opened(path: Path, config: StoreConfig) -> Iterator[tuple[Index, int]]:
    """The index, and the size of segments."""
    index, config = store_folder.open_index(
        path, config, store_folder.look(path, config), read_only=True
    )
    with closing(index):
        index.load()
        yield index, config.segment_size


def _covered_end(index: Index, queue: int) -> int:
    """A queue's next offset, counting only records that the checkpoint covers."""
    position, ahead, size = index.checkpoint.position, index.ahead, index.segment_size
    if ahead is not None and queue <= ahead.queue:
        for segment in range(position // size, (ahead.position - 1) // size + 1):
            found = index.locations.first_from(queue, segment, position - segment * size)
            if found is not None:
                return found
    return index.locations.head(queue).next_offset


def _first(index: Index, topic: int, queue: int, first_segment: int, end: int) -> int:
    """The first offset that a queue holds; `end` if it holds none."""
    prefix = queue_prefix(topic, queue)
    for key, value in index.families.rows(PLACES, prefix, behind(prefix)):
        location = read_location(key, value)[2]
        is_held = location.segment < ARCHIVE_FIRST or location.is_archived
        is_nobodys = location.is_lost
        if is_held and not is_nobodys and location.segment >= first_segment:
            return location.first
    return end


def _topics(index: Index, config: StoreConfig) -> Topics:
    return Topics(
        index.families,
        default_key_index=config.key_index,
        default_queues=config.default_queues,
        auto_create=False,
        host_size=HOST_V4_SIZE,
        log_end=lambda: 0,
        read_only=True,
    )


def _files(
    path: Path, config: StoreConfig, index: Index, size: int
) -> tuple[list[LogFile], list[int]]:
    """The segments, and the first positions of missing ones; of many that are missing at the
    beginning only the first and the last.
    """
    gone, durable = index.gone(), index.checkpoint.durable
    folder = path / store_folder.COMMITLOG
    there = {named_position(name) for name in config.files.list_dir(folder)}
    first, stop = gone.below // size, -(-durable // size)
    oldest = min(
        (at // size for at in there if at is not None and at >= first * size), default=stop
    )
    due = [n * size for n in range(min(oldest, stop), stop) if n not in gone.segments]
    before = {n * size for n in (first, oldest - 1) if first <= n < oldest}
    held = [
        LogFile(folder / segment_name(at), at, min(at + size, durable)) for at in due if at in there
    ]
    return held, sorted({*before, *(at for at in due if at not in there)})
