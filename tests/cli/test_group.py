"""`kvmq group`, `offset` and `namespace`: who consumes, how far, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Kvmq

# --- groups ---


def test_a_group_is_created_listed_shown_altered_and_deleted(kvmq: Kvmq, folder: Path) -> None:
    made = kvmq(
        "group", "create", folder, "billing", "--max-attempts", 3, "--ordered",
        "--backoff", "1,2.5", "--start", "end", "--max-in-flight", 9, "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert made.json["backoff"] == [1.0, 2.5]
    assert (made.json["ordered"], made.json["start"], made.json["max_in_flight"]) == (
        True, "end", 9,
    )  # fmt: skip
    listed = kvmq("group", "list", folder, "--json").json
    assert [(g["name"], g["max_attempts"]) for g in listed] == [("billing", 3)]
    assert "%DLQ%billing" in kvmq("group", "list", folder).out
    altered = kvmq(
        "group", "alter", folder, "billing", "--dead-letter-topic", "dead",
        "--max-in-flight", "none", "--start", "2026-11-21T08:30:00+00:00", "--json",
    ).json  # fmt: skip
    assert (altered["dead_letter_topic"], altered["max_in_flight"]) == ("dead", None)
    assert altered["start"] == 1795249800000
    assert altered["max_attempts"] == 3
    kvmq("offset", "commit", folder, "billing", "orders", "--queue", 0, "--offset", 30)
    shown = kvmq("group", "show", folder, "billing", "--json").json
    # Queue 1 has one message too, stored behind the group's start.
    assert shown["topics"] == [{"topic": "orders", "lag": 11, "passed_over": 0, "expired": 0}]
    assert shown["dead_letter_topic"] == "dead"
    altered = kvmq("group", "alter", folder, "billing", "--dead-letter-expired", "--json").json
    assert altered["dead_letter_expired"] is True
    altered = kvmq("group", "alter", folder, "billing", "--drop-expired", "--json").json
    assert altered["dead_letter_expired"] is False
    text = kvmq("group", "show", folder, "billing").out
    assert "1 2.5" in text
    assert "orders" in text
    assert kvmq("group", "delete", folder, "billing", "--json").json == {"deleted": "billing"}
    assert kvmq("group", "list", folder, "--json").json == []


def test_messages_in_flight_are_listed_a_page_at_a_time(kvmq: Kvmq, folder: Path) -> None:
    kvmq("group", "create", folder, "billing")
    assert kvmq("group", "in-flight", folder, "billing").err == "0 messages are in flight\n"
    popped = kvmq("pop", folder, "billing", "orders", "--limit", 3, "--json").json
    first = kvmq("group", "in-flight", folder, "billing", "--limit", 2, "--json").json
    rest = kvmq(
        "group", "in-flight", folder, "billing", "orders", "--after", first["next"], "--json"
    ).json
    listed = first["messages"] + rest["messages"]
    assert (len(first["messages"]), first["count"], rest["next"]) == (2, 3, None)
    assert sorted((m["queue"], m["offset"]) for m in listed) == sorted(
        (p["queue"], p["offset"]) for p in popped
    )
    assert {(m["group"], m["topic"], m["attempt"]) for m in listed} == {("billing", "orders", 1)}
    text = kvmq("group", "in-flight", folder, "billing", "--limit", 2)
    assert listed[0]["message_id"] in text.out
    assert text.err.endswith(f"more with --after {first['next']}\n")
    assert kvmq("group", "in-flight", folder, "nobody").code == 1
    for wrong in ("1,2", "1,2,3,4,x", "-1,0,0,0,0"):
        assert kvmq("group", "in-flight", folder, "billing", "--after", wrong).code == 2


def test_mistakes_about_groups_are_typed_errors(kvmq: Kvmq, folder: Path) -> None:
    kvmq("group", "create", folder, "g")
    twice = kvmq("group", "create", folder, "g", "--json")
    assert (twice.code, twice.error["error"]) == (1, "GroupExists")
    for verb, *more in (("show",), ("delete",), ("alter", "--max-attempts", 2)):
        ran = kvmq("group", verb, folder, "none", *more, "--json")
        assert (ran.code, ran.error["error"]) == (1, "GroupNotFound"), verb
    assert kvmq("group", "alter", folder, "g").code == 2
    assert kvmq("group", "alter", folder, "g", "--backoff", "soon").code == 2
    assert kvmq("group", "alter", folder, "g", "--start", "soon").code == 2
    assert kvmq("group", "alter", folder, "g", "--max-in-flight", "many").code == 2
    odd = kvmq("group", "alter", folder, "g", "--backoff", "1,-1", "--json")
    assert (odd.code, odd.error["error"]) == (1, "CallerError")


# --- offsets ---


def test_offsets_are_reset_and_say_where_they_are_now(kvmq: Kvmq, folder: Path) -> None:
    kvmq("group", "create", folder, "g")
    reset = ("offset", "reset", folder, "g", "orders")
    assert kvmq(*reset, "--to", "end", "--json").json == [
        {"queue": q, "offset": offset} for q, offset in enumerate((40, 1, 0, 0))
    ]
    assert kvmq(*reset, "--offset", 7, "--queue", 0, "--json").json == [{"queue": 0, "offset": 7}]
    lag = kvmq("offset", "lag", folder, "g", "orders", "--json").json
    assert [one["lag"] for one in lag] == [33, 0, 0, 0]
    assert kvmq(*reset, "--time", 0, "--json").json[0] == {"queue": 0, "offset": 0}
    assert "40" in kvmq(*reset, "--to", "end").out


@pytest.mark.parametrize(
    "words", [(), ("--to", "end", "--time", 0), ("--to", "middle"), ("--time", "noon")]
)
def test_a_reset_that_says_not_one_thing_is_wrong_usage(
    kvmq: Kvmq, folder: Path, words: tuple[object, ...]
) -> None:
    kvmq("group", "create", folder, "g")
    assert kvmq("offset", "reset", folder, "g", "orders", *words).code == 2


def test_the_history_of_an_offset_is_shown_oldest_first(kvmq: Kvmq, folder: Path) -> None:
    commit = ("offset", "commit", folder, "g", "orders", "--queue", 0, "--offset")
    kvmq(*commit, 3)
    history = ("offset", "history", folder, "g", "orders", "--queue", 0)
    assert [c["offset"] for c in kvmq(*history, "--json").json] == [3]
    kvmq(*commit, 5)
    found = kvmq(*history, "--json").json
    assert found[-1]["offset"] == 5  # the first one too, if the second was over by then
    assert "5" in kvmq(*history).out
    ran = kvmq("offset", "history", folder, "nobody", "orders", "--queue", 0, "--json")
    assert (ran.code, ran.error["error"]) == (1, "GroupNotFound")


def test_the_lag_of_all_groups_is_shown_if_none_is_named(kvmq: Kvmq, folder: Path) -> None:
    for group, offset in (("a", 40), ("b", 10)):
        kvmq("offset", "commit", folder, group, "orders", "--queue", 0, "--offset", offset)
    found = kvmq("offset", "lag", folder, "--json").json
    assert [(one["group"], one["lag"]) for one in found if one["queue"] == 0] == [
        ("a", 0), ("b", 30),
    ]  # fmt: skip
    assert len(found) == 8
    assert "30" in kvmq("offset", "lag", folder).out


# --- topics ---


def test_queues_are_taken_from_readers_only_if_they_are_empty(kvmq: Kvmq, folder: Path) -> None:
    alter = ("topic", "alter", folder, "orders", "--queues", 1, "--read-queues")
    full = kvmq(*alter, 1, "--json")
    assert (full.code, full.error["error"]) == (1, "QueueNotEmpty")
    found = kvmq(*alter, 2, "--json").json
    assert (found["write_queues"], found["read_queues"]) == (1, 2)


def test_compression_of_a_topic_is_set_and_taken_back(kvmq: Kvmq, folder: Path) -> None:
    create = ("topic", "create", folder, "t", "--compress-above", 100, "--compression", "lz4")
    made = kvmq(*create, "--kind", "priority", "--json").json
    assert (made["compress_above"], made["compression"], made["kind"]) == (100, "lz4", "priority")
    alter = ("topic", "alter", folder, "t")
    found = kvmq(*alter, "--compress-above", "store", "--compression", "store", "--json").json
    assert (found["compress_above"], found["compression"]) == (None, None)
    assert kvmq(*alter, "--compress-above", "much").code == 2


# --- namespaces ---


def test_a_namespace_is_created_listed_worked_in_and_deleted(kvmq: Kvmq, folder: Path) -> None:
    create = ("namespace", "create", folder, "ten", "--topic", "orders", "--group", "g")
    assert kvmq(*create, "--json").json == {"created": "ten"}
    assert kvmq("namespace", "list", folder, "--json").json == [
        {"namespace": "ten", "topics": 1, "groups": 1}
    ]
    assert "ten" in kvmq("namespace", "list", folder).out
    inside = ("--namespace", "ten", "--json")
    assert kvmq("topic", "show", folder, "orders", *inside).json["queues"][0]["next_offset"] == 0
    assert [t["name"] for t in kvmq("topic", "list", folder, *inside).json] == ["orders"]
    assert kvmq("topic", "create", folder, "more", *inside).json["name"] == "more"
    assert kvmq("topic", "alter", folder, "more", "--queues", 2, *inside).json["write_queues"] == 2
    assert kvmq("topic", "delete", folder, "more", *inside).code == 0
    assert kvmq("group", "show", folder, "g", *inside).json["dead_letter_topic"] == "%DLQ%g"
    commit = ("offset", "commit", folder, "g", "orders", "--queue", 0, "--offset", 0)
    assert kvmq(*commit, *inside).code == 0
    assert kvmq("offset", "show", folder, "g", "orders", *inside).json[0]["committed"] == 0
    assert {one["topic"] for one in kvmq("offset", "lag", folder, *inside).json} == {"orders"}
    shown = kvmq("namespace", "show", folder, "ten", "--json").json
    assert [t["name"] for t in shown["topics"]] == ["orders"]
    assert "orders" in kvmq("namespace", "show", folder, "ten").out
    assert kvmq("namespace", "delete", folder, "ten", "--json").json == {
        "deleted": "ten",
        "waiting": 0,
    }
    assert [t["name"] for t in kvmq("topic", "list", folder, "--json").json] == ["orders"]


def test_mistakes_about_namespaces_are_typed_errors(kvmq: Kvmq, folder: Path) -> None:
    gone = kvmq("namespace", "delete", folder, "none", "--json")
    assert (gone.code, gone.error["error"]) == (1, "NamespaceNotFound")
    kvmq("namespace", "create", folder, "ten")
    twice = kvmq("namespace", "create", folder, "ten", "--json")
    assert (twice.code, twice.error["error"]) == (1, "NamespaceExists")
    odd = kvmq("topic", "list", folder, "--namespace", "a%b", "--json")
    assert (odd.code, odd.error["error"]) == (1, "CallerError")


def test_offsets_of_a_group_that_there_is_not_are_an_error(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("offset", "show", folder, "nope", "orders")
    assert (ran.code, ran.out) == (1, "")
    assert "'nope'" in ran.err


def test_a_namespace_that_there_is_not_is_an_error(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("namespace", "show", folder, "nope")
    assert (ran.code, ran.out) == (1, "")
    assert "'nope'" in ran.err
    kvmq("namespace", "create", folder, "empty")
    assert kvmq("namespace", "show", folder, "empty").code == 0
