"""Merging: what one process makes of 16 archives a second, and what two make of them.

The idea: archives of orders as in `archives`, neighbours in time, are merged by a process of its
own, as an embedded worker has it done; then stretch by stretch by two such processes, and by
Spark's tasks. All give the same bytes, which is looked at; the ratio of two is the figure, since
both are from one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np

from bench.archives import records
from bench.figure import Figure, Options
from kvstore.files import LocalFiles
from tiering.archive.dictionary import train
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.records import Fields, RecordBatch
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter
from tiering.merge import Input, Merged, MergeJob, merge_with
from tiering.pool import Executor, Pool

T = TypeVar("T")
J = TypeVar("J")
_MESSAGES: Final = 560_000
"""Of about 1 KB, in all archives together: 34 MB of records in each."""
_ARCHIVES: Final = 16
_TOPICS: Final = 8
_QUEUES: Final = 8
_STORE: Final = "0" * 32
_SPARK: Final = "tiering.spark.jobs.executor"


class Two:
    """An `Executor` of two processes, each of which has the next job as soon as it is free."""

    width = 2

    def __init__(self) -> None:
        self._pools = [Pool(), Pool()]
        self._free: SimpleQueue[Pool] = SimpleQueue()
        for pool in self._pools:
            self._free.put(pool)
        self._threads = ThreadPoolExecutor(self.width)

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        pool = self._free.get()
        try:
            return pool.run(check, work, *args)
        finally:
            self._free.put(pool)

    def each(
        self, check: Callable[[], None], work: Callable[[J], T], jobs: Sequence[J]
    ) -> Iterator[T]:
        ahead: list[Future[T]] = []
        for job in jobs:
            ahead.append(self._threads.submit(self.run, check, work, job))
            if len(ahead) > 2 * self.width:
                yield ahead.pop(0).result()
        for future in ahead:
            yield future.result()

    def close(self) -> None:
        self._threads.shutdown()
        for pool in self._pools:
            pool.close()


def run(folder: Path, options: Options) -> list[Figure]:
    """Merge 16 archives in one process, in two, and by Spark with local[2]."""
    made = folder / "archives"
    made.mkdir()
    jobs = _archives(made, options)
    found: list[Figure] = []
    alone, raw = _merged(Pool(), jobs)
    found.append(Figure("merged in one process", raw / alone / 1e6, "MB/s of records"))
    both, _ = _merged(Two(), jobs)
    found.append(Figure("two processes / one", alone / both, "x", 1.5))
    if find_spec("pyspark") is not None and find_spec("tiering.spark.jobs") is not None:
        found.append(Figure("Spark, local[2] / one process", alone / _by_spark(jobs), "x", 1.5))
    return found


def _by_spark(job: MergeJob) -> float:
    from importlib import import_module

    from tiering.spark.session import session

    with session(master="local[2]") as spark:
        return _merged(import_module(_SPARK).SparkExecutor(spark), job)[0]


def _merged(executor: Executor, job: MergeJob) -> tuple[float, int]:
    """Seconds that it took, and bytes of records. What takes time once is not counted."""
    list(executor.each(_going_on, abs, [-1, -2]))
    try:
        begin = time.perf_counter()
        found: Merged = merge_with(executor, _going_on, job, LocalFiles())
        seconds = time.perf_counter() - begin
    finally:
        executor.close()
    assert found.made is not None
    known = Path(f"{job.path}.first")
    data = Path(job.path).read_bytes()
    if known.exists():
        assert known.read_bytes() == data, "who does the work makes a difference"
    else:
        known.write_bytes(data)
    return seconds, found.made.manifest.raw_bytes


def _going_on() -> None:
    """Nobody gives up."""


def _archives(folder: Path, options: Options) -> MergeJob:
    """Archives of neighbouring stretches of a log, and what it takes to merge them."""
    topics, queues = options.topics or _TOPICS, options.queues or _QUEUES
    each = (options.messages or _MESSAGES) // _ARCHIVES
    log = records(each * _ARCHIVES, topics, queues)
    known = {
        n + 1: ArchivedTopic(name=f"orders-{n:05}", id=n + 1, queues=queues) for n in range(topics)
    }
    inputs, position = [], 0
    for number in range(_ARCHIVES):
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        parts, at = [], 0
        for _ in range(each):
            topic, queue, raw = next(log)
            places.setdefault((topic, queue), []).append((at, len(raw)))
            parts.append(raw)
            at += len(raw)
        data = _archive(b"".join(parts), places, known, (position, position + at))
        (folder / f"{number:02}").write_bytes(data)
        inputs.append(Input(place=str(folder), key=f"{number:02}", size=len(data), store_id=_STORE))
        position += at
    return MergeJob(
        inputs=inputs, topics=known, settings=ArchiveSettings(), store_id=_STORE,
        retention_class="all", path=str(folder / "merged"),
    )  # fmt: skip


def _archive(
    raw: bytes,
    places: dict[tuple[int, int], list[tuple[int, int]]],
    topics: dict[int, ArchivedTopic],
    segment: tuple[int, int],
) -> bytes:
    batches = [
        (topics[topic + 1], queue, RecordBatch(raw, *np.array(places[topic, queue], np.int64).T))
        for topic, queue in sorted(places)
    ]
    whole = RecordBatch.join([batch for _, _, batch in batches])
    step = max(len(whole.starts) // 4000, 1)
    sample = RecordBatch(raw, whole.starts[::step], whole.sizes[::step])
    settings = ArchiveSettings(dictionary=train(Fields(sample), len(raw)))
    sink = BytesIO()
    origin = ArchiveOrigin(store_id=_STORE, segments=(segment,), retention_class="all")
    writer = ArchiveWriter(sink, settings, origin)
    for topic, queue, batch in batches:
        writer.add(topic, queue, batch)
    writer.finish()
    return sink.getvalue()
