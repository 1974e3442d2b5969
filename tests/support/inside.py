"""The inside of an open store, for tests that look at a part of it, or strike between two steps.

Only this module knows under which names a store keeps its parts, so that a change there changes
this file alone; a test holds all others to that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvstore.aio
from kvstore import PullResult, Store, StoredMessage
from kvstore.clock import SystemClock
from kvstore.engine.engine import Engine
from kvstore.engine.repeats import Repeats
from kvstore.engine.retention import Why
from kvstore.engine.upkeep import Housekeeper, Upkeep, UpkeepJob
from kvstore.engine.writer import Writer
from kvstore.index.families import Families
from kvstore.index.index import Index
from kvstore.index.key_lookup import MessageKeys
from kvstore.index.queue_locations import QueueLocations
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.meta.groups import Groups
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topics
from kvstore.opening import recovery
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.popper import Popper
from kvstore.pop.progress import ProgressHistory
from kvstore.process.background import ThreadStats
from kvstore.process.locks import Signal
from kvstore.read.find import Finder
from kvstore.read.pull import pull
from kvstore.read.reader import Reader
from kvstore.record.put.put_routes import PutRoutes
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.renewals import Renewals
from kvstore.serve.grpc.rocketmq_door import RocketmqDoor
from kvstore.serve.grpc.service_table import Services
from kvstore.timing.prepared_message import WITH_THE_FIRST, PreparedMessage
from tiering import Worker
from tiering.worker.context import WorkContext
from tiering.worker.run_due import Relocator
from tiering.worker.store_snapshot import Snapshotter


@dataclass(frozen=True, slots=True)
class Step:
    """A function or value that only the product uses, for a test to put another in its place."""

    owner: Any
    name: str

    @property
    def now(self) -> Any:
        """The one that is there."""
        return getattr(self.owner, self.name)

    def replace(self, by: object, patch: pytest.MonkeyPatch) -> None:
        """Puts another there until the patch is undone."""
        patch.setattr(self.owner, self.name, by)


def engine(store: Store) -> Engine:
    return store._engine


def pull_waiting(store: Store, topic: str, queue: int, offset: int, limit: int) -> PullResult:
    """As `Store.pull`, of a topic in which messages wait."""
    engine = store._engine
    return pull(engine.reader, engine.topics.get(topic), queue, offset, limit, None, None)


def query_waiting(store: Store, topic: str, key: str, limit: int) -> list[StoredMessage]:
    """As `Store.query`, of a topic in which messages wait."""
    engine = store._engine
    return engine.finder.query(engine.topics.get(topic), key, None, None, limit)


def log(store: Store) -> CommitLog:
    return store._engine.log


def buffered_bytes(store: Store) -> int:
    """How many bytes the write buffer has that takes more."""
    staging = store._engine.log.staging
    assert staging is not None, "the store writes without a buffer"
    return staging._active.bytes


def flusher(store: Store) -> Flusher:
    return store._engine.flusher


def threads_at(signal: Signal) -> int:
    """How many threads wait for a signal."""
    return len(signal._waiters)


def wake_threads_at(signal: Signal) -> None:
    """Wake the threads that wait for a signal, which stays as it is."""
    while signal._waiters:
        with contextlib.suppress(IndexError):  # the last one went by itself
            signal._waiters.pop().release()


def threads_at_the_disk(store: Store) -> int:
    """How many threads wait for the flusher."""
    return len(store._engine.flusher._waiters)


def index(store: Store) -> Index:
    return store._engine.index


def families(store: Store) -> Families:
    return store._engine.index.families


class _CountingWrites:
    """RocksDB, or one of its families: each call of these is a write of its own."""

    def __init__(self, inner: Any, writes: list[str]) -> None:
        self._inner = inner
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "put", "delete", "delete_range"):
            self._writes.append(name)
        return getattr(self._inner, name)


def counted_writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that write into RocksDB from now on."""
    rocksdb, writes = families(store), list[str]()
    counted = {n: _CountingWrites(f, writes) for n, f in rocksdb._families.items()}
    monkeypatch.setattr(rocksdb, "_db", _CountingWrites(rocksdb._db, writes))
    monkeypatch.setattr(rocksdb, "_families", counted)
    return writes


def database(store: Store) -> Any:
    """RocksDB itself."""
    return store._engine.index.families._db


def database_opening(families: Families | type[Families]) -> Step:
    """Opens RocksDB."""
    return Step(families, "_open")


def database_options() -> Step:
    """Makes the options of RocksDB."""
    return Step(Families, "_db_options")


def find_disk_full(families: Families) -> None:
    """Leaves families as a write does that found the disk full."""
    families._full = True


def keys(store: Store) -> MessageKeys:
    return store._engine.index.keys


def thread(store: Store, name: str) -> ThreadStats:
    """A thread of a store."""
    return next(one for one in store.stats().threads if one.name == name)


def deliver_due(store: Store) -> None:
    """Deliver all messages that are due, in this thread."""
    while store._engine.timers.deliver() == 0:
        pass


def writing_of_times(store: Store) -> Step:
    """Writes the times of schedules, behind a step of theirs."""
    return Step(store._engine.schedules, "_write_times")


def end_part_of_set(store: Store, message_id: str, count: int, how: str) -> None:
    """End the first messages of a set alone, as an earlier version did."""
    transactions, found = store._engine.transactions, store._engine.prepared_list
    (first,) = found.states(message_id, None)
    assert isinstance(first, PreparedMessage)
    part = found.together(first, None).messages[:count]
    if how == "commit":
        transactions._commit(part)
    elif how == "rollback":
        transactions._roll_back(part, "rollback")
    elif how == "give up":
        transactions._put_to_discarded(part)
    else:
        due = store.config.clock.now_ms() + 30_000
        transactions._wait_again(part, [due] + [WITH_THE_FIRST] * (count - 1), [1] * count)


def ask_about_transactions(store: Store) -> None:
    """Have everybody asked who is to be asked about a transaction, and wait for the answers."""
    checks = store._engine.checks
    is_over = False
    while not is_over:
        checks.run()  # behind a turn of the housekeeper, if one is under way
        for _ in range(10_000):
            lines = [checks._lines.get(one.group) for one in checks._checkers if one.is_open]
            # In this order: a question is asked before it leaves its line.
            if not any(lines) and not checks._asked:
                break
            SystemClock().sleep(0.001)
        is_over = not checks.due()


def look_for_questions(store: Store) -> None:
    """Run the housekeeper's job of checks once."""
    store._engine.checks.run()


@contextlib.contextmanager
def rows_read(family: str) -> Iterator[list[bytes]]:
    """The keys of rows of a family that are read by going through them, in all stores."""
    read: list[bytes] = []
    plain = Families.rows

    def rows(
        self: Families, name: str, first: bytes, end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in plain(self, name, first, end):
            if name == family:
                read.append(key)
            yield key, value

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Families, "rows", rows)
        yield read


class KeyCaches(NamedTuple):
    """How many blocks and pieces of filters the key index has in memory, and the bytes of these."""

    blocks: int
    filters: int
    filter_bytes: int


def key_caches(keys: MessageKeys) -> KeyCaches:
    return KeyCaches(len(keys._blocks), len(keys._filters), keys._filter_bytes)


def locations_known(queues: QueueLocations) -> tuple[int, int]:
    """Of how many queues the location asked for last is in memory, and the first one."""
    return len(queues._spans), len(queues._firsts)


def decoding_of_runs(store: Store) -> Step:
    """Reads the run that has an offset of a queue."""
    return Step(store._engine.index.locations, "decode_run")


def changes_of_locations(store: Store) -> Step:
    """Notes the queues whose locations a checkpoint has written."""
    return Step(store._engine.index.locations, "changed")


def reading_of_locations(queues: QueueLocations) -> Step:
    """Reads the locations of a queue from one on."""
    return Step(queues, "_behind")


def reading_of_runs(queues: QueueLocations) -> Step:
    """Reads the run that has an offset."""
    return Step(queues, "_run_at")


def topics(store: Store) -> Topics:
    return store._engine.topics


def groups(store: Store) -> Groups:
    return store._engine.groups


def offsets(store: Store) -> Offsets:
    return store._engine.offsets


def reader(store: Store) -> Reader:
    return store._engine.reader


def finder(store: Store) -> Finder:
    return store._engine.finder


def candidates(store: Store) -> Callable[..., Iterator[Any]]:
    """Gives the positions and archives of the messages that may have a key."""
    return store._engine.finder._candidates


def writer(store: Store) -> Writer:
    return store._engine.writer


def routes(store: Store) -> PutRoutes:
    """The topics as the writer knows them."""
    return store._engine.writer._routes


def appends(store: Store) -> Step:
    """Writes a batch whose records are made."""
    return Step(store._engine.writer, "_append")


def ending_of_prepared(store: Store) -> Step:
    """Rolls back the prepared messages of topics that are to be deleted."""
    return Step(store._engine.transactions, "go_with_topics")


def removals_of_topics(store: Store) -> Step:
    """Writes the batch that removes topics."""
    return Step(store._engine.index, "retire_topics")


def checkpoint_of_puts(store: Store) -> Step:
    """Writes the checkpoint for which a put waits."""
    return Step(store._engine.writer, "_checkpoint_now")


def checkpoint_of_recovery() -> Step:
    """Writes a checkpoint while a log is replayed."""
    return Step(recovery._Recovery, "_save")


def repeats(store: Store) -> Repeats:
    """The dedup ids that the writer knows."""
    return store._engine.writer._repeats


def upkeep(store: Store) -> Upkeep:
    return store._engine.upkeep


def drop_segment(store: Store, number: int) -> None:
    """Drops a segment as retention does."""
    store._engine.upkeep._drop(Why(number, "the test says so"))


def do_job(housekeeper: Housekeeper, job: UpkeepJob) -> None:
    """Does a job as a housekeeper's thread does, which outlives its failure."""
    housekeeper._do(job)


def housekeeper(store: Store) -> Housekeeper:
    return store._engine.housekeepers[0]


def housekeepers(store: Store) -> list[Housekeeper]:
    return store._engine.housekeepers


def stop_housekeepers(store: Store) -> None:
    """Nothing is done any more that no call asks for."""
    for one in store._engine.housekeepers:
        one.stop()


def popping(store: Store) -> Popper:
    return store._engine.popping


def tables(store: Store) -> InflightTables:
    return store._engine.popping.tables


def table(store: Store, group: str = "g", topic: str = "t") -> InflightTable:
    """The in-flight table of a group and topic, which has been used."""
    found = store._engine.popping.tables.find(store.group(group).id, store.topic(topic).id)
    assert found is not None, "nothing was popped"
    return found


def waiting(store: Store) -> Waiting:
    return store._engine.waiting


def progress(store: Store) -> ProgressHistory:
    return store._engine.progress


def begin_pop(store: Store) -> Callable[..., Any]:
    """The first step of a pop that may have to wait."""
    return store._begin_pop


def set_begin_pop(store: Store, by: Callable[..., Any] | None) -> None:
    """Puts something in the place of `begin_pop`; None has the store's own there again."""
    if by is None:
        del store._begin_pop
    else:
        store._begin_pop = by  # type: ignore[method-assign]  # so that a test stands between


def behind(store: kvstore.aio.Store) -> Store:
    """The store behind one for asyncio."""
    return store._store


def bells(store: kvstore.aio.Store) -> Collection[object]:
    """The pops of an asyncio store that wait, and hear of new messages."""
    return store._pops.bells


def alarms(store: kvstore.aio.Store) -> Collection[object]:
    """The groups and topics that an asyncio store looks at again when a lock runs out."""
    return store._pops.alarms


@contextmanager
def log_taken(store: Store) -> Iterator[None]:
    """Within this block another thread would have to wait before it puts."""
    with store._engine.log.lock:
        yield


@contextmanager
def table_taken(store: Store, group: str, topic: str) -> Iterator[None]:
    """Within this block another thread would have to wait before it pops or acks."""
    engine = store._engine
    ids = engine.groups.get(group).id, engine.topics.get(topic).id
    with engine.popping.tables.locked(*ids):
        yield


def polls(gatherer: Gatherer) -> Collection[object]:
    """The tasks of pops that wait in a server, from the time on at which they were made."""
    return gatherer._polls


def waiting_polls(gatherer: Gatherer) -> Collection[object]:
    """The pops of a server that wait."""
    return gatherer._pops.bells


def store_path(worker: Worker) -> Path:
    return worker._store.path


def work_context(worker: Worker) -> WorkContext:
    return worker._context


def snapshots(worker: Worker) -> Snapshotter:
    return worker._snapshots


def relocator(worker: Worker) -> Relocator:
    return worker._relocator


def tried_places(worker: Worker) -> set[str]:
    """The places that a worker wrote to once to see whether it can."""
    return worker._tried


def check_worker(worker: Worker) -> None:
    """Raise where a worker was told to stop."""
    worker._check()


def tell_to_stop(worker: Worker) -> None:
    """Tell a worker to stop, and do not wait for it."""
    worker._stopping.set()


def turn_of_runs(worker: Worker) -> threading.RLock:
    """The lock under which a worker runs."""
    return worker._busy


def set_progress(worker: Worker, progress: Callable[[str, int, int], None]) -> None:
    """Tell the progress of a worker's runs to another function."""
    worker._progress = progress


def door_services(door: RocketmqDoor) -> Services:
    """The services behind an open door."""
    assert door._services is not None
    return door._services


def planned_renewals(renewals: Renewals) -> int:
    """How many renewals are planned."""
    return len(renewals._due)
