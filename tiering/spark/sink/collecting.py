"""Collects a task's records, in the order that an archive has them.

The idea: rows come in any order, and an archive is written queue by queue. Records lie one behind
the other as they came: in memory or, if they are many, in one file of the task's own disk, which is
mapped. Only the place where each belongs is kept beside it, in numpy, and sorted.

Invariants: in memory are about `spill_bytes` of records, a batch, and a few dozen bytes for each
record; an offset, or a position, that came twice is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.files import Files, MappedFile
from tiering.archive.columns.integers import Column
from tiering.archive.columns.records import RecordBatch
from tiering.errors import RowIllegal
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
