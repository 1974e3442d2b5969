"""Offsets that nobody has any more, between segments that stay: passed over, and no damage."""

from __future__ import annotations

from pathlib import Path

from kvstore import Store
from kvstore.index.keys import NOWHERE, PLACES, Location, read_location
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import SEGMENT, drop, filled, hand_over, merge


def read_all(store: Store, topic: str, queue: int) -> list[int]:
    """Every message there is, pulled from the first on: their segments."""
    at, high = store.bounds(topic, queue)
    found = []
    while at < high:
        page = store.pull(topic, queue, at, 7)
        assert page.next_offset > at
        found += [m.position // SEGMENT for m in page.messages]
        at = page.next_offset
    return found


def test_an_archive_that_goes_from_between_two_segments_leaves_no_damage(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        row = hand_over(store, [1]).rows[0]
        before = {(t, q): read_all(store, t, q) for t in ("orders", "visits") for q in (0, 1)}
        drop(store, row.number)
        for (topic, queue), segments in before.items():
            assert read_all(store, topic, queue) == [n for n in segments if n != 1]
        assert store.verify().problems == []


def test_a_queue_that_a_merge_leaves_out_between_two_segments_is_no_damage(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 5) as store:
        rows = [hand_over(store, [n]).rows[0] for n in (1, 2)]
        gone = (inside.topics(store).get("orders").id, 1)
        merge(store, [row.number for row in rows], lambda queue, offset: queue != gone)
        assert set(read_all(store, "orders", 1)) == {0, 3, 4}
        assert set(read_all(store, "orders", 0)) == {0, 1, 2, 3, 4}
        assert store.verify().problems == []


def test_what_a_hand_over_keeps_nowhere_between_two_segments_is_no_damage(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        hand_over(store, [2], lambda info: None if info.name == "visits" else "all")
        assert set(read_all(store, "visits", 0)) == {0, 1, 3}
        assert set(read_all(store, "orders", 0)) == {0, 1, 2, 3}
        assert store.verify().problems == []


def test_a_queue_whose_last_segments_go_keeps_its_next_offset_behind_an_archive(
    tmp_path: Path,
) -> None:
    """A queue's last place is never an archive's."""
    with filled(tmp_path / "a", VirtualClock(), 3) as store:
        ends = {q: store.bounds("orders", q).next_offset for q in (0, 1)}
        hand_over(store, [0, 1, 2])
        for topic, queue, place in _places(store):
            assert place.segment == NOWHERE or place.is_archived, (topic, queue)
        assert {q: store.bounds("orders", q).next_offset for q in (0, 1)} == ends
        for queue, end in ends.items():
            assert store.put("orders", b"next", queue=queue).offset == end


def _places(store: Store) -> list[tuple[int, int, Location]]:
    return [read_location(key, value) for key, value in inside.families(store).rows(PLACES, b"")]
