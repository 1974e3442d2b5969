"""Erased messages are in no file of the store's folder any more, and were never in a log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kvstore
from kvstore import Message, Store, StoreError
from kvstore.files import LocalFiles
from kvstore.index.keys import FAMILIES
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.files import Effect, WatchedFiles, copy_folder
from tests.tiering.stores import config
from tiering import Policy, Worker
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.pool import Inline
from tiering.executor.segment_encoder import segment_task
from tiering.merge.merge import merge_task

NOW = Policy(hot_for=0, warm="archive", grace=1e6, clock_doubt=0.0)
KEY = "customer-4711-of-nobody"
BODY = b"the address of customer 4711"


def files_with(folder: Path, what: bytes) -> list[str]:
    """Every file there is, RocksDB's write-ahead log, tables and own logs among them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [str(path.relative_to(folder)) for path in files if what in path.read_bytes()]


def put(store: Store, number: int) -> None:
    for queue in range(2):
        store.put_batch(
            [
                Message("orders", BODY, queue=queue, keys=(KEY, f"k{number}"), tag="t"),
                Message("orders", b"another's", queue=queue, keys=("another",)),
            ]
        )


def use(store: Store, clock: VirtualClock) -> None:
    """Messages are popped, left to run out, acked, become dead letters, are looked for."""
    for attempt in range(3):
        for popped in store.pop("g", "orders", limit=10, invisible_for=1.0):
            if popped.message.body != BODY or attempt == 0:
                store.ack(popped.receipt)
        clock.advance(5)
    assert store.query("orders", KEY)
    store.checkpoint()


class Case(NamedTuple):
    """The erasure that is asked for, the texts that must be nowhere, the beginning of its line in
    the history, and how many other messages stay.
    """

    asked: dict[str, Any]
    nowhere: tuple[bytes, ...]
    noted: str
    others: int


CASES: Final = {
    "key": Case({"key": KEY}, (BODY, KEY.encode()), "key ...", 6),
    "topic": Case({"topic": "orders"}, (BODY, KEY.encode(), b"another's"), "topic orders", 0),
    "time": Case({"before": 1 << 60}, (BODY, KEY.encode(), b"another's"), "stored before", 0),
    "key of a topic": Case(
        {"key": KEY, "topic": "orders"}, (BODY, KEY.encode()), "topic orders, key ...", 6
    ),
}  # fmt: skip


class Failing(Inline):
    """Rewrites nothing, and says with what it was to do it."""

    def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
        if work in (merge_task, segment_task) and args[0].without is not None:
            raise StoreError(f"can't do {args[0]}")
        return super().run(check, work, *args)


def leave_behind(store: Store, clock: VirtualClock) -> None:
    """Makes the leftovers of killed processes: archives that were being made, or copied, or put."""
    archive = min((store.path / "archive").rglob("*.kvarc"))
    for name in (
        "made/killed/1.archive",
        "made/killed/2/3.archive",
        "shifting/0000000007",
        "attach/made/4.kvarc",
    ):
        left = store.path / "tiering" / name
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(BODY + KEY.encode())
    part = archive.with_name(f".{archive.name}.0123456789abcdef.part")
    part.write_bytes(BODY + KEY.encode())


def rows_of_index(store: Store) -> Iterator[bytes]:
    """Every key and value of RocksDB, which a file of its may hold compressed."""
    for family in FAMILIES:
        for key, value in inside.families(store).rows(family, b""):
            yield key
            yield value


@pytest.mark.parametrize("name", CASES)
def test_erased_messages_and_their_keys_are_in_no_file_and_in_no_log(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    case = CASES[name]
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("orders", queues=2)
        store.create_group("g", max_attempts=2, backoff=(0.0,))
        with Worker(store, NOW, executor=Inline()) as worker:
            for number in range(2):
                put(store, number)
                use(store, clock)
                store.seal()
                assert worker.run_once().failed == {}
            assert worker.merge().merged
            put(store, 2)
            leave_behind(store, clock)
            for what in (BODY, KEY.encode()):
                assert files_with(path, what)
                assert not any(what in row for row in rows_of_index(store)), "it has digests alone"
            report = worker.erase(**case.asked)
            assert report.is_proven, report.failed
            assert report.messages >= 6
            (done,) = worker.history.last(1)
            assert done.what == "erased"
            assert done.source.startswith(case.noted)
        assert [w for w in case.nowhere if any(w in row for row in rows_of_index(store))] == []
        for what in case.nowhere:
            assert files_with(path, what) == []
    with kvstore.open(path, config(clock)) as store:
        assert store.query("orders", KEY) == []
        assert len(store.query("orders", "another")) == case.others
    for what in case.nowhere:
        assert files_with(path, what) == []
    assert KEY not in caplog.text


def test_an_erasure_that_fails_notes_no_key_and_prints_none(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("orders", queues=2)
        with Worker(store, NOW, executor=Failing()) as worker:
            put(store, 0)
            store.seal()
            worker.run_once()
            assert not worker.erase(key=KEY).is_proven
            assert worker.history.last(1)[0].note.startswith("not proven")
            work = store.path / "tiering"
            assert not [
                p for p in work.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()
            ]
    match = ErasurePredicate(key=KEY, topic="orders")
    assert KEY in str(match)
    assert repr(match) == "ErasurePredicate(topic orders, key ...)"
    assert KEY not in caplog.text


def test_what_a_killed_worker_left_is_overwritten_before_it_is_removed(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Another name of the same file shows what its blocks hold."""
    path = tmp_path / "store"
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, NOW, executor=Inline()) as worker,
    ):
        for name in ("made/killed/1.archive", "shifting/0000000007"):
            left = store.path / "tiering" / name
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(BODY)
            (tmp_path / left.name).hardlink_to(left)
        assert worker.run_once().removed == ["killed/1.archive", "shifting/0000000007"]
        for name in ("1.archive", "0000000007"):
            assert LocalFiles().read(tmp_path / name) == bytes(len(BODY))


class Folder(WatchedFiles):
    """Keeps a copy of a store's folder as it is when the first of its segments goes."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self._look
        self.killed = Path()

    def _look(self, effect: Effect) -> None:
        path, store = effect.path, effect.path.parents[1]
        is_segment = effect.kind == "rename" and path.parent.name == "commitlog"
        if is_segment and not self.killed.name and path.with_suffix("") in segments_in(store):
            self.killed = copy_folder(store, store.with_name("killed"))


@pytest.fixture
def sealed(tmp_path: Path, clock: VirtualClock) -> Iterator[tuple[Store, Folder]]:
    """A store of one segment with messages that are to be erased, and its file system."""
    files = Folder()
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as store:
        store.create_topic("orders", queues=2)
        put(store, 0)
        yield store, files


def segments_in(folder: Path) -> list[Path]:
    """The files of segments that hold what is to be erased."""
    return [path for path in (folder / "commitlog").iterdir() if BODY in path.read_bytes()]


def test_a_crash_in_an_erasing_hand_over_leaves_a_segment_that_the_opening_overwrites(
    sealed: tuple[Store, Folder], clock: VirtualClock
) -> None:
    """A file that is held open shows what its blocks hold when it has no name any more."""
    store, files = sealed
    with Worker(store, NOW, executor=Inline()) as worker:
        assert worker.erase(key=KEY).is_proven
    (path,) = segments_in(files.killed)
    with path.open("rb") as kept:
        kvstore.open(files.killed, config(clock)).close()
        assert segments_in(files.killed) == []
        assert not any(kept.read())


@pytest.mark.parametrize("kind", ["rename", "erase", "remove"])
def test_a_segment_that_a_disk_keeps_is_no_proof_and_the_next_erasure_overwrites_it(
    sealed: tuple[Store, Folder], kind: str
) -> None:
    store, files = sealed
    store.seal()
    (path,) = segments_in(store.path)
    with Worker(store, NOW, executor=Inline()) as worker, path.open("rb") as kept:
        files.fail(kind, path="commitlog", times=1000)
        for _ in range(2):
            assert not worker.erase(key=KEY).is_proven
            assert list((store.path / "commitlog").glob(f"{path.name}*"))
        files.mend()
        assert worker.erase(key=KEY).is_proven
        assert not list((store.path / "commitlog").glob(f"{path.name}*"))
        assert not any(kept.read())


def test_an_archive_that_outlives_its_erasure_is_overwritten_by_the_next_run(
    sealed: tuple[Store, Folder], clock: VirtualClock
) -> None:
    store, files = sealed
    store.seal()
    clock.advance(1)
    with Worker(store, NOW, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        (path,) = (store.path / "archive").rglob("*.kvarc")
        with path.open("rb") as kept:
            files.fail("erase", path="archive", times=1000)
            assert not worker.erase(key=KEY).is_proven
            files.mend()
            assert len(worker.run_once().removed) == 1
            assert not path.exists()
            assert not any(kept.read())
