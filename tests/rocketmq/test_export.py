"""Topics, groups and offsets out as RocketMQ's JSON, and back in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import kvstore
from kvstore import (
    CallerError,
    FormatError,
    GroupConfig,
    Message,
    Store,
    StoreConfig,
    StoreNotFound,
    TopicConfig,
    TopicExists,
)
from kvstore.files import LocalFiles
from kvstore.index.keys import OFFSETS
from kvstore.meta.groups import DEFAULT_BACKOFF
from kvstore.meta.topic import Kind
from kvstore.rocketmq.config_values import Configuration, backoff_of
from kvstore.rocketmq.configuration import read_configuration
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.support import inside
from tests.support.raising import raising
from tests.support.stores import openings

SMALL = StoreConfig(segment_size=64 << 10)
FILES = LocalFiles()


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    return unpack_fixture(request.param, tmp_path / "source")


Opens = Callable[[str], Store]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with openings(lambda name: kvstore.open(tmp_path / name, SMALL)) as opening:
        yield opening


def read(folder: Path) -> Configuration:
    return read_configuration(folder / "config", FILES)


def test_what_a_broker_wrote_comes_out_as_it_was(fixture: Fixture, tmp_path: Path) -> None:
    before = read(fixture.store)
    kvstore.import_rocketmq(fixture.store, tmp_path / "store")
    with kvstore.open(tmp_path / "store") as store:
        report = store.export_rocketmq(tmp_path / "out")
        ends = {
            (group, topic, queue): store.bounds(topic, queue).next_offset
            for group, topic, queue, _ in before.offsets
        }
    after = read(tmp_path / "out")
    named = {topic.name for topic in before.topics}
    assert [t for t in after.topics if t.name in named] == before.topics
    assert after.groups == before.groups
    # The damaged stores lost messages that were consumed: an offset goes no further than its queue.
    assert after.offsets == [(g, t, q, min(o, ends[g, t, q])) for g, t, q, o in before.offsets]
    assert after.delay_offsets == before.delay_offsets
    assert (report.groups, report.offsets) == (len(after.groups), len(after.offsets))
    assert report.topics == len(after.topics)
    assert [Path(name).is_file() for name in report.files] == [True] * 4


def test_the_files_have_the_fields_that_a_broker_writes(tmp_path: Path) -> None:
    source = unpack_fixture("classic", tmp_path / "source")
    kvstore.import_rocketmq(source.store, tmp_path / "store")
    with kvstore.open(tmp_path / "store") as store:
        store.export_rocketmq(tmp_path / "out")
    for name, table in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        theirs = json.loads((source.store / "config" / name).read_text())
        ours = json.loads((tmp_path / "out" / "config" / name).read_text())
        assert ours.keys() == theirs.keys()
        assert {row: ours[table][row] for row in theirs[table]} == theirs[table]
        assert ours["dataVersion"].keys() == theirs["dataVersion"].keys()
    # Integer keys stand without quotes, as fastjson writes them.
    offsets = (tmp_path / "out" / "config" / "consumerOffset.json").read_text()
    assert "{0:3,1:5,2:7,3:9}" in offsets
    assert '"groupTopicMap"' in offsets


def test_what_was_exported_is_imported_into_another_store_and_comes_out_the_same(
    fixture: Fixture, opens: Opens, tmp_path: Path
) -> None:
    kvstore.import_rocketmq(fixture.store, tmp_path / "first")
    first = opens("first")
    first.export_rocketmq(tmp_path / "out")
    second = opens("second")
    report = second.import_rocketmq_config(tmp_path / "out")
    assert (report.topics, report.kept) == (len(first.topics()), 0)
    assert len(second.groups()) == len(first.groups())
    second.export_rocketmq(tmp_path / "again")
    before, after = read(tmp_path / "out"), read(tmp_path / "again")
    # A queue that RocketMQ writes to and doesn't read is read here: nothing is lost in it.
    assert after.topics == [
        msgspec.structs.replace(t, read_queues=max(t.read_queues, t.write_queues))
        for t in before.topics
    ]
    assert after.groups == before.groups
    # There are no messages in it, so nobody can have consumed any.
    assert after.offsets == [(g, t, q, 0) for g, t, q, _ in before.offsets]
    clamped = [o for *_, o in before.offsets if o] + [o for o in before.delay_offsets.values() if o]
    assert len([note for note in report.notes if "became 0" in note]) == len(clamped)
    again = second.import_rocketmq_config(tmp_path / "out")
    assert (again.topics, again.groups, again.offsets) == (0, 0, 0)
    assert again.kept == report.topics + report.groups + report.offsets


def test_settings_of_ours_that_rocketmq_has_come_back(opens: Opens, tmp_path: Path) -> None:
    store = opens("one")
    kinds = get_args(Kind)
    store.create_topics([TopicConfig(name=k, kind=k, queues=2, read_queues=3) for k in kinds])
    groups = [
        GroupConfig(name="plain"),
        GroupConfig(name="own", backoff=(0.5, 7.0), max_attempts=3, ordered=True, start="end"),
        GroupConfig(name="one-step", backoff=(2.0,)),
    ]
    store.create_groups(groups)
    store.put_batch([Message("normal", b"x", queue=0)] * 3)
    store.commit_offset("own", "normal", 0, 2)
    store.export_rocketmq(tmp_path / "out")
    other = opens("two")
    other.import_rocketmq_config(tmp_path / "out" / "config")
    for kind in kinds:
        info = other.topic(kind)
        assert (info.kind, info.write_queues, info.read_queues) == (kind, 2, 3)
    for group in groups:
        found = other.group(group.name)
        assert (found.backoff, found.max_attempts, found.ordered) == (
            group.backoff, group.max_attempts, group.ordered,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ({}, DEFAULT_BACKOFF),
        ({"type": "CUSTOMIZED"}, DEFAULT_BACKOFF),
        ({"customizedRetryPolicy": {"next": []}}, DEFAULT_BACKOFF),
        ({"customizedRetryPolicy": {"next": [1000, 5000, 7000, 9500]}}, (7.0, 9.5)),
        ({"customizedRetryPolicy": {"next": [1000, 4000]}}, (4.0,)),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 6000}},
            (1.0, 2.0, 4.0, 6.0),
        ),
        (
            {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 1000, "max": 9000, "multiplier": 3},
            },
            (1.0, 3.0, 9.0),
        ),
        ({"type": "EXPONENTIAL"}, (5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 7200)),
        ({"customizedRetryPolicy": "nonsense"}, DEFAULT_BACKOFF),
        ({"customizedRetryPolicy": {"next": [0, 0, -5, 1 << 62]}}, (0.0, 365 * 86400.0)),
    ],
    ids=str,
)
def test_a_retry_policy_becomes_the_seconds_it_means(
    policy: dict[str, Any], seconds: tuple[float, ...]
) -> None:
    assert backoff_of(policy) == seconds


def test_files_that_are_there_are_overwritten_only_if_that_is_said(
    opens: Opens, tmp_path: Path
) -> None:
    store = opens("one")
    store.export_rocketmq(tmp_path / "out")
    before = (tmp_path / "out" / "config" / "topics.json").read_bytes()
    store.create_topic("t")
    with pytest.raises(CallerError):
        store.export_rocketmq(tmp_path / "out")
    assert (tmp_path / "out" / "config" / "topics.json").read_bytes() == before
    store.export_rocketmq(tmp_path / "out", overwrite=True)
    assert [t.name for t in read(tmp_path / "out").topics] == ["t"]


def test_what_is_there_already_stays_as_it_is(opens: Opens, tmp_path: Path) -> None:
    store = opens("one")
    store.create_topics([TopicConfig(name="t", queues=8), TopicConfig(name="u", queues=8)])
    store.create_group("g", max_attempts=3)
    store.put_batch([Message("t", b"x", queue=0)] * 3)
    store.commit_offsets([("g", "t", 0, 3), ("h", "t", 0, 2), ("g", "u", 7, 0)])
    store.export_rocketmq(tmp_path / "out")
    other = opens("two")
    other.create_topics([TopicConfig(name="t", queues=2, kind="fifo"), TopicConfig(name="u")])
    other.create_group("g", max_attempts=9)
    other.put_batch([Message("t", b"x", queue=0)] * 5)
    other.commit_offset("g", "t", 0, 1)
    report = other.import_rocketmq_config(tmp_path / "out")
    assert (report.topics, report.groups, report.offsets, report.kept) == (0, 1, 1, 4)
    assert [note for note in report.notes if "u has no queue 7" in note]
    assert (other.topic("t").kind, other.topic("t").read_queues) == ("fifo", 2)
    assert other.group("g").max_attempts == 9
    assert other.committed_offset("g", "t", 0) == 1
    assert other.committed_offset("h", "t", 0) == 2


def test_an_import_looks_for_each_offset_once(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opens("one")
    store.create_topic("t", queues=40)
    store.commit_offsets([("g", "t", queue, 0) for queue in range(40)])
    store.export_rocketmq(tmp_path / "out")
    other = opens("two")
    other.create_topic("t", queues=40)
    other.create_group("g")
    families, looked = inside.families(other), list[bytes]()
    get = families.get

    def counted(family: str, key: bytes) -> bytes | None:
        if family == OFFSETS:
            looked.append(key)
        return get(family, key)

    monkeypatch.setattr(families, "get", counted)
    assert other.import_rocketmq_config(tmp_path / "out").offsets == 40
    assert len(looked) == len(set(looked)) == 40


def test_a_name_that_can_not_be_one_is_passed_over_and_told(opens: Opens, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    topics: dict[str, dict[str, int]] = {"good": {}, "not good": {}, "%RETRY%g+t": {}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"not good@g":{0:1},"good@g":{5:0}}}'
    )
    store = opens("one")
    report = store.import_rocketmq_config(tmp_path)
    assert [t.name for t in store.topics()] == ["good"]
    assert store.topic("good").read_queues == 16
    assert store.committed_offset("g", "good", 5) == 0
    assert len([note for note in report.notes if "passed over" in note]) == 2


def test_a_folder_without_configuration_or_with_a_broken_one_changes_nothing(
    opens: Opens, tmp_path: Path
) -> None:
    store = opens("one")
    with pytest.raises(StoreNotFound):
        store.import_rocketmq_config(tmp_path)
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"a":{"perm":"x"}}}')
    with pytest.raises(FormatError):
        store.import_rocketmq_config(tmp_path)
    assert store.topics() == []


def test_an_import_that_fails_half_way_makes_nothing(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opens("one")
    store.create_topic("t")
    store.create_group("g")
    store.export_rocketmq(tmp_path / "out")
    other = opens("two")
    with monkeypatch.context() as patch:
        patch.setattr(
            inside.groups(other), "put_new", raising(TopicExists("as if somebody had been quicker"))
        )
        with pytest.raises(TopicExists):
            other.import_rocketmq_config(tmp_path / "out")
    assert (other.topics(), other.groups()) == ([], [])
    other.import_rocketmq_config(tmp_path / "out")
    found = other.topic("t")
    # An id that was allocated for a change that failed is not given again.
    plain = msgspec.structs.replace(store.topic("t"), attributes=found.attributes, id=found.id)
    assert found == plain


def test_a_topic_takes_the_same_messages_in_rocketmq_as_here(opens: Opens, tmp_path: Path) -> None:
    store = opens("store")
    store.create_topic("any")
    store.create_topic("no-delays", takes_delays=False)
    store.create_topic("came", attributes={"perm": "6"})
    for kind in ("fifo", "delay", "transaction", "priority"):
        store.create_topic(kind, kind=kind)
    store.export_rocketmq(tmp_path / "out")

    found = {topic.name: topic.message_type for topic in read(tmp_path / "out").topics}
    assert found == {
        "any": "MIXED",
        "no-delays": None,
        "came": None,
        **{kind: kind.upper() for kind in ("fifo", "delay", "transaction", "priority")},
    }
