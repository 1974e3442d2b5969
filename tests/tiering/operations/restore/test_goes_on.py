"""A restored store goes on as any other: it merges and erases what is its own, and takes nothing
from the store that it was restored from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import kvstore
import tiering
from kvstore import Message
from tests.support.clock import VirtualClock
from tests.tiering.stores import config
from tiering import Policy, Worker

POLICY = Policy(hot_for=60.0, warm="archive", clock_doubt=0.0, grace=0.0)


@pytest.mark.parametrize("copy", [True, False], ids=["taken along", "where they are"])
def test_a_restored_store_merges_and_erases(
    tmp_path: Path, clock: VirtualClock, copy: bool
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY) as worker:
            for n in range(3):
                store.put_batch(
                    [Message("a", b"%d" % m, queue=0, keys=(f"k{m}",)) for m in range(3)]
                )
                store.seal()
                clock.advance(100.0)
                assert worker.run_once().failed == {}, n
        before = store.pull("a", 0, 0, limit=100).messages
        objects = sorted((store.path / "archive").rglob("*.kvarc"))
        tiering.restore(tmp_path / "store" / "archive", tmp_path / "again", copy=copy)
        with kvstore.open(tmp_path / "again", config(clock)) as again:
            with Worker(again, POLICY) as worker:
                assert worker.merge().failed == {}
                assert len(worker.archives()) == (1 if copy else 3)
                assert again.pull("a", 0, 0, limit=100).messages == before
                report = worker.erase(key="k1")
                assert (report.is_proven, report.failed) == (True, {})
                assert worker.verify().problems == []
            left = again.pull("a", 0, 0, limit=100).messages
            assert left == [m for m in before if m.keys != ["k1"]]
            assert again.query("a", "k1") == []
        assert sorted((store.path / "archive").rglob("*.kvarc")) == objects
        assert store.pull("a", 0, 0, limit=100).messages == before


def test_a_restored_store_lets_archives_of_the_other_go_and_their_objects_lie(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        store.put_batch([Message("a", b"old", queue=0)])
        store.seal()
        clock.advance(100.0)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
        before = store.pull("a", 0, 0).messages
        tiering.restore(tmp_path / "store" / "archive", tmp_path / "again", config=config(clock))
        brief = msgspec.structs.replace(POLICY, warm_for=600.0)
        with (
            kvstore.open(tmp_path / "again", config(clock)) as again,
            Worker(again, brief) as worker,
        ):
            clock.advance(1000.0)
            assert len(worker.run_once().expired) == 1
            clock.advance(1000.0)
            worker.run_once()
            assert again.bounds("a", 0) == (1, 1)
            assert list(again.handover.rows()) == []
        assert store.pull("a", 0, 0).messages == before


def test_a_restored_store_that_loses_its_index_finds_all_archives_again(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        store.put_batch([Message("a", b"old", queue=0)])
        store.seal()
        clock.advance(100.0)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
    path = tmp_path / "again"
    tiering.restore(tmp_path / "store" / "archive", path, copy=True, config=config(clock))
    with kvstore.open(path, config(clock)) as again:
        again.put_batch([Message("a", b"new", queue=0)])
        again.seal()
        clock.advance(100.0)
        with Worker(again, POLICY) as worker:
            assert worker.run_once().failed == {}
        before = again.pull("a", 0, 0).messages
        assert [m.body for m in before] == [b"old", b"new"]
    shutil.rmtree(path / "index")
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as again:
        assert again.pull("a", 0, 0).messages == before
