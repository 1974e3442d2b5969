"""A task of the sink: collects records, writes them to archives, puts these into the place.

The idea: rows come in any order, and an archive is written queue by queue. Records lie one behind
the other as they came: in memory or, if they are many, in one file of the task's own disk, which is
mapped. Only the place where each belongs is kept beside it, in numpy, and sorted. As a worker does
with a segment (`executor.segment_encoder`), sorted records go through the one writer, and the
written archive is compared with them. An archive has so many bytes of records, and is put before
the next is begun. Topics that are encrypted have archives of their own.

Invariants: in memory are about `spill_bytes` of records, a batch, and a few dozen bytes for each
record; an offset, or a position, that came twice is an error that names it; an archive's name is
new, whatever other tasks make; an archive does not count by being put; a file here goes when its
archive is in the place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from kvstore.files import Files, MappedFile
from tiering.archive.archive_check import prove
from tiering.archive.columns.integers import Column, cut_by_bytes
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter, write_archive
from tiering.errors import RowIllegal
from tiering.keys.crypto import KeyProvider
from tiering.places.commits import CommittedArchive, HeldRange
from tiering.places.objects import job_object_key
from tiering.places.place import Place
from tiering.places.publish import Intent, Pacing, put_verified
from tiering.policy.retention_classes import read_class
from tiering.spark.options import SinkOptions
from tiering.spark.sink.row_records import PlacedRecords, RecordMaker

_FILE: Final = "records"
_NOTHING: Final = np.empty(0, np.int64)


class Collected(NamedTuple):
    """Records by the name of their topic, queue and offset; `topic_of` says which of `topics`."""

    records: RecordBatch
    topics: list[str]
    topic_of: Column
    queue: Column
    offset: Column
    position: Column
    file: MappedFile | None

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()


class Collector:
    """Takes a task's batches. `folder` is its own, on its disk."""

    def __init__(self, maker: RecordMaker, folder: Path, spill_bytes: int, files: Files) -> None:
        self._maker = maker
        self._path = folder / _FILE
        self._spill_bytes = spill_bytes
        self._files = files
        self._columns: list[list[Column]] = [[] for _ in range(5)]

    def collect(self, batches: Iterable[pa.RecordBatch]) -> Collected:
        """All records of the batches, sorted. Raises RowIllegal, JobTooLarge, DiskFull."""
        waiting: list[bytes] = []
        size = 0
        chunks = self._chunks(batches)
        for chunk in chunks:
            waiting.append(chunk)
            size += len(chunk)
            if size > self._spill_bytes:
                break
        else:
            return self._sorted(b"".join(waiting), None)
        given, waiting = chain(waiting, chunks), []
        self._files.write_new(self._path, given, replace=True)
        mapped = self._files.map(self._path, writable=False)
        try:
            return self._sorted(mapped.buffer, mapped)
        except BaseException:
            mapped.close()
            raise

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for batch in batches:
            for placed in self._maker.placed(batch):
                if len(placed.records.starts):
                    self._note(placed)
                    yield bytes(placed.records.buffer)

    def _note(self, placed: PlacedRecords) -> None:
        columns = (
            placed.records.sizes, placed.topic_of, placed.queue, placed.offset, placed.position,
        )  # fmt: skip
        for kept, column in zip(self._columns, columns, strict=True):
            kept.append(column)

    def _sorted(self, buffer: object, file: MappedFile | None) -> Collected:
        sizes, topic_of, queue, offset, position = (
            np.concatenate([_NOTHING, *kept]) for kept in self._columns
        )
        names = self._maker.topics
        topics = sorted(names)
        ranks = {name: number for number, name in enumerate(topics)}
        rank = np.array([ranks[name] for name in names] or [0], np.int64)
        topic_of = rank[topic_of]
        order = np.lexsort((offset, queue, topic_of))
        starts = np.cumsum(sizes) - sizes
        records = RecordBatch(
            buffer, starts[order], sizes[order], bodies_checked=False, stays=True,  # type: ignore[arg-type]
        )  # fmt: skip
        found = Collected(
            records, topics, topic_of[order], queue[order], offset[order], position[order], file
        )
        _check_once(found)
        return found


def _check_once(found: Collected) -> None:
    same = (found.topic_of[1:] == found.topic_of[:-1]) & (found.queue[1:] == found.queue[:-1])
    same &= found.offset[1:] == found.offset[:-1]
    if bool(same.any()):
        row = int(np.argmax(same))
        topic, queue = found.topics[int(found.topic_of[row])], int(found.queue[row])
        offset = int(found.offset[row])
        raise RowIllegal(
            f"two rows of topic {topic!r} say queue {queue}, offset {offset}: column offset must "
            "be another for each message of a queue; drop the duplicates, or leave queue, offset "
            "and position out",
            topic,
            queue,
            offset,
        )
    order = np.argsort(found.position, kind="stable")
    rising = found.position[order]
    twice = rising[1:] == rising[:-1]
    if bool(twice.any()):
        a, b = (int(order[int(np.argmax(twice)) + i]) for i in range(2))
        topic, queue = found.topics[int(found.topic_of[a])], int(found.queue[a])
        raise RowIllegal(
            f"a row of topic {topic!r}, queue {queue}, offset {int(found.offset[a])} has position "
            f"{int(found.position[a])}, and so has one of {found.topics[int(found.topic_of[b])]!r},"
            f" queue {int(found.queue[b])}, offset {int(found.offset[b])}: column position must be "
            "another for each message; leave it out if the rows are of several stores",
            topic,
            queue,
            int(found.offset[a]),
        )


# --- archives -------------------------------------------------------------------------------------


_ADD_BYTES: Final = 8 << 20
"""Bytes of records that the writer is given at once."""
_NUMBER_BITS: Final = 56


class ArchiveMaker:
    """Makes the archives of one task. `ids` gives the ids of topics by their names."""

    def __init__(
        self,
        options: SinkOptions,
        store_id: str,
        begun: int,
        job: str,
        place: Place,
        folder: Path,
        files: Files,
        keys: KeyProvider | None,
    ) -> None:
        self._options = options
        self._store_id = store_id
        self._begun = begun
        self._job = job
        self._place = place
        self._folder = folder
        self._files = files
        self._keys = keys

    def make(
        self, found: Collected, ids: Callable[[list[str]], Mapping[str, int]]
    ) -> list[CommittedArchive]:
        """Puts the archives of all records. Raises PlaceError, ArchiveDamaged, KeyDestroyed."""
        if not len(found.offset):
            return []
        topics = self._topics(found, ids(found.topics))
        secret = np.array([self._is_secret(name) for name in found.topics], np.bool_)
        settings = ArchiveSettings(
            codec=self._options.codec, level=self._options.level,
            block_bytes=self._options.block_bytes, keys=self._keys,
        )  # fmt: skip
        out: list[CommittedArchive] = []
        for encrypted in (False, True):
            rows = np.flatnonzero(secret[found.topic_of] == encrypted)
            if not len(rows):
                continue
            kind = msgspec.structs.replace(
                read_class(self._options.retention_class), encrypted=encrypted
            ).name
            out += [
                self._archive(found, part, topics, kind, settings)
                for part in self._rolled(found, rows)
            ]
        return out

    def _topics(self, found: Collected, ids: Mapping[str, int]) -> list[ArchivedTopic]:
        queues = np.zeros(len(found.topics), np.int64)
        np.maximum.at(queues, found.topic_of, found.queue + 1)
        return [
            ArchivedTopic(name=name, id=ids[name], queues=int(count), read_queues=int(count))
            for name, count in zip(found.topics, queues.tolist(), strict=True)
        ]

    def _is_secret(self, topic: str) -> bool:
        return self._keys is not None and self._keys.key_for_writing(topic) is not None

    def _rolled(self, found: Collected, rows: Column) -> Iterator[Column]:
        """The rows of one archive after the other."""
        for a, b in cut_by_bytes(found.records.sizes[rows], self._options.archive_bytes):
            yield rows[a:b]

    def _archive(
        self,
        found: Collected,
        rows: Column,
        topics: list[ArchivedTopic],
        kind: str,
        settings: ArchiveSettings,
    ) -> CommittedArchive:
        """Writes one archive, compares it with the records, and puts it."""
        position, sizes = found.position[rows], found.records.sizes[rows]
        first, end = int(position.min()), int((position + sizes).max())
        origin = ArchiveOrigin(
            store_id=self._store_id, segments=((first, end),), retention_class=kind
        )
        held: dict[tuple[int, int], HeldRange] = {}

        def fill(writer: ArchiveWriter) -> Iterator[None]:
            for part in _queue_rows(found, rows):
                topic, queue = int(found.topic_of[part[0]]), int(found.queue[part[0]])
                a, b = int(part[0]), int(part[-1]) + 1
                writer.add(topics[topic], queue, found.records.rows(a, b))
                low, high = int(found.offset[a]), int(found.offset[b - 1])
                before = held.get((topic, queue))
                low = low if before is None else before.first
                held[topic, queue] = HeldRange(found.topics[topic], queue, low, high)
                yield

        number = secrets.randbits(_NUMBER_BITS)
        key = job_object_key(self._store_id, self._begun, self._job, first, number, kind)
        path = self._folder / f"{number}.made"
        written = write_archive(
            path, self._files, lambda sink: ArchiveWriter(sink, settings, origin), fill
        )
        assert written is not None, "each of the rows is a message"
        intent = Intent(0, self._place.name, key, written.size, written.crc)
        try:
            prove(
                path, self._files, self._keys, found.records.buffer, found.records.starts,
                found.records.sizes, rows=rows, stays="nothing was committed",
            )  # fmt: skip
            put_verified(self._place, intent, path, Pacing())
        finally:
            self._files.remove(path)
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
