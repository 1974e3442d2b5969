"""`kvmq topic` and `kvmq offset`, and a topic's retention: what is known about messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Retention, StoreConfig
from kvstore.cli.admin.topic_verbs import RetentionText, retention_text
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock


def test_a_topic_is_created_in_a_new_store_listed_and_shown(kvmq: Kvmq, tmp_path: Path) -> None:
    store = tmp_path / "store"
    made = kvmq("topic", "create", store, "a", "--queues", 3, "--key-index", "unique", "--json")
    assert made.code == 0, made.err
    assert (made.json["name"], made.json["read_queues"], made.json["key_index"]) == (
        "a", 3, "unique",
    )  # fmt: skip
    kvmq("topic", "create", store, "b", "--kind", "fifo")
    listed = kvmq("topic", "list", store, "--json").json
    assert [(t["name"], t["kind"]) for t in listed] == [("a", "normal"), ("b", "fifo")]
    shown = kvmq("topic", "show", store, "a", "--json").json
    assert [q["next_offset"] for q in shown["queues"]] == [0, 0, 0]
    assert "fifo" in kvmq("topic", "list", store).out


def test_what_exists_may_be_made_again(kvmq: Kvmq, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for word, name in (("topic", "t"), ("group", "g"), ("namespace", "n")):
        first = kvmq(word, "create", store, name, "--json")
        again = kvmq(word, "create", store, name, "--exist-ok", "--json")
        assert (first.code, again.code, again.json) == (0, 0, first.json)
        assert "--exist-ok" in kvmq(word, "create", store, name).err


def test_a_topic_has_as_many_queues_by_itself_as_the_call_gives_it(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    made = kvmq("topic", "create", tmp_path / "store", "a", "--json").json
    kvmq("put", tmp_path / "store", "b", "--create", "--body", "x")
    with kvstore.open(tmp_path / "store", StoreConfig(auto_create_topics=True)) as store:
        store.put("c", b"x")
        queues = [store.topic(name).read_queues for name in "abc"]
        assert queues == [store.create_topic("d").read_queues] * 3
        assert made["read_queues"] == queues[0]


def test_a_topic_that_is_refused_makes_no_store(kvmq: Kvmq, tmp_path: Path) -> None:
    for words in (("a b",), ("a", "--queues", 65_537), ("a", "--kind", "urgent")):
        assert kvmq("topic", "create", tmp_path / "store", *words).code != 0
        assert not (tmp_path / "store").exists()


def test_a_topic_of_each_kind_can_be_made(kvmq: Kvmq, folder: Path) -> None:
    for kind in ("normal", "fifo", "delay", "transaction", "compacted", "priority"):
        made = kvmq("topic", "create", folder, f"of-{kind}", "--kind", kind, "--json")
        assert made.json["kind"] == kind


def test_a_put_that_the_kind_does_not_take_names_the_line_and_the_remedy(
    kvmq: Kvmq, folder: Path
) -> None:
    kvmq("topic", "create", folder, "d", "--kind", "delay")
    kvmq("topic", "create", folder, "n", "--takes-no-delays")
    assert kvmq("topic", "show", folder, "n", "--json").json["takes_delays"] is False
    ran = kvmq("put", folder, "d", stdin="a\n")
    assert ran.code == 1
    assert "standard input, line 1: topic 'd' is of kind 'delay'" in ran.err
    put = ("put", folder, "n", "--body", "x", "--delay", 60)
    ran = kvmq(*put)
    assert ran.code == 1
    assert "with --takes-no-delays: put it without a delay, or use `kvmq topic alter`" in ran.err
    assert kvmq("topic", "alter", folder, "n", "--takes-delays").code == 0
    assert kvmq(*put).code == 0


def test_show_counts_what_queues_hold(kvmq: Kvmq, folder: Path) -> None:
    shown = kvmq("topic", "show", folder, "orders", "--json").json
    assert [q["next_offset"] for q in shown["queues"]] == [40, 1, 0, 0]
    assert "40" in kvmq("topic", "show", folder, "orders").out


def test_alter_changes_and_delete_deletes(kvmq: Kvmq, folder: Path) -> None:
    altered = kvmq("topic", "alter", folder, "orders", "--queues", 6, "--json").json
    assert altered["write_queues"] == 6
    assert kvmq("topic", "alter", folder, "orders").code == 2
    assert kvmq("topic", "delete", folder, "orders", "--json").json == {
        "deleted": "orders",
        "waiting": 0,
    }
    ran = kvmq("topic", "show", folder, "orders", "--json")
    assert (ran.code, ran.error["error"]) == (1, "TopicNotFound")


def test_mistakes_are_typed_errors(kvmq: Kvmq, folder: Path) -> None:
    twice = kvmq("topic", "create", folder, "orders", "--json")
    assert (twice.code, twice.error["error"]) == (1, "TopicExists")
    odd = kvmq("topic", "create", folder, "a b", "--json")
    assert (odd.code, odd.error["error"]) == (1, "MessageIllegal")
    for verb in ("alter", "delete", "show"):
        more = ("--queues", 2) if verb == "alter" else ()
        ran = kvmq("topic", verb, folder, "none", *more, "--json")
        assert (ran.code, ran.error["error"]) == (1, "TopicNotFound"), verb
    assert kvmq("topic", "create", folder, "c", "--queues", 0).code == 2


def test_a_group_s_offsets_are_committed_and_shown_with_their_lag(kvmq: Kvmq, folder: Path) -> None:
    unknown = kvmq("offset", "show", folder, "billing", "orders", "--json")
    assert (unknown.code, unknown.error["error"]) == (1, "GroupNotFound")
    assert kvmq("group", "create", folder, "billing").code == 0
    before = kvmq("offset", "show", folder, "billing", "orders", "--json").json
    assert before[0] == {"queue": 0, "committed": None, "next_offset": 40, "lag": 40}
    commit = ("offset", "commit", folder, "billing", "orders", "--queue", 0, "--offset", 30)
    assert kvmq(*commit, "--json").json["offset"] == 30
    after = kvmq("offset", "show", folder, "billing", "orders", "--json").json
    assert after[0] == {"queue": 0, "committed": 30, "next_offset": 40, "lag": 10}
    assert "30" in kvmq("offset", "show", folder, "billing", "orders").out


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
