"""An error behind a write of RocksDB: what was written is known all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from tests.support.clock import VirtualClock
from tests.support.files import copy_folder
from tests.support.struck import struck_behind
from tests.tiering.stores import config, filled, held, tiers
from tiering import Policy, RunReport, Worker
from tiering.executor.pool import Inline

DAY = 86_400.0
WARM = Policy(
    hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=0.0, clock_doubt=0.0, merge_bytes=1 << 20
)


def _runs(worker: Worker, clock: VirtualClock) -> RunReport:
    """The last of some runs, a quarter of a day apart."""
    reports = []
    for _ in range(4):
        clock.advance(DAY / 4)
        reports.append(worker.run_once())
    return reports[-1]


def _tier(begin: Path, path: Path, clock: VirtualClock, number: int) -> int:
    """A worker moves and merges all; the write with this number is struck."""
    copy_folder(begin, path)
    with kvstore.open(path, config(clock)) as store:
        wanted = held(store)
        with Worker(store, WARM, executor=Inline()) as worker:
            writes = struck_behind(store, number, lambda: _runs(worker, clock))
            assert held(store) == wanted, "nobody misses a message meanwhile"
            assert _runs(worker, clock).failed == {}
            assert tiers(store)[0] == 0
            assert held(store) == wanted
            assert worker.verify().ok
            messages = [m for found in wanted.values() for m in found]
            for m in messages[:: len(messages) // 20]:
                assert store.query(m.topic, m.keys[1]) == [m]
        assert store.verify().problems == []
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, WARM, executor=Inline()) as worker,
    ):
        assert held(store) == wanted
        assert worker.run_once().failed == {}
        assert worker.verify().ok
    return writes


@pytest.fixture
def begin(tmp_path: Path, clock: VirtualClock) -> Path:
    """A store whose segments are to become archives, and those one."""
    path = tmp_path / "begin"
    filled(path, clock, days=2).close()
    return path


def test_whichever_write_of_a_worker_is_struck_behind_it_all_is_moved_in_the_end(
    tmp_path: Path, begin: Path, clock: VirtualClock
) -> None:
    writes = _tier(begin, tmp_path / "watched", clock, 0)
    assert writes >= 3, "a hand-over for each segment, and the merge"
    for number in range(1, writes + 1):
        _tier(begin, tmp_path / str(number), clock, number)
