"""A store with archives and a hot log, and one Spark for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore import Message, Store, StoreConfig, StoredMessage
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tiering import Policy, Worker
from tiering.spark.session import JOBS, SCANS, session

SEGMENT = 64 << 10
DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, block_bytes=8192)
TOPICS = {"orders": 3, "events": 2, "gone": 1}


def message(n: int) -> Message:
    topic = ("orders", "events", "orders", "gone")[n % 4]
    return Message(
        topic,
        b"message %d " % n * (1 + n % 40),
        queue=n // 4 % TOPICS[topic],
        tag=("paid", "sent", None)[n % 3],
        keys=[f"k{n % 9}", f"n{n}"] if n % 5 else [],
        properties={"number": str(n), "näme": "wert"} if n % 7 else {},
    )


def by_position(store: Store) -> dict[int, StoredMessage]:
    """All messages of a store, as a consumer reads them."""
    return {m.position: m for messages in read_all(store).values() for m in messages}


def tiered(store: Store, clock: VirtualClock, *, keep_days: float | None = None) -> None:
    """Two days pass, and a worker archives all that there is; old archives go."""
    store.seal()
    clock.advance(2 * DAY)
    warm_for = None if keep_days is None else keep_days * DAY
    with Worker(store, msgspec.structs.replace(POLICY, warm_for=warm_for)) as worker:
        assert worker.run_once().failed == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that is closed; two thirds of its messages are in archives."""
    path = tmp_path_factory.mktemp("spark") / "store"
    clock = VirtualClock()
    config = StoreConfig(segment_size=SEGMENT, clock=clock, compress_above=800)
    with kvstore.open(path, config) as store:
        for topic, queues in TOPICS.items():
            store.create_topic(topic, queues=queues)
        for n in range(900):
            store.put_batch([message(n)])
            clock.advance(1.0)
        tiered(store, clock)
        for n in range(900, 1200):
            store.put_batch([message(n)])
            clock.advance(1.0)
        store.delete_topic("gone")
    return path


@pytest.fixture(scope="module")
def held(folder: Path) -> dict[int, StoredMessage]:
    """All messages of the store, by position, as a consumer reads them."""
    with kvstore.open(folder, read_only=True) as store:
        return by_position(store)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Its JVM compiles code as fast as it can, not as well: tests are over before that would pay.
    shuffles = {"spark.sql.shuffle.partitions": "2"}
    with session(master="local[2,4]", settings=shuffles, jvm=(*SCANS, *JOBS)) as one:
        yield one
