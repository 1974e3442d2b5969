"""Archives read by Spark: how fast, against Parquet, and how little of them for one topic.

The idea: messages of a hundred topics are archived by a worker, and the same rows written by Spark
as Parquet with zstd. Both are read whole, all columns, into nothing, in turn, on two cores; the
ratio is the figure, since both are of one run. What a filter spares is counted in bytes read.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kvstore
from bench.archives import body_of
from bench.figure import Figure, Options
from kvstore import Message, StoreConfig
from tiering import Policy, Worker
from tiering.spark.listing import Opener, listing
from tiering.spark.options import read_options
from tiering.spark.reading import PartReader
from tiering.spark.schema import SCHEMA
from tiering.spark.session import session
from tiering.spark.splits import splits_of
from tiering.spark.wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MESSAGES: Final = 300_000
_TOPICS: Final = 100
_BATCH: Final = 32
_ROUNDS: Final = 3


def run(folder: Path, options: Options) -> list[Figure]:
    """Scan archives and Parquet by Spark on two cores; count what one topic of a hundred reads."""
    topics = options.topics or _TOPICS
    count = options.messages or _MESSAGES
    store = folder / "store"
    _fill(store, count, topics, options.queues or 4)
    with session(master="local[2]", settings={"spark.driver.memory": "3g"}) as spark:
        archives = spark.read.format("kvmq").load(str(store))
        parquet = str(folder / "parquet")
        archives.write.option("compression", "zstd").parquet(parquet)
        rows = spark.read.parquet(parquet)
        times: dict[str, list[float]] = {"archives": [], "parquet": []}
        for _ in range(1 + _ROUNDS):
            times["parquet"].append(_scanned(rows))
            times["archives"].append(_scanned(archives))
    # The first of each warms the JVM up.
    ours, theirs = min(times["archives"][1:]), min(times["parquet"][1:])
    all_bytes, one_topic = _read(store, []), _read(store, ["topic-7"])
    kept = sum(path.stat().st_size for path in (store / "archive").rglob("*.kvarc"))
    taken = sum(path.stat().st_size for path in Path(parquet).rglob("*.parquet"))
    return [
        Figure("scan, of the rate of Parquet", 100 * theirs / ours, "%", 60.0),
        Figure("scan of archives", count / ours, "messages/s"),
        Figure("scan of Parquet", count / theirs, "messages/s"),
        Figure("one topic reads, of all", 100 * one_topic / all_bytes, "%", 5.0, "lower"),
        Figure("archives, of Parquet's size", 100 * kept / taken, "%", better="lower"),
    ]


def _fill(path: Path, count: int, topics: int, queues: int) -> None:
    """A store whose messages are all in archives."""
    draw = random.Random(7)
    bodies = [body_of(draw, number) for number in range(count)]
    config = StoreConfig(segment_size=64 << 20, watermarks=(0.98, 0.99, 1.0))
    with kvstore.open(path, config) as store:
        for topic in range(topics):
            store.create_topic(f"topic-{topic}", queues=queues)
        for at in range(0, count, _BATCH):
            store.put_batch(
                [
                    Message(f"topic-{n % topics}", bodies[n], tag="t", keys=(f"k{n}",))
                    for n in range(at, min(at + _BATCH, count))
                ]
            )
        store.seal()
        policy = Policy(hot_for=0.0, warm_for=1e8, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            report = worker.run_once()
            assert not report.failed, report.failed


def _scanned(table: DataFrame) -> float:
    """Seconds that reading all of a table takes."""
    begin = time.perf_counter()
    table.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def _read(store: Path, topics: list[str]) -> int:
    """Bytes of archives that are read for some topics (none: all), planning included."""
    given = {"path": str(store), **({"topics": ",".join(topics)} if topics else {})}
    options = read_options(given)
    opener = Opener(options)
    wanted = Wanted.of(options)
    splits, skipped = splits_of(listing(options), wanted, options, opener)
    assert not skipped, skipped
    reader = PartReader(options, wanted, SCHEMA.names, opener)
    for split in splits:
        for _ in reader.batches(split):
            pass
    return opener.read
