"""What was erased is in no file of the store's folder any more, and was never in a log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Store
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tests.tiering.worker.conftest import config
from tests.tiering.worker.pools import Here
from tiering import Policy, Worker

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


def test_an_erased_key_and_its_messages_are_in_no_file_and_in_no_log(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("orders", queues=2)
        store.create_group("g", max_attempts=2, backoff=(0.0,))
        with Worker(store, NOW, executor=Here()) as worker:
            for number in range(2):
                put(store, number)
                use(store, clock)
                store.seal()
                assert worker.run_once().failed == {}
            assert worker.merge().merged
            put(store, 2)
            made = store.path / "tiering" / "made" / "killed"
            made.mkdir(parents=True)
            (made / "1.archive").write_bytes(BODY)
            assert files_with(path, BODY)
            assert files_with(path, KEY.encode())
            report = worker.erase(key=KEY)
            assert report.is_proven, report.failed
            assert report.messages >= 6
            (done,) = worker.history.last(1)
            assert (done.what, done.source) == ("erased", "key ...")
        for what in (BODY, KEY.encode()):
            assert files_with(path, what) == []
    with kvstore.open(path, config(clock)) as store:
        assert store.query("orders", KEY) == []
        assert len(store.query("orders", "another")) == 6
    for what in (BODY, KEY.encode()):
        assert files_with(path, what) == []
    assert KEY not in caplog.text


def test_what_a_killed_worker_left_is_overwritten_before_it_is_removed(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Another name of the same file shows what its blocks hold."""
    path = tmp_path / "store"
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, NOW, executor=Here()) as worker,
    ):
        for name in ("made/killed/1.archive", "shifting/0000000007"):
            left = store.path / "tiering" / name
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(BODY)
            (tmp_path / left.name).hardlink_to(left)
        assert worker.run_once().removed == ["killed/1.archive", "shifting/0000000007"]
        for name in ("1.archive", "0000000007"):
            assert LocalFiles().read(tmp_path / name) == bytes(len(BODY))
