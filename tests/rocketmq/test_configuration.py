"""Topics, groups and offsets are read from JSON files and from both forms of RocksDB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from kvstore.errors import FormatError
from kvstore.files import LocalFiles
from kvstore.rocketmq.config_values import SourceTopic
from kvstore.rocketmq.configuration import parse, read_config, read_configuration
from kvstore.rocketmq.file_layouts import (
    V2_CONSUMER_OFFSETS,
    V2_GROUPS,
    V2_NAME_SIZE,
    V2_OFFSET,
    V2_PREFIX,
    V2_QUEUE,
    V2_TOPICS,
)
from tests.fixtures import Fixture
from tests.rocketmq.conftest import fingerprint

OFFSETS = [
    ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 4),
    ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 1),
    ("CID_order", "fifo%topic", 2, 0),
    ("GID_a", "TopicTest", 0, 3),
    ("GID_a", "TopicTest", 1, 5),
    ("GID_a", "TopicTest", 2, 7),
    ("GID_a", "TopicTest", 3, 9),
    ("GID_b", "TopicTest", 0, 1),
    ("GID_b", "one-queue", 0, 7),
]


@pytest.mark.parametrize(("name", "kind"), [("classic", "json"), ("rocksdb", "rocksdb")])
def test_a_store_says_its_topics_groups_and_offsets(
    name: str, kind: str, stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    found = read_configuration(stores(name).store / "config", files)
    assert found.kind == kind
    assert found.offsets == OFFSETS
    assert found.delay_offsets == {1: 1, 2: 1, 5: 0, 14: 0, 18: 0}
    assert found.notes == []
    topics = {topic.name: topic for topic in found.topics}
    assert topics["fifo%topic"] == SourceTopic(
        "fifo%topic", 3, 3, 6, True, "FIFO", {"message.type": "FIFO"}
    )
    assert topics["order_topic-1"] == SourceTopic("order_topic-1", 2, 8, 6, False, None, {})
    assert {topic.name for topic in found.topics} >= {
        "SCHEDULE_TOPIC_XXXX", "TopicTest", "one-queue", "namespace1%topicInNs", "fifo%topic",
        "order_topic-1",
    }  # fmt: skip
    groups = {group.name: group for group in found.groups}
    assert (groups["GID_b"].max_attempts, groups["GID_b"].ordered) == (3, False)
    assert (groups["CID_order"].max_attempts, groups["CID_order"].ordered) == (16, True)
    assert groups["GID_a"].retry_policy == {"type": "CUSTOMIZED"}
    assert groups["GID_a"].consume_enable
    assert groups["GID_a"].broadcast


def test_json_and_rocksdb_say_the_same_of_stores_made_alike(
    stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    by_json = read_configuration(stores("classic").store / "config", files)
    by_rocksdb = read_configuration(stores("rocksdb").store / "config", files)
    assert by_rocksdb.topics == by_json.topics
    assert by_rocksdb.groups == by_json.groups


def test_reading_rocksdb_leaves_no_trace_in_its_folder(
    stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    folder = stores("rocksdb").store / "config"
    before = fingerprint(folder)
    read_configuration(folder, files)
    assert fingerprint(folder) == before


def test_a_store_without_configuration_has_empty_tables(tmp_path: Path, files: LocalFiles) -> None:
    found = read_configuration(tmp_path / "config", files)
    assert (found.kind, found.topics, found.groups, found.offsets) == ("none", [], [], [])


# -- JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:3,1:5}", {"0": 3, "1": 5}),
        ('{"a@b":{\n\t2:0\n}}', {"a@b": {"2": 0}}),
        ("{name:'it\\'s \"so\"'}", {"name": 'it\'s "so"'}),
        ("[1,,2,]", [1, 2]),
        ("{,a:1,}", {"a": 1}),
        ('{"quoted {0:1}": "[,]"}', {"quoted {0:1}": "[,]"}),
        ("{true:null}", {"true": None}),
        ('{"\\u94a5":"钥匙"}', {"钥": "钥匙"}),
    ],
)
def test_json_is_read_as_leniently_as_fastjson_does(text: str, value: Any) -> None:
    assert parse(text.encode(), "test") == value


@pytest.mark.parametrize(
    "text", ["", "{", "{0:}", "[1 2]", "{a b:1}", '{"a":1', "\ufeff{}", "nope"]
)
def test_broken_json_is_refused_by_name(text: str) -> None:
    with pytest.raises(FormatError, match=r"offsets\.json"):
        parse(text.encode(), "offsets.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    with suppress(FormatError):
        parse(data, "test")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@given(json_values)
def test_leniency_changes_nothing_in_strict_json(value: Any) -> None:
    # A leading comma makes the strict decoder refuse it, so that the lenient one is asked.
    lenient = "[," + json.dumps([value], ensure_ascii=False)[1:]
    assert parse(lenient.encode("utf-8", "replace"), "test") == json.loads(
        json.dumps([value], ensure_ascii=False).encode("utf-8", "replace")
    )


@pytest.mark.parametrize("main", [None, b"", b"{broken"])
def test_the_backup_is_read_when_the_file_is_missing_empty_or_broken(
    main: bytes | None, tmp_path: Path, files: LocalFiles
) -> None:
    path = tmp_path / "topics.json"
    if main is not None:
        path.write_bytes(main)
    path.with_name("topics.json.bak").write_bytes(b"{0:1}")
    assert read_config(path, files) == ({"0": 1}, True)


@pytest.mark.parametrize("backup", [None, b"", b"{broken"])
def test_a_broken_file_without_an_intact_backup_is_an_error_that_names_it(
    backup: bytes | None, tmp_path: Path, files: LocalFiles
) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{broken")
    if backup is not None:
        path.with_name("topics.json.bak").write_bytes(backup)
    with pytest.raises(FormatError, match=r"topics\.json"):
        read_config(path, files)


def test_a_table_taken_from_its_backup_is_noted(
    stores: Callable[[str], Fixture], tmp_path: Path, files: LocalFiles
) -> None:
    folder = tmp_path / "config"
    shutil.copytree(stores("classic").store / "config", folder)
    (folder / "topics.json").write_bytes(b"{")
    found = read_configuration(folder, files)
    assert "TopicTest" in {topic.name for topic in found.topics}
    assert [note for note in found.notes if "topics.json" in note]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topics.json", '{"topicConfigTable":{"T":{"perm":"six"}}}'),
        ("topics.json", '{"topicConfigTable":[1]}'),
        ("topics.json", "[]"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"G":{"retryMaxTimes":{}}}}'),
        ("consumerOffset.json", '{"offsetTable":{"T@G":{0:"x"}}}'),
        ("delayOffset.json", '{"offsetTable":{a:1}}'),
    ],
)
def test_a_table_of_another_shape_is_an_error_and_never_an_empty_table(
    name: str, text: str, tmp_path: Path, files: LocalFiles
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError):
        read_configuration(tmp_path, files)


def test_missing_fields_have_rocketmqs_defaults(tmp_path: Path, files: LocalFiles) -> None:
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"T":{}}}')
    (tmp_path / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"G":{}}}')
    found = read_configuration(tmp_path, files)
    assert found.topics == [SourceTopic("T", 16, 16, 6, False, None, {})]
    (group,) = found.groups
    assert (group.max_attempts, group.ordered, group.consume_enable) == (16, False, True)


def test_offsets_that_belong_to_nothing_are_noted_not_taken(
    tmp_path: Path, files: LocalFiles
) -> None:
    text = '{"offsetTable":{"T@G":{0:3,1:-1},"T":{0:1},"T@G@H":{0:1}}}'
    (tmp_path / "consumerOffset.json").write_text(text)
    found = read_configuration(tmp_path, files)
    assert found.offsets == [("G", "T", 0, 3)]
    assert len(found.notes) == 3


# -- RocksDB


def make_db(folder: Path, entries: dict[bytes, bytes], families: tuple[str, ...] = ()) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    named = {name: Options(raw_mode=True) for name in families}
    db = Rdict(str(folder), options, column_families=named)
    for key, value in entries.items():
        db[key] = value
    return db


def v2_name(name: str) -> bytes:
    return V2_NAME_SIZE.pack(len(name.encode())) + name.encode()


def v2_entries() -> dict[bytes, bytes]:
    return {
        V2_PREFIX.pack(1, V2_TOPICS, 1) + b"data_version": bytes(24),
        V2_PREFIX.pack(1, V2_TOPICS, 2) + v2_name("T"): b'\x01{"readQueueNums":3}',
        V2_PREFIX.pack(1, V2_TOPICS, 2) + v2_name("P"): b"\x02protobuf",
        V2_PREFIX.pack(1, V2_GROUPS, 2) + v2_name("G"): b'\x01{"retryMaxTimes":5}',
        V2_PREFIX.pack(1, V2_CONSUMER_OFFSETS, 2)
        + v2_name("G") + b"\x01" + v2_name("T") + b"\x01" + V2_QUEUE.pack(2): V2_OFFSET.pack(2**40),
        V2_PREFIX.pack(1, V2_CONSUMER_OFFSETS, 2) + b"\x00\x09G": V2_OFFSET.pack(1),
        V2_PREFIX.pack(1, 2, 2) + b"pull offset": V2_OFFSET.pack(1),
        b"\x01": b"",
    }  # fmt: skip


def test_version_2_of_rocksdb_is_read_by_its_keys(tmp_path: Path, files: LocalFiles) -> None:
    make_db(tmp_path / "rdb", v2_entries()).close()
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"old":{}}}')
    found = read_configuration(tmp_path, files)
    assert found.kind == "rocksdb-v2"
    assert [(topic.name, topic.read_queues) for topic in found.topics] == [("T", 3)]
    assert [(group.name, group.max_attempts) for group in found.groups] == [("G", 5)]
    assert found.offsets == [("G", "T", 2, 2**40)]
    assert len(found.notes) == 3, "what is not JSON, and what are no keys, is told"


def test_a_database_that_was_not_closed_is_read_with_its_log(
    tmp_path: Path, files: LocalFiles
) -> None:
    db = make_db(tmp_path / "live", v2_entries())
    db.flush_wal(True)
    (tmp_path / "crashed").mkdir()
    shutil.copytree(tmp_path / "live", tmp_path / "crashed" / "rdb")
    db.close()
    found = read_configuration(tmp_path / "crashed", files)
    assert found.offsets == [("G", "T", 2, 2**40)]


@pytest.mark.parametrize(("json_version", "queues"), [(8, 5), (7, 4), (1, 4)])
def test_json_is_laid_over_version_1_where_it_was_changed_more_often(
    json_version: int, queues: int, tmp_path: Path, files: LocalFiles
) -> None:
    db = make_db(
        tmp_path / "topics",
        {b"T": b'{"readQueueNums":4}', b"only-here": b"{}"},
        ("kvDataVersion",),
    )
    db.get_column_family("kvDataVersion")[b"kvDataVersionKey"] = b'{"counter":7}'
    db.close()
    table = {"T": {"readQueueNums": 5}}
    (tmp_path / "topics.json").write_text(
        json.dumps({"topicConfigTable": table, "dataVersion": {"counter": json_version}})
    )
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:3}}}')
    found = read_configuration(tmp_path, files)
    assert found.kind == "rocksdb"
    assert {t.name: t.read_queues for t in found.topics} == {"T": queues, "only-here": 16}
    assert found.offsets == [("G", "T", 0, 3)]


@pytest.mark.parametrize("broken", ["CURRENT", "MANIFEST"])
def test_a_broken_database_is_an_error_that_names_it(
    broken: str, tmp_path: Path, files: LocalFiles
) -> None:
    make_db(tmp_path / "rdb", v2_entries()).close()
    for path in (tmp_path / "rdb").glob(f"{broken}*"):
        path.write_bytes(b"no")
    with pytest.raises(FormatError, match="rdb"):
        read_configuration(tmp_path, files)
