"""A merge, or an erasure, that is killed at any step: every message that is to stay can be read at
every moment, from one archive; the next run finishes it, and leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Store
from tests.support.clock import VirtualClock
from tests.tiering.killer import Killer
from tests.tiering.stores import config, fill, held
from tiering import Policy, Worker

DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=0.0, clock_doubt=0.0)


@pytest.fixture
def files() -> Killer:
    return Killer()


def check_objects(path: Path, worker: Worker) -> None:
    known = {archive.key for archive in worker.archives()}
    root = path / "archive"
    assert {str(f.relative_to(root)) for f in root.rglob("*.kvarc")} == known
    assert not list((path / "tiering").rglob("*.intent"))
    assert not list((path / "tiering" / "made").rglob("*.kvarc"))


def is_meant(message: Any) -> bool:
    return "k3" in message.keys


def without(found: Any) -> Any:
    return {queue: [m for m in some if not is_meant(m)] for queue, some in found.items()}


def test_merged_archives_are_there_whenever_the_worker_is_killed(
    store: Store, clock: VirtualClock, files: Killer
) -> None:
    before = held(store)
    with Worker(store, POLICY) as worker:
        worker.run_once()
        with files.killing(store.path):
            assert worker.merge().merged
            worker.run_once()

    def check(copy: Path) -> None:
        with kvstore.open(copy, config(clock)) as again:
            assert held(again) == before
            with Worker(again, POLICY) as worker:
                assert worker.merge().failed == {}
                assert worker.run_once().failed == {}
                check_objects(copy, worker)
                assert len(worker.archives()) == 1
            assert held(again) == before
            assert again.verify(archives=True).problems == []

    files.check_each(check)


def test_an_erasure_that_was_killed_lost_nothing_else_and_is_finished_by_the_next(
    store: Store, clock: VirtualClock, files: Killer
) -> None:
    with Worker(store, POLICY) as worker:
        worker.run_once()
        fill(store, 40, first=500)
        before = held(store)
        with files.killing(store.path):
            assert worker.erase(key="k3").is_proven
    assert held(store) == without(before)

    def check(copy: Path) -> None:
        with kvstore.open(copy, config(clock)) as again:
            assert without(held(again)) == without(before)
            with Worker(again, POLICY) as worker:
                report = worker.erase(key="k3")
                assert report.is_proven, report.failed
                check_objects(copy, worker)
            assert held(again) == without(before)
            assert again.verify().problems == []

    # Each takes a while; the steps of one kind are alike.
    files.check_each(check, every=4)
