"""`--keys` and `--place-option`: verbs that read archives reach what takes keys or settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock
from tiering import KeyFile, Policy, Worker

LOCKED = "KeyMissing"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    KeyFile(tmp_path / "keys.json").make("orders")
    return tmp_path / "keys.json"


@pytest.fixture
def locked(tmp_path: Path, keys: Path) -> Path:
    """A store of one topic, wholly in encrypted archives."""
    clock = VirtualClock(1_700_000_000_000)
    path = tmp_path / "locked"
    with kvstore.open(path, StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        store.create_topic("orders", queues=1)
        store.create_group("billing")
        for n in range(40):
            store.put_batch([Message("orders", b"%d" % n, queue=0, keys=(f"o-{n}",))])
            clock.advance(1)
        store.seal()
        clock.advance(2 * 86_400.0)
        policy = Policy(hot_for=86_400.0, warm="archive", clock_doubt=0.0)
        with Worker(store, policy, keys=KeyFile(keys)) as worker:
            assert worker.run_once().failed == {}
    return path


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("get", ("orders", "--offset", 3)),
        ("pull", ("orders",)),
        ("query", ("orders", "o-3")),
        ("offset-at", ("orders", 1_700_000_005_000)),
        ("pop", ("billing", "orders")),
    ],
)
def test_what_is_encrypted_is_read_with_its_key_and_not_without(
    kvmq: Kvmq, locked: Path, keys: Path, verb: str, words: tuple[object, ...]
) -> None:
    without = kvmq(verb, locked, *words, "--json")
    assert (without.code, without.error["error"]) == (1, LOCKED)
    found = kvmq(verb, locked, *words, "--json", "--keys", keys)
    assert found.code == 0, found.err
    assert found.out


def test_the_verbs_of_archives_and_dump_have_the_same_options(
    kvmq: Kvmq, locked: Path, keys: Path, tmp_path: Path
) -> None:
    archive = next((locked / "archive").rglob("*.kvarc"))
    words = ("dump", archive, "--topic", "orders", "--json")
    assert LOCKED not in kvmq(*words, "--keys", keys).err
    assert len(kvmq(*words, "--keys", keys).lines) == 40
    assert kvmq(*words).code == 1
    assert kvmq("tier", "verify", locked, "--keys", keys, "--place-option", "region=eu").code == 0
    config = tmp_path / "config.toml"
    config.write_text(f'[archives]\nkeys = "{keys}"\n')
    assert kvmq("verify", locked, "--config", config).code == 0
    policy = tmp_path / "policy.toml"
    policy.write_text('hot_for = "1d"\nwarm = "archive"\n')
    ran = kvmq("tier", "merge", locked, "--policy", policy, "--keys", keys)
    assert ran.code == 0, ran.out


def test_a_key_file_or_a_setting_that_is_none_is_wrong_usage(kvmq: Kvmq, locked: Path) -> None:
    assert kvmq("get", locked, "orders", "--offset", 3, "--keys", locked / "none").code == 2
    assert kvmq("pull", locked, "orders", "--place-option", "region").code == 2


def test_a_topic_is_erased_by_its_key_without_a_policy(
    kvmq: Kvmq, locked: Path, keys: Path
) -> None:
    ran = kvmq("erase", "topic", locked, "orders", "--by-key", "--keys", keys, "--json")
    assert (ran.code, ran.json["topic"]) == (0, "orders")
    assert len(ran.json["archives"]) == 1
    assert (ran.json["readable"], ran.json["segments"], ran.json["failed"]) == ([], [], {})
    pulled = kvmq("pull", locked, "orders", "--keys", keys, "--json")
    assert pulled.error["error"] == "KeyDestroyed"
    again = kvmq("erase", "topic", locked, "orders", "--by-key", "--keys", keys)
    assert again.code == 0
    assert "nothing of the topic can be read" in again.out


def test_what_destroying_a_key_leaves_readable_is_listed_with_exit_code_1(
    kvmq: Kvmq, locked: Path, keys: Path
) -> None:
    assert kvmq("put", locked, "orders", "--body", "in the log").code == 0
    ran = kvmq("erase", "topic", locked, "orders", "--by-key", "--keys", keys, "--json")
    assert (ran.code, len(ran.json["archives"]), len(ran.json["segments"])) == (1, 1, 1)
    told = kvmq("erase", "topic", locked, "orders", "--by-key", "--keys", keys)
    assert told.code == 1
    assert "without --by-key" in told.out


def test_a_key_that_is_not_there_is_said(kvmq: Kvmq, locked: Path, keys: Path) -> None:
    def code(*words: object) -> int:
        return kvmq("erase", "topic", locked, "orders", *words).code

    ran = kvmq("erase", "topic", locked, "visits", "--by-key", "--keys", keys, "--json")
    assert (ran.code, ran.error["error"]) == (1, "ConfigError")
    assert code("--by-key") == 2
    assert code("--keys", keys) == 2
    assert code("--by-key", "--keys", keys, "--policy", keys) == 2
    assert kvmq("pull", locked, "orders", "--keys", keys).code == 0


def test_a_restore_says_which_topics_it_has_no_keys_of(
    kvmq: Kvmq, locked: Path, keys: Path, tmp_path: Path
) -> None:
    ran = kvmq("restore", locked / "archive", tmp_path / "without", "--json")
    assert (ran.code, list(ran.json["unreadable"])) == (0, ["orders"])
    ran = kvmq("restore", locked / "archive", tmp_path / "with", "--keys", keys, "--json")
    assert (ran.code, ran.json["unreadable"]) == (0, {})
    assert kvmq("pull", tmp_path / "without", "orders", "--keys", keys).code == 0
