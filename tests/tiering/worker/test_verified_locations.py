"""Verify finds every place of an archive that is wrong, lost or missing."""

from __future__ import annotations

import pytest

from kvstore import Problem, Store
from kvstore.index.keys import PLACES, read_location
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.stores import fill
from tiering import Policy, Worker

WARM = Policy(hot_for=60.0, warm="archive", clock_doubt=0.0, watermarks=None)

pytestmark = pytest.mark.filled(days=0)


@pytest.fixture
def archived(store: Store, clock: VirtualClock) -> Store:
    """Some archives, and one segment more."""
    clock.advance(100.0)
    with Worker(store, WARM) as worker:
        assert len(worker.run_once().archives) >= 2
    fill(store, 60, first=500)
    assert store.verify(archives=True).problems == []
    return store


def without(store: Store, keys: list[bytes]) -> list[Problem]:
    """The problems that are found once these locations are gone."""
    batch = inside.families(store).batch()
    for key in keys:
        batch.delete(PLACES, key)
    inside.families(store).write(batch)
    return store.verify(archives=True).problems


@pytest.mark.parametrize("queue", ["first", "last"])
def test_a_queue_that_ends_with_an_archives_location_is_told(archived: Store, queue: str) -> None:
    rows = list(inside.families(archived).rows(PLACES, b""))
    topic, number, _ = read_location(*rows[0 if queue == "first" else -1])
    behind = [
        key
        for key, value in rows
        for *whose, place in [read_location(key, value)]
        if whose == [topic, number] and not place.is_archived
    ]
    problems = without(archived, behind)
    assert any("last location is an archive's" in problem.message for problem in problems)


def test_an_archive_that_the_catalog_has_lost_is_told(archived: Store) -> None:
    first = next(iter(archived.handover.rows()))
    archived.handover.set_rows([(first[0], None)])
    problems = archived.verify().problems
    assert any("which the catalog does not have" in problem.message for problem in problems)


@pytest.mark.parametrize("which", [0, -1])
def test_messages_of_an_archive_that_no_location_names_are_told(
    archived: Store, which: int
) -> None:
    key = [
        key
        for key, value in inside.families(archived).rows(PLACES, b"")
        if read_location(key, value)[2].is_archived
    ][which]
    problems = without(archived, [key])
    assert any("where no location names it" in problem.message for problem in problems)
