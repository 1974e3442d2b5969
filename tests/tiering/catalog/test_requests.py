"""How often a place is asked: each request takes its time, and may cost money."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Store
from tests.support.clock import VirtualClock
from tests.tiering.catalog.gate import Gate, gated
from tests.tiering.catalog.moving import archived, config, hand_over, tiers

SEGMENTS = 4


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    """A store of an archive for each of its segments."""
    each = [[number] for number in range(SEGMENTS)]
    with archived(tmp_path / "a", clock, each, segments=SEGMENTS, each=120) as opened:
        yield opened


@pytest.fixture
def gate(store: Store) -> Gate:
    return gated(store)


def opened(store: Store, gate: Gate) -> list[int]:
    """Have all archives open, and no request counted; their numbers."""
    numbers = [row.number for row in tiers(store).rows()]
    for number in numbers:
        tiers(store).archive(number)
    gate.asked.clear()
    return numbers


def test_an_archive_is_opened_by_two_requests_at_most_and_when_it_is_read(
    store: Store, gate: Gate
) -> None:
    store.bounds("orders", 0)
    store.stats()
    store.create_group("g")
    store.lag("g", "orders")
    assert gate.asked == []
    store.get("orders", 0, 0)
    assert len({key for key, _, _ in gate.asked}) == 1
    assert len(gate.asked) <= 3


def test_reading_on_reads_each_block_once_and_ahead(store: Store, gate: Gate) -> None:
    first = opened(store, gate)[0]
    archive = tiers(store).archive(first)
    blocks = archive.blocks(store.topic("orders").id, 0)
    assert len(blocks) >= 3
    at = 0
    for _ in range(2):
        at = store.pull("orders", 0, at, 1).next_offset
    while at <= archive.directory.last_offset(blocks[0]):
        at = store.pull("orders", 0, at, 1).next_offset
    # The next two are under way, or there, before anybody wants them.
    assert tiers(store).cache_stats().ahead == 2
    high = store.bounds("orders", 0).next_offset
    while at < high:
        at = store.pull("orders", 0, at, 3).next_offset
    assert len(gate.asked) == len(set(gate.asked))
    blocks_of_queue = sum(
        len(tiers(store).archive(n).blocks(store.topic("orders").id, 0))
        for n in tiers(store).numbers()
    )
    assert len(gate.asked) <= blocks_of_queue


def test_a_key_that_is_nowhere_costs_hardly_a_request_once_archives_are_open(
    store: Store, gate: Gate
) -> None:
    opened(store, gate)
    for n in range(100):
        assert store.query("orders", f"nowhere-{n}") == []
    # Of 400 lookups few pass the filter: these messages have three keys each.
    assert len(gate.asked) < 40


def test_a_query_within_a_time_asks_no_archive_of_other_times(store: Store, gate: Gate) -> None:
    rows = tiers(store).rows()
    wanted = rows[2]
    found = store.query(
        "orders", "all", begin=wanted.first_stored_at, end=wanted.last_stored_at, limit=1000
    )
    assert len(found) > 10
    assert {key for key, _, _ in gate.asked} == {wanted.key}
    assert store.query("orders", "all", begin=rows[-1].last_stored_at + 1) == []
    assert {key for key, _, _ in gate.asked} == {wanted.key}


def test_an_offset_by_time_asks_one_archive_for_one_block(store: Store, gate: Gate) -> None:
    rows = tiers(store).rows()
    opened(store, gate)
    offset = store.offset_at("orders", 0, rows[1].first_stored_at + 10_000)
    assert len(gate.asked) == 1
    assert gate.asked[0][0] == rows[1].key
    assert store.get("orders", 0, offset).stored_at >= rows[1].first_stored_at + 10_000
    assert len(gate.asked) == 1


def test_a_pop_and_its_ack_ask_for_a_block_once(store: Store, gate: Gate) -> None:
    opened(store, gate)
    store.create_group("g")
    got = 0
    while more := store.pop("g", "orders", limit=5, queue=0):
        got += len(more)
        store.ack_batch([p.receipt for p in more])
    assert got == store.bounds("orders", 0).next_offset
    assert len(gate.asked) == len(set(gate.asked))


def test_small_queues_that_lie_together_are_read_by_one_request(tmp_path: Path) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", config(clock)) as made:
        made.create_topic("small", queues=40)
        for n in range(80):
            made.put("small", b"%d" % n, queue=n % 40)
        made.seal()
        hand_over(made, [0])
    with kvstore.open(tmp_path / "s", config(clock)) as store:
        gate = gated(store)
        (number,) = opened(store, gate)
        directory = tiers(store).archive(number).directory
        assert directory.groups * 4 < directory.blocks == 40
        for _ in range(2):
            for queue in range(40):
                found = store.pull("small", queue, 0, 10).messages
                assert [m.body for m in found] == [b"%d" % queue, b"%d" % (queue + 40)]
        assert len(gate.asked) == directory.groups
        # Only these went through a reader thread; the other blocks were made of what was there.
        assert tiers(store).cache_stats().reads == directory.groups
