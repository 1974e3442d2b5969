"""A task of the sink: collects records, writes them to archives, puts these into the place.

The idea: rows come in any order, and an archive is written queue by queue. Records lie one behind
the other as they came: in memory or, if they are many, in one file of the task's own disk, which is
mapped. Only the place where each belongs is kept beside it, in numpy, and sorted. As a worker does
with a segment (`executor.segment_encoder`), sorted records go through the one writer, and the
written archive is compared with them. An archive has so many bytes of records, and is put before
the next is begun. Topics that are encrypted have archives of their own.

Invariants:

- In memory are at most twice `spill_bytes` of records, a batch, and a few dozen bytes for each
  record.
- An offset, or a position, that came twice is an error that names it.
- An archive's name is new, whatever other tasks make.
- An archive does not count by being put.
- A file here goes when its archive is in the place, or the task failed.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from kvstore.clock import SystemClock
from kvstore.files import Files, LocalFiles, MappedFile
from tiering.archive.archive_check import prove
from tiering.archive.columns.integers import Column, cut_by_bytes
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter, write_archive
from tiering.errors import RowIllegal
from tiering.keys.crypto import KeyProvider, keys_at_hand
from tiering.keys.key_file import provider_of
from tiering.places.commits import CommittedArchive, HeldRange, TopicIds, take_ids
from tiering.places.objects import job_object_key
from tiering.places.place import Place
from tiering.places.publish import Intent, Pacing, put_verified
from tiering.policy.retention_classes import read_class
from tiering.spark.options import SinkOptions
from tiering.spark.session import tune_process
from tiering.spark.sink.jobs import PlaceState
from tiering.spark.sink.row_records import RecordMaker, TaskStart

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_FILE: Final = "records"


class Collected(NamedTuple):
    """Records by the name of their topic, queue and offset; `topic_of` says which of `topics`."""

    records: RecordBatch
    topics: list[str]
    topic_of: Column
    queue: Column
    offset: Column
    position: Column
    file: MappedFile | None

    def place_of(self, row: int) -> tuple[str, int, int]:
        """A record's topic, queue and offset."""
        topic = self.topics[int(self.topic_of[row])]
        return topic, int(self.queue[row]), int(self.offset[row])

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()


def collect(
    batches: Iterable[pa.RecordBatch],
    maker: RecordMaker,
    folder: Path,
    spill_bytes: int,
    files: Files,
) -> Collected:
    """All records of a task's batches, sorted. `folder` is the task's own, on its disk. Raises
    RowIllegal, JobTooLarge, DiskFull.
    """
    columns: list[list[Column]] = [[np.empty(0, np.int64)] for _ in range(5)]

    def chunks() -> Iterator[bytes]:
        for placed in (one for batch in batches for one in maker.placed(batch)):
            mine = (placed.records.sizes, *placed[1:])
            for kept, column in zip(columns, mine, strict=True):
                kept.append(column)
            yield bytes(placed.records.buffer)

    waiting: list[bytes] = []
    size = 0
    coming = chunks()
    for chunk in coming:
        waiting.append(chunk)
        size += len(chunk)
        if size > spill_bytes:
            break
    else:
        return _sorted(maker.topics, columns, b"".join(waiting), None)
    given, waiting = chain(waiting, coming), []
    files.write_new(folder / _FILE, given, replace=True)
    mapped = files.map(folder / _FILE, writable=False)
    try:
        return _sorted(maker.topics, columns, mapped.buffer, mapped)
    except BaseException:
        mapped.close()
        raise


def _sorted(
    names: Sequence[str], columns: Sequence[list[Column]], buffer: Buffer, file: MappedFile | None
) -> Collected:
    sizes, topic_of, queue, offset, position = map(np.concatenate, columns)
    topics = sorted(names)
    ranks = {name: number for number, name in enumerate(topics)}
    topic_of = np.array([ranks[name] for name in names] or [0], np.int64)[topic_of]
    order = np.lexsort((offset, queue, topic_of))
    starts = np.cumsum(sizes) - sizes
    records = RecordBatch(buffer, starts[order], sizes[order], bodies_checked=False, stays=True)
    found = Collected(
        records, topics, topic_of[order], queue[order], offset[order], position[order], file
    )
    _check_once(found)
    return found


def _check_once(found: Collected) -> None:
    same = (found.topic_of[1:] == found.topic_of[:-1]) & (found.queue[1:] == found.queue[:-1])
    same &= found.offset[1:] == found.offset[:-1]
    if bool(same.any()):
        topic, queue, offset = found.place_of(int(np.argmax(same)))
        raise RowIllegal(
            f"two rows of topic {topic!r} say queue {queue}, offset {offset}: column offset must "
            "be another for each message of a queue; drop the duplicates, or leave queue, offset "
            "and position out",
            topic,
            queue,
            offset,
        )
    order = np.argsort(found.position, kind="stable")
    twice = np.diff(found.position[order]) == 0
    if bool(twice.any()):
        at = int(np.argmax(twice))
        topic, queue, offset = found.place_of(int(order[at]))
        others, q, o = found.place_of(int(order[at + 1]))
        raise RowIllegal(
            f"a row of topic {topic!r}, queue {queue}, offset {offset} has position "
            f"{int(found.position[order[at]])}, and so has one of {others!r}, queue {q}, offset "
            f"{o}: column position must be another for each message; leave it out if the rows are "
            "of several stores",
            topic,
            queue,
            offset,
        )


# --- archives -------------------------------------------------------------------------------------


_ADD_BYTES: Final = 8 << 20
"""Bytes of records that the writer is given at once."""
_NUMBER_BITS: Final = 56


class TaskContext(NamedTuple):
    """The part of a task's surroundings that its archives depend on. `folder` is its own."""

    options: SinkOptions
    state: PlaceState
    job: str
    place: Place
    folder: Path
    files: Files
    keys: KeyProvider | None


def write_task(
    options: SinkOptions, state: PlaceState, job: str, task: int, batches: Iterable[pa.RecordBatch]
) -> list[CommittedArchive]:
    """A task's part of a job: its rows as archives in the place, none of which counts yet. Raises
    RowIllegal, JobTooLarge, DiskFull, PlaceError, ArchiveDamaged, KeyDestroyed.
    """
    tune_process()
    files = LocalFiles()
    with _local_folder() as folder:
        maker = RecordMaker(SystemClock(), TaskStart(task, state.position, state.ends))
        found = collect(batches, maker, folder, options.spill_bytes, files)
        try:
            keys = keys_at_hand(provider_of(options.key_file, files), found.topics)
            place = options.open()
            return _archives(TaskContext(options, state, job, place, folder, files, keys), found)
        finally:
            found.close()


@contextmanager
def _local_folder() -> Iterator[Path]:
    """A folder of the task's own, where Spark has its local disks."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    inside = local if local and Path(local).is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix="kvmq-sink-", dir=inside, ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


def _archives(task: TaskContext, found: Collected) -> list[CommittedArchive]:
    """Puts the archives of all records."""
    if not found.topics:
        return []
    state, keys = task.state, task.keys
    known = TopicIds(state.ids, state.lists)
    ids = take_ids(task.place, state.store_id, found.topics, known=known).ids
    queues = np.zeros(len(found.topics), np.int64)
    np.maximum.at(queues, found.topic_of, found.queue + 1)
    topics = [
        ArchivedTopic(name=name, id=ids[name], queues=count, read_queues=count)
        for name, count in zip(found.topics, queues.tolist(), strict=True)
    ]
    is_secret = [keys is not None and keys.key_for_writing(one) is not None for one in found.topics]
    secret_rows = np.array(is_secret, np.bool_)[found.topic_of]
    out: list[CommittedArchive] = []
    for encrypted in (False, True):
        rows = np.flatnonzero(secret_rows == encrypted)
        kind = replace(read_class(task.options.retention_class), encrypted=encrypted).name
        out += [
            _archive(task, found, rows[a:b], topics, kind)
            for a, b in cut_by_bytes(found.records.sizes[rows], task.options.archive_bytes)
        ]
    return out


def _archive(
    task: TaskContext, found: Collected, rows: Column, topics: list[ArchivedTopic], kind: str
) -> CommittedArchive:
    """Writes one archive, compares it with the records, and puts it."""
    options, store_id = task.options, task.state.store_id
    position, sizes = found.position[rows], found.records.sizes[rows]
    first, end = int(position.min()), int((position + sizes).max())
    origin = ArchiveOrigin(store_id=store_id, segments=((first, end),), retention_class=kind)
    settings = ArchiveSettings(
        codec=options.codec, level=options.level, block_bytes=options.block_bytes, keys=task.keys
    )
    held: dict[tuple[str, int], HeldRange] = {}

    def fill(writer: ArchiveWriter) -> Iterator[None]:
        for part in _queue_rows(found, rows):
            a, b = int(part[0]), int(part[-1]) + 1
            topic, queue, low = found.place_of(a)
            writer.add(topics[int(found.topic_of[a])], queue, found.records.rows(a, b))
            if (topic, queue) in held:
                low = held[topic, queue].first
            held[topic, queue] = HeldRange(topic, queue, low, int(found.offset[b - 1]))
            yield

    number = secrets.randbits(_NUMBER_BITS)
    key = job_object_key(store_id, task.state.begun, task.job, first, number, kind)
    path = task.folder / f"{number}.made"
    written = write_archive(
        path,
        task.files,
        lambda sink, scratch: ArchiveWriter(sink, settings, origin, scratch),
        fill,
    )
    assert written is not None, "each of the rows is a message"
    intent = Intent(0, task.place.name, key, written.size, written.crc)
    try:
        prove(
            path, task.files, task.keys, found.records.buffer,
            [(found.records.starts[rows], sizes)], stays="nothing was committed",
        )  # fmt: skip
        put_verified(task.place, intent, path, Pacing())
    finally:
        task.files.remove(path)
    return CommittedArchive(
        key=key, size=written.size, crc=written.crc, messages=len(rows), first_position=first,
        end_position=end, queues=list(held.values()),
    )  # fmt: skip


def _queue_rows(found: Collected, rows: Column) -> Iterator[Column]:
    """Rows that follow each other and are of one queue, some megabytes at a time."""
    change = (np.diff(found.topic_of[rows]) != 0) | (np.diff(found.queue[rows]) != 0)
    change |= np.diff(rows) != 1
    begins = [0, *(np.flatnonzero(change) + 1).tolist()]
    for a, b in zip(begins, [*begins[1:], len(rows)], strict=True):
        for begin, end in cut_by_bytes(found.records.sizes[rows[a:b]], _ADD_BYTES):
            yield rows[a + begin : a + end]
