"""Archives read by Spark: how fast, against Parquet, and how little of them for one topic.

The idea: messages of a hundred topics are archived by a worker, and the same rows written by Spark
as Parquet with zstd. Both are read whole, all columns, into nothing, on two cores: in turn, since a
machine is not as fast at one time as at another, and each by a Spark of its own, since a JVM that
has run one compiles the other for both. The ratio is the figure, of the best of each. The bytes
read with a filter are counted.
"""

from __future__ import annotations

import atexit
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kvstore
from bench.archives import body_of
from bench.figure import Figure, Options
from kvstore import Message, StoreConfig
from tiering import Policy, Worker
from tiering.spark.arrow import SCHEMA
from tiering.spark.listing import Opener, listing
from tiering.spark.options import read_options
from tiering.spark.part_reader import PartReader
from tiering.spark.session import session
from tiering.spark.splits import plan_splits
from tiering.spark.wanted import QueryFilter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MESSAGES: Final = 1_000_000
"""A second or two of scanning: shorter runs differ mostly in how tasks happen to end."""
_TOPICS: Final = 100
_BATCH: Final = 32
_WARM: Final = 4
"""Rounds that don't count: for so long most of a scan is being compiled."""
_ROUNDS: Final = 5


def run(folder: Path, options: Options) -> list[Figure]:
    """Scan archives and Parquet by Spark on two cores; count what one topic of a hundred reads."""
    topics = options.topics or _TOPICS
    count = options.messages or _MESSAGES
    store = folder / "store"
    _fill(store, count, topics, options.queues or 4)
    parquet = str(folder / "parquet")
    times: dict[str, list[float]] = {"archives": [], "parquet": []}
    with _spark() as ours, _spark() as theirs:
        ours.submit(_to_parquet, str(store), parquet).result()
        for _ in range(_WARM + _ROUNDS):
            times["parquet"].append(theirs.submit(_scanned, "parquet", parquet).result())
            times["archives"].append(ours.submit(_scanned, "kvmq", str(store)).result())
    taken_by = {name: min(each[_WARM:]) for name, each in times.items()}
    ours_s, theirs_s = taken_by["archives"], taken_by["parquet"]
    all_bytes, one_topic = _read(store, []), _read(store, ["topic-7"])
    kept = sum(path.stat().st_size for path in (store / "archive").rglob("*.kvarc"))
    taken = sum(path.stat().st_size for path in Path(parquet).rglob("*.parquet"))
    return [
        Figure("scan, of the rate of Parquet", 100 * theirs_s / ours_s, "%", 60.0),
        Figure("scan of archives", count / ours_s, "messages/s"),
        Figure("scan of Parquet", count / theirs_s, "messages/s"),
        Figure("one topic reads, of all", 100 * one_topic / all_bytes, "%", 5.0, "lower"),
        Figure("archives, of Parquet's size", 100 * kept / taken, "%", better="lower"),
    ]


def _fill(path: Path, count: int, topics: int, queues: int) -> None:
    """A store whose messages are all in archives."""
    draw = random.Random(7)
    config = StoreConfig(segment_size=64 << 20, watermarks=(0.98, 0.99, 1.0))
    with kvstore.open(path, config) as store:
        for topic in range(topics):
            store.create_topic(f"topic-{topic}", queues=queues)
        for at in range(0, count, _BATCH):
            store.put_batch(
                [
                    Message(f"topic-{n % topics}", body_of(draw, n), tag="t", keys=(f"k{n}",))
                    for n in range(at, min(at + _BATCH, count))
                ]
            )
        store.seal()
        policy = Policy(hot_for=0.0, warm_for=1e8, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            report = worker.run_once()
            assert not report.failed, report.failed


def _spark() -> ProcessPoolExecutor:
    """A process that has a Spark on two cores, which ends with it."""
    return ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))


@cache
def _session() -> SparkSession:
    open_session = session(master="local[2]", settings={"spark.driver.memory": "3g"})
    atexit.register(open_session.__exit__, None, None, None)
    return open_session.__enter__()


def _to_parquet(store: str, parquet: str) -> None:
    archives = _session().read.format("kvmq").load(store)
    archives.write.option("compression", "zstd").parquet(parquet)


def _scanned(kind: str, path: str) -> float:
    """Seconds that reading all of a table takes."""
    table = _session().read.format(kind).load(path)
    begin = time.perf_counter()
    table.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def _read(store: Path, topics: list[str]) -> int:
    """Bytes of archives that are read for some topics (none: all), planning included."""
    given = {"path": str(store), **({"topics": ",".join(topics)} if topics else {})}
    options = read_options(given)
    opener = Opener(options)
    wanted = QueryFilter.of(options)
    splits = plan_splits(listing(options), wanted, options, opener)
    reader = PartReader(options, wanted, SCHEMA.names, opener)
    for split in splits:
        for _ in reader.batches(split):
            pass
    return opener.read
