"""Whatever strikes a thread of tiering, at whichever step: nobody hangs, no message is lost, and
it is done in the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Store
from kvstore.clock import SystemClock
from kvstore.process.background import ThreadStats
from tests.support.clock import VirtualClock
from tests.support.files import copy_folder
from tests.support.throwing import Thrower, some
from tests.tiering.stores import config, filled, held, tiers
from tiering import Policy, Worker
from tiering.executor.pool import Executor, Inline, Pool

DAY: Final = 86_400.0
WARM: Final = Policy(
    hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=0.0, clock_doubt=0.0, merge_bytes=1 << 20
)
STEPS: Final = 8
_PATIENCE: Final = 30
"""Seconds after which somebody hangs."""


class HereAtOnce(Inline):
    """Two at a time, in threads of this process."""

    width = 2


@pytest.fixture
def begin(tmp_path: Path, clock: VirtualClock) -> Path:
    """A store whose three segments are to become archives, and those one."""
    path = tmp_path / "begin"
    filled(path, clock, 200, days=2).close()
    return path


def _thread(store: Store) -> ThreadStats:
    return next(t for t in store.stats().threads if t.name == "kvmq-tiering")


def _until(clock: VirtualClock, met: Callable[[], bool]) -> None:
    """Let time pass until something is so; ten days at most: a merge that failed waits for long."""
    for _ in range(_PATIENCE * 100):
        if met():
            return
        clock.advance(300.0)
        SystemClock().sleep(0.01)
    raise AssertionError("it never came")


def _work(
    begin: Path, path: Path, clock: VirtualClock, thrower: Thrower, executor: Executor
) -> None:
    """A worker that runs by itself moves and merges all, while one of its threads is struck."""
    with kvstore.open(begin, config(clock)) as store:
        wanted = held(store)
    copy_folder(begin, path)
    with kvstore.open(path, config(clock)) as store:
        with Worker(store, WARM, executor=executor) as worker, thrower.watching():
            worker.start(interval=60.0)
            _until(clock, lambda: tiers(store)[0] == 0 and tiers(store)[1] == 1)
            _until(clock, lambda: _thread(store).last != "nothing yet")
            _until(clock, lambda: _thread(store).failure is None)
            assert _thread(store).alive
            assert held(store) == wanted
        assert store.verify().problems == []
    with kvstore.open(path, config(clock)) as store:
        assert held(store) == wanted
        with Worker(store, WARM, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
            assert worker.verify().ok
        assert held(store) == wanted


@pytest.mark.parametrize(
    ("name", "executor", "within"),
    [
        ("kvmq-tiering", Inline, ""),
        ("kvmq-tiering", Pool, "tiering/executor/pool.py"),
        ("kvmq-ahead", HereAtOnce, ""),
    ],
    ids=["the worker", "the worker and its process", "what is made ahead"],
)
def test_whatever_strikes_a_worker_all_is_moved_in_the_end(
    tmp_path: Path, begin: Path, clock: VirtualClock, name: str, executor: Callable[[], Executor],
    within: str,
) -> None:  # fmt: skip
    watched = Thrower(name)
    _work(begin, tmp_path / "watched", clock, watched, executor())
    steps = {step: None for step in watched.steps if step.file.startswith(within)}
    assert len(steps) >= STEPS // 2
    thrown = 0
    count = STEPS // 3 if within else STEPS
    for number, (step, error) in enumerate(some(steps, count)):
        thrower = Thrower(name, step, error)
        try:
            _work(begin, tmp_path / str(number), clock, thrower, executor())
        except BaseException as e:
            e.add_note(f"{step}: {error}")
            raise
        thrown += thrower.has_thrown.is_set()
    assert thrown >= count // 2


def _read_all(path: Path, clock: VirtualClock, thrower: Thrower) -> None:
    """Some threads read all archives at once, while what reads blocks for them is struck."""
    with thrower.watching(), kvstore.open(path, config(clock)) as store:
        ends: list[bool] = []

        def read() -> None:
            with contextlib.suppress(BaseException):
                held(store)
            ends.append(True)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE)
        assert len(ends) == 3, "somebody waits for ever"
        found = held(store)
    with kvstore.open(path, config(clock)) as store:
        assert found == held(store), "the next who asks is told as if nothing had been"


def test_whatever_strikes_what_reads_blocks_nobody_waits_for_ever(
    tmp_path: Path, begin: Path, clock: VirtualClock
) -> None:
    with kvstore.open(begin, config(clock)) as store:
        wanted = held(store)
        with Worker(store, WARM, executor=Inline()) as worker:
            worker.run_once()
        assert held(store) == wanted
    watched = Thrower("kvmq-cold")
    _read_all(begin, clock, watched)
    assert {"_fetch", "_keep"} <= {step.called for step in watched.steps}
    thrown = 0
    for step, error in some(watched.steps, 2 * STEPS):
        thrower = Thrower("kvmq-cold", step, error)
        try:
            _read_all(begin, clock, thrower)
        except BaseException as e:
            e.add_note(f"{step}: {error}")
            raise
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS // 2
