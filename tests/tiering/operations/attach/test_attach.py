"""Archives that are attached read as if the store had made them; what does not fit is told."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
import tiering
from kvstore import (
    ArchiveDamaged,
    Message,
    PullStatus,
    Retention,
    Store,
    StoreConfig,
    StoredMessage,
    TopicNotFound,
)
from kvstore.core.records import property_crc_suffix
from kvstore.files import LocalFiles
from tests.reference.encode import encode_record
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import read_all, read_queue
from tests.support.files import copy_folder
from tests.tiering.killer import Killer
from tests.tiering.places.buckets import SECRET, open_bucket
from tests.tiering.spark.sink.jobs import Job, write
from tiering import AttachConflict, KeyFile, NothingToRestore, Policy, Worker
from tiering.archive.archive_reader import Archive
from tiering.archive.tail import FileSource
from tiering.catalog.catalog import decode_rows
from tiering.errors import TieringBusy
from tiering.executor.pool import Inline
from tiering.merge.rewrite import at_position
from tiering.places.commits import Commit

SEGMENT = 64 << 10
POLICY = Policy(hot_for=60, warm="archive", watermarks=None, clock_doubt=0.0, grace=0.0)
Held = dict[tuple[str, int], list[StoredMessage]]


def config(clock: VirtualClock, **changed: Any) -> StoreConfig:
    return StoreConfig(segment_size=SEGMENT, clock=clock, **changed)


def put(store: Store, clock: VirtualClock, count: int, topic: str = "orders") -> None:
    for n in range(count):
        body = b"%d of " % n + topic.encode() * (n % 60)
        keys = [f"k{n % 7}", f"n{n}"]
        store.put_batch([Message(topic, body, queue=n % 2, tag="ab"[n % 2], keys=keys)])
        clock.advance(1)


def archived(path: Path, clock: VirtualClock, count: int = 300, **changed: Any) -> Held:
    """A store that is closed and all in archives, in `path`/archive; what it holds."""
    with kvstore.open(path, config(clock, **changed)) as store:
        store.create_topic("orders", queues=2, attributes={"team": "a"})
        store.create_topic("visits", queues=2)
        put(store, clock, count)
        put(store, clock, count // 3, "visits")
        store.seal()
        clock.advance(3600)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
        assert store.segments() == []
        return read_all(store)


def same(found: Sequence[StoredMessage], due: Sequence[StoredMessage]) -> None:
    """Equal but for the positions."""
    assert [_record(m) for m in found] == [_record(m) for m in due]


def _record(m: StoredMessage) -> tuple[object, ...]:
    return (
        m.topic, m.queue, m.offset, m.size, m.body, m.raw_properties, m.flags, m.system_flags,
        m.born_at, m.stored_at, m.raw_born_host, m.raw_store_host, m.reconsume_times,
        m.prepared_position, m.body_crc, m.version,
    )  # fmt: skip


def rows(queue: int, *offsets: int, at: int, text: str = "new") -> list[dict[str, Any]]:
    """Rows of `orders`, stored one ms after the other from `at` on."""
    return [
        {
            "topic": "orders", "queue": queue, "offset": offset, "body": f"{text}{offset}".encode(),
            "stored_at": datetime.fromtimestamp((at + n) / 1000, UTC), "keys": [f"o{offset}"],
        }
        for n, offset in enumerate(offsets)
    ]  # fmt: skip


def whole(store: Store) -> Held:
    """The messages of a store, which is checked first."""
    found = read_all(store)
    assert store.verify(archives=True).problems == []
    positions = [m.position for queue in found.values() for m in queue]
    assert len(set(positions)) == len(positions)
    return found


def test_attached_messages_are_read_in_every_way(tmp_path: Path, clock: VirtualClock) -> None:
    due = archived(tmp_path / "source", clock)
    target = tmp_path / "target"
    with kvstore.open(target, config(clock)) as store:
        store.create_topic("other")
        store.put("other", b"before")
        told: list[str] = []
        report = tiering.attach(
            store, tmp_path / "source" / "archive", progress=lambda what, *_: told.append(what)
        )
        assert report.messages == sum(map(len, due.values()))
        assert report.made == report.topics == ["orders", "visits"]
        assert {"opening archives", "attaching archives"} <= set(told)
        store.put("other", b"behind")
        assert [m.body for m in read_queue(store, "other", 0)] in (
            [b"before", b"behind"],
            [b"before"],
        )
        for (topic, queue), messages in due.items():
            found = read_queue(store, topic, queue)
            same(found, messages)
            assert found == sorted(found, key=lambda m: m.position), "as they were in the log"
            for m in (found[0], found[len(found) // 2], found[-1]):
                assert store.get(topic, queue, m.offset) == m
                assert store.read_at(m.position) == m
                assert store.find(m.message_id) == m
                assert m in store.query(topic, m.keys[1])
                assert store.offset_at(topic, queue, m.stored_at) == m.offset
            assert store.put(topic, b"on", queue=queue).offset == messages[-1].offset + 1
        info = next(t for t in store.topics() if t.name == "orders")
        assert (info.read_queues, info.attributes) == (2, {"team": "a"})
        newest = [m.stored_at for m in store.query("orders", "k3", limit=1000)]
        assert newest == sorted(newest, reverse=True)
    with kvstore.open(target, config(clock)) as store:
        found_all = whole(store)
        for queue_, messages in due.items():
            same(found_all[queue_][:-1], messages)
            assert found_all[queue_][-1].body == b"on"


@pytest.mark.parametrize("waits", [False, True])
def test_messages_attached_before_a_groups_start_are_popped_also_by_who_found_none_before(
    tmp_path: Path, clock: VirtualClock, waits: bool
) -> None:
    target = tmp_path / "target"
    with kvstore.open(target, config(clock)) as store:
        store.create_topic("orders", queues=2)
        put(store, clock, 10)
    copy_folder(target, tmp_path / "source")
    with kvstore.open(tmp_path / "source", config(clock)) as source:
        source.seal()
        clock.advance(3600)
        with Worker(source, POLICY) as worker:
            worker.run_once()
    with kvstore.open(target, config(clock, retention=Retention(hot_for=1.0))) as store:
        store.seal()
        assert store.apply_retention() == 1
        store.create_group("g")
        asked = partial(store.pop, "g", "orders", 5)
        assert asked() == []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(asked, wait=20.0) if waits else None
            while waiting is not None and not inside.table(store, "g", "orders").waiters:
                time.sleep(0.001)
            tiering.attach(store, tmp_path / "source" / "archive")
            try:
                # The clock stands still: only a wake-up ends the wait.
                found = asked() if waiting is None else waiting.result(10.0)
                assert len(found) == 5
                assert len(store.pop("g", "orders", 100)) == 5
            finally:
                clock.advance(60)


def test_archives_of_a_bucket_are_attached(
    tmp_path: Path, clock: VirtualClock, s3: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = archived(tmp_path / "source", clock)
    place, folder = open_bucket(s3, bucket), tmp_path / "source" / "archive"
    for path in folder.rglob("*.kvarc"):
        place.put(str(path.relative_to(folder)), path)
    there = list(place.list())
    for name in ("access_key_id", "secret_access_key"):
        monkeypatch.setenv(f"AWS_{name.upper()}", SECRET)
    options = {"endpoint": s3, "region": "us-east-1"}
    with kvstore.open(tmp_path / "target", config(clock)) as store:
        report = tiering.attach(store, place.name, options=options)
        assert report.messages == sum(map(len, due.values()))
        with pytest.raises(AttachConflict, match="has offsets 0 to"):
            tiering.attach(store, place.name, options=options)
    assert list(place.list()) == there
    # Attached archives are the store's own: the bucket isn't asked for them any more.
    for info in there:
        place.delete(info.key)
    with kvstore.open(tmp_path / "target", config(clock)) as store:
        found = whole(store)
        assert found.keys() == due.keys()
        for queue, messages in due.items():
            same(found[queue], messages)


def test_attached_messages_are_popped_and_merged_as_any_others(
    tmp_path: Path, clock: VirtualClock
) -> None:
    due = archived(tmp_path / "source", clock, 120)
    with kvstore.open(tmp_path / "target", config(clock)) as store:
        tiering.attach(store, tmp_path / "source" / "archive", topics=["visits"])
        assert {t.name for t in store.topics()} == {"visits"}
        store.create_group("workers")
        popped = store.pop("workers", "visits", limit=32)
        assert len(popped) > 0
        assert {m.message.body for m in popped} <= {
            m.body for (t, _), queue in due.items() if t == "visits" for m in queue
        }
        put(store, clock, 200, "visits")
        store.seal()
        clock.advance(3600)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
            assert worker.merge().failed == {}
            assert worker.verify().problems == []
        found = whole(store)
        for queue in range(2):
            same(found["visits", queue][: len(due["visits", queue])], due["visits", queue])


@pytest.mark.parametrize("where", ["behind", "gap behind", "before", "in the log's gap"])
def test_offsets_that_nobody_has_are_taken(tmp_path: Path, clock: VirtualClock, where: str) -> None:
    begin = clock.now_ms()
    clock.advance(3600)
    out = tmp_path / "out"
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("orders", queues=2)
        if where == "before":
            write(out, rows(0, 0, 1, 2, at=begin), store_id="1" * 32)
            tiering.attach(store, _first_at_ten(tmp_path, clock, begin))
        put(store, clock, 20)
        low, high = store.bounds("orders", 0)
        before = read_all(store)
        now = clock.now_ms()
        clock.advance(60)
        if where == "behind":
            write(out, rows(0, *range(high, high + 5), at=now))
        elif where == "gap behind":
            write(out, rows(0, *range(high + 100, high + 105), at=now))
        elif where == "in the log's gap":
            write(tmp_path / "far", rows(0, high + 100, at=now + 5000))
            tiering.attach(store, tmp_path / "far")
            write(out, rows(0, high + 3, high + 4, high + 90, at=now))
        report = tiering.attach(store, out)
        assert report.made == []
        found = whole(store)
        assert found["orders", 1] == before["orders", 1]
        offsets = [m.offset for m in found["orders", 0]]
        assert offsets == sorted(set(offsets))
        new = {m.offset for m in found["orders", 0] if m.body.startswith(b"new")}
        assert {
            "behind": {*range(high, high + 5)},
            "gap behind": {*range(high + 100, high + 105)},
            "before": {0, 1, 2, 10, 11},
            "in the log's gap": {high + 3, high + 4, high + 90, high + 100},
        }[where] == new
        assert {m.offset for m in before["orders", 0]} <= set(offsets)
        for m in found["orders", 0]:
            assert store.get("orders", 0, m.offset) == m
            found_at = store.offset_at("orders", 0, m.stored_at)
            assert store.get("orders", 0, found_at).stored_at == m.stored_at
        following = store.put("orders", b"next", queue=0).offset
        assert following == offsets[-1] + 1
        assert low <= high
        store.seal()
        clock.advance(3600)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
            assert worker.merge().failed == {}
        assert [m.offset for m in whole(store)["orders", 0]] == [*offsets, following]
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        assert [m.offset for m in whole(store)["orders", 0]] == [*offsets, following]


def _first_at_ten(tmp_path: Path, clock: VirtualClock, begin: int) -> Path:
    write(tmp_path / "ten", rows(0, 10, 11, at=begin + 100))
    assert clock.now_ms() > begin
    return tmp_path / "ten"


def test_archives_whose_offsets_come_by_turns_fit_into_each_other(
    tmp_path: Path, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    clock.advance(3600)
    write(tmp_path / "even", rows(0, *range(0, 20, 2), at=now, text="even"))
    one = [rows(0, n, at=now + n // 2, text="odd")[0] for n in range(1, 19, 2)]
    write(tmp_path / "odd", one)
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, tmp_path / "even")
        tiering.attach(store, tmp_path / "odd")
        found = whole(store)["orders", 0]
        assert [m.offset for m in found] == list(range(19))
        assert [m.body[:3] for m in found] == [(b"eve", b"odd")[n % 2] for n in range(19)]
        assert store.put("orders", b"", queue=0).offset == 19


@pytest.mark.parametrize("begin", ["nothing", "an archive", "the log"])
@pytest.mark.parametrize("gap", [0, 5])
def test_several_archives_of_one_queue_go_on_behind_it(
    tmp_path: Path, clock: VirtualClock, begin: str, gap: int
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("orders", queues=1)
        if begin == "an archive":
            write(tmp_path / "first", rows(0, *range(4), at=clock.now_ms() - 10))
            tiering.attach(store, tmp_path / "first")
        elif begin == "the log":
            store.put_batch([Message("orders", b"", queue=0)] * 4)
        end = store.bounds("orders", 0).next_offset
        due = [*range(end + gap, end + gap + 4), end + gap + 4, end + 2 * gap + 5]
        now = clock.now_ms()
        clock.advance(1)
        tasks = [rows(0, *offsets, at=now) for offsets in (due[:4], due[4:5], due[5:])]
        write(tmp_path / "out", *tasks)
        tiering.attach(store, tmp_path / "out")
        assert [m.offset for m in whole(store)["orders", 0]] == [*range(end), *due]
        assert store.put("orders", b"", queue=0).offset == due[-1] + 1
        assert [m.offset for m in whole(store)["orders", 0]] == [*range(end), *due, due[-1] + 1]


def test_a_topic_whose_newest_archive_knows_the_fewest_queues_has_room_for_all(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """A task that made an archive knew the queues of its own rows alone."""
    now = clock.now_ms()
    clock.advance(1)
    write(tmp_path / "out", rows(3, 0, 1, at=now), rows(0, 0, at=now + 5))
    tiering.restore(tmp_path / "out", tmp_path / "restored", copy=True, config=config(clock))
    with kvstore.open(tmp_path / "attached", config(clock)) as store:
        tiering.attach(store, tmp_path / "out")
    for name in ("attached", "restored"):
        with kvstore.open(tmp_path / name, config(clock)) as store:
            info = store.topic("orders")
            assert (info.read_queues, info.write_queues) == (4, 4), name
            assert {queue: len(found) for (_, queue), found in whole(store).items() if found} == {
                0: 1, 3: 2,
            }  # fmt: skip


@pytest.mark.parametrize("how", ["attached", "attached and rebuilt", "restored"])
def test_a_search_by_time_knows_the_times_of_each_queue(
    tmp_path: Path, clock: VirtualClock, how: str
) -> None:
    # Small queues share a group, of which a directory says one time.
    now = clock.now_ms()
    clock.advance(3600)
    early = [rows(1, 0, at=now)[0] | {"topic": topic} for topic in ("a", "z")]
    tasks = [[*early[:1], *rows(0, 0, 1, at=now + 5)], [*rows(0, 2, 3, at=now + 6), *early[1:]]]
    write(tmp_path / "out", *tasks)
    path = tmp_path / "store"
    if how == "restored":
        tiering.restore(tmp_path / "out", path, config=config(clock))
    else:
        with kvstore.open(path, config(clock)) as store:
            tiering.attach(store, tmp_path / "out")
    if how == "attached and rebuilt":
        kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert [m.stored_at - now for m in read_queue(store, "orders", 0)] == [5, 6, 6, 7]
        found = [store.offset_at("orders", 0, now + n) for n in range(9)]
        assert found == [0, 0, 0, 0, 0, 0, 1, 3, 4]


def conflict(store: Store, source: Path, told: str, **options: Any) -> AttachConflict:
    before, topics = read_all(store), store.topics()
    archives = len(list(decode_rows(store.handover.rows())))
    with pytest.raises(AttachConflict, match=told) as caught:
        tiering.attach(store, source, **options)
    assert read_all(store) == before
    assert store.topics() == topics
    assert len(list(decode_rows(store.handover.rows()))) == archives
    assert len(list((store.path / "archive").rglob("*.kvarc"))) == archives
    assert not list((store.path / "tiering").rglob("*.intent"))
    return caught.value


def test_what_the_store_has_already_is_a_conflict(tmp_path: Path, clock: VirtualClock) -> None:
    due = archived(tmp_path / "source", clock, 60)
    source = tmp_path / "source" / "archive"
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, source)
        error = conflict(store, source, "has offsets 0 to 29 of queue 0 of topic 'orders' already")
        assert (error.topic, error.queue, error.first, error.last) == ("orders", 0, 0, 29)
    with kvstore.open(tmp_path / "hot", config(clock)) as store:
        store.create_topic("visits", queues=2)
        put(store, clock, 6, "visits")
        error = conflict(store, source, "has offsets 0 to 2 of queue 0 of topic 'visits'")
        report = tiering.attach(store, source, topics=["orders"])
        assert report.left_out == sum(len(q) for (t, _), q in due.items() if t == "visits")


def test_what_does_not_fit_is_told_before_anything_changes(
    tmp_path: Path, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    clock.advance(3600)
    out = tmp_path / "out"
    write(out, rows(1, 5, 6, at=now))
    with kvstore.open(tmp_path / "queues", config(clock)) as store:
        store.create_topic("orders", queues=1)
        conflict(store, out, "has 1 queues.*queue 1")
        with pytest.raises(TopicNotFound, match="visits"):
            tiering.attach(store, out, topics=["visits"])
        with pytest.raises(NothingToRestore):
            tiering.attach(store, tmp_path)
    with kvstore.open(tmp_path / "kind", config(clock)) as store:
        store.create_topic("orders", queues=2, kind="compacted")
        conflict(store, out, "kind compacted here and normal")
    with kvstore.open(tmp_path / "times", config(clock)) as store:
        store.create_topic("orders", queues=2)
        put(store, clock, 6)
        conflict(store, out, "could not be searched by time")
    later = tmp_path / "later"
    write(later, rows(1, 5, 6, at=clock.now_ms() + 3_600_000))
    with kvstore.open(tmp_path / "future", config(clock)) as store:
        conflict(store, later, "could not be searched by time")
    both = tmp_path / "both"
    write(both, rows(1, 5, 6, at=now), name="aa")
    second = Job(both, "bb")
    second.task(0, rows(1, 6, 7, at=now))
    # No job would commit these.
    assert second.log().append(Commit(job=second.name, archives=second.archives))
    with kvstore.open(tmp_path / "two", config(clock)) as store:
        conflict(store, both, "both have offsets 6 to 6")


def test_what_is_put_meanwhile_is_a_conflict(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now_ms()
    clock.advance(3600)
    out = tmp_path / "out"
    write(out, rows(0, 0, 1, at=now))
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("orders", queues=2)
        take_in: Callable[..., None] = store.handover.take_in

        def late(*args: Any) -> None:
            store.put("orders", b"late", queue=0)
            take_in(*args)

        with monkeypatch.context() as patched:
            patched.setattr(store.handover, "take_in", late)
            with pytest.raises(AttachConflict, match="come to offset 1 meanwhile"):
                tiering.attach(store, out)
        assert [m.body for m in read_queue(store, "orders", 0)] == [b"late"]
        assert store.put("orders", b"", queue=0).offset == 1
        assert not list((store.path / "archive").rglob("*.kvarc"))


def test_an_attach_that_begins_while_another_is_under_way_is_refused(
    tmp_path: Path, clock: VirtualClock
) -> None:
    due = archived(tmp_path / "source", clock, 30)
    source = tmp_path / "source" / "archive"
    refused: list[str] = []
    with kvstore.open(tmp_path / "store", config(clock)) as store:

        def again(what: str, *_: int) -> None:
            if what == "attaching archives":
                with pytest.raises(TieringBusy):
                    tiering.attach(store, source)
                refused.append(what)

        tiering.attach(store, source, progress=again)
        assert refused
        assert whole(store).keys() == due.keys()


def test_a_topic_that_is_written_in_fewer_queues_than_it_has_is_attached_with_all(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "source", config(clock)) as store:
        store.create_topic("orders", queues=4)
        # The last queue is empty: no archive has any of its messages.
        store.put_batch([Message("orders", b"%d" % n, queue=n) for n in range(3)])
        store.alter_topic("orders", write_queues=1)
        store.seal()
        clock.advance(3600)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, tmp_path / "source" / "archive")
        info = store.topic("orders")
        assert (info.read_queues, info.write_queues) == (4, 1)
        assert [[m.body for m in read_queue(store, "orders", n)] for n in range(4)] == [
            [b"0"], [b"1"], [b"2"], [],
        ]  # fmt: skip


def test_keys_of_a_topic_whose_key_index_was_changed_are_found_where_it_is_attached(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """The positions at which it changed are those of another log."""
    with kvstore.open(tmp_path / "source", config(clock)) as store:
        store.create_topic("orders", queues=1, key_index="off")
        store.put("orders", b"without", keys=["k"], queue=0)
        store.alter_topic("orders", key_index="all")
        store.put("orders", b"with", keys=["k"], queue=0)
        store.seal()
        clock.advance(3600)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, tmp_path / "source" / "archive")
        assert store.topic("orders").key_history == ()
        assert b"with" in [m.body for m in store.query("orders", "k")]
        assert store.verify(archives=True).problems == []


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_the_log_goes_on_behind_the_positions_that_it_gave_up(
    tmp_path: Path, clock: VirtualClock, mode: str
) -> None:
    archived(tmp_path / "source", clock, 900)
    path = tmp_path / "store"
    changed = {} if mode == "mapped" else {"write_mode": "staged"}
    with kvstore.open(path, config(clock, **changed)) as store:
        store.create_topic("mine")
        store.put("mine", b"1", queue=0)
        report = tiering.attach(store, tmp_path / "source" / "archive")
        assert report.end - report.position > SEGMENT
        assert store.put("mine", b"2", queue=0).position >= report.end
        store.flush()
        # As a kill leaves it.
        copy_folder(path, tmp_path / "killed")
        store.put("mine", b"3", queue=0)
        put(store, clock, 500, "mine")
    for folder, least in ((path, 3), (tmp_path / "killed", 2)):
        with kvstore.open(folder, config(clock, **changed)) as store:
            assert store.recovery.damage == []
            found = whole(store)
            bodies = [m.body for m in found["mine", 0]]
            assert bodies[:least] == [b"1", b"2", b"3"][:least]
            assert len(found["orders", 0]) == 450
            assert store.put("mine", b"on", queue=0).position >= report.end


def test_a_log_that_left_out_much_more_than_a_stretch_is_still_one(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("mine", queues=1)
        store.put("mine", b"1")
        for _ in range(2):
            store.handover.reserve(900, 0)
        store.put("mine", b"2")
        store.put("mine", b"3")
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        assert [m.body for m in read_queue(store, "mine", 0)] == [b"1", b"2", b"3"]
        assert store.recovery.problems == []
        assert store.recovery.damage == []
        assert store.verify().problems == []


def test_what_was_attached_is_there_after_the_index_is_made_anew(
    tmp_path: Path, clock: VirtualClock
) -> None:
    due = archived(tmp_path / "source", clock, 120)
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("mine", queues=1)
        store.put("mine", b"1")
        tiering.attach(store, tmp_path / "source" / "archive")
        store.put("mine", b"2")
        before = whole(store)
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert whole(store) == before
    # Where even the catalog is lost, archives and log tell what they know.
    shutil.rmtree(path / "index")
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        found = read_all(store)
        for queue, messages in due.items():
            same(found[queue], messages)
        assert [m.body for m in found["mine", 0]] == [b"1", b"2"]


def test_what_was_put_behind_something_attached_is_there_after_the_index_is_made_anew(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("orders", queues=1)
        for number in range(3):
            # Alone between what is attached, and last of all.
            end = store.put("orders", b"put%d" % number, queue=0).offset + 1
            write(tmp_path / f"out{number}", rows(0, end, end + 5, at=clock.now_ms()))
            clock.advance(1)
            tiering.attach(store, tmp_path / f"out{number}")
        store.put("orders", b"last", queue=0)
        before = whole(store)
    assert [m.offset for m in before["orders", 0]] == [0, 1, 6, 7, 8, 13, 14, 15, 20, 21]
    for lost in (None, "index"):
        if lost is not None:
            shutil.rmtree(path / lost)
        kvstore.rebuild(path, config(clock))
        with kvstore.open(path, config(clock)) as store:
            assert store.recovery.damage == []
            assert whole(store) == before


def test_a_kill_at_any_step_leaves_nothing_or_all(tmp_path: Path, clock: VirtualClock) -> None:
    due = archived(tmp_path / "source", clock, 90)
    source = tmp_path / "source" / "archive"
    files = Killer()
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as store:
        store.create_topic("mine")
        store.put("mine", b"1", queue=0)
        store.flush()
        files.store = store.path
        tiering.attach(store, source)
        files.store = None
    assert len(files.copies) > 8
    came = 0
    for step, copy in files.copies:
        try:
            with kvstore.open(copy, config(clock)) as store:
                found = whole(store)
                assert [m.body for m in found.pop(("mine", 0))] == [b"1"]
                if found:
                    came += 1
                    assert found.keys() == due.keys()
                else:
                    assert {t.name for t in store.topics()} == {"mine"}
                    tiering.attach(store, source)
                for queue, messages in due.items():
                    same(read_queue(store, *queue), messages)
                known = {row.key for row in decode_rows(store.handover.rows())}
                there = {
                    str(path.relative_to(copy / "archive"))
                    for path in (copy / "archive").rglob("*.kvarc")
                }
                assert there == known
                assert not list((copy / "tiering" / "attach" / "made").rglob("*"))
        except BaseException as e:
            e.add_note(f"killed before: {step}")
            raise
    assert came < len(files.copies)


def test_a_kill_shows_nothing_or_all_even_if_the_index_is_lost_then(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """A rebuild takes the archives in the store's folder; it took those of half an attach."""
    due = archived(tmp_path / "source", clock, 900)
    source, files = tmp_path / "source" / "archive", Killer()
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as store:
        store.create_topic("mine")
        store.put("mine", b"1", queue=0)
        store.flush()
        with files.killing(store.path):
            assert tiering.attach(store, source).archives > 1
    copy_folder(tmp_path / "store", tmp_path / "done")
    came = []

    def held(store: Store) -> Held:
        # Only the lost index knew that the log leaves out positions.
        assert {p.kind for p in store.verify(archives=True).problems} <= {"segment"}
        return read_all(store)

    def check(copy: Path) -> None:
        shutil.rmtree(copy / "index")
        kvstore.rebuild(copy, config(clock))
        with kvstore.open(copy, config(clock)) as store:
            found = held(store)
            assert [m.body for m in found.pop(("mine", 0))] == [b"1"]
            came.append(bool(found))
            if not found:
                tiering.attach(store, source)
                found = held(store)
                del found["mine", 0]
            assert {queue: len(messages) for queue, messages in found.items()} == {
                queue: len(messages) for queue, messages in due.items()
            }
            known = {row.key for row in decode_rows(store.handover.rows())}
            there = (copy / "archive").rglob("*.kvarc")
            assert {str(path.relative_to(copy / "archive")) for path in there} == known

    files.check_each(check, every=2)
    assert came == sorted(came)
    assert not came[0]
    check(tmp_path / "done")
    assert came[-1]


@pytest.mark.parametrize("is_opened", [False, True], ids=["at once", "after an opening without it"])
def test_of_a_kill_just_before_the_batch_a_lost_index_shows_all_unless_an_opening_showed_nothing(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    due = archived(tmp_path / "source", clock, 900)
    killed = tmp_path / "killed"
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        take_in = store.handover.take_in

        def kill(*taken: Any) -> None:
            copy_folder(store.path, killed)
            take_in(*taken)

        monkeypatch.setattr(store.handover, "take_in", kill)
        tiering.attach(store, tmp_path / "source" / "archive")
    if is_opened:
        with kvstore.open(killed, config(clock)) as store:
            assert whole(store) == {}
    shutil.rmtree(killed / "index")
    kvstore.rebuild(killed, config(clock))
    with kvstore.open(killed, config(clock)) as store:
        found = read_all(store)
    assert found.keys() == (set() if is_opened else due.keys())
    for queue, messages in found.items():
        same(messages, due[queue])


def test_a_group_that_waited_at_the_end_goes_on_with_what_is_attached(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        store.create_topic("orders", queues=1)
        store.put("orders", b"0", queue=0)
        assert store.pull("orders", 0, 1).status is not PullStatus.FOUND
        write(tmp_path / "out", rows(0, 1, 2, at=clock.now_ms()))
        clock.advance(1)
        tiering.attach(store, tmp_path / "out")
        page = store.pull("orders", 0, 1)
        assert [m.body for m in page.messages] == [b"new1", b"new2"]
        assert [m.body for m in store.query("orders", "o2")] == [b"new2"]


def test_encrypted_topics_come_with_their_keys(tmp_path: Path, clock: VirtualClock) -> None:
    keys = tmp_path / "keys.json"
    tiering.KeyFile(keys).make("orders")
    access = kvstore.ArchiveAccess(keys=keys)
    due = archived(tmp_path / "source", clock, 60, archives=access)
    source = tmp_path / "source" / "archive"
    with kvstore.open(tmp_path / "bare", config(clock)) as store:
        with pytest.raises(kvstore.StoreError, match="key"):
            tiering.attach(store, source)
        assert store.topics() == []
    with kvstore.open(tmp_path / "store", config(clock, archives=access)) as store:
        tiering.attach(store, source)
        for queue, messages in due.items():
            same(read_queue(store, *queue), messages)
        kinds = [row.is_encrypted for row in decode_rows(store.handover.rows())]
        assert any(kinds)


@pytest.mark.parametrize("harm", ["a key that is not at hand", "damage", "of a class of its own"])
def test_of_archives_only_what_was_asked_for_is_read(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    keys = KeyFile(tmp_path / "keys")
    with kvstore.open(tmp_path / "source", config(clock)) as store:
        for topic in ("other", "wanted"):
            store.create_topic(topic, queues=1)
        if harm == "of a class of its own":
            store.alter_topic("other", retention=Retention(warm_for=1e8))
        if harm == "a key that is not at hand":
            keys.make("other")
        put_large(store, "other")
        put_large(store, "wanted")
        store.seal()
        clock.advance(3600)
        policy = msgspec.structs.replace(POLICY, block_bytes=4096)
        with Worker(store, policy, keys=keys, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
    source = tmp_path / "source" / "archive"
    if harm == "damage":
        (path,) = source.rglob("*.kvarc")
        data = bytearray(path.read_bytes())
        archive = Archive.open(FileSource(path, LocalFiles()))
        (number,) = archive.blocks(archive.manifest.topics[0].id, 0)[:1]
        data[archive.directory.group(number).at + 40] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
    read: list[str] = []
    monkeypatch.setattr(Archive, "decode_group", noting(read, Archive.decode_group))
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        if harm != "of a class of its own":
            with pytest.raises(ArchiveDamaged):
                tiering.attach(store, source, topics=["other"])
        read.clear()
        report = tiering.attach(store, source, topics=["wanted"])
        assert (report.topics, report.messages) == (["wanted"], 15)
        assert set(read) == {"wanted"}
        assert len(read_queue(store, "wanted", 0)) == 15


def put_large(store: Store, topic: str) -> None:
    """Too much to share a group with others."""
    store.put_batch([Message(topic, bytes(1000) + b"%d" % n, queue=0) for n in range(15)])


def noting(read: list[str], real: Callable[..., Any]) -> Callable[..., Any]:
    """Notes the topics of the groups that are decoded."""

    def decode(archive: Archive, place: Any, *args: Any, **named: Any) -> Any:
        read.extend(archive.manifest.topics[n].name for n in place.members.topics)
        return real(archive, place, *args, **named)

    return decode


def test_records_with_a_crc_of_their_own_keep_a_right_one(
    tmp_path: Path, clock: VirtualClock
) -> None:
    due = archived(tmp_path / "source", clock, 60, property_crc=True)
    checked = {"check_property_crc": True}
    with kvstore.open(tmp_path / "store", config(clock, property_crc=True, **checked)) as store:
        store.create_topic("mine")
        store.put("mine", b"so that positions are others")
        tiering.attach(store, tmp_path / "source" / "archive")
        for queue, messages in due.items():
            found = read_queue(store, *queue)
            assert found[0].position != messages[0].position
            assert [m.body for m in found] == [m.body for m in messages]
            for m in found:
                record = encode_record(m)
                assert b"__CRC32#" in m.raw_properties
                assert record[-20:] == property_crc_suffix(record[:-20])


def test_a_record_at_another_position_differs_in_that_alone() -> None:
    record = bytes(range(200)) * 2
    moved = at_position(record, 7)
    assert moved[28:36] == (7).to_bytes(8, "big")
    assert moved[:28] + moved[36:] == record[:28] + record[36:]
