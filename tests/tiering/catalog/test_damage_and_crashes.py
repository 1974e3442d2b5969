"""A damaged or lost archive costs its own messages alone; a crash leaves orphans at most."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
from kvstore import (
    CallerError,
    Retention,
    Store,
    StoredMessage,
    StoreError,
)
from kvstore.api.founding import rebuild
from kvstore.errors import ArchiveDamaged, ArchiveMissing, ArchiveUnavailable
from kvstore.index.keys import ARCHIVE_FIRST, PLACES, location_key, location_value, read_location
from tests.support import inside, inside_tiering, stores
from tests.support.clock import VirtualClock
from tests.support.files import copy_folder
from tests.support.raising import raising
from tests.tiering.catalog.moving import (
    PLACE,
    SEGMENT,
    answers,
    by_topic,
    config,
    drop,
    filled,
    hand_over,
    make,
    merge,
    path_of,
    sealed,
    tiers,
)
from tiering.catalog.catalog import encode_row
from tiering.errors import PlaceUnavailable


def killed(store: Store, target: Path) -> Path:
    """The folder as it would be had the process been killed now, with the archives."""
    if (store.path / PLACE).exists():
        copy_folder(store.path / PLACE, target / PLACE)
    return stores.killed(store, target)


def segments(path: Path) -> list[int]:
    return sorted(int(p.name) // SEGMENT for p in (path / "commitlog").iterdir())


def readable(store: Store) -> tuple[dict[Any, StoredMessage], list[ArchiveDamaged]]:
    """All messages that a reader gets who goes on behind damage, and what he met."""
    found: dict[Any, StoredMessage] = {}
    met: list[ArchiveDamaged] = []
    for topic in store.topics():
        for queue in range(topic.read_queues):
            at, high = store.bounds(topic.name, queue)
            while at < high:
                try:
                    pulled = store.pull(topic.name, queue, at, 100)
                except ArchiveDamaged as e:
                    met.append(e)
                    before, at = at, e.next_offset or 0
                    assert before < at <= high
                else:
                    found |= {(m.topic, m.queue, m.offset): m for m in pulled.messages}
                    at = pulled.next_offset
    return found, met


def test_a_crash_before_the_batch_leaves_everything_in_the_log(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        before = answers(store)
        make(store, [0, 1])
        killed(store, tmp_path / "b")
    with kvstore.open(tmp_path / "b", config(clock)) as store:
        assert answers(store) == before
        assert segments(store.path)[0] == 0
        hand_over(store, [0, 1])
        assert answers(store) == before


@pytest.mark.parametrize("numbers", [[0], [0, 1], [1], [1, 2]])
def test_a_crash_before_the_files_go_leaves_orphans_that_the_next_opening_removes(
    tmp_path: Path, numbers: list[int]
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        before = answers(store)
        shutil.copytree(store.path / "commitlog", tmp_path / "log")
        hand_over(store, numbers, by_topic)
        there = segments(store.path)
        killed(store, tmp_path / "b")
    for number in numbers:
        name = f"{number * SEGMENT:020d}"
        shutil.copy(tmp_path / "log" / name, tmp_path / "b" / "commitlog" / name)
    with kvstore.open(tmp_path / "b", config(clock), read_only=True) as store:
        assert answers(store) == before
    with kvstore.open(tmp_path / "b", config(clock)) as store:
        assert store.recovery.damage == []
        assert segments(store.path) == there
        assert answers(store) == before
        assert store.verify(archives=True).problems == []


def test_a_queue_that_is_in_no_archive_is_not_handed_over(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        before = answers(store)
        made = make(store, [0], by_topic)
        with pytest.raises(CallerError, match="nothing was handed over"):
            store.handover.hand_over([0], made.arriving[:1])
        with pytest.raises(CallerError, match="not sealed"):
            store.handover.hand_over([2], made.arriving)
        assert answers(store) == before
        assert tiers(store).rows() == []


@pytest.mark.parametrize("at_once", [True, False])
def test_what_groups_committed_holds_after_a_crash_though_its_messages_are_archived(
    tmp_path: Path, at_once: bool
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        offsets = {g: store.bounds("orders", 0).next_offset * g // 5 for g in range(1, 6)}
        for group, offset in offsets.items():
            store.commit_offset(f"g{group}", "orders", 0, offset)
        for numbers in ([0, 1, 2],) if at_once else ([0], [1], [2]):
            hand_over(store, numbers)
        killed(store, tmp_path / "b")
    with kvstore.open(tmp_path / "b", config(clock)) as store:
        assert not store.recovery.clean
        for group, offset in offsets.items():
            assert store.committed_offset(f"g{group}", "orders", 0) == offset


def flip(path: Path, at: int) -> None:
    with path.open("rb+") as f:
        f.seek(at)
        old = f.read(1)[0]
        f.seek(at)
        f.write(bytes([old ^ 0x40]))


def test_a_damaged_group_of_blocks_costs_its_own_messages_alone(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3, 200) as store:
        whole, _ = readable(store)
        row = hand_over(store, [0, 1]).rows[0]
        directory = tiers(store).archive(row.number).directory
        assert directory.blocks > 10
        block = 4
        topic, queue = directory.queue_of(block)
        name = tiers(store).archive(row.number).manifest.topics[topic].name
        shared = directory.within(block)
        assert shared is not None
        assert {directory.queue_of(one) for one in shared} == {(topic, queue)}
        first, last = directory.first_offset(shared[0]), directory.last_offset(shared[-1])
        flip(path_of(store, row), directory.extent(block)[0] + 60)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        found, met = readable(store)
        lost = {(name, queue, o) for o in range(first, last + 1)}
        assert whole.keys() - found.keys() == lost
        assert all(whole[k] == m for k, m in found.items())
        assert {(e.block, e.next_offset) for e in met} == {(shared[0], last + 1)}
        assert row.key in met[0].archive
        with pytest.raises(ArchiveDamaged):
            store.get(name, queue, first)
        store.create_group("g")
        got = set()
        while more := store.pop("g", name, limit=7, queue=queue):
            got |= {p.message.offset for p in more}
            store.ack_batch([p.receipt for p in more])
        assert got == {o for n, q, o in found if (n, q) == (name, queue)}
        assert len(store.query(name, "all", limit=1000)) == sum(n == name for n, _, _ in found)
        assert [p.kind for p in store.verify(archives=True).problems] == ["archive"] * len(shared)


@pytest.mark.parametrize("harm", ["missing", "short", "foreign"])
def test_a_missing_archive_costs_its_own_messages_alone(tmp_path: Path, harm: str) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        whole, _ = readable(store)
        rows = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        path = path_of(store, rows[1])
    if harm == "missing":
        path.unlink()
    elif harm == "short":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"x" * path.stat().st_size)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        found, met = readable(store)
        lost = {k for k, m in whole.items() if SEGMENT <= m.position < 2 * SEGMENT}
        assert whole.keys() - found.keys() == lost
        assert all(isinstance(e, ArchiveMissing) == (harm != "foreign") for e in met)
        assert store.bounds("orders", 0).min_offset == 0
        problems = store.verify().problems
        assert [p.kind for p in problems] == ([] if harm == "foreign" else ["archive"])
        drop_row = rows[1]
        store.handover.swap([drop_row.number], rows=[(drop_row.catalog_key, None)])
        after, met = readable(store)
        assert (after.keys(), met) == (found.keys(), [])


def read_all_ways(store: Store, offset: int, position: int, message_id: str) -> list[str]:
    """The errors of each way to a message of `orders`, and what a group gets at the end."""
    errors = []
    for call in (
        lambda: store.pull("orders", 0, offset),
        lambda: store.get("orders", 0, offset),
        lambda: store.read_at(position),
        lambda: store.find(message_id),
    ):
        try:
            call()
            errors.append("")
        except StoreError as e:
            errors.append(type(e).__name__)
    return errors


def test_another_archive_in_the_place_of_one_is_damage_and_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is whole, and has no message that a reader asks for."""
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        whole, _ = readable(store)
        rows = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        shutil.copy(path_of(store, rows[0]), path_of(store, rows[1]))
        of_size = msgspec.structs.replace(rows[1], size=rows[0].size)
        store.handover.swap([], rows=[(of_size.catalog_key, encode_row(of_size))])
    lost = {k: m for k, m in whole.items() if SEGMENT <= m.position < 2 * SEGMENT}
    one = next(m for k, m in sorted(lost.items()) if k[:2] == ("orders", 0))
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        found, met = readable(store)
        assert whole.keys() - found.keys() == lost.keys()
        assert len(met) == 4
        assert all(type(e) is ArchiveDamaged and rows[1].key in e.archive for e in met)
        assert "is another archive: the catalog says" in str(met[0])
        told = read_all_ways(store, one.offset, one.position, one.message_id)
        assert told == ["ArchiveDamaged"] * 4
        caplog.clear()
        kept = [k for k in found if k[0] == "orders"]
        assert len(store.query("orders", "all", limit=1000)) == len(kept)
        assert rows[1].key in caplog.text
        caplog.clear()
        store.create_group("g")
        popped = {p.message.offset for p in store.pop("g", "orders", limit=1000, queue=0)}
        while more := store.pop("g", "orders", limit=1000, queue=0):
            popped |= {p.message.offset for p in more}
        assert popped == {o for t, q, o in found if (t, q) == ("orders", 0)}
        assert "passed over messages" in caplog.text
        assert [p.kind for p in store.verify(archives=True).problems] == ["archive"]


def test_a_queue_that_its_archive_lacks_is_damage_and_no_end(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        whole, _ = readable(store)
        rows = hand_over(store, [0], by_topic).rows
        hand_over(store, [1])
        orders = next(r for r in rows if r.retention_class == "orders")
        visits = next(r for r in rows if r.retention_class == "visits")
        key = location_key(store.topic("orders").id, 0, 0)
        families = inside.families(store)
        location = read_location(key, families.get(PLACES, key) or b"")[2]
        assert location.archive == orders.number
        batch = families.batch()
        batch.put(PLACES, key, location_value(ARCHIVE_FIRST + visits.number, 0))
        families.write(batch, sync=True)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        found, met = readable(store)
        lost = {k for k, m in whole.items() if k[:2] == ("orders", 0) and m.position < SEGMENT}
        assert whole.keys() - found.keys() == lost
        (one,) = met
        assert "has no message of queue 0" in str(one)
        assert one.next_offset == len(lost)


def test_a_place_that_does_not_answer_is_an_error_and_nothing_is_passed_over(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        store.create_group("g")
        before = answers(store)
        row = hand_over(store, [0, 1]).rows[0]
        first_hot = next(
            o for o in range(1000) if store.get("orders", 0, o).position >= 2 * SEGMENT
        )
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        found = tiers(store)
        place = found.place(row)
        inside_tiering.set_place(found, row.place, Silent())
        for call in (
            lambda: store.get("orders", 0, 0),
            lambda: store.pull("orders", 0, 0),
            lambda: store.query("orders", "all"),
            lambda: store.read_at(0),
            lambda: store.pop("g", "orders"),
        ):
            with pytest.raises(ArchiveUnavailable):
                call()
        assert store.get("orders", 0, first_hot).offset == first_hot
        assert store.bounds("orders", 0).min_offset == 0
        inside_tiering.set_place(found, row.place, place)
        assert answers(store) == before
        assert store.pop("g", "orders", queue=0)[0].message.offset == 0


class Silent:
    """A place that is gone for now."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return raising(PlaceUnavailable("it does not answer", "x"))


@pytest.mark.parametrize("lost", ["derived", "index", "index and new places"])
def test_a_rebuild_finds_what_archives_hold(tmp_path: Path, lost: str) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 6) as store:
        before = answers(store)
        first = hand_over(store, [0, 1], by_topic)
        second = hand_over(store, [2], by_topic)
        hand_over(store, [4])
        merge(store, [r.number for made in (first, second) for r in made.rows])
        ends = [store.bounds("orders", q).next_offset for q in (0, 1)]
    if lost != "derived":
        shutil.rmtree(tmp_path / "a" / "index")
    rebuild(tmp_path / "a", config(clock))
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert answers(store) == before
        assert store.verify(archives=True).problems == []
        assert [store.put("orders", b"x", queue=q).offset for q in (0, 1)] == ends
        hand_over(store, [3])


@pytest.mark.parametrize(
    ("committed", "lost", "first"),
    [(False, "derived", 0), (False, "index", 0), (True, "derived", 2), (True, "index", 0)],
)
def test_a_rebuild_has_segments_in_the_log_unless_the_index_says_that_they_were_handed_over(
    tmp_path: Path, committed: bool, lost: str, first: int
) -> None:
    """A crash came before the hand-over was committed, or before the files went."""
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        before = answers(store)
        shutil.copytree(store.path / "commitlog", tmp_path / "log")
        there = segments(store.path)
        if committed:
            hand_over(store, [0, 1], by_topic)
        else:
            make(store, [0, 1], by_topic)
        killed(store, tmp_path / "b")
    shutil.copytree(tmp_path / "log", tmp_path / "b" / "commitlog", dirs_exist_ok=True)
    if lost != "derived":
        shutil.rmtree(tmp_path / "b" / "index")
    rebuild(tmp_path / "b", config(clock))
    for _ in range(2):
        with kvstore.open(tmp_path / "b", config(clock)) as store:
            assert segments(store.path) == there[first:]
            assert answers(store) == before
            assert store.verify(archives=True).problems == []


@pytest.mark.parametrize("back", [[0], [1], [0, 1]])
def test_a_rebuild_takes_a_merged_archive_of_which_the_log_has_a_segment_again(
    tmp_path: Path, back: list[int]
) -> None:
    """It left the archive alone: the messages of its other segments were gone, and no problem
    said so.
    """
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        before = answers(store)
        shutil.copytree(store.path / "commitlog", tmp_path / "log")
        hand_over(store, [0])
        hand_over(store, [1], by_topic)
        merge(store, [row.number for row in tiers(store).rows()])
    there = segments(tmp_path / "a")
    files = sorted(path.name for path in (tmp_path / "log").iterdir())
    for number in back:
        shutil.copy(tmp_path / "log" / files[number], tmp_path / "a" / "commitlog")
    shutil.rmtree(tmp_path / "a" / "index")
    rebuild(tmp_path / "a", config(clock))
    for _ in range(2):
        with kvstore.open(tmp_path / "a", config(clock)) as store:
            assert segments(store.path) == there
            assert answers(store) == before
            assert store.recovery.damage == []
            assert store.verify(archives=True).problems == []


def test_a_segment_that_is_in_the_log_again_stays_if_its_merged_archive_is_damaged(
    tmp_path: Path,
) -> None:
    """Somebody may have put it there for that reason."""
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4) as store:
        before = answers(store)
        shutil.copytree(store.path / "commitlog", tmp_path / "log")
        rows = [hand_over(store, [number]).rows[0] for number in (0, 1)]
        merge(store, [row.number for row in rows])
        (row,) = tiers(store).rows()
        path = path_of(store, row)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    shutil.copytree(tmp_path / "log", tmp_path / "a" / "commitlog", dirs_exist_ok=True)
    there = segments(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "index")
    rebuild(tmp_path / "a", config(clock))
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert segments(store.path) == there
        assert answers(store) == before


def test_a_topic_that_was_deleted_does_not_come_back_with_a_rebuild(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        hand_over(store, [0, 1])
        store.delete_topic("visits")
        before = [topic.name for topic in store.topics()]
    rebuild(tmp_path / "a", config(clock))
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert [topic.name for topic in store.topics()] == before
        store.create_topic("visits")
        assert store.bounds("visits", 0) == (0, 0)


def test_a_rebuild_keeps_the_places_of_an_archive_that_can_not_be_read(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        before = answers(store)
        row = hand_over(store, [0, 1]).rows[0]
        path = path_of(store, row)
    path.rename(tmp_path / "away")
    rebuild(tmp_path / "a", config(clock))
    (tmp_path / "away").rename(path)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert answers(store) == before


def test_a_reader_beside_a_writer_finds_what_was_handed_over(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 5) as store:
        before = answers(store)
        with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
            hand_over(store, [0, 1])
            assert answers(reader) == before
            hand_over(store, [3])
            assert answers(reader) == before
            rows = tiers(store).rows()
            merge(store, [r.number for r in rows])
            assert answers(reader) == before
            assert reader.verify().problems == []


@pytest.mark.parametrize("is_whole", [False, True], ids=["quick", "every byte"])
def test_a_reader_that_verifies_misses_no_archive_that_was_replaced_or_moved_since_its_opening(
    tmp_path: Path, is_whole: bool
) -> None:
    """It said that archives of its opening's catalog were not there, and, once it had learned of
    the new catalog, that locations name archives which the catalog does not have.
    """
    with filled(tmp_path / "a", VirtualClock(), 6) as store:
        for number in range(4):
            hand_over(store, [number])
        with kvstore.open(tmp_path / "a", config(), read_only=True) as reader:
            merge(store, [row.number for row in tiers(store).rows()[:2]])
            moved = tiers(store).rows()[1]
            path_of(store, moved).rename(path_of(store, moved).with_name("elsewhere.kvma"))
            elsewhere = msgspec.structs.replace(moved, key="elsewhere.kvma")
            store.handover.set_rows([(elsewhere.catalog_key, encode_row(elsewhere))])
            for _ in range(2):
                assert reader.verify(archives=is_whole).problems == []
            path_of(store, elsewhere).unlink()
            assert [p.kind for p in reader.verify(archives=is_whole).problems] == ["archive"]


def test_a_reader_whose_tail_was_handed_over_finds_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        killed(store, tmp_path / "b")
    with kvstore.open(tmp_path / "b", config(clock)) as store:
        for n in range(300):
            store.put("orders", b"%d" % n * 300, queue=n % 2, keys=["all"])
        before = answers(store)
        with kvstore.open(tmp_path / "b", config(clock), read_only=True) as reader:
            assert answers(reader) == before
            store.seal()
            hand_over(store, sealed(store))
            assert answers(reader) == before


def test_hand_overs_and_merges_beside_readers(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 8) as store:
        whole, _ = readable(store)
        queries = {k: store.query("orders", k, limit=1000) for k in ("k-3", "all")}
        stop = threading.Event()
        errors: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    found, met = readable(store)
                    assert met == []
                    assert found == whole
                    for key, wanted in queries.items():
                        assert {m.offset for m in store.query("orders", key, limit=1000)} == {
                            m.offset for m in wanted
                        }
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in (1, 0, 2, 5, 3, 4, 6, 7):
                hand_over(store, [number], by_topic)
                if number in (2, 4):
                    merge(store, [r.number for r in tiers(store).rows()])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []


def test_pops_beside_hand_overs_get_every_message_once(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 6) as store:
        store.create_group("g")
        whole = {k for k in readable(store)[0] if k[0] == "orders"}
        got: list[tuple[str, int, int]] = []
        errors: list[BaseException] = []

        def pop() -> None:
            try:
                while more := store.pop("g", "orders", limit=3):
                    got.extend((p.message.topic, p.message.queue, p.message.offset) for p in more)
                    store.ack_batch([p.receipt for p in more])
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=pop)
        thread.start()
        for number in range(6):
            hand_over(store, [number])
        thread.join()
        assert errors == []
        assert sorted(got) == sorted(whole)


def test_with_a_worker_attached_segments_do_not_expire_and_without_it_they_do_again(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    settings = config(clock, retention=Retention(hot_for=1.0))
    with filled(tmp_path / "a", clock, 3):
        pass
    with kvstore.open(tmp_path / "a", settings) as store:
        clock.advance(1000)
        store.handover.worker_begins()
        assert store.apply_retention() == 0
        hand_over(store, [0])
        store.handover.worker_ends()
        assert store.apply_retention() == 2
        assert store.bounds("orders", 0).min_offset == 0
        low, high = store.bounds("orders", 0)
        found = store.pull("orders", 0, low, 1000)
        assert len(found.messages) < high - low
        following = store.pull("orders", 0, found.next_offset)
        assert following.next_offset == high
        drop(store, tiers(store).rows()[0].number)
        assert store.bounds("orders", 0) == (high, high)


def test_an_archive_that_was_dropped_is_no_error_to_who_reads_behind_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        row = hand_over(store, [0]).rows[0]
        drop(store, row.number)
        with pytest.raises(StoreError):
            store.get("orders", 0, 0)
        assert readable(store)[1] == []
