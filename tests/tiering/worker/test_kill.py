"""A worker that is killed at any step: every message can be read at every moment, and after the
restart it is in exactly one tier.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Store
from tests.support.clock import VirtualClock
from tests.tiering.killer import Killer
from tests.tiering.stores import SEGMENT, config, held
from tiering import Policy, Worker

DAY = 86_400.0
POLICY = Policy(
    hot_for=DAY, warm_for=10 * DAY, cold_for=10 * DAY, warm="archive", cold="cold", grace=0.0,
    clock_doubt=0.0,
)  # fmt: skip


pytestmark = pytest.mark.filled(count=150, days=0)


@pytest.fixture
def files() -> Killer:
    return Killer()


def check(path: Path, before: object, clock: VirtualClock) -> None:
    """All there, in one tier each; and another worker gets on with it."""
    with kvstore.open(path, config(clock)) as store:
        assert held(store) == before
        in_archives = {
            n // SEGMENT
            for row in Worker(store, POLICY).archives()
            for n in range(row.first_position, row.last_position + 1, SEGMENT)
        }
        hot = {s.number for s in store.segments()}
        assert hot.isdisjoint(in_archives)
        assert store.verify().problems == []
    with kvstore.open(path, config(clock)) as store:
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
            known = {a.key for a in worker.archives()}
        assert held(store) == before
        assert store.segments() == []
    for place in ("archive", "cold"):
        there = {str(f.relative_to(path / place)) for f in (path / place).rglob("*.kvarc")}
        assert there <= known, "an object that nothing names was left"
    assert not list((path / "tiering").rglob("*.intent"))
    assert not list((path / "tiering" / "made").rglob("*.kvarc"))


def test_segments_that_become_archives_are_there_whenever_the_worker_is_killed(
    store: Store, clock: VirtualClock, files: Killer
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with files.killing(store.path), Worker(store, POLICY) as worker:
        assert worker.run_once().failed == {}
    files.check_each(lambda copy: check(copy, before, clock))


def test_archives_that_go_cold_are_there_whenever_the_worker_is_killed(
    store: Store, clock: VirtualClock, files: Killer
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, POLICY) as worker:
        worker.run_once()
        clock.advance(10 * DAY)
        with files.killing(store.path):
            assert worker.run_once().failed == {}
    files.check_each(lambda copy: check(copy, before, clock))
