"""Erased messages are nowhere any more, neither in the log nor in archives; all others are."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
from kvstore import CallerError, ConfigError, Message, Retention, Store, StoredMessage
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile
from tests.tiering.stores import config, fill, held
from tiering import KeyFile, Policy, Worker
from tiering.archive.archive_reader import Archive
from tiering.archive.tail import FileSource
from tiering.catalog.catalog import decode_rows, read_topics
from tiering.executor.pool import Inline
from tiering.places.place import open_place

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", clock_doubt=0.0)
SECRET = b"a secret that nobody must find"


def put_secrets(store: Store, count: int = 5) -> None:
    for number in range(count):
        store.put_batch([Message("events", SECRET * 20, queue=number % 2, keys=("secret",))])


def files_with(store: Store, what: bytes) -> list[str]:
    return [str(p) for p in store.path.rglob("*") if p.is_file() and what in p.read_bytes()]


def without(before: Any, meant: Any) -> dict[Any, list[StoredMessage]]:
    return {queue: [m for m in some if not meant(m)] for queue, some in before.items()}


def test_a_key_is_erased_from_segments_and_archives_and_all_else_reads_the_same(
    store: Store, clock: VirtualClock
) -> None:
    put_secrets(store)
    with Worker(store, WARM) as worker:
        worker.run_once()
        put_secrets(store)
        fill(store, 60, first=500)
        put_secrets(store, 2)
        before = held(store)
        report = worker.erase(key="secret")
        assert report.is_proven, report.failed
        assert report.messages == 12
        assert report.segments
        assert report.rewritten == []
        again = worker.erase(key="k3")
        assert again.is_proven, again.failed
        assert again.rewritten
        assert worker.history.last(1)[0].what == "erased"
    assert held(store) == without(before, lambda m: {"secret", "k3"} & set(m.keys))
    assert store.verify().problems == []
    assert store.query("events", "secret") == []
    assert files_with(store, SECRET) == []


def test_the_part_of_a_topic_in_archives_and_log_is_erased_while_the_topic_goes_on(
    store: Store,
) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        fill(store, 60, first=500)
        before = held(store)
        ends = {queue: store.bounds(*queue).next_offset for queue in before}
        report = worker.erase(topic="orders")
        assert report.is_proven, report.failed
        assert report.rewritten
        assert report.segments
    assert held(store) == without(before, lambda m: m.topic == "orders")
    assert {queue: store.bounds(*queue).next_offset for queue in before} == ends
    store.put("orders", b"the next one", queue=0)
    assert [m.body for m in held(store)["orders", 0]] == [b"the next one"]


def test_everything_before_a_time_is_erased(store: Store, clock: VirtualClock) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        time = clock.now_ms()
        fill(store, 60, first=500)
        before = held(store)
        report = worker.erase(before=time)
        assert report.is_proven, report.failed
        assert report.messages == 300
        assert worker.archives() == []
    assert held(store) == without(before, lambda m: m.stored_at < time)


def test_the_objects_that_were_replaced_are_gone_whatever_the_grace_time(store: Store) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        worker.merge()
        report = worker.erase(key="k1")
        assert len(report.removed) > len(report.rewritten)
        keys = {archive.key for archive in worker.archives()}
    assert {info.key for info in open_place(store.path / "archive").list()} == keys


def test_a_topic_that_was_deleted_is_erased_from_the_log_and_from_archives(store: Store) -> None:
    put_secrets(store)
    with Worker(store, WARM) as worker:
        store.seal()
        worker.run_once()
        put_secrets(store)
        store.delete_topic("events")
        report = worker.erase(topic="events")
        assert report.is_proven, report.failed
    assert files_with(store, SECRET) == []


def test_what_archives_have_of_a_deleted_topic_is_erased_beside_what_others_have(
    store: Store,
) -> None:
    put_secrets(store)
    store.seal()
    with Worker(store, WARM) as worker:
        worker.run_once()
        before = held(store)
        store.delete_topic("events")
        report = worker.erase(topic="events")
        assert report.is_proven, report.failed
        assert report.rewritten
        assert report.messages == sum(len(some) for q, some in before.items() if q[0] == "events")
    assert held_of(store, "orders") == [m for q in range(2) for m in before["orders", q]]
    for path in (store.path / "archive").rglob("*.kvarc"):
        archive = Archive.open(FileSource(path, LocalFiles()))
        assert [topic.name for topic in archive.manifest.topics] == ["orders"]


def test_what_nobody_can_read_any_more_is_counted_as_that(store: Store, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    with Worker(store, WARM, keys=keys) as worker:
        assert worker.run_once().failed == {}
        count = sum(len(some) for queue, some in held(store).items() if queue[0] == "orders")
        assert worker.erase(key="nobody-has-it").unreadable == 0
        worker.destroy_key("orders")
        report = worker.erase(key="nobody-has-it")
        assert (report.is_proven, report.unreadable) == (True, count)


def test_what_is_put_meanwhile_and_later_is_not_meant(store: Store) -> None:
    with Worker(store, WARM) as worker:
        assert worker.erase(topic="orders").is_proven
        store.put("orders", b"new", queue=0)
        assert [m.body for m in held(store)["orders", 0]] == [b"new"]


def test_an_archive_that_is_damaged_is_not_proven_and_stays(store: Store) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        path = next((store.path / "archive").rglob("*.kvarc"))
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        report = worker.erase(key="k1")
        assert not report.is_proven
        assert any(path.name in name for name in report.failed)
    assert path.exists()


def test_without_a_place_for_archives_what_is_in_the_log_is_not_erased(store: Store) -> None:
    with Worker(store, Policy(clock_doubt=0.0)) as worker:
        report = worker.erase(key="k1")
        assert not report.is_proven
        assert report.found
        assert "no place" in next(iter(report.failed.values()))


def test_nothing_to_erase_is_refused(store: Store) -> None:
    with Worker(store, WARM) as worker:
        with pytest.raises(CallerError, match="nothing says"):
            worker.erase()
        with pytest.raises(CallerError, match="several keys"):
            worker.erase(key="a b")


def test_destroying_a_key_makes_its_topic_unreadable_at_once(store: Store, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    with Worker(store, WARM, keys=keys) as worker:
        assert worker.run_once().failed == {}
        before = held(store)
        report = worker.destroy_key("orders")
        assert report.archives
        assert report.readable == []
        assert report.segments == []
        with pytest.raises(kvstore.KeyDestroyed):
            store.pull("orders", 0, 0)
        keys.make("orders")
        assert worker.merge().failed == {}
        assert worker.erase(topic="orders").is_proven
    assert held(store) == without(before, lambda m: m.topic == "orders")


def test_with_another_key_file_encrypted_archives_are_neither_read_nor_let_go(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    right, wrong = KeyFile(tmp_path / "keys"), KeyFile(tmp_path / "other")
    right.make("orders")
    wrong.make("orders")
    with Worker(store, WARM, keys=right) as worker:
        assert worker.run_once().failed == {}
        before, count = held(store), len(worker.archives())
    with Worker(store, WARM, keys=wrong) as worker:
        assert worker.merge().failed
        assert not worker.erase(topic="orders").is_proven
    with Worker(store, WARM, keys=right) as worker:
        assert held(store) == before
        assert len(worker.archives()) >= count - 2


def test_readers_get_past_what_no_key_opens_any_more(tmp_path: Path, clock: VirtualClock) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("e")
    with kvstore.open(tmp_path / "locked", config(clock)) as store:
        store.create_topic("e", queues=1)
        store.create_group("g")
        with Worker(store, WARM, keys=keys) as worker:
            store.put_batch([Message("e", b"old", queue=0, keys=("k",)) for _ in range(5)])
            store.seal()
            clock.advance(2 * DAY)
            assert worker.run_once().failed == {}
            worker.destroy_key("e")
        new = store.put("e", b"new", queue=0, keys=["k"])
        with pytest.raises(kvstore.KeyDestroyed) as caught:
            store.pull("e", 0, 0)
        assert (caught.value.next_offset, caught.value.topic) == (5, "e")
        assert caught.value.archive
        assert [m.offset for m in store.pull("e", 0, 5).messages] == [5]
        assert [m.offset for m in store.query("e", "k")] == [new.offset]
        (popped,) = store.pop("g", "e", limit=10)
        assert popped.message.body == b"new"


def test_a_group_waits_for_what_is_encrypted_with_a_key_that_is_elsewhere(
    tmp_path: Path, clock: VirtualClock
) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("e")
    path = tmp_path / "locked"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("e", queues=1)
        store.create_group("g")
        with Worker(store, WARM, keys=keys) as worker:
            store.put_batch([Message("e", b"old", queue=0) for _ in range(5)])
            store.seal()
            clock.advance(2 * DAY)
            assert worker.run_once().failed == {}
    with kvstore.open(path, config(clock)) as store, pytest.raises(kvstore.KeyMissing):
        store.pop("g", "e", limit=10)
    access = kvstore.ArchiveAccess(keys=keys)
    with kvstore.open(path, config(clock, archives=access)) as store:
        assert len(store.pop("g", "e", limit=10)) == 5


def test_keys_that_cannot_be_destroyed_are_refused(store: Store) -> None:
    with Worker(store, WARM) as worker, pytest.raises(ConfigError, match="no keys"):
        worker.destroy_key("orders")


def test_destroying_a_key_tells_what_can_be_read_all_the_same(store: Store, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    with Worker(store, WARM, keys=keys) as worker:
        worker.run_once()
        plain = {archive.key for archive in worker.archives()}
        keys.make("orders")
        fill(store, 60, first=500)
        store.put("orders", b"in the active segment", queue=0)
        report = worker.destroy_key("orders")
        assert {name.partition("archive/")[2] for name in report.readable} == plain
        assert len(report.segments) == 2
        assert not report.is_whole


def test_with_the_key_go_objects_that_were_replaced_and_have_the_topic_in_the_clear(
    store: Store, tmp_path: Path, clock: VirtualClock
) -> None:
    """Though their time of grace is not over; those that lack the topic stay for it."""
    keys = KeyFile(tmp_path / "keys")
    policy = msgspec.structs.replace(WARM, codec="lz4", grace=1e6)
    store.alter_topic("events", retention=Retention(warm_for=20 * DAY))
    with Worker(store, policy, keys=keys) as worker:
        store.put_batch([Message("orders", SECRET, queue=0), Message("events", b"x", queue=0)])
        store.seal()
        clock.advance(2 * DAY)
        assert worker.run_once().failed == {}
        assert files_with(store, SECRET)
        keys.make("orders")
        assert worker.reencrypt().failed == {}
        assert worker.merge().failed == {}
        replaced = [row for row in decode_rows(store.handover.rows()) if row.state == "retired"]
        with_it = {row.name for row in replaced if "encrypted" not in row.retention_class
                   and store.topic("orders").id in read_topics(row.topics or b"")}  # fmt: skip
        assert files_with(store, SECRET)
        assert {row.name for row in replaced} > with_it > set()
        folder = store.path / "archive" / store.handover.store_id.hex()
        (folder / ".x.kvarc.part").write_bytes(SECRET)
        report = worker.destroy_key("orders")
        assert report.is_whole
        assert with_it < set(report.removed)
        assert files_with(store, SECRET) == []
        assert any(row.state == "retired" for row in decode_rows(store.handover.rows()))
        assert store.pull("events", 0, 0).messages


def test_a_replaced_object_that_cannot_be_removed_is_told_with_the_destroyed_key(
    tmp_path: Path, clock: VirtualClock
) -> None:
    keys, files = KeyFile(tmp_path / "keys"), EveryFile()
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as store:
        store.create_topic("e", queues=1)
        store.put("e", SECRET, queue=0)
        store.seal()
        clock.advance(2 * DAY)
        with Worker(store, WARM, keys=keys, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
            keys.make("e")
            assert worker.reencrypt().failed == {}
            files.fail("erase", nth=1, error=errno.EIO, half=False)
            report = worker.destroy_key("e")
            files.mend()
            assert not report.is_whole
            assert len(report.failed) == 1
            assert report.removed == []
            worker.run_once()
            assert files_with(store, SECRET) == []


def test_an_archive_that_is_not_there_keeps_no_key_from_being_destroyed(
    store: Store, tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    with Worker(store, WARM, keys=keys) as worker:
        worker.run_once()
        path = next((store.path / "archive").rglob("*encrypted*.kvarc"))
        path.unlink()
        report = worker.destroy_key("orders")
        assert [path.name in name for name in report.failed] == [True]
        assert report.archives
        assert keys.topics() == []


def test_without_another_key_what_is_encrypted_stays_hot_and_all_else_goes_on(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    with Worker(store, WARM, keys=keys) as worker:
        worker.run_once()
        worker.destroy_key("orders")
        fill(store, 30, first=500)
        (stays,) = [segment.number for segment in store.segments()]
        for number in range(3):
            store.put_batch([Message("events", b"%d" % number, queue=0)])
        store.seal()
        before = held_of(store, "events")
        clock.advance(2 * DAY)
        report = worker.run_once()
        assert list(report.failed) == [f"segment {stays}"]
        assert "KeyFile.make" in report.failed[f"segment {stays}"]
        assert report.segments == [stays + 1]
        assert [segment.number for segment in store.segments()] == [stays]
        assert worker.plan().moves
        assert worker.merge().failed == {}
        assert not any("encrypted" in archive.retention_class for archive in worker.archives())
        assert held_of(store, "events") == before
        first, following = store.bounds("orders", 0)
        found = store.pull("orders", 0, first, limit=1000).messages
        assert [m.offset for m in found] == list(range(first, following))
        assert found
        keys.make("orders")
        assert worker.run_once().segments == [stays]
        assert store.segments() == []


def test_what_is_left_of_a_topic_without_a_key_can_be_erased(store: Store, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    with Worker(store, WARM, keys=keys) as worker:
        worker.run_once()
        fill(store, 30, first=500)
        before = held_of(store, "events")
        assert worker.destroy_key("orders").segments
        report = worker.erase(topic="orders")
        assert report.is_proven, report.failed
        assert worker.destroy_key("orders").is_whole
    assert held_of(store, "events") == before
    assert store.pull("orders", 0, 0).messages == []


def held_of(store: Store, topic: str) -> list[StoredMessage]:
    return [m for queue in range(2) for m in store.pull(topic, queue, 0, limit=1000).messages]


def test_what_was_erased_between_segments_that_stay_is_passed_over(
    tmp_path: Path, clock: VirtualClock
) -> None:
    policy = Policy(hot_for=10 * DAY, warm="archive", clock_doubt=0.0)
    path = tmp_path / "gaps"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        store.create_topic("b", queues=1)
        for n in range(4):
            store.put_batch([Message("a", b"%d" % n, queue=0, keys=(f"k{n}",))])
            if n != 2:
                store.put_batch([Message("b", b"stays", queue=0)])
            store.seal()
        with Worker(store, policy) as worker:
            for key in ("k1", "k2"):
                assert worker.erase(key=key).is_proven
    with kvstore.open(path, config(clock)) as store:
        assert [m.offset for m in store.pull("a", 0, 0).messages] == [0, 3]
        assert [m.offset for m in store.pull("a", 0, 1).messages] == [3]
        for offset in (1, 2):
            with pytest.raises(kvstore.OffsetNotFound, match="erased"):
                store.get("a", 0, offset)
        assert store.offset_at("a", 0, 0) == 0
        assert store.verify(archives=True).problems == []
        clock.advance(11 * DAY)
        with Worker(store, policy) as worker:
            assert worker.run_once().failed == {}
            assert worker.merge().failed == {}
        assert [m.offset for m in store.pull("a", 0, 0).messages] == [0, 3]
        assert store.verify(archives=True).problems == []
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert [m.offset for m in store.pull("a", 0, 0).messages] == [0, 3]


def test_a_store_is_rebuilt_whole_of_which_segments_left_before_older_ones(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "spanned"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        for kind in ("goes", "stays", "goes", "goes"):
            store.put_batch(
                [
                    Message("a", b"%d" % n, queue=0, keys=(kind if n == 3 else "k",))
                    for n in range(6)
                ]
            )
            store.seal()
        with Worker(store, Policy(hot_for=10 * DAY, warm="archive", clock_doubt=0.0)) as worker:
            assert worker.erase(key="goes").is_proven
            assert worker.merge().failed == {}
            assert len(worker.archives()) == 2
        before = store.pull("a", 0, 0, limit=100).messages
        assert len(before) == 21
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert store.pull("a", 0, 0, limit=100).messages == before
        assert store.verify(archives=True).problems == []


def test_what_nobody_has_is_not_the_beginning_of_a_queue(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "front"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        for n in range(3):
            store.put_batch([Message("a", b"%d" % m, queue=0, keys=(f"k{n}",)) for m in range(4)])
            store.seal()
        with Worker(store, Policy(hot_for=10 * DAY, warm="archive", clock_doubt=0.0)) as worker:
            assert worker.erase(key="k1").is_proven
            assert worker.erase(key="k0").is_proven
    with kvstore.open(path, config(clock)) as store:
        assert store.bounds("a", 0) == (8, 12)
        assert [m.offset for m in store.pull("a", 0, 8).messages] == [8, 9, 10, 11]
        assert store.verify(archives=True).problems == []
