"""A power cut takes from RocksDB's own log what was not synced: no call that promised the disk
depends on that.

RocksDB counts the syncs of its write-ahead log. Whenever the count has risen, what the log's files
hold by then is on the disk; a power cut leaves them that long, and no longer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options

import kvstore
from kvstore import Message, Store, TopicNotFound
from kvstore.index.families import Families
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, bodies
from tests.support.stores import SMALL, Opens, settings

_SYNCED = re.compile(r"rocksdb\.wal\.synced COUNT : (\d+)")
CLOCK = VirtualClock()
CONFIG = settings(clock=CLOCK, offset_sync_interval=1.0, checkpoint_interval=1e9)


class Disk:
    """The bytes of a store's write-ahead logs that are on the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._syncs = -1
        self._durable: dict[str, int] = {}
        self.look()

    def look(self) -> bool:
        """Records whether a sync came since the last look, and returns that."""
        found = inside.database(self._store).property_value("rocksdb.options-statistics")
        counted = _SYNCED.search(found or "")
        assert counted is not None, "RocksDB counts no syncs"
        before, self._syncs = self._syncs, int(counted[1])
        if self._syncs == before:
            return False
        for log in (self._store.path / "index").glob("*.log"):
            self._durable[log.name] = log.stat().st_size
        return True

    def cut(self, target: Path) -> Path:
        """The store's folder as a power cut leaves it now."""
        shutil.copytree(self._store.path, target)
        for log in (target / "index").glob("*.log"):
            with log.open("rb+") as f:
                f.truncate(min(self._durable.get(log.name, 0), log.stat().st_size))
        return target


@pytest.fixture
def store(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose housekeeper does nothing by itself, and whose RocksDB counts."""
    step = inside.database_options()
    options = step.now

    def counting(self: Families, *, create: bool) -> Options:
        found: Options = options(self, create=create)
        found.enable_statistics()
        return found

    step.replace(counting, monkeypatch)
    made = opens(CONFIG)
    inside.stop_housekeepers(made)
    made.create_topic("t", queues=1)
    made.create_topic("doomed", queues=1)
    made.create_group("g", max_attempts=1)
    made.create_group("doomed")
    made.put_batch([Message("t", b"%d" % n) for n in range(20)])
    made.flush()
    return made


def _no_topic(store: Store) -> bool:
    try:
        store.topic("doomed")
    except TopicNotFound:
        return True
    return False


def _sync_offsets(store: Store) -> None:
    store.commit_offset("g", "t", 0, 7)
    CLOCK.advance(2.0)
    assert inside.offsets(store).sync_due()
    inside.offsets(store).sync()


PROMISES: dict[str, tuple[Callable[[Store], Any], Callable[[Store], bool]]] = {
    "a topic that was made": (
        lambda s: s.create_topic("new", queues=3),
        lambda s: s.topic("new").write_queues == 3,
    ),
    "a topic that was altered": (
        lambda s: s.alter_topic("t", queues=5),
        lambda s: s.topic("t").write_queues == 5,
    ),
    "a topic that was deleted": (lambda s: s.delete_topic("doomed"), _no_topic),
    "a group that was made": (
        lambda s: s.create_group("new", max_attempts=3),
        lambda s: s.group("new").max_attempts == 3,
    ),
    "a group that was altered": (
        lambda s: s.alter_group("g", max_attempts=7),
        lambda s: s.group("g").max_attempts == 7,
    ),
    "a group that was deleted": (
        lambda s: s.delete_group("doomed"),
        lambda s: "doomed" not in [g.name for g in s.groups()],
    ),
    "a namespace that was made": (
        lambda s: s.create_namespace("n"),
        lambda s: s.namespaces() == ["n"],
    ),
    "an offset that was to be synced": (
        lambda s: s.commit_offset("g", "t", 0, 5, sync=True),
        lambda s: s.committed_offset("g", "t", 0) == 5,
    ),
    "an offset whose second is over": (
        _sync_offsets,
        lambda s: s.committed_offset("g", "t", 0) == 7,
    ),
}


@pytest.mark.parametrize("what", PROMISES)
def test_a_power_cut_takes_nothing_that_a_call_has_promised(
    store: Store, tmp_path: Path, what: str
) -> None:
    call, holds = PROMISES[what]
    disk = Disk(store)
    call(store)
    assert disk.look(), "it returned without a sync"
    with kvstore.open(disk.cut(tmp_path / "b"), SMALL) as cut:
        assert holds(cut)
        assert bodies(cut)[("t", 0)] == [b"%d" % n for n in range(20)]


def test_a_power_cut_may_take_an_offset_that_nobody_wanted_synced(
    store: Store, tmp_path: Path
) -> None:
    """So these tests can see that something is lost."""
    disk = Disk(store)
    store.commit_offset("g", "t", 0, 5)
    assert not disk.look()
    with kvstore.open(disk.cut(tmp_path / "b"), SMALL) as cut:
        assert cut.committed_offset("g", "t", 0) is None
        assert_whole(cut)


def test_a_segment_leaves_the_index_on_the_disk_before_its_file_goes(
    store: Store, tmp_path: Path
) -> None:
    """Else the index would come back and name a segment that is not there."""
    store.seal()
    disk = Disk(store)
    remove = inside.log(store).segments.remove
    had_synced = []

    def watched(number: int, **more: bool) -> None:
        had_synced.append(disk.look())
        remove(number, **more)

    inside.log(store).segments.remove = watched  # type: ignore[method-assign]
    store.config.clock.advance(100)  # type: ignore[attr-defined]
    inside.drop_segment(store, 0)
    assert had_synced == [True]
    with kvstore.open(disk.cut(tmp_path / "b"), SMALL) as cut:
        assert cut.bounds("t", 0) == (20, 20)
        assert not cut.verify().problems


def test_what_a_close_has_said_is_on_the_disk(store: Store, tmp_path: Path) -> None:
    disk = Disk(store)
    store.commit_offset("g", "t", 0, 9)
    inside.upkeep(store).checkpoint(clean=True)
    assert disk.look()
    with kvstore.open(disk.cut(tmp_path / "b"), SMALL) as cut:
        assert cut.recovery.clean
        assert cut.committed_offset("g", "t", 0) == 9
