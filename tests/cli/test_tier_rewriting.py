"""`kvmq tier key`, `reencrypt` and `compact`; and `tier` and `erase` with what Spark's share."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock

POLICY = 'hot_for = "1d"\nwarm = "archive"\nclock_doubt = 0\n'


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of November 2023: a topic and a table, over some sealed segments."""
    path = tmp_path / "old"
    config = StoreConfig(segment_size=64 << 10, clock=VirtualClock(1_700_000_000_000))
    with kvstore.open(path, config) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("table", queues=1, kind="compacted")
        for number in range(150):
            topic = "orders" if number % 3 else "table"
            body = b"%d" % number + bytes(1000)
            store.put_batch([Message(topic, body, queue=0, keys=(f"k{number % 5}",))])
        store.seal()
    return path


def test_a_key_is_made_once_and_never_shown(kvmq: Kvmq, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = kvmq("tier", "key", "make", file, "orders", "--json")
    assert (made.code, made.json["made"], made.json["topic"]) == (0, True, "orders")
    again = kvmq("tier", "key", "make", file, "orders")
    assert made.json["key_id"] in again.out
    assert "keeps it" in again.out
    secret = kvstore.files.LocalFiles().read(file).decode().split('"key": "')[1][:64]
    assert secret not in made.out + again.out
    assert kvmq("tier", "key", "list", file, "--json").json == ["orders"]
    assert "has the key" in kvmq("tier", "key", "make", file, "other").out
    assert "other" in kvmq("tier", "key", "list", file).out


def test_what_was_archived_in_the_clear_comes_under_a_new_key(
    kvmq: Kvmq, old: Path, policy: Path, tmp_path: Path
) -> None:
    assert kvmq("tier", "run", old, "--policy", policy).code == 0
    keys = tmp_path / "keys.json"
    kvmq("tier", "key", "make", keys, "orders")
    words = ("tier", "reencrypt", old, "--policy", policy, "--keys", keys)
    assert kvmq(*words, "--topic", "table", "--json").json["merged"] == []
    ran = kvmq(*words, "--json")
    assert (ran.code, ran.json["failed"], len(ran.json["merged"])) == (0, {}, 3)
    assert "archives replaced" in kvmq(*words).out
    without = kvmq("get", old, "orders", "--offset", 3, "--json")
    assert without.error["error"] == "KeyMissing"
    assert kvmq("get", old, "orders", "--offset", 3, "--json", "--keys", keys).code == 0
    assert kvmq("tier", "verify", old, "--keys", keys).code == 0
    none = kvmq("tier", "reencrypt", old, "--policy", policy, "--json")
    assert (none.code, none.error["error"]) == (1, "ConfigError")


def test_a_table_is_compacted(kvmq: Kvmq, old: Path, policy: Path) -> None:
    assert kvmq("tier", "run", old, "--policy", policy).code == 0
    ran = kvmq("tier", "compact", old, "--policy", policy, "--topic", "table", "--json")
    assert (ran.code, ran.json["failed"], len(ran.json["archives"])) == (0, {}, 1)
    assert len(kvmq("pull", old, "table", "--all", "--json").lines) == 5
    wrong = kvmq("tier", "compact", old, "--policy", policy, "--topic", "orders", "--json")
    assert "of kind normal" in wrong.error["message"]


def test_a_topic_is_parted_from_topics_of_another_retention(
    kvmq: Kvmq, old: Path, policy: Path
) -> None:
    assert kvmq("tier", "run", old, "--policy", policy).code == 0
    with kvstore.open(old) as store:
        store.create_topic("visits", queues=1)
        store.put("visits", b"v", queue=0)
        store.put("orders", b"o", queue=0)
        store.seal()
    moving = policy.with_name("at once.toml")
    moving.write_text(policy.read_text().replace('"1d"', "0"))
    assert kvmq("tier", "run", old, "--policy", moving).code == 0
    words = ("tier", "merge", old, "--policy", policy, "--topic", "visits")
    assert kvmq(*words, "--json").json["merged"] == []
    with kvstore.open(old) as store:
        store.alter_topic("visits", retention=kvstore.Retention(warm_for=3600.0))
    ran = kvmq(*words, "--json")
    assert (ran.code, len(ran.json["merged"]), len(ran.json["archives"])) == (0, 1, 2)
    assert kvmq(*words, "--target-bytes", 5).code == 2
    assert kvmq(*words[:-1], "none", "--json").error["error"] == "CallerError"
