"""What is lost with an archive, or a block of one, is told, and passed over by who may do that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Store, StoredMessage
from kvstore.errors import ArchiveDamaged
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import config, filled, hand_over, path_of, tiers
from tests.tiering.catalog.test_damage_and_crashes import flip, readable
from tiering.catalog.catalog import ArchiveRow

Lost = tuple[Store, ArchiveRow, dict[Any, StoredMessage], dict[Any, StoredMessage]]


@pytest.fixture(params=["archive", "block"])
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lost]:
    """A store of which an archive, or a block with what is in queue 0 of orders, is lost; with what
    there was, and what there is.
    """
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4, 90) as store:
        whole, _ = readable(store)
        rows = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        blocks = tiers(store).archive(rows[1].number).blocks(store.topic("orders").id, 0)
        at, _ = tiers(store).archive(rows[1].number).directory.extent(blocks[-1])
        path = path_of(store, rows[1])
    if request.param == "archive":
        path.write_bytes(b"x" * path.stat().st_size)
    else:
        flip(path, at + 40)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        yield store, rows[1], whole, readable(store)[0]


def lost_offsets(lost: Lost, queue: int = 0) -> list[int]:
    _, _, whole, left = lost
    return sorted(o for n, q, o in whole.keys() - left.keys() if (n, q) == ("orders", queue))


def test_a_pull_or_get_of_it_names_the_archive_and_where_to_go_on(lost: Lost) -> None:
    store, row, _, left = lost
    gone = lost_offsets(lost)
    assert gone == list(range(gone[0], gone[-1] + 1))
    for offset in (gone[0], gone[-1]):
        for call in (store.get, store.pull):
            with pytest.raises(ArchiveDamaged) as raised:
                call("orders", 0, offset)
            assert row.key in raised.value.archive
            assert raised.value.next_offset == gone[-1] + 1
            assert f"go on at offset {gone[-1] + 1}" in str(raised.value) or call == store.get
    before = store.pull("orders", 0, gone[0] - 2, 10)
    assert [m.offset for m in before.messages] == [gone[0] - 2, gone[0] - 1]
    assert store.get("orders", 0, gone[-1] + 1) == left["orders", 0, gone[-1] + 1]
    filtered = store.pull("orders", 0, gone[0] - 2, 10, filter="*")
    assert [m.offset for m in filtered.messages] == [gone[0] - 2, gone[0] - 1]
    with pytest.raises(ArchiveDamaged):
        store.pull("orders", 0, gone[0], filter="a")


def test_a_position_or_id_in_it_is_told_and_queries_give_the_rest(
    lost: Lost,
) -> None:
    store, row, whole, left = lost
    one = whole["orders", 0, lost_offsets(lost)[0]]
    with pytest.raises(ArchiveDamaged):
        store.read_at(one.position)
    for message_id in (one.message_id, one.position_id):
        with pytest.raises(ArchiveDamaged) as raised:
            store.find(message_id)
        assert row.key in raised.value.archive
    other = next(m for k, m in left.items() if k[0] == "orders")
    assert store.find(other.message_id) == store.find(other.position_id) == other
    for topic in ("orders", "visits"):
        found = store.query(topic, "all", limit=1000)
        assert {(m.topic, m.queue, m.offset) for m in found} == {k for k in left if k[0] == topic}


def test_an_offset_by_time_among_it_says_what_comes_behind(lost: Lost) -> None:
    store, row, whole, _ = lost
    gone = lost_offsets(lost)
    # Of the first one the archive's place in the index tells.
    for offset in (gone[1], gone[-1]):
        time = whole["orders", 0, offset].stored_at
        with pytest.raises(ArchiveDamaged) as raised:
            store.offset_at("orders", 0, time)
        assert row.key in raised.value.archive
        assert raised.value.next_offset == gone[-1] + 1
    for offset in (0, gone[0] - 1, gone[-1] + 2):
        assert store.offset_at("orders", 0, whole["orders", 0, offset].stored_at) == offset


@pytest.mark.parametrize("kind", ["plain", "ordered", "filtered", "by time"])
def test_groups_pop_all_that_is_left_of_all_queues(lost: Lost, kind: str) -> None:
    store, _, whole, left = lost
    gone = lost_offsets(lost)
    first = 0
    if kind == "by time":
        first = gone[1]
        store.create_group("g", start=whole["orders", 0, first].stored_at)
        assert len(store.lag("g", "orders")) == 2
    else:
        store.create_group("g", ordered=kind == "ordered")
    got: list[tuple[int, int]] = []
    for _ in range(1000):
        found = store.pop("g", "orders", limit=9, filter="*" if kind == "filtered" else None)
        if not found:
            break
        got += [(p.message.queue, p.message.offset) for p in found]
        store.ack_batch([p.receipt for p in found])
    wanted = {(q, o) for n, q, o in left if n == "orders"}
    if kind == "by time":
        begin = whole["orders", 0, first].stored_at
        wanted = {k for k in wanted if left["orders", *k].stored_at >= begin}
    assert sorted(got) == sorted(wanted)
    assert [one.lag for one in store.lag("g", "orders")] == [0, 0]


def test_what_was_popped_before_it_was_lost_is_passed_over_when_it_is_due_again(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        store.create_group("g")
        first = store.pop("g", "orders", queue=0, limit=4, invisible_for=5.0)
        made = hand_over(store, [0]).rows[0]
        path_of(store, made).write_bytes(b"x" * made.size)
        archived = sum(p.message.position <= made.last_position for p in first)
        assert archived == 4
    clock.advance(60)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        with pytest.raises(ArchiveDamaged):
            store.get("orders", 0, 0)
        for _ in range(4):
            found = store.pop("g", "orders", queue=0)
            assert found[0].message.position > made.last_position
            assert found[0].attempt == 1
        stats = store.group_stats("g", "orders")[0]
        assert (stats.in_flight, stats.due) == (4, 0)
