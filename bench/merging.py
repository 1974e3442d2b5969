"""Merging: what one process makes of 16 archives a second, and what two make of them.

The idea: archives of orders as in `archives`, neighbours in time, are merged by a process of its
own, as an embedded worker has it done; then partition by partition by two such processes, and by
Spark's tasks; all in turn, and again, since a machine is not as fast at one time as at another. All
give the same bytes, which is looked at; the ratio of two is the figure, of the best of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np

from bench.archives import records
from bench.figure import Figure, Options
from kvstore.files import LocalFiles
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.tail import FileSource
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter
from tiering.catalog.catalog import row_of
from tiering.executor.pool import Executor, Pool
from tiering.merge.merge import merge_with
from tiering.merge.partition import Merged, MergeInput, MergeJob

T = TypeVar("T")
J = TypeVar("J")
_MESSAGES: Final = 560_000
"""Of about 1 KB, in all archives together: 34 MB of records in each."""
_ARCHIVES: Final = 16
_TOPICS: Final = 8
_QUEUES: Final = 8
_STORE: Final = "0" * 32
_ROUNDS: Final = 3


class Two(Executor):
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
    with ExitStack() as stack:
        ways: dict[str, Executor] = {"one": Pool(), "two": Two()}
        if find_spec("pyspark") is not None:
            from tiering.spark.jobs.executor import executor as by_spark

            ways["spark"] = stack.enter_context(by_spark("local[2]"))
        for executor in ways.values():
            stack.callback(executor.close)
            # The first call, which starts processes, is not counted.
            list(executor.each(_going_on, abs, [-1, -2]))
        times: dict[str, list[float]] = {name: [] for name in ways}
        raw = 0
        for _ in range(_ROUNDS):
            for name, executor in ways.items():
                seconds, raw = _merged(executor, jobs)
                times[name].append(seconds)
    best = {name: min(each) for name, each in times.items()}
    found = [Figure("merged in one process", raw / best["one"] / 1e6, "MB/s of records")]
    found.append(Figure("two processes / one", best["one"] / best["two"], "x", 1.5))
    if "spark" in best:
        found.append(Figure("Spark, local[2] / one process", best["one"] / best["spark"], "x", 1.5))
    return found


def _merged(executor: Executor, job: MergeJob) -> tuple[float, int]:
    """Seconds that it took, and bytes of records."""
    begin = time.perf_counter()
    found: Merged = merge_with(executor, _going_on, job, LocalFiles())
    seconds = time.perf_counter() - begin
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
        source = FileSource(folder / f"{number:02}", LocalFiles())
        row = row_of(
            Archive.open(source).manifest, number=number, place=str(folder), key=f"{number:02}",
            tier="warm", size=len(data), crc=0,
        )  # fmt: skip
        inputs.append(MergeInput(place=str(folder), row=row))
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
    sink = BytesIO()
    origin = ArchiveOrigin(store_id=_STORE, segments=(segment,), retention_class="all")
    writer = ArchiveWriter(sink, ArchiveSettings(), origin)
    for topic, queue, batch in batches:
        writer.add(topic, queue, batch)
    writer.finish()
    return sink.getvalue()
