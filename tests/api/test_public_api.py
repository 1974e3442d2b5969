"""The names that api.md lists can be imported, and are typed, with a docstring."""

from __future__ import annotations

import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import kvstore
from kvstore import Bounds, Message, Store, StoredMessage, StoreError, StoreStats

CALLS = [
    "alter_topic",
    "bounds",
    "checkpoint",
    "close",
    "commit_offset",
    "committed_offset",
    "create_group",
    "create_topic",
    "create_topics",
    "delete_topic",
    "find",
    "flush",
    "get",
    "group",
    "groups",
    "offset_at",
    "pull",
    "pull_columns",
    "put",
    "put_batch",
    "put_columns",
    "query",
    "read_at",
    "seal",
    "stats",
    "topic",
    "topics",
    "verify",
]
GROUPS = ["alter_group", "delete_group"]
"""api.md: "the same for groups"."""
VALUES = [
    "Bounds",
    "ColumnBatch",
    "ColumnsPut",
    "Message",
    "PullResult",
    "PullStatus",
    "PulledBatch",
    "PutResult",
    "PutStatus",
    "Retention",
    "StoreConfig",
    "ArchiveAccess",
    "StoredMessage",
    "StoreStats",
    "TopicConfig",
    "TopicInfo",
    "GroupInfo",
    "VerifyReport",
    "Problem",
    "RecoveryReport",
]
ERRORS = [
    "StoreError",
    "OffsetNotFound",
    "TopicNotFound",
    "TopicExists",
    "GroupNotFound",
    "GroupExists",
    "QueueNotFound",
    "MessageNotFound",
    "MessageIllegal",
    "MessageTooLarge",
    "PropertiesTooLarge",
    "StoreBusy",
    "StoreClosed",
    "StoreLocked",
    "StoreReadOnly",
    "StoreNotFound",
    "DiskFull",
    "FlushFailed",
    "ConfigError",
    "FormatTooNew",
    "FormatTooOld",
    "IndexDamaged",
    "IndexUnavailable",
    "LogDamaged",
    "RecordDamaged",
    "SegmentDamaged",
]


@pytest.mark.parametrize("name", ["open", "rebuild", "Store", *VALUES, *ERRORS])
def test_a_name_of_the_api_is_importable_and_says_what_it_is(name: str) -> None:
    assert name in kvstore.__all__
    assert inspect.getdoc(getattr(kvstore, name))


def test_all_names_what_there_is_and_in_order() -> None:
    assert sorted(kvstore.__all__) == list(kvstore.__all__)
    assert all(hasattr(kvstore, name) for name in kvstore.__all__)


@pytest.mark.parametrize("name", [*CALLS, *GROUPS])
def test_a_call_of_the_store_is_there_typed_and_says_what_it_does(name: str) -> None:
    call = getattr(Store, name)
    assert inspect.getdoc(call)
    signature = inspect.signature(call)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not p.empty for n, p in signature.parameters.items() if n != "self")


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_a_store_error(name: str) -> None:
    assert issubclass(getattr(kvstore, name), StoreError)


@pytest.mark.parametrize(
    "name",
    [
        "TopicNotFound",
        "MessageIllegal",
        "MessageTooLarge",
        "PropertiesTooLarge",
        "QueueNotFound",
        "TopicExists",
        "ConfigError",
        "StoreNotFound",
    ],
)
def test_a_callers_mistake_is_a_value_error(name: str) -> None:
    assert issubclass(getattr(kvstore, name), ValueError)


@pytest.mark.parametrize(
    "name",
    ["StoreBusy", "StoreClosed", "DiskFull", "StoreReadOnly", "RecordDamaged", "OffsetNotFound"],
)
def test_what_is_not_the_callers_mistake_is_no_value_error(name: str) -> None:
    assert not issubclass(getattr(kvstore, name), ValueError)


def test_every_public_value_is_documented_in_the_module_it_names() -> None:
    for name in kvstore.__all__:
        found = getattr(kvstore, name)
        if inspect.isclass(found) and not issubclass(found, Enum):
            assert inspect.getdoc(found), name


def test_what_the_packages_docstring_offers_is_there() -> None:
    text = kvstore.__doc__ or ""
    offered = [word.strip("`") for word in text.split() if word.startswith("`")]
    assert offered
    assert [name for name in offered if not hasattr(kvstore, name)] == []


def test_calls_are_made_as_the_api_writes_them(store: Store) -> None:
    m = Message(topic="t", body=b"b", queue=3)
    assert store.put_batch([m])[0].offset == 0
    r = store.put(
        "t", b"...", tag="paid", keys=["o-17"], properties={"region": "eu"}, queue=3, flags=1
    )
    fields = r.message_id, r.topic, r.queue, r.offset, r.position, r.size, r.status
    assert fields[1:4] == ("t", 3, 1)
    found: StoredMessage = store.get("t", queue=3, offset=1)
    assert (found.topic, found.queue, found.offset, found.position) == ("t", 3, 1, r.position)
    assert (found.body, found.tag, found.keys) == (b"...", "paid", ["o-17"])
    assert found.properties["region"] == "eu"
    assert found.message_id == r.message_id
    assert (found.flags, found.system_flags) == (1, 0)
    assert found.born_at == found.stored_at
    p = store.pull("t", queue=3, offset=0, limit=32, filter="paid || shipped")
    assert (p.messages, p.next_offset, p.min_offset, p.max_offset) == ([found], 2, 0, 2)
    assert p.status == "FOUND"
    assert store.query("t", key="o-17", begin=None, end=None, limit=64) == [found]
    assert store.read_at(r.position) == store.find(r.message_id) == found
    assert store.offset_at("t", queue=3, time=0) == 0
    assert store.bounds("t", queue=3) == Bounds(0, 2)
    store.commit_offset("billing", "t", 3, 2)
    assert store.committed_offset("billing", "t", 3) == 2
    assert store.topic("t").name == "t"


def test_stats_say_what_there_is(store: Store) -> None:
    store.put_batch([Message("t", b"x", keys=["a", "b"]) for _ in range(10)])
    stats = store.stats()
    assert isinstance(stats, StoreStats)
    assert (stats.topics, stats.segments, stats.segment_size) == (1, 1, 64 << 10)
    assert (stats.first_position, stats.tail_entries, stats.tail_keys) == (0, 10, 30)
    assert stats.log_bytes == stats.end_position > stats.durable_position - 1 >= -1
    assert 0 < stats.disk_used <= 1
    assert set(stats.index_bytes) >= {"runs", "places", "message_keys", "topics", "offsets"}
    store.flush()
    assert store.stats().syncs >= 1
    store.checkpoint()
    stats = store.stats()
    assert (stats.tail_entries, stats.tail_keys) == (0, 0)
    assert stats.checkpointed_position == stats.durable_position == stats.end_position
    assert stats.path == str(store.path)


_EMBEDDED = """
import sys
import kvstore
with kvstore.open(sys.argv[1]) as store:
    store.create_topic("t", queues=2)
    store.create_group("g")
    store.put_batch([kvstore.Message("t", b"x", tag=str(n % 3), keys=["k"]) for n in range(100)])
    store.checkpoint()
    (popped,) = store.pop("g", "t")
    store.ack(popped.receipt)
    assert store.query("t", "k")
print(*sorted(sys.modules))
kvstore.connect, kvstore.ServedStore, kvstore.ShardedStore
"""


def test_a_store_of_this_process_imports_nothing_that_only_a_connection_needs(
    tmp_path: Path,
) -> None:
    code = [sys.executable, "-c", _EMBEDDED, str(tmp_path / "store")]
    imported = subprocess.run(code, capture_output=True, check=True, text=True).stdout.split()
    own = ("kvstore.client.", "kvstore.serve.", "kvstore.sharding.", "kvstore.cli.", "tiering.")
    unneeded = (*own, "asyncio.", "click.", "lark.", "numpy.ma.", "pyarrow.", "ssl.")
    assert [name for name in imported if f"{name}.".startswith(unneeded)] == []
