"""Where a queue's entries are: locations, looked up by offset, whatever there are of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import dropwhile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.errors import CallerError
from kvstore.index import queue_locations as queues_module
from kvstore.index.archived import AttachedRange
from kvstore.index.attach import attach
from kvstore.index.families import Families
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    NO_ARCHIVE,
    NOWHERE,
    PLACES,
    RUNS,
    Location,
    location_key,
    location_value,
    run_key,
)
from kvstore.index.queue_locations import QueueLocations, Span
from kvstore.index.runs import Columns, pack_many
from tests.support import inside
from tests.support.costs import Costs

TOPIC, QUEUE = 5, 2
KEY = TOPIC << 32 | QUEUE
SEGMENT = 1 << 20


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Families]:
    opened = Families(tmp_path_factory.mktemp("a") / "index", read_only=False, create=True)
    yield opened
    opened.close()


def put(families: Families, locations: list[Location]) -> None:
    """These locations, and none else; neighbours in other queues have some of their own."""
    batch = families.batch()
    batch.delete_range(PLACES, b"", b"\xff" * 16)
    for topic, queue in ((TOPIC, QUEUE - 1), (TOPIC, QUEUE + 1), (TOPIC + 1, 0)):
        batch.put(PLACES, location_key(topic, queue, 3), location_value(1, 9))
    for location in locations:
        batch.put(
            PLACES,
            location_key(TOPIC, QUEUE, location.first),
            location_value(location.segment, location.stored_at),
        )
    families.write(batch)


def put_run(families: Families) -> None:
    """Four entries in segment 3, and their location."""
    put(families, [Location(0, 3, 5)])
    n = np.arange(4, dtype=np.int64)
    batch = families.batch()
    columns = Columns(n * 100, n + 90, n, n + 1_700_000_000_000)
    batch.put(RUNS, run_key(3, TOPIC, QUEUE, 0), pack_many(columns, np.array([0])).data)
    families.write(batch)


def visible(locations: list[Location], first_segment: int) -> list[Location]:
    """The locations that readers see, by the rules of docs/keys.md."""
    found = [p for p in locations[:-1] if p.segment != NOWHERE] + locations[-1:]
    there = [p for p in found if p.segment >= first_segment]
    return list(dropwhile(lambda p: p.is_lost, there))


SEGMENTS = st.one_of(
    st.integers(0, 4),
    st.sampled_from([ARCHIVE_FIRST, ARCHIVE_FIRST + 7, ARCHIVE_FIRST + NO_ARCHIVE, NOWHERE]),
)
MADE = st.lists(st.tuples(st.integers(0, 30), SEGMENTS), max_size=8, unique_by=lambda p: p[0])


@given(MADE, st.integers(0, 4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_offset_belongs_to_the_last_place_that_is_to_be_seen_and_not_behind_it(
    lasting: Families, made: list[tuple[int, int]], first_segment: int
) -> None:
    locations = [Location(first, segment, first * 10) for first, segment in sorted(made)]
    put(lasting, locations)
    queues = QueueLocations(lasting, SEGMENT)
    seen = visible(locations, first_segment)
    holding = [p for p in seen if p.segment != NOWHERE]
    for _ in range(2):  # the second time from memory
        assert queues.first(KEY, first_segment) == next(iter(holding), None)
        for offset in range(32):
            i = bisect_right(seen, offset, key=lambda p: p.first) - 1
            wanted = None
            if i >= 0:
                wanted = Span(seen[i], seen[i + 1].first if i + 1 < len(seen) else None)
            assert queues.location_at(KEY, offset, first_segment) == wanted
            rest = list(queues.locations_from(KEY, offset, first_segment))
            assert rest == seen[max(i, 0) :]


def test_a_look_costs_the_same_among_ten_thousand_places(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them archives': a queue that was written to for years."""
    costs = Costs(monkeypatch)
    found = []
    for count in (2, 100, 10_000):
        archived = [Location(n * 10, ARCHIVE_FIRST + n, n) for n in range(count - 1)]
        put(families, [*archived, Location(count * 10, 7, count)])
        queues = QueueLocations(families, SEGMENT)
        with costs.counting() as counts:
            for offset in (0, count * 5, count * 10 - 1, count * 10 + 5):
                queues.location_at(KEY, offset, 3)
            queues.first(KEY, 3)
            queues.after(KEY, count * 10 - 11, 3)
        found.append(counts.total())
    assert found[2] <= found[1] <= found[0] + 6, found


def test_what_is_kept_of_places_is_bounded(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "SPANS_CACHED_MAX", 2)
    put(families, [Location(0, 3, 5)])
    queues = QueueLocations(families, SEGMENT)
    for _ in range(3):
        for queue in (KEY - 1, KEY, KEY + 1):
            assert queues.location_at(queue, 9, 0) is not None
            assert queues.first(queue, 0) is not None
    assert max(inside.locations_known(queues)) <= 2


def test_a_location_that_was_kept_is_looked_for_again_when_rows_changed(
    families: Families,
) -> None:
    put(families, [Location(0, 3, 5)])
    queues = QueueLocations(families, SEGMENT)
    assert queues.location_at(KEY, 9, 0) == Span(Location(0, 3, 5), None)
    assert queues.first(KEY, 0) == Location(0, 3, 5)
    put(families, [Location(1, 3, 5), Location(8, 4, 6)])
    queues.changed([KEY])
    assert queues.location_at(KEY, 9, 0) == Span(Location(8, 4, 6), None)
    assert queues.location_at(KEY, 7, 0) == Span(Location(1, 3, 5), 8)
    assert queues.first(KEY, 0) == Location(1, 3, 5)
    put(families, [Location(0, 3, 5), Location(8, 4, 6)])
    queues.forget()
    put(families, [Location(0, ARCHIVE_FIRST, 5), Location(8, 4, 6)])
    queues.forget()
    assert queues.location_at(KEY, 7, 0) == Span(Location(0, ARCHIVE_FIRST, 5), 8)
    assert queues.first(KEY, 0) == Location(0, ARCHIVE_FIRST, 5)


def test_a_location_that_is_read_while_rows_change_is_not_kept(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(families, [Location(0, 3, 5)])
    queues = QueueLocations(families, SEGMENT)
    step = inside.reading_of_locations(queues)
    behind = step.now

    def changed_meanwhile(*args: int) -> Iterator[Location]:
        found = list(behind(*args))
        queues.changing()
        put(families, [Location(1, 3, 5), Location(8, 4, 6)])
        queues.changed([KEY])
        return iter(found)

    for look in (lambda: queues.location_at(KEY, 9, 0), lambda: queues.first(KEY, 0)):
        put(families, [Location(0, 3, 5)])
        queues.forget()
        with monkeypatch.context() as patched:
            step.replace(changed_meanwhile, patched)
            look()
        assert queues.location_at(KEY, 9, 0) == Span(Location(8, 4, 6), None)
        assert queues.first(KEY, 0) == Location(1, 3, 5)


def test_a_run_whose_segment_goes_while_it_is_read_is_not_kept(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer for a segment that is not there."""
    put_run(families)
    queues = QueueLocations(families, SEGMENT)
    base = 3 * SEGMENT
    assert queues.positions(KEY, 0, 9, 0) == [base, base + 100, base + 200, base + 300]
    queues.forget()
    step = inside.reading_of_runs(queues)
    read = step.now

    def removed_meanwhile(*args: int) -> tuple[int, bytes] | None:
        found: tuple[int, bytes] | None = read(*args)
        step.replace(read, monkeypatch)
        put(families, [Location(4, NOWHERE, 0)])
        queues.forget()
        return found

    step.replace(removed_meanwhile, monkeypatch)
    assert queues.positions(KEY, 0, 4, 0) == []
    assert queues.positions(KEY, 0, 9, 0) == []


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 9), (2, 3), (3, 3), (3, 9)])
def test_a_range_that_reaches_into_what_the_log_has_is_not_attached(
    families: Families, first: int, last: int
) -> None:
    put_run(families)
    batch = families.batch()
    with pytest.raises(CallerError):
        attach(families, batch, [AttachedRange(TOPIC, QUEUE, first, last, 5, 6, 1)])
    attach(families, batch, [AttachedRange(TOPIC, QUEUE, 4, 9, 5, 6, 1)])
