"""Tiering an open store: how fast segments become archives, and how much that slows puts.

The idea: bodies of about 1 KB as in `archives`; a load is put with no worker, and another of the
same size while a worker moves the segments of the first; the ratio of the two is the figure, since
both are from one run.
"""

from __future__ import annotations

import random
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Final

import kvstore
from bench.archives import body_of
from bench.figure import Figure, Options
from kvstore import Message, Store, StoreConfig
from kvstore.cli.trial.measure import Load, create_topics, put_batches
from tiering import Policy, Worker

_MESSAGES: Final = 150_000
_SMALL: Final = 4_000_000
"""Messages of 128 B, where put and tiering are compared."""
_BATCH: Final = 32
_BODIES: Final = 2_000
_TOPICS: Final = 8


def run(folder: Path, options: Options) -> list[Figure]:
    """Put, then put while what is there is moved."""
    count = options.messages or _MESSAGES
    topics = options.topics or _TOPICS
    draw = random.Random(7)
    bodies = [body_of(draw, number) for number in range(min(count, _BODIES))]
    size = 64 << 20 if count * 300 > 32 << 20 else 1 << 20
    config = StoreConfig(segment_size=size, watermarks=(0.98, 0.99, 1.0))
    with kvstore.open(folder / "store", config) as store:
        for topic in range(topics):
            store.create_topic(f"topic-{topic}", queues=8)
        _put(store, bodies, topics, count // 4)  # warms everything up
        alone = _put(store, bodies, topics, count)
        store.seal()
        policy = Policy(hot_for=0.0, warm_for=1e8, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            found: list[float] = []
            thread = threading.Thread(target=lambda: found.append(_moved(worker)))
            thread.start()
            beside = _put(store, bodies, topics, count)
            thread.join()
            archives = worker.archives()
    raw, coded = sum(a.raw_bytes for a in archives), sum(a.bytes for a in archives)
    return [
        Figure("put rate beside a worker", 100 * beside / alone, "%", 80.0),
        Figure("moved beside puts", raw / found[0] / 1e6, "MB/s of records"),
        Figure("archives, of records", 100 * coded / raw, "%", better="lower"),
    ]


def run_rate(folder: Path, options: Options) -> list[Figure]:
    """Messages of 128 B become archives as fast as they were put? 8 x 8 queues."""
    return _rates(folder, Load(options.messages or _SMALL, options.size or 128))


def run_rate_many(folder: Path, options: Options) -> list[Figure]:
    """Messages of 128 B become archives as fast as they were put? 5,000 x 8 queues."""
    load = Load(
        options.messages or _SMALL,
        options.size or 128,
        topics=options.topics or 5000,
        queues=options.queues or 8,
    )
    return _rates(folder, load)


def _rates(folder: Path, load: Load) -> list[Figure]:
    size = 256 << 20 if load.messages * 300 > 1 << 30 else 1 << 20
    config = StoreConfig(segment_size=size, watermarks=(0.97, 0.98, 0.99))
    with kvstore.open(folder / "store", config) as store:
        create_topics(store, load)
        put = put_batches(store, load).rate
        store.seal()
        policy = Policy(hot_for=0.0, warm_for=1e8, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            seconds = _moved(worker)
            raw = sum(archive.raw_bytes for archive in worker.archives())
    queues = f"{load.topics * load.queues:,} queues"
    tiered = load.messages / seconds
    return [
        Figure(f"put(32), {load.body} B, {queues}", put, "msg/s"),
        Figure(f"tiered, {queues}", tiered, "msg/s"),
        Figure(f"tiered, {queues}, of records", raw / seconds / 1e6, "MB/s"),
        Figure(f"tiered, of put, {queues}", 100 * tiered / put, "%", 100.0),
    ]


def _put(store: Store, bodies: list[bytes], topics: int, count: int) -> float:
    """Messages a second."""
    numbers = iter(range(count))
    begin = time.perf_counter()
    while batch := list(islice(numbers, _BATCH)):
        store.put_batch(
            [
                Message(f"topic-{n % topics}", bodies[n % len(bodies)], tag="t", keys=(f"k{n}",))
                for n in batch
            ]
        )
    return count / (time.perf_counter() - begin)


def _moved(worker: Worker) -> float:
    """Seconds that a run took."""
    begin = time.perf_counter()
    report = worker.run_once()
    assert not report.failed, report.failed
    return time.perf_counter() - begin
