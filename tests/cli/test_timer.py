"""`kvmq timer`, and the delays of `kvmq put`: messages that wait, listed, cancelled and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Message
from kvstore.clock import SystemClock
from tests.cli.conftest import Kvmq

HOUR: Final = 3_600_000


@pytest.fixture
def due(kvmq: Kvmq, folder: Path) -> int:
    """The time at which the messages "one", "two" and "three" are due that wait in `folder`."""
    at = SystemClock().now_ms() + HOUR
    lines = [
        {"body": "two", "deliver_at": at + 1000, "tag": "t", "keys": ["k"], "queue": 2},
        {"body": "one", "deliver_at": at, "properties": {"p": "q"}, "queue": 3},
        {"body": "three", "deliver_at": at + 2000},
    ]
    text = "\n".join(map(json.dumps, lines))
    ran = kvmq("put", folder, "orders", "--jsonl", "--json", stdin=text)
    assert [line["offset"] for line in ran.lines] == [-1] * 3
    return at


def listed(kvmq: Kvmq, folder: Path, *words: object) -> Any:
    return kvmq("timer", "list", folder, *words, "--json").json


def test_a_list_goes_on_behind_messages_to_other_topics_until_it_has_as_many_as_asked_for(
    kvmq: Kvmq, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.timing.timer_rows.LOOKED_MAX", 10)
    with kvstore.open(folder) as store:
        store.create_topic("others")
        store.put_batch([Message("others", b"x", delay=600 + n) for n in range(100)])
        for n in range(4):
            store.put("orders", b"%d" % n, delay=605 + 30 * n)
    first = listed(kvmq, folder, "orders", "--limit", 3)
    assert [m["body"] for m in first["messages"]] == ["0", "1", "2"]
    last = listed(kvmq, folder, "orders", "--limit", 3, "--after", first["next"])
    assert [m["body"] for m in last["messages"]] == ["3"]
    assert last["next"] is None
    assert (first["count"], last["count"]) == (4, 4)


# --- put ---


@pytest.mark.parametrize(
    ("words", "milliseconds"),
    [(("--delay", 90), 90_000), (("--delay", "0.5"), 500), (("--delay-level", 4), 30_000)],
)
@pytest.mark.parametrize("is_one", [True, False])
def test_a_delay_on_the_command_line_begins_with_the_put(
    kvmq: Kvmq, folder: Path, words: tuple[object, ...], milliseconds: int, is_one: bool
) -> None:
    before = SystemClock().now_ms()
    body: tuple[object, ...] = ("--body", "x") if is_one else ()
    ran = kvmq("put", folder, "orders", *words, *body, "--json", stdin="x\n")
    assert ran.code == 0, ran.err
    after = SystemClock().now_ms()
    if milliseconds > 10_000:
        (message,) = listed(kvmq, folder)["messages"]
        assert before + milliseconds < message["deliver_at"] <= after + milliseconds + 1


def test_a_line_says_its_own_time_and_the_options_are_for_those_that_say_none(
    kvmq: Kvmq, folder: Path
) -> None:
    at = SystemClock().now_ms() + HOUR
    lines = [
        {"body": "option"}, {"body": "delay", "delay": 7200}, {"body": "level", "delay_level": 18},
        {"body": "now", "delay": 0}, {"body": "at", "deliver_at": at + 1},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    ran = kvmq("put", folder, "orders", "--jsonl", "--deliver-at", at, "--json", stdin=text)
    assert [line["offset"] < 0 for line in ran.lines] == [True, True, True, False, True]
    found = {m["body"]: m["deliver_at"] - at for m in listed(kvmq, folder)["messages"]}
    assert (found["option"], found["at"]) == (0, 1)
    assert all(0 <= found[name] - HOUR < 60_000 for name in ("delay", "level"))


def test_the_longest_delay_is_taken_from_lines_and_from_the_command_line(
    kvmq: Kvmq, folder: Path
) -> None:
    longest = 1_262_304_000
    assert kvmq("put", folder, "orders", "--body", "x", "--delay", longest).code == 0
    assert kvmq("put", folder, "orders", "--delay", longest, stdin="x\n").code == 0
    assert kvmq("put", folder, "orders", "--body", "x", "--delay", longest + 1).code == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"body": "x", "delay": -1}', "delay is -1"),
        ('{"body": "x", "delay": "soon"}', "Expected `float | null`"),
        ('{"body": "x", "delay_level": 19}', "1 to 18"),
        ('{"body": "x", "deliver_at": 5}', "whole milliseconds"),
        ('{"body": "x", "deliver_at": 1764000000000, "delay": 1}', "deliver_at and delay"),
    ],
)
def test_a_line_with_a_time_that_is_none_is_named(
    kvmq: Kvmq, folder: Path, line: str, says: str
) -> None:
    ran = kvmq("put", folder, "orders", "--jsonl", "--json", stdin=f'{{"body": "a"}}\n{line}')
    assert (ran.code, ran.error["error"]) == (1, "MessageIllegal")
    assert ran.error["message"].startswith("standard input, line 2: ")
    assert says in ran.error["message"]
    assert len(ran.lines) == 1


def test_two_delays_on_the_command_line_are_wrong_usage(kvmq: Kvmq, folder: Path) -> None:
    put = ("put", folder, "orders", "--body", "x", "--delay", 0)
    assert kvmq(*put, "--delay-level", 1).code == 2
    assert kvmq(*put, "--deliver-at", "2027-01-01").code == 2
    assert kvmq("put", folder, "orders", "--body", "x", "--delay-level", 0).code == 2


# --- timer ---


def test_messages_that_wait_are_listed_page_by_page_the_next_due_first(
    kvmq: Kvmq, folder: Path, due: int
) -> None:
    first = listed(kvmq, folder, "--limit", 2)
    assert [m["body"] for m in first["messages"]] == ["one", "two"]
    assert first["count"] == 3
    rest = listed(kvmq, folder, "--after", first["next"])
    assert ([m["body"] for m in rest["messages"]], rest["next"]) == (["three"], None)
    two = first["messages"][1]
    assert (two["topic"], two["queue"], two["offset"]) == ("orders", 2, None)
    assert (two["deliver_at"], two["tag"], two["keys"]) == (due + 1000, "t", ["k"])
    assert first["messages"][0]["properties"] == {"p": "q"}
    ran = kvmq("timer", "list", folder, "orders", "--limit", 1)
    assert ran.out.splitlines()[1].endswith("one")
    assert "3 messages to orders wait" in ran.err
    assert kvmq("timer", "list", folder).err == "3 messages wait\n"
    assert "more with --after " in ran.err


def test_a_list_has_the_messages_of_a_topic_or_of_a_namespace_alone(
    kvmq: Kvmq, folder: Path, due: int
) -> None:
    kvmq("topic", "create", folder, "other")
    kvmq("topic", "create", folder, "mine", "--namespace", "ten")
    kvmq("put", folder, "ten%mine", "--body", "of ten", "--delay", 5000)
    assert listed(kvmq, folder, "other")["messages"] == []
    assert listed(kvmq, folder, "orders")["count"] == 3
    inside = listed(kvmq, folder, "--namespace", "ten")
    assert [(m["topic"], m["body"]) for m in inside["messages"]] == [("mine", "of ten")]
    (theirs,) = inside["messages"]
    ours = listed(kvmq, folder, "orders")["messages"][0]
    for verb in ("show", "cancel"):
        ran = kvmq("timer", verb, folder, ours["message_id"], "--namespace", "ten", "--json")
        assert ran.code == 1
        assert "MessageNotFound" in ran.out + ran.err
    change = ("timer", "change", folder, theirs["message_id"], "--namespace", "ten")
    assert kvmq(*change, "--deliver-at", due, "--json").json["deliver_at"] == due
    assert kvmq("timer", "list", folder, "nowhere").code == 1
    for wrong in ("soon", "5", "5,-1", "5,6,7"):
        assert kvmq("timer", "list", folder, "--after", wrong).code == 2


def test_a_message_that_waits_is_shown_with_its_fields(kvmq: Kvmq, folder: Path, due: int) -> None:
    message_id = listed(kvmq, folder)["messages"][1]["message_id"]
    shown = kvmq("timer", "show", folder, message_id, "--json").json
    assert (shown["topic"], shown["queue"], shown["deliver_at"]) == ("orders", 2, due + 1000)
    assert (shown["body"], shown["tag"]) == ("two", "t")
    rows = dict(line.split(maxsplit=1) for line in kvmq("timer", "show", folder, message_id).out
                .splitlines()[1:-1])  # fmt: skip
    assert (rows["topic"], rows["queue"]) == ("orders", "2")
    assert rows["deliver_at"].count("-") == 2
    assert "offset" not in rows


def test_cancelled_messages_do_not_wait_and_others_are_named(
    kvmq: Kvmq, folder: Path, due: int
) -> None:
    one, two, three = (m["message_id"] for m in listed(kvmq, folder)["messages"])
    ran = kvmq("timer", "cancel", folder, one, three, one, "--json")
    assert ran.code == 0
    assert [(r["message_id"], r["cancelled"]) for r in ran.json] == [
        (one, True), (three, True), (one, True),
    ]  # fmt: skip
    assert [m["message_id"] for m in listed(kvmq, folder)["messages"]] == [two]
    ended = kvmq("timer", "show", folder, one, "--json")
    assert (ended.code, ended.error["error"]) == (1, "DelayEnded")
    delivered = kvmq("put", folder, "orders", "--body", "x", "--json").json["message_id"]
    ran = kvmq("timer", "cancel", folder, delivered, "none", two)
    assert (ran.code, ran.out) == (1, "1 cancelled\n")
    assert f"kvmq: {delivered}: it was delivered before" in ran.err
    assert "kvmq: none: no message has the id 'none'" in ran.err
    assert listed(kvmq, folder)["count"] == 0


def test_a_changed_message_is_due_at_its_new_time(kvmq: Kvmq, folder: Path, due: int) -> None:
    message_id = listed(kvmq, folder)["messages"][0]["message_id"]
    change = ("timer", "change", folder, message_id)
    assert kvmq(*change, "--deliver-at", due + 5000, "--json").json == {
        "message_id": message_id, "deliver_at": due + 5000,
    }  # fmt: skip
    assert listed(kvmq, folder)["messages"][-1]["message_id"] == message_id
    assert kvmq(*change, "--delay", 7200).out.startswith("due at ")
    assert kvmq(*change).code == 2
    assert kvmq(*change, "--delay", 1, "--deliver-at", due).code == 2
    assert kvmq(*change, "--deliver-at", 5, "--json").error["error"] == "MessageIllegal"
    kvmq("timer", "cancel", folder, message_id)
    ended = kvmq(*change, "--delay", 1, "--json")
    assert (ended.code, ended.error["error"]) == (1, "DelayEnded")


def test_lists_are_made_beside_a_program_that_writes(kvmq: Kvmq, folder: Path) -> None:
    with kvstore.open(folder) as store:
        put = store.put_batch([Message("orders", b"x", delay=5000)])[0]
        assert [m["message_id"] for m in listed(kvmq, folder)["messages"]] == [put.message_id]
        assert kvmq("timer", "show", folder, put.message_id).code == 0
        ran = kvmq("timer", "cancel", folder, put.message_id)
        assert ran.code == 1
        assert f"store.cancel({put.message_id!r})" in ran.err
        assert store.timers().count == 1
