"""A restored store goes on as any other: it merges and erases what is its own, and takes nothing
from the store that it was restored from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec
import pytest

import kvstore
import tiering
from kvstore import Message, Retention, Store
from tests.support.clock import VirtualClock
from tests.tiering.spark.sink.jobs import made_up, write
from tests.tiering.stores import config
from tiering import KeyFile, Policy, Worker
from tiering.catalog.catalog import decode_rows
from tiering.executor.pool import Inline

POLICY = Policy(hot_for=60.0, warm="archive", clock_doubt=0.0, grace=0.0)


@pytest.mark.parametrize("copy", [True, False], ids=["taken along", "where they are"])
def test_a_restored_store_merges_and_erases(
    tmp_path: Path, clock: VirtualClock, copy: bool
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY) as worker:
            for n in range(3):
                store.put_batch(
                    [Message("a", b"%d" % m, queue=0, keys=(f"k{m}",)) for m in range(3)]
                )
                store.seal()
                clock.advance(100.0)
                assert worker.run_once().failed == {}, n
        before = store.pull("a", 0, 0, limit=100).messages
        objects = sorted((store.path / "archive").rglob("*.kvarc"))
        tiering.restore(tmp_path / "store" / "archive", tmp_path / "again", copy=copy)
        with kvstore.open(tmp_path / "again", config(clock)) as again:
            with Worker(again, POLICY) as worker:
                assert worker.merge().failed == {}
                assert len(worker.archives()) == (1 if copy else 3)
                assert again.pull("a", 0, 0, limit=100).messages == before
                report = worker.erase(key="k1")
                assert (report.is_proven, report.failed) == (True, {})
                assert worker.verify().problems == []
            left = again.pull("a", 0, 0, limit=100).messages
            assert left == [m for m in before if m.keys != ["k1"]]
            assert again.query("a", "k1") == []
        assert sorted((store.path / "archive").rglob("*.kvarc")) == objects
        assert store.pull("a", 0, 0, limit=100).messages == before


COLD: Final = Policy(hot_for=60.0, cold="cold", clock_doubt=0.0, grace=0.0)


@pytest.mark.parametrize("policy", [POLICY, COLD], ids=["where they are", "moved"])
@pytest.mark.parametrize("is_taken_over", [False, True], ids=["beside", "taken over"])
@pytest.mark.parametrize("made", ["by a worker", "by jobs"])
def test_what_other_makers_have_archived_is_erased_merged_and_written_under_todays_keys(
    tmp_path: Path, clock: VirtualClock, made: str, is_taken_over: bool, policy: Policy
) -> None:
    """Their ids stand in the archives, also in those that went cold under a name of this store."""
    source = tmp_path / "source"
    if made == "by jobs":
        for job in ("aa", "bb", "cc"):
            write(source, [row | {"keys": ["k1"]} for row in made_up("a", 3)], name=job)
    else:
        with kvstore.open(tmp_path / "store", config(clock)) as store:
            store.create_topic("a", queues=1)
            with Worker(store, msgspec.structs.replace(POLICY, warm=str(source))) as worker:
                for _ in range(3):
                    store.put_batch([Message("a", b"m", queue=0, keys=("k1",)) for _ in range(3)])
                    store.seal()
                    clock.advance(100.0)
                    assert worker.run_once().failed == {}
    path, keys = tmp_path / "again", KeyFile(tmp_path / "keys")
    tiering.restore(source, path, take_over=is_taken_over, config=config(clock))
    with kvstore.open(path, config(clock)) as again:
        again.create_topic("b", queues=1)
        clock.advance(1e9)  # jobs note the time that it really is
        before = held_by(again)
        assert len(before) == 9
        with Worker(again, policy, keys=keys, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
            is_moved = policy is COLD
            assert {a.tier for a in worker.archives()} == {"cold" if is_moved else "warm"}
            rows = decode_rows(again.handover.rows())
            assert all(row.crc for row in rows if row.tier == "cold")
            keys.make("a")
            assert worker.reencrypt().failed == {}
            assert worker.part("a").failed == {}
            assert worker.merge().failed == {}
            is_own = is_moved or is_taken_over
            assert len(worker.archives()) == (1 if is_own else 3)
            assert all(row.is_encrypted == is_own for row in decode_rows(again.handover.rows())
                       if row.state == "live")  # fmt: skip
            assert held_by(again) == before
            put = again.put("a", b"the last", queue=0, keys=["k2"])
            report = worker.erase(key="k1")
            assert (report.is_proven, report.failed) == (True, {})
            assert held_by(again) == [b"the last"]
            assert again.get("a", 0, put.offset).keys == ["k2"]
            assert worker.verify().ok


def held_by(store: Store, topic: str = "a", queue: int = 0) -> list[bytes]:
    found: list[bytes] = []
    low, high = store.bounds(topic, queue)
    while low < high:
        page = store.pull(topic, queue, low, limit=50)
        found += [m.body for m in page.messages]
        low = page.next_offset
    return found


def test_a_restored_store_lets_archives_of_the_other_go_and_their_objects_lie(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        store.put_batch([Message("a", b"old", queue=0)])
        store.seal()
        clock.advance(100.0)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
        before = store.pull("a", 0, 0).messages
        tiering.restore(tmp_path / "store" / "archive", tmp_path / "again", config=config(clock))
        brief = msgspec.structs.replace(POLICY, warm_for=600.0)
        with (
            kvstore.open(tmp_path / "again", config(clock)) as again,
            Worker(again, brief) as worker,
        ):
            clock.advance(1000.0)
            assert len(worker.run_once().expired) == 1
            clock.advance(1000.0)
            worker.run_once()
            assert again.bounds("a", 0) == (1, 1)
            assert list(again.handover.rows()) == []
        assert store.pull("a", 0, 0).messages == before


def test_a_restored_store_that_loses_its_index_finds_all_archives_again(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        store.put_batch([Message("a", b"old", queue=0)])
        store.seal()
        clock.advance(100.0)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
    path = tmp_path / "again"
    tiering.restore(tmp_path / "store" / "archive", path, copy=True, config=config(clock))
    with kvstore.open(path, config(clock)) as again:
        again.put_batch([Message("a", b"new", queue=0)])
        again.seal()
        clock.advance(100.0)
        with Worker(again, POLICY) as worker:
            assert worker.run_once().failed == {}
        before = again.pull("a", 0, 0).messages
        assert [m.body for m in before] == [b"old", b"new"]
    shutil.rmtree(path / "index")
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as again:
        assert again.pull("a", 0, 0).messages == before


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_store_that_loses_its_index_after_a_merge_finds_all_archives_again(
    tmp_path: Path, clock: VirtualClock, is_restored: bool
) -> None:
    """Merged archives still lie there for the time of grace, under the former id."""
    graced = msgspec.structs.replace(POLICY, grace=1e6)
    path = tmp_path / "store"
    bodies: list[bytes] = []
    for turn in range(4):
        with kvstore.open(path, config(clock)) as store:
            if not turn:
                store.create_topic("a", queues=1)
            assert held_by(store) == bodies
            with Worker(store, graced, executor=Inline()) as worker:
                for n in range(3):
                    bodies.append(b"%d of %d" % (n, turn))
                    store.put("a", bodies[-1], queue=0)
                    store.seal()
                    clock.advance(100.0)
                    assert worker.run_once().failed == {}
                merged = worker.merge()
                assert (merged.failed, bool(merged.merged)) == ({}, True)
        if is_restored and not turn:
            tiering.restore(path / "archive", tmp_path / "new", copy=True, config=config(clock))
            path = tmp_path / "new"
        else:
            shutil.rmtree(path / "index")
            kvstore.rebuild(path, config(clock))


def test_archives_of_two_stores_in_one_folder_are_told_apart(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Though one store was restored from the other, and has rewritten the other's archives."""
    place = tmp_path / "store" / "archive"
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY, executor=Inline()) as worker:
            store.put("a", b"both", queue=0, keys=["k1"])
            store.put("a", b"both", queue=0)
            store.seal()
            clock.advance(100.0)
            assert worker.run_once().failed == {}
            tiering.restore(place, tmp_path / "other", config=config(clock))
            store.put("a", b"mine", queue=0)
            store.seal()
            clock.advance(100.0)
            assert worker.run_once().failed == {}
    there = msgspec.structs.replace(POLICY, warm=str(place))
    with kvstore.open(tmp_path / "other", config(clock)) as other:
        other.put("a", b"another's", queue=0)
        with Worker(other, there, executor=Inline()) as worker:
            assert worker.erase(key="k1").is_proven
            clock.advance(100.0)
            assert worker.run_once().failed == {}
    shutil.rmtree(tmp_path / "store" / "index")
    kvstore.rebuild(tmp_path / "store", config(clock))
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        assert b"another's" not in (held_by(store) if store.topics() else [])


DAY: Final = 86_400.0
DAYS: Final = msgspec.structs.replace(POLICY, warm_for=30 * DAY)


@pytest.mark.parametrize("grace", [0.0, 1e6])
def test_the_archives_beside_a_parted_one_of_their_class_are_restored_and_found_again(
    tmp_path: Path, clock: VirtualClock, grace: float
) -> None:
    """The topic's part is of their class, of their range of the log, and of a higher generation.
    It supersedes the archive that it was parted from, which may still be there, and no other."""
    path, policy = tmp_path / "store", msgspec.structs.replace(DAYS, grace=grace)
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, policy, executor=Inline()) as worker,
    ):
        for topic in "abc":
            store.create_topic(topic, queues=1)
        store.alter_topic("c", retention=Retention(warm_for=20 * DAY))
        for turn in range(2):
            for topic in "abc":
                store.put(topic, b"%d" % turn, queue=0)
            store.seal()
            clock.advance(100.0)
            assert worker.run_once().failed == {}
        store.alter_topic("a", retention=Retention(warm_for=20 * DAY))
        parted = worker.part("a")
        assert (parted.failed, len(parted.merged)) == ({}, 2)
        assert worker.run_once().failed == {}

    def check(name: str) -> None:
        with kvstore.open(tmp_path / name, config(clock)) as store:
            assert [held_by(store, topic) for topic in "abc"] == [[b"0", b"1"]] * 3
            assert store.verify(archives=True).problems == []

    tiering.restore(path / "archive", tmp_path / "parted", copy=True, config=config(clock))
    check("parted")
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, policy, executor=Inline()) as worker,
    ):
        merged = worker.merge()
        assert (merged.failed, bool(merged.merged)) == ({}, True)
    tiering.restore(path / "archive", tmp_path / "merged", copy=True, config=config(clock))
    check("merged")
    for _ in range(2):
        shutil.rmtree(path / "index")
        kvstore.rebuild(path, config(clock))
        check("store")


def test_after_a_part_of_which_one_archive_was_put_nothing_of_the_other_is_lost(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store"
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, DAYS, executor=Inline()) as worker,
    ):
        for topic in "ab":
            store.create_topic(topic, queues=1)
            store.put(topic, b"0", queue=0)
        store.seal()
        clock.advance(100.0)
        assert worker.run_once().failed == {}
        # The topic that is parted gets the class that the archive has, too.
        store.alter_topic("b", retention=Retention(warm_for=20 * DAY))
        assert worker.part("a").failed == {}
        old, first, second = sorted(
            (path / "archive").rglob("*.kvarc"), key=lambda p: p.name.split("-")[1]
        )
        assert old.name.split("-")[2] == first.name.split("-")[2]
    second.unlink()
    tiering.restore(path / "archive", tmp_path / "again", config=config(clock))
    with kvstore.open(tmp_path / "again", config(clock)) as again:
        assert {topic: held_by(again, topic) for topic in "ab"} == {"a": [b"0"], "b": [b"0"]}


def test_topics_that_are_found_again_are_as_the_newest_archive_has_them(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """An older one knows fewer queues, and a retention by which messages might end too early."""
    path, longer = tmp_path / "store", Retention(warm_for=90 * DAY)
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, DAYS, executor=Inline()) as worker,
    ):
        store.create_topic("a", queues=1)
        for queues in (1, 3):
            store.alter_topic("a", queues=queues, retention=longer if queues == 3 else Retention())
            for queue in range(queues):
                store.put("a", b"of %d" % queues, queue=queue)
            store.seal()
            clock.advance(100.0)
            assert worker.run_once().failed == {}
        store.alter_topic("a", queues=1, read_queues=3)
        store.put("a", b"of 3, read", queue=0)
        store.seal()
        clock.advance(100.0)
        assert worker.run_once().failed == {}
    shutil.rmtree(path / "index")
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        found = store.topic("a")
        assert (found.read_queues, found.write_queues, found.retention) == (3, 1, longer)
        assert [held_by(store, "a", queue) for queue in range(3)] == [
            [b"of 1", b"of 3", b"of 3, read"], [b"of 3"], [b"of 3"],
        ]  # fmt: skip


def test_superseded_archives_of_before_the_index_was_lost_go_and_are_erased(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Otherwise they would hold erased messages, and bring them back when it is lost again."""
    path = tmp_path / "store"
    graced = msgspec.structs.replace(POLICY, grace=1e6, codec="lz4")
    objects = path / "archive"

    def lose_index() -> Store:
        shutil.rmtree(path / "index")
        kvstore.rebuild(path, config(clock))
        return kvstore.open(path, config(clock))

    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, graced, executor=Inline()) as worker,
    ):
        for topic in "ab":
            store.create_topic(topic, queues=1)
        for _ in range(2):
            for topic in "ab":
                store.put(topic, b"a secret of " + topic.encode(), queue=0)
            store.seal()
            clock.advance(100.0)
            assert worker.run_once().failed == {}
        assert worker.merge().failed == {}
    with lose_index() as store, Worker(store, graced, executor=Inline()) as worker:
        assert len(list(objects.rglob("*.kvarc"))) == 3
        assert [len(held_by(store, topic)) for topic in "ab"] == [2, 2]
        assert len(worker.archives()) == 1
        assert worker.erase(topic="a").is_proven
        assert all(b"secret of a" not in p.read_bytes() for p in objects.rglob("*.kvarc"))
        assert len(list(objects.rglob("*.kvarc"))) == 1
        assert worker.erase(topic="b").is_proven
        assert list(objects.rglob("*.kvarc")) == []
    with lose_index() as store:
        assert store.topics() == []


def test_a_rebuild_brings_nothing_back_that_waits_to_be_removed(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store without any other archives, whose index is copied into a new one."""
    path = tmp_path / "store"
    policy = msgspec.structs.replace(DAYS, grace=1e6)
    with (
        kvstore.open(path, config(clock)) as store,
        Worker(store, policy, executor=Inline()) as worker,
    ):
        store.create_topic("a", queues=1)
        store.put("a", b"over", queue=0)
        store.seal()
        clock.advance(100.0)
        assert worker.run_once().failed == {}
        clock.advance(40 * DAY)
        assert worker.run_once().expired
    monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert held_by(store) == []
        assert [row.state for row in decode_rows(store.handover.rows())] == ["retired"]


def test_a_segment_that_was_archived_before_the_index_was_lost_and_after_it_is_of_one_store(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """A crash came before the segment's file went, and took the index; and it is lost again."""
    path = tmp_path / "store"
    bodies, segment, data = [b"0", b"1"], path, b""
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY, executor=Inline()) as worker:
            for body in bodies:
                store.put("a", body, queue=0)
                store.seal()
                segment = sorted((path / "commitlog").iterdir())[0]
                data = segment.read_bytes()
                clock.advance(100.0)
                assert worker.run_once().failed == {}
    segment.write_bytes(data)
    for _ in range(3):
        shutil.rmtree(path / "index")
        kvstore.rebuild(path, config(clock))
        with kvstore.open(path, config(clock)) as store:
            assert held_by(store) == bodies
            assert store.verify(archives=True).problems == []
            with Worker(store, POLICY, executor=Inline()) as worker:
                assert worker.run_once().failed == {}
    assert not segment.exists()
