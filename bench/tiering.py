"""Tiering an open store: how fast segments become archives, and what puts feel of it.

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
from tiering import Policy, Worker

_MESSAGES: Final = 150_000
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
