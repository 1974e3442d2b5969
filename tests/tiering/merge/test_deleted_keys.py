"""A deleted key stays deleted: its tombstone goes only with every older value, wherever that is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import kvstore
import tiering
from kvstore import Message, Store
from tests.support.clock import VirtualClock
from tests.tiering.stores import config
from tiering import Policy, Worker
from tiering.executor.pool import Executor, Inline
from tiering.merge.merge import merge_with

DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, tombstones_for=DAY, watermarks=None)
Table = dict[str, bytes]


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with kvstore.open(tmp_path / "store", config(clock)) as opened:
        opened.create_topic("table", queues=1, kind="compacted")
        opened.create_topic("other", queues=1)
        yield opened


def put(store: Store, key: str, body: bytes) -> None:
    store.put_batch([Message("table", body, queue=0, keys=(key,))])


def archive(store: Store, clock: VirtualClock, worker: Worker) -> None:
    """What was put so far becomes an archive."""
    store.seal()
    clock.advance(2 * DAY)
    assert worker.run_once().failed == {}


def current(store: Store) -> Table:
    """The newest value of each key that is not deleted."""
    found: Table = {}
    low, high = store.bounds("table", 0)
    while low < high:
        page = store.pull("table", 0, low, limit=50)
        found |= {m.keys[0]: m.body for m in page.messages}
        low = page.next_offset
    return {key: body for key, body in found.items() if body}


def erased_beside_a_tombstone(
    store: Store, clock: VirtualClock, worker: Worker, backup: Path
) -> None:
    """A store that has a tombstone of "k" and not its value, which `backup` has; a segment in the
    log keeps what is attached from being merged with the tombstone.
    """
    put(store, "k", b"secret")
    put(store, "x", b"stays")
    archive(store, clock, worker)
    shutil.copytree(store.path / "archive", backup)
    before = store.config.clock.now_ms()
    put(store, "k", b"")
    put(store, "y", b"newer")
    archive(store, clock, worker)
    assert worker.erase(topic="table", before=before).messages == 2
    store.put("other", b"in the log")
    store.seal()


def test_a_tombstone_stays_while_an_attached_archive_has_an_older_value(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    with Worker(store, POLICY, executor=Inline()) as worker:
        erased_beside_a_tombstone(store, clock, worker, tmp_path / "backup")
        assert tiering.attach(store, tmp_path / "backup", topics=["table"]).messages == 2
        assert current(store) == {"x": b"stays", "y": b"newer"}
        assert worker.compact().failed == {}
        assert current(store) == {"x": b"stays", "y": b"newer"}
        archive(store, clock, worker)
        assert worker.compact().failed == {}
    assert current(store) == {"x": b"stays", "y": b"newer"}
    left = store.pull("table", 0, store.bounds("table", 0)[0], limit=50)
    assert [m.offset for m in left.messages] == [1, 3], "both are gone now"


def test_a_tombstone_stays_while_the_log_has_an_older_value(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    put(store, "k", b"secret")
    with kvstore.open(tmp_path / "source", config(clock)) as source:
        source.create_topic("table", queues=1, kind="compacted")
        put(source, "z", b"")
        put(source, "k", b"")
        with Worker(source, POLICY, executor=Inline()) as worker:
            archive(source, clock, worker)
            assert worker.erase(key="z").messages == 1
    tiering.attach(store, tmp_path / "source" / "archive")
    patient = Policy(
        hot_for=100 * DAY, warm="archive", clock_doubt=0.0, tombstones_for=DAY, watermarks=None
    )
    clock.advance(2 * DAY)
    with Worker(store, patient, executor=Inline()) as worker:
        assert worker.run_once().segments == []
        assert worker.compact().failed == {}
        assert current(store) == {}
    with Worker(store, POLICY, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        assert worker.compact().failed == {}
    assert current(store) == {}


def test_a_tombstone_stays_if_an_older_value_is_attached_while_it_is_compacted(
    store: Store, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attached_meanwhile(executor: Executor, check: Callable[[], None], *rest: object) -> object:
        made = merge_with(executor, check, *rest)  # type: ignore[arg-type]  # handed on
        monkeypatch.undo()
        tiering.attach(store, tmp_path / "backup", topics=["table"])
        return made

    with Worker(store, POLICY, executor=Inline()) as worker:
        erased_beside_a_tombstone(store, clock, worker, tmp_path / "backup")
        monkeypatch.setattr("tiering.worker.replace.merge_with", attached_meanwhile)
        (why,) = worker.compact().failed.values()
        assert "messages from offset 0 on were attached" in str(why)
        assert current(store) == {"x": b"stays", "y": b"newer"}
        clock.advance(2 * DAY)
        assert worker.compact().failed == {}
    assert current(store) == {"x": b"stays", "y": b"newer"}
    assert store.verify(archives=True).problems == []


@pytest.mark.parametrize("seed", range(8))
def test_compacting_changes_no_current_value_whatever_came_in_any_order(
    store: Store, clock: VirtualClock, tmp_path: Path, seed: int
) -> None:
    """Archives of one table are attached in any order, with segments of the log between some."""
    draw = Random(seed)
    parts = 4
    with kvstore.open(tmp_path / "source", config(clock)) as source:
        source.create_topic("table", queues=1, kind="compacted")
        with Worker(source, POLICY, executor=Inline()) as worker:
            known: set[str] = set()
            for part in range(parts):
                for n in range(4):
                    put(source, draw.choice("abc"), draw.choice([b"", b"%d.%d" % (part, n)]))
                archive(source, clock, worker)
                place = tmp_path / f"part{part}"
                shutil.copytree(source.path / "archive", place)
                for path in place.rglob("*.kvarc"):
                    if path.name in known:
                        path.unlink()
                    known.add(path.name)
    clock.advance(2 * DAY)
    with Worker(store, POLICY, executor=Inline()) as worker:
        for part in draw.sample(range(parts), parts):
            tiering.attach(store, tmp_path / f"part{part}")
            if draw.random() < 0.6:
                store.put("other", b"in the log")
                store.seal()
            before = current(store)
            assert worker.compact().failed == {}
            assert current(store) == before
    assert store.verify(archives=True).problems == []
