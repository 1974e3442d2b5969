"""A store that RocketMQ wrote, imported or opened in place: all its manifest says, in ours.

The manifests say what RocketMQ itself reads, for the damaged stores after its own recovery. Key
queries are the one place where we answer less: RocketMQ finds keys by a 32-bit hash and returns
messages of colliding ones; here the real key counts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Store, StoreConfig
from kvstore.core.names import TRANSACTION_HALF_TOPIC
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.reference.encode import blank
from tests.rocketmq.logs import NOW, make_store, record, segment
from tests.support.calls import calls_of
from tests.support.clock import VirtualClock
from tests.support.contents import query_any, read_queue

SEGMENT = 64 << 10


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    """Each fixture, unpacked."""
    return unpack_fixture(request.param, tmp_path / "source")


@pytest.fixture(params=["imported", "opened in place"])
def store(request: pytest.FixtureRequest, fixture: Fixture, tmp_path: Path) -> Any:
    """A store made of the fixture either way."""
    path, config = fixture.store, stopped_at_the_end_of(fixture)
    if request.param == "imported":
        path = tmp_path / "target"
        kvstore.import_rocketmq(fixture.store, path, config)
    with kvstore.open(path, config) as opened:
        yield opened


def stopped_at_the_end_of(fixture: Fixture) -> StoreConfig:
    """Settings with a clock at which no delayed message is due that RocketMQ did not deliver."""
    newest = max(m["storeTimestamp"] for m in fixture.manifest["messages"])
    return StoreConfig(clock=VirtualClock(newest))


def content(folder: Path) -> dict[str, tuple[str, int]]:
    """Hash and time of every file of a folder."""
    return {
        str(p.relative_to(folder)): (
            hashlib.sha256(p.read_bytes()).hexdigest(),
            p.stat().st_mtime_ns,
        )
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_every_message_that_rocketmq_has_is_there_with_its_fields(
    store: Store, fixture: Fixture
) -> None:
    for wanted in fixture.manifest["messages"]:
        found = store.read_at(wanted["physicalOffset"])
        assert (found.topic, found.queue) == (wanted["topic"], wanted["queueId"])
        assert (found.offset, found.size) == (wanted["queueOffset"], wanted["storeSize"])
        assert (found.born_at, found.stored_at) == (
            wanted["bornTimestamp"],
            wanted["storeTimestamp"],
        )
        assert found.properties == wanted["properties"]
        assert found.position_id == wanted["msgId"]
        plain = wanted.get("plainBodySha256") or wanted["bodySha256"]
        assert hashlib.sha256(found.body).hexdigest() == plain


def test_the_log_ends_where_rocketmq_ends_it(fixture: Fixture, tmp_path: Path) -> None:
    imported = kvstore.import_rocketmq(fixture.store, tmp_path / "target").recovery
    with kvstore.open(fixture.store) as store:
        for recovery in (imported, store.recovery):
            assert recovery.end == fixture.manifest["maxPhyOffset"]
            assert recovery.damage == []


def test_every_queue_has_the_entries_of_its_consume_queue(store: Store, fixture: Fixture) -> None:
    for topic, queues in fixture.manifest["consumeQueue"].items():
        for number, wanted in queues.items():
            queue = int(number)
            # The prepared message that waits is put once more.
            end = wanted["maxOffset"] + (topic == TRANSACTION_HALF_TOPIC)
            assert store.bounds(topic, queue) == (wanted["minOffset"], end)
            found = read_queue(store, topic, queue)
            found = [m for m in found if m.position < fixture.manifest["maxPhyOffset"]]
            assert [(m.offset, m.position, m.size) for m in found] == [
                tuple(entry[:3]) for entry in wanted["entries"]
            ]


def test_key_queries_find_what_rocketmq_finds_less_what_only_its_hash_matched(
    store: Store, fixture: Fixture
) -> None:
    records = {m["physicalOffset"]: m for m in fixture.manifest["messages"]}
    for query in fixture.manifest["keyQueries"]:
        key = query["key"]
        real = {
            p
            for p in query["physicalOffsets"]
            if key in (records[p]["keys"] or "").split(" ") or records[p]["uniqKey"] == key
        }
        found = query_any(store, query["topic"], key, limit=query["maxNum"] + 1)
        positions = [m.position for m in found if m.position < fixture.manifest["maxPhyOffset"]]
        assert positions == sorted(real, reverse=True)


def test_offsets_by_time_are_rocketmqs(store: Store, fixture: Fixture) -> None:
    for query in fixture.manifest.get("timeQueries", []):
        topic, queue, time = query["topic"], query["queueId"], query["timestamp"]
        assert store.offset_at(topic, queue, time) == query["lower"]
        assert store.offset_at(topic, queue, time, upper=True) == query["upper"]


def test_the_adopted_store_is_whole_and_takes_messages(store: Store, fixture: Fixture) -> None:
    assert store.verify().problems == []
    put = store.put("TopicTest", b"new", keys=["fresh"])
    assert store.get("TopicTest", put.queue, put.offset).body == b"new"
    assert [m.position for m in store.query("TopicTest", "fresh")] == [put.position]
    assert store.find(put.message_id).position == put.position


def test_an_import_makes_no_object_and_no_call_for_a_message(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        name, size = str(count), 1 << 20
        data = segment(0, [b"body"] * count, size=size)
        source, target = make_store(tmp_path / name, [data]), tmp_path / f"{name}-target"
        found = calls_of(lambda: kvstore.import_rocketmq(source, target))
        with kvstore.open(target, read_only=True) as store:
            assert store.bounds("T", 0)[1] == count
        return found

    assert calls(5000) - calls(1000) < 1000


def test_consumer_offsets_and_groups_are_taken_over(tmp_path: Path) -> None:
    for name in ("classic", "rocksdb"):
        source = unpack_fixture(name, tmp_path / name)
        kvstore.import_rocketmq(source.store, tmp_path / f"{name}-target")
        with kvstore.open(tmp_path / f"{name}-target") as store:
            groups = {g.name: g for g in store.groups()}
            assert groups["CID_order"].ordered
            offsets = [store.committed_offset("GID_a", "TopicTest", q) for q in range(4)]
            assert offsets == [3, 5, 7, 9]
            assert store.committed_offset("CID_RMQ_SYS_SCHEDULE", "SCHEDULE_TOPIC_XXXX", 0) == 1
            assert store.topic("fifo%topic").read_queues >= 3


def test_an_import_changes_no_byte_and_no_time_of_the_source(
    fixture: Fixture, tmp_path: Path
) -> None:
    before = content(fixture.store)
    target = tmp_path / "target"
    kvstore.import_rocketmq(fixture.store, target)
    assert content(fixture.store) == before
    with kvstore.open(target) as store:
        for i in range(2000):
            store.put("TopicTest", b"more %d" % i)
        store.seal()
    assert {k: v[0] for k, v in content(fixture.store).items()} == {
        k: v[0] for k, v in before.items()
    }


def test_an_import_into_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    source = unpack_fixture("classic", tmp_path / "source")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("kept")
    with pytest.raises(kvstore.CallerError, match="not empty"):
        kvstore.import_rocketmq(source.store, tmp_path / "target")
    assert (tmp_path / "target" / "mine").read_text() == "kept"


def test_what_is_no_rocketmq_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(kvstore.StoreNotFound):
        kvstore.import_rocketmq(tmp_path / "empty", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_what_is_made_after_an_import_takes_no_id_that_was_given(store: Store) -> None:
    topics, groups = ({one.id for one in found} for found in (store.topics(), store.groups()))
    assert store.create_topic("one-more", queues=1).id not in topics
    assert store.create_group("one-more").id not in groups
    assert store.create_topic("and-another", queues=1).id not in topics
    assert len({topic.id for topic in store.topics()}) == len(store.topics())
    assert len({group.id for group in store.groups()}) == len(store.groups())


def test_a_queue_that_only_an_offset_names_is_taken_over(tmp_path: Path) -> None:
    source = make_store(tmp_path / "source", [segment(0, [b"0"], size=SEGMENT)])
    (source / "config").mkdir()
    topics = '{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":2,"writeQueueNums":2}}}'
    (source / "config" / "topics.json").write_text(topics)
    offsets = '{"offsetTable":{"T@G":{"0":1,"5":3}}}'
    (source / "config" / "consumerOffset.json").write_text(offsets)
    kvstore.import_rocketmq(source, tmp_path / "a")
    with kvstore.open(tmp_path / "a") as store:
        assert (store.topic("T").read_queues, store.topic("T").write_queues) == (6, 2)
        assert store.committed_offset("G", "T", 0) == 1
        assert store.bounds("T", 5) == (0, 0)


def test_a_log_whose_first_files_are_gone_is_adopted_from_where_it_begins(tmp_path: Path) -> None:
    base = 7 * SEGMENT
    bodies = [b"%d" % n for n in range(5)]
    make_store(tmp_path / "source", [segment(base, bodies, size=SEGMENT)], first=base)
    kvstore.import_rocketmq(tmp_path / "source", tmp_path / "a")
    with kvstore.open(tmp_path / "a") as store:
        assert store.stats().first_position == base
        assert store.recovery.damage == []
        assert [m.body for m in store.pull("T", 0, 0).messages] == bodies
        assert store.verify().problems == []


def test_times_that_a_stepped_clock_gave_are_no_problem(tmp_path: Path) -> None:
    """The index has the newest time so far for each record, and verify expects that."""
    data = b""
    for offset, stored_at in enumerate([NOW, NOW - 60_000, NOW + 5, NOW - 1]):
        data += record(len(data), b"%d" % offset, offset=offset, stored_at=stored_at)
    make_store(tmp_path / "source", [data + bytes(SEGMENT - len(data))])
    kvstore.import_rocketmq(tmp_path / "source", tmp_path / "a")
    with kvstore.open(tmp_path / "a") as store:
        store.checkpoint()
        report = store.verify()
        assert (report.entries, report.problems) == (4, [])


def test_damage_before_the_end_of_an_adopted_log_costs_no_message_behind_it(tmp_path: Path) -> None:
    segments = []
    for number in range(6):
        data = b""
        for m in range(2):
            at = number * SEGMENT + len(data)
            data += record(at, b"message %d" % m * 20, offset=2 * number + m, stored_at=NOW)
        left = SEGMENT - len(data)
        segments.append(data + (blank(left) + bytes(left))[:left])
    segments[0] = segments[0].replace(b"message 0", b"massage 0", 1)
    make_store(tmp_path / "source", segments)
    kvstore.import_rocketmq(tmp_path / "source", tmp_path / "a")
    with kvstore.open(tmp_path / "a") as store:
        assert store.bounds("T", 0).next_offset == 12
        assert store.get("T", 0, 1).body == b"message 1" * 20
        assert [p.position for p in store.verify().problems] == [0]
