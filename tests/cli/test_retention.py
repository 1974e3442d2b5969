"""A topic's retention from the command line, and which archives it does not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Retention, StoreConfig
from kvstore.cli.admin.topics import RetentionText, retention_text
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock

DAY = 86_400.0


def test_a_retention_is_set_shown_changed_and_taken_away(kvmq: Kvmq, folder: Path) -> None:
    made = kvmq("topic", "create", folder, "t", "--retention", "hot=36h,cold=30d", "--json")
    assert made.code == 0, made.err
    alter = ("topic", "alter", folder, "t", "--retention")
    steps: list[tuple[str, Retention]] = [
        ("hot=36h,cold=30d", Retention(hot_for=1.5 * DAY, cold_for=30 * DAY)),
        ("warm=1500ms", Retention(warm_for=1.5)),
        ("hot=0,warm=1d,cold=2d", Retention(hot_for=0, warm_for=DAY, cold_for=2 * DAY)),
        ("none", Retention()),
    ]
    for text, retention in steps:
        assert kvmq(*alter, text).code == 0
        assert text in kvmq("topic", "show", folder, "t").out
        shown = kvmq("topic", "show", folder, "t", "--json").json
        assert shown["retention"]["hot_for"] == retention.hot_for
        with kvstore.open(folder, read_only=True) as store:
            assert store.topic("t").retention == retention
    # Another setting leaves it as it is.
    assert kvmq(*alter, "hot=1h").code == 0
    assert kvmq("topic", "alter", folder, "t", "--queues", 9).code == 0
    assert "hot=1h" in kvmq("topic", "list", folder).out


@pytest.mark.parametrize(
    "text", ["", "1d", "hot", "hot=", "hot=1x", "hot=-1d", "hot=1d,hot=2d", "hot_for=1d", "hot=1d,"]
)
def test_what_is_no_retention_is_refused(kvmq: Kvmq, folder: Path, text: str) -> None:
    for words in (("alter", folder, "orders"), ("create", folder, "new")):
        ran = kvmq("topic", *words, f"--retention={text}")
        assert (ran.code, "hot=1d,warm=7d" in ran.err) == (2, True)
    with kvstore.open(folder, read_only=True) as store:
        assert store.topic("orders").retention == Retention()


@pytest.mark.parametrize("hot", [None, 0, 0.001, 59.999, 90.0, 3600.0, 36 * 3600.0, 1e9])
def test_a_retention_is_shown_as_it_is_given(hot: float | None) -> None:
    retention = Retention(hot_for=hot, cold_for=hot)
    read: Any = RetentionText().convert(retention_text(retention), None, None)
    assert read == retention


def test_the_answer_says_which_archives_a_new_retention_does_not_reach(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    path, policy = tmp_path / "store", tmp_path / "policy.toml"
    policy.write_text(f'hot_for = "1d"\nwarm_for = "36500d"\nwarm = "{tmp_path}/archives"\n')
    config = StoreConfig(segment_size=64 << 10, clock=VirtualClock(1_700_000_000_000))
    with kvstore.open(path, config) as store:
        store.create_topic("orders")
        store.create_namespace("ns")
        store.namespace("ns").create_topic("orders")
        for _ in range(60):
            store.put_batch([Message("orders", bytes(1000)), Message("ns%orders", bytes(1000))])
        store.seal()
    alter = ("topic", "alter", path, "orders", "--retention", "hot=0,warm=2d")
    assert kvmq(*alter, "--json").json["shared_archives"] == 0
    assert "archive" not in kvmq(*alter).out
    assert kvmq(*alter[:-1], "none").code == 0
    assert kvmq("tier", "run", path, "--policy", policy).code == 0
    count = len(kvmq("tier", "list", path, "--json").json)
    answer = kvmq(*alter, "--json").json
    assert (answer["shared_archives"], answer["retention"]["warm_for"]) == (count, 2 * DAY)
    assert answer["shared_until"] > 4_000_000_000_000
    told = kvmq(*alter, "--namespace", "ns").out
    assert f"{count} archive" in told
    assert "until 21" in told
    assert "kvmq tier merge DIR --policy FILE --topic ns%orders" in told
    assert kvmq(*alter[:-1], "none").code == 0
    assert kvmq("tier", "merge", path, "--policy", policy, "--topic", "ns%orders").code == 0
    assert "archive" not in kvmq(*alter, "--namespace", "ns").out
