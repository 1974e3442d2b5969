"""Two copies of one store, for the embedded worker and for Spark, and what is to be the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvstore
from kvstore import Message, Retention, Store, StoreConfig, StoredMessage, TopicConfig
from tests.support.clock import VirtualClock
from tests.support.contents import queues, read_around
from tests.tiering.spark.conftest import DAY, SEGMENT
from tiering import KeyProvider, Policy, Worker
from tiering.catalog.catalog import ArchiveRow, decode_rows
from tiering.executor.pool import Executor

POLICY = Policy(
    hot_for=DAY, warm_for=10 * DAY, warm="archive", cold="cold", clock_doubt=0.0,
    block_bytes=8192, watermarks=None,
)  # fmt: skip
TOPICS = (
    TopicConfig(name="orders", queues=3),
    TopicConfig(name="skewed", queues=1),
    TopicConfig(name="brief", queues=1, retention=Retention(warm_for=2 * DAY, cold_for=DAY)),
    TopicConfig(name="table", queues=1, kind="compacted"),
)


def message(n: int) -> Message:
    topic = ("orders", "skewed", "skewed", "table", "brief", "skewed")[n % 6]
    return Message(
        topic,
        b"" if topic == "table" and n % 9 == 0 else b"message %d " % n * (1 + n % 50),
        queue=n % 3 if topic == "orders" else 0,
        tag=("paid", "sent", None)[n % 3],
        keys=[f"k{n % 7}", f"n{n}"],
        properties={"number": str(n)},
    )


def config(clock: VirtualClock) -> StoreConfig:
    return StoreConfig(segment_size=SEGMENT, clock=clock)


def make_store(path: Path, count: int = 900) -> int:
    """A store with some sealed segments, all of them due; returns what its clock says."""
    clock = VirtualClock()
    with kvstore.open(path, config(clock)) as store:
        store.create_topics(TOPICS)
        for n in range(count):
            store.put_batch([message(n)])
            clock.advance(1.0)
        store.seal()
    clock.advance(2 * DAY)
    return clock.now_ms()


class Side:
    """The state of one of the copies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects: dict[str, bytes] = {}
        self.rows: list[ArchiveRow] = []
        self.held: dict[int, StoredMessage] = {}
        self.told: Any = None

    def note(self, store: Store, told: Any) -> None:
        self.told = told
        self.rows = decode_rows(store.catalog().rows)
        self.objects = {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in sorted(self.path.rglob("*.kvarc"))
        }
        assert not list((self.path / "tiering" / "made").rglob("*"))
        for topic, queue in queues(store):
            messages, _ = read_around(store, topic, queue)
            self.held |= {m.position: m for m in messages}


def worked(
    folder: Path,
    target: Path,
    now_ms: int,
    work: Callable[[Worker, VirtualClock], Any],
    executor: Executor | None,
    *,
    policy: Policy = POLICY,
    keys: KeyProvider | None = None,
) -> Side:
    """Have a worker do something in a copy of a store."""
    shutil.copytree(folder, target)
    side, clock = Side(target), VirtualClock(now_ms)
    with kvstore.open(target, config(clock)) as store:
        with Worker(store, policy, keys=keys, executor=executor) as worker:
            told = work(worker, clock)
        side.note(store, told)
    return side


def both(
    tmp_path: Path,
    folder: Path,
    now_ms: int,
    executor: Executor,
    work: Callable[[Worker, VirtualClock], Any],
    **given: Any,
) -> tuple[Side, Side]:
    """The same work, done embedded and on Spark, in copies of one store; all that can be told is
    the same.
    """
    one = worked(folder, tmp_path / "embedded", now_ms, work, None, **given)
    other = worked(folder, tmp_path / "spark", now_ms, work, executor, **given)
    assert plain(one.told) == plain(other.told)
    assert one.rows == other.rows
    assert one.objects.keys() == other.objects.keys()
    assert one.objects == other.objects
    assert one.held == other.held
    return one, other


def plain(told: Any) -> Any:
    """A report without what differs by the folder's name."""
    text = repr(told)
    return text.replace("/embedded/", "/-/").replace("/spark/", "/-/")
