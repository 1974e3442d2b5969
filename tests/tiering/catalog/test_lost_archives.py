"""Messages of a lost or missing archive are reported, and cost nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import MessageNotFound, Popped, Store, StoredMessage
from kvstore.errors import ArchiveDamaged, ArchiveMissing
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import SEGMENT, config, filled, hand_over, path_of, tiers
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


Key = tuple[int, int]


class Case:
    """A store of three archives and a segment; the archive of segment 1 can be taken away."""

    def __init__(self, path: Path) -> None:
        self.clock = VirtualClock()
        self.path = path
        self.held: list[Popped] = []
        self.whole: dict[Key, int] = {}
        """Queue and offset of each message of orders, and when it was stored."""
        self.gone: set[Key] = set()
        """Those of segment 1."""
        self.store = filled(path, self.clock, 4, 60)
        for queue in (0, 1):
            for m in self.store.pull("orders", queue, 0, 1000).messages:
                self.whole[queue, m.offset] = m.stored_at
                if SEGMENT <= m.position < 2 * SEGMENT:
                    self.gone.add((queue, m.offset))

    def tier(self) -> None:
        """Archives the first three segments."""
        rows = [hand_over(self.store, [n]).rows[0] for n in (0, 1, 2)]
        self._object = path_of(self.store, rows[1])
        self.name = rows[1].key

    def take_away(self) -> Store:
        """The store, opened anew, without the archive."""
        self.store.close()
        self._object.rename(self.path / "away")
        self.store = kvstore.open(self.path, config(self.clock))
        return self.store

    def bring_back(self) -> None:
        (self.path / "away").rename(self._object)

    def first(self, queue: int) -> int:
        return min(o for q, o in self.gone if q == queue)

    def last(self, queue: int) -> int:
        return max(o for q, o in self.gone if q == queue)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path / "a")
    yield made
    made.store.close()


def popped(store: Store, group: str = "g", **asked: Any) -> list[Popped]:
    """All that a group is given, acked, until there is nothing or something is missing."""
    got: list[Popped] = []
    try:
        while found := store.pop(group, "orders", **{"limit": 7} | asked):
            got += found
            store.ack_batch([p.receipt for p in found])
    except ArchiveMissing:
        return got
    return got


def keys(found: list[Popped]) -> list[Key]:
    return sorted((p.message.queue, p.message.offset) for p in found)


KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"ordered": True}, {}),
    ({"max_in_flight": 5}, {}),
    ({}, {"filter": "*"}),
    ({}, {"max_bytes": 900}),
    ({}, {"attempt_id": "once"}),
]


@pytest.mark.parametrize(("kind", "asked"), KINDS)
def test_a_group_waits_where_it_is_missing_and_goes_on_when_it_is_back(
    case: Case, kind: dict[str, Any], asked: dict[str, Any]
) -> None:
    case.tier()
    store = case.take_away()
    store.create_group("g", **kind)
    before = popped(store, **asked)
    assert keys(before) == [(q, o) for q, o in sorted(case.whole) if o < case.first(q)]
    for _ in range(2):
        with pytest.raises(ArchiveMissing, match="bring the object back"):
            store.pop("g", "orders", limit=7, **asked)
    # A queue that is behind it gives what it has, whatever the others wait for.
    store.commit_offset("g", "orders", 1, case.last(1) + 1)
    mine = [k for k in sorted(case.whole) if k[0] == 1 and k[1] > case.last(1)]
    assert keys(popped(store, **asked)) == mine
    case.bring_back()
    rest = [k for k in sorted(case.whole) if k[0] == 0 and k[1] >= case.first(0)]
    assert keys(popped(store, **asked)) == rest


def test_reset_offset_gets_a_group_past_it(case: Case) -> None:
    case.tier()
    store = case.take_away()
    store.create_group("g")
    popped(store)
    for queue in (0, 1):
        store.reset_offset("g", "orders", queue=queue, offset=case.last(queue) + 1)
    assert keys(popped(store)) == [k for k in sorted(case.whole) if k[1] > case.last(k[0])]
    assert store.pop("g", "orders") == []


def test_a_group_that_begins_at_a_time_within_it_waits_for_it(case: Case) -> None:
    case.tier()
    store = case.take_away()
    time = case.whole[0, case.first(0) + 1]
    store.create_group("g", start=time)
    with pytest.raises(ArchiveMissing):
        store.pop("g", "orders")
    case.bring_back()
    assert keys(popped(store)) == [k for k in sorted(case.whole) if case.whole[k] >= time]


@pytest.mark.parametrize("limit", [1, 100])
def test_of_what_is_due_again_what_is_missing_stays_due_and_the_rest_comes(
    case: Case, limit: int
) -> None:
    first = case.first(0)
    case.store.create_group("g")
    case.store.commit_offset("g", "orders", 0, first - 2)
    row = case.store.pop("g", "orders", queue=0, limit=4, invisible_for=5.0)
    assert [p.message.offset for p in row] == [first - 2, first - 1, first, first + 1]
    more = case.store.pop("g", "orders", queue=0, limit=20, invisible_for=5.0)
    case.tier()
    store = case.take_away()
    case.clock.advance(60)
    store.reset_offset("g", "orders", queue=1, to="end")
    due = [k for k in keys(row + more) if k not in case.gone]
    assert len(due) > 3
    got = popped(store, limit=limit)
    assert keys([p for p in got if p.attempt == 2]) == due
    with pytest.raises(ArchiveMissing):
        store.pop("g", "orders", queue=0)
    stats = store.group_stats("g", "orders")[0]
    missing = [k for k in keys(row + more) if k in case.gone]
    assert stats.due == len(missing)
    case.bring_back()
    got = popped(store, limit=limit)
    assert {(p.message.queue, p.message.offset) for p in got if p.attempt == 2} == set(missing)


def test_what_is_to_be_a_dead_letter_and_is_missing_holds_up_no_other(case: Case) -> None:
    case.store.create_group("g", max_attempts=1)
    for _ in range(400):
        case.store.pop("g", "orders", limit=1, invisible_for=5.0)
    case.tier()
    store = case.take_away()
    case.clock.advance(60)
    with pytest.raises(ArchiveMissing):
        store.pop("g", "orders")
    assert letters(store) == [k for k in sorted(case.whole) if k not in case.gone]
    case.bring_back()
    assert store.pop("g", "orders") == []
    assert letters(store) == sorted(case.whole)


def letters(store: Store) -> list[Key]:
    """The messages whose copies are the dead letters of group g."""
    found = store.pull("%DLQ%g", 0, 0, 1000).messages
    said = [m.properties for m in found]
    return sorted((int(p["DLQ_ORIGIN_QUEUE_ID"]), int(p["DLQ_ORIGIN_QUEUE_OFFSET"])) for p in said)


def test_redriving_goes_as_far_as_originals_are_there(case: Case) -> None:
    case.store.create_group("g", max_attempts=1)
    first = case.first(0)
    case.store.pop("g", "orders", queue=0, limit=first + 2, invisible_for=5.0)
    case.clock.advance(60)
    case.store.pop("g", "orders", queue=0, limit=1)
    case.store.reset_offset("g", "orders", to="end")
    case.tier()
    store = case.take_away()
    with pytest.raises(ArchiveMissing):
        store.redrive("g")
    assert keys(popped(store)) == [(0, o) for o in range(first)]
    with pytest.raises(ArchiveMissing):
        store.redrive("g")
    case.bring_back()
    assert store.redrive("g") == 2
    assert keys(popped(store)) == [(0, first), (0, first + 1)]


def ordered_with_parked(case: Case) -> None:
    """An ordered group that has one message out, and has parked what is behind it."""
    case.store.create_group("g", ordered=True)
    case.store.commit_offset("g", "orders", 0, case.first(0) - 1)
    case.held = case.store.pop("g", "orders", queue=0, limit=9, invisible_for=1000.0)
    assert len(case.held) == 1


def test_what_an_ordered_group_has_parked_is_not_lost(case: Case) -> None:
    ordered_with_parked(case)
    case.tier()
    store = case.take_away()
    # Nobody knows whose turn it is, so nothing is handed out of turn.
    with pytest.raises(ArchiveMissing):
        store.pop("g", "orders")
    case.bring_back()
    assert store.pop("g", "orders", queue=0) == []
    store.ack(case.held[0].receipt)
    wanted = [k for k in sorted(case.whole) if k[0] == 0 and k[1] >= case.first(0)]
    assert keys(popped(store, queue=0)) == wanted


def test_what_was_parked_in_it_by_a_group_that_is_not_ordered_any_more_comes_later(
    case: Case,
) -> None:
    ordered_with_parked(case)
    case.tier()
    store = case.take_away()
    store.alter_group("g", ordered=False)
    store.reset_offset("g", "orders", queue=1, to="end")
    got = popped(store, limit=1)
    assert keys(got) == [k for k in sorted(case.whole) if k[0] == 0 and k[1] > case.last(0)]
    case.bring_back()
    assert keys(popped(store, limit=1)) == [k for k in sorted(case.gone) if k[0] == 0]


def test_an_id_that_may_be_in_it_is_not_said_to_be_nobodys(case: Case) -> None:
    one = case.store.get("orders", 0, case.first(0))
    other = case.store.get("orders", 0, case.last(0) + 1)
    case.tier()
    store = case.take_away()
    for message_id in (one.message_id, one.position_id, "nobody's"):
        with pytest.raises(ArchiveMissing, match="bring the object back") as raised:
            store.find(message_id)
        assert case.name in raised.value.archive
    assert store.find(other.message_id) == store.find(other.position_id) == other
    case.bring_back()
    assert store.find(one.message_id) == store.find(one.position_id) == one
    with pytest.raises(MessageNotFound):
        store.find("nobody's")
