"""Offsets that nobody has any more, between segments that stay, and readers beside what moves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Store, StoreConfig, StoredMessage
from kvstore.errors import ArchiveDamaged
from kvstore.index.keys import NOWHERE, PLACES, RUNS, Location, read_location, read_run_key
from kvstore.record.hashes import key_hash
from tests.support import inside, inside_tiering
from tests.support.clock import VirtualClock
from tests.tiering.catalog.gate import gated
from tests.tiering.catalog.moving import (
    PLACE,
    SEGMENT,
    answers,
    config,
    drop,
    filled,
    hand_over,
    make,
    merge,
    put_segments,
    sealed,
    tiers,
)
from tiering import Policy, Worker
from tiering.executor.pool import Inline


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


def test_entries_and_keys_of_a_segment_go_with_it_whether_it_is_archived_or_dropped(
    tmp_path: Path,
) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        hand_over(store, [1])
        hand_over(store, [2], lambda info: None)
        inside.index(store).retire(0, SEGMENT, [3])
        runs = inside.families(store).rows(RUNS, b"")
        assert {read_run_key(key).segment for key, _ in runs} == {3}
        assert {part.segment for part in inside.keys(store).parts()} == {3}


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


def test_a_reader_gets_the_same_answers_whatever_moves_and_comes_after_its_opening(
    tmp_path: Path,
) -> None:
    """Its view ends in the middle of a segment, which moves later with newer messages."""
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 5, 8) as store:
        store.put("orders", b"in the log's last segment", queue=1, keys=["all"])
        with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
            before = answers(reader)
            for _ in range(2):
                put_segments(store, clock, 1, 8)
                assert answers(reader) == before
            rows = []
            for number in sealed(store):
                rows += hand_over(store, [number]).rows
                assert answers(reader) == before, number
            merge(store, [row.number for row in rows[1:]])
            assert answers(reader) == before


def test_a_reader_gives_no_message_that_came_after_its_opening_though_its_last_ones_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The archive that has its messages has those that came later, too."""
    clock = VirtualClock()
    policy = Policy(hot_for=0.001, warm="archive", watermarks=None, grace=0.0, clock_doubt=0.0)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        store.create_topic("orders", queues=1)
        store.put("orders", b"first", keys=["all", "first"])
        for n in range(3):
            store.put("orders", b"%d" % n, keys=["all"])
        store.put("orders", b"last", keys=["all", "gone"])
        with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
            seen = reader.query("orders", "all")[1:]
            for n in range(5):
                store.put("orders", b"later %d" % n, keys=["all"])
            with Worker(store, policy, executor=Inline()) as worker:
                worker.erase(key="gone")
                for at in (0, 3, 4):
                    found = reader.pull("orders", 0, at, 32)
                    assert [m.offset for m in found.messages] == list(range(at, 4))
                    assert found.next_offset == max(at + 1, 4)
                    assert found.max_offset == 5
                assert reader.query("orders", "all") == seen
                worker.erase(key="first")
                clock.advance(3600)
                assert worker.run_once().failed == {}
                assert len(list((tmp_path / "a" / PLACE).rglob("*.kvarc"))) == 1
            assert reader.query("orders", "all") == seen[:-1]
    assert not [r for r in caplog.records if r.levelname == "ERROR"], caplog.text


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointed", "in memory"])
def test_times_before_and_behind_an_erased_stretch_lead_where_they_should(
    tmp_path: Path, checkpointed: bool
) -> None:
    clock = VirtualClock()
    stored: dict[int, int] = {}
    with kvstore.open(tmp_path, StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        for topic in ("orders", "others"):
            store.create_topic(topic, queues=1)

        def put(keys: list[str]) -> None:
            for _ in range(5):
                clock.advance(1.0)
                (found,) = store.put_batch([Message("orders", b"x", keys=keys)])
                stored[found.offset] = store.get("orders", 0, found.offset).stored_at
                store.put("others", b"y")
            store.seal()

        put([])
        put(["gone"])
        store.checkpoint()
        policy = Policy(hot_for=1e6, warm_for=1e7, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            assert worker.erase(key="gone").is_proven
        put([])
        if checkpointed:
            store.checkpoint()
        left = {offset: at for offset, at in stored.items() if not 5 <= offset < 10}
        for at in range(min(stored.values()) - 1, max(stored.values()) + 2, 250):
            due = next((offset for offset, time in left.items() if time >= at), 15)
            found = store.offset_at("orders", 0, at)
            # One that nobody has is as good: reading goes on at the next.
            assert found == due or (5 <= found < 10 and due == 10), at


def found(store: Store) -> list[StoredMessage]:
    return store.query("orders", "all", limit=1000)


class Asker:
    """A query in a thread of its own."""

    def __init__(self, store: Store) -> None:
        self.found: list[StoredMessage] = []
        self._thread = threading.Thread(target=self._run, args=(store,))
        self._thread.start()

    def _run(self, store: Store) -> None:
        self.found = found(store)

    def join(self) -> list[StoredMessage]:
        self._thread.join()
        return self.found


def test_what_left_the_log_before_a_query_came_to_it_and_was_not_told_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        before = found(store)
        hand_over(store, [2])
        gate = gated(store)
        gate.shut()
        asker = Asker(store)
        assert gate.waiting.acquire(timeout=60)
        forget = inside.index(store).locations.forget

        def look() -> None:
            # The batch is written: the query is over before the store says so.
            gate.open()
            asker.join()
            forget()

        monkeypatch.setattr(inside.index(store).locations, "forget", look)
        hand_over(store, [0])
        assert asker.join() == before


def test_an_archive_that_was_merged_before_a_query_came_to_it_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        rows = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        hashed, lost = key_hash(b"orders", b"all"), list[ArchiveDamaged]()
        looking = inside.candidates(store)(hashed, hashed, None, None, lost)
        next(looking)
        merge(store, [row.number for row in rows[:2]])
        assert all(archive not in (rows[0].number, rows[1].number) for _, archive in looking)
        assert lost == []
        assert caplog.records == []


def test_what_is_in_the_log_and_in_an_archive_is_found_once(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        before = found(store)
        hand_over(store, [3])
        made = make(store, [1, 2])
        with inside_tiering.coming(store, made.arriving):
            assert found(store) == before
        store.handover.hand_over(made.segments, made.arriving, made.unkept)
        assert found(store) == before
        assert len(tiers(store).rows()) == 2
