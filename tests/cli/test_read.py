"""`kvmq get`, `find`, `pull`, `query`, `offset-at`: what was put is shown, whole and in order."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Kvmq


def test_a_message_is_got_by_offset_position_and_either_id(kvmq: Kvmq, folder: Path) -> None:
    by_offset = kvmq("get", folder, "orders", "--queue", 0, "--offset", 7, "--json").json
    assert by_offset["body"] == "order 7"
    assert (by_offset["tag"], by_offset["keys"]) == ("paid", ["o-7", "c-7"])
    assert by_offset["properties"] == {"region": "eu"}
    assert kvmq("get", folder, "--position", by_offset["position"], "--json").json == by_offset
    for name in ("message_id", "position_id"):
        assert kvmq("get", folder, "--id", by_offset[name], "--json").json == by_offset
        assert kvmq("find", folder, by_offset[name], "--json").json == by_offset


def test_people_get_a_page_with_every_field(kvmq: Kvmq, folder: Path) -> None:
    page = kvmq("get", folder, "orders", "--offset", 7).out
    for text in ("order 7", "paid", "o-7 c-7", "region", "message_id", "stored_at"):
        assert text in page


def test_raw_is_the_body_byte_for_byte(kvmq: Kvmq, folder: Path) -> None:
    text = kvmq("get", folder, "orders", "--offset", 7, "--raw").out
    assert text == "order 7"
    message_id = kvmq("get", folder, "orders", "--offset", 8, "--json").json["message_id"]
    assert kvmq("find", folder, message_id, "--raw").out == "order 8"


def test_a_body_that_is_no_text_is_base64(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("get", folder, "orders", "--queue", 1, "--offset", 0, "--json").json
    assert found["body_base64"] == "/wA="
    assert "body" not in found


def test_control_characters_of_a_message_never_reach_the_terminal(kvmq: Kvmq, folder: Path) -> None:
    kvmq("put", folder, "orders", "--queue", 2, "--body", "\x1b[2J\x07red")
    for ran in (
        kvmq("pull", folder, "orders", "--queue", 2),
        kvmq("get", folder, "orders", "--queue", 2, "--offset", 0),
    ):
        assert "\x1b" not in ran.out
        assert "\x07" not in ran.out
        assert "\\x1b[2J\\x07red" in ran.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("orders", "--offset", 40), "OffsetNotFound"),
        (("orders", "--queue", 9, "--offset", 0), "QueueNotFound"),
        (("nope", "--offset", 0), "TopicNotFound"),
        (("--position", 3), "MessageNotFound"),
        (("--id", "0123456789ABCDEF0123456789ABCDEF"), "MessageNotFound"),
    ],
)
def test_what_is_not_there_is_a_typed_error(
    kvmq: Kvmq, folder: Path, words: tuple[object, ...], error: str
) -> None:
    ran = kvmq("get", folder, *words, "--json")
    assert (ran.code, ran.out, ran.error["error"]) == (1, "", error)
    plain = kvmq("get", folder, *words)
    assert plain.code == 1
    assert plain.err.startswith("kvmq: ")
    assert plain.err.count("\n") == 1


def test_a_message_that_waits_is_not_read_in_the_topic_in_which_it_waits(
    kvmq: Kvmq, folder: Path
) -> None:
    kvmq("put", folder, "orders", "--delay", 3600, "--body", "not yet")
    topic = "rmq_sys_wheel_timer"
    for words in (("get", folder, topic, "--offset", 0), ("pull", folder, topic),
                  ("query", folder, topic, "k")):  # fmt: skip
        ran = kvmq(*words, "--json")
        assert (ran.code, ran.out, ran.error["error"]) == (1, "", "CallerError")
    assert "not yet" in kvmq("timer", "list", folder, "orders", "--json").out


def test_get_wants_exactly_one_handle(kvmq: Kvmq, folder: Path) -> None:
    assert kvmq("get", folder, "orders").code == 2
    assert kvmq("get", folder, "orders", "--offset", 1, "--position", 0).code == 2
    ran = kvmq("get", folder, "--offset", 1, "--json")
    assert ran.code == 2
    assert ran.error["error"] == "UsageError"


def test_a_pull_says_what_it_found_and_where_to_go_on(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("pull", folder, "orders", "--queue", 0, "--offset", 5, "--limit", 3, "--json").json
    assert [m["body"] for m in found["messages"]] == ["order 5", "order 6", "order 7"]
    assert (found["status"], found["next_offset"]) == ("FOUND", 8)
    assert (found["min_offset"], found["max_offset"]) == (0, 40)
    beyond = kvmq("pull", folder, "orders", "--offset", 40, "--json").json
    assert (beyond["status"], beyond["messages"]) == ("OFFSET_OVERFLOW_ONE", [])


def test_pull_for_people_is_one_line_a_message(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("pull", folder, "orders", "--limit", 3)
    assert [line.split()[-1] for line in ran.out.splitlines()] == ["0", "1", "2"]
    assert ran.err.startswith("FOUND: 3 messages; next offset 3 of 0 to 40")


def test_all_goes_through_every_queue_to_its_end(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("pull", folder, "orders", "--all", "--json").lines
    assert [(m["queue"], m["offset"]) for m in found] == [(0, n) for n in range(40)] + [(1, 0)]
    some = kvmq("pull", folder, "orders", "--all", "--queue", 0, "--offset", 38, "--raw")
    assert some.out == "order 38\norder 39\n"


def test_a_filter_lets_only_its_tags_through(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("pull", folder, "orders", "--filter", "paid", "--all", "--json").lines
    assert [m["offset"] for m in found] == list(range(1, 40, 2))
    both = kvmq("pull", folder, "orders", "--filter", "paid || made", "--json").json
    assert len(both["messages"]) == 32


def test_a_query_finds_what_carries_the_key_newest_first(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("query", folder, "orders", "c-4", "--json").lines
    assert [m["offset"] for m in found] == [36, 28, 20, 12, 4]
    assert len(kvmq("query", folder, "orders", "c-4", "--limit", 2, "--json").lines) == 2
    assert kvmq("query", folder, "orders", "c-9", "--json").out == ""
    assert kvmq("query", folder, "orders", "o-3", "--raw").out == "order 3\n"


def test_a_query_keeps_to_its_time_range(kvmq: Kvmq, folder: Path) -> None:
    stored = kvmq("query", folder, "orders", "o-3", "--json").lines[0]["stored_at"]
    when = datetime.fromtimestamp(stored / 1000).isoformat()
    query = ("query", folder, "orders", "o-3", "--json")
    assert len(kvmq(*query, "--begin", stored, "--end", when).lines) == 1
    assert kvmq(*query, "--begin", stored + 1).lines == []
    assert kvmq(*query, "--end", stored - 1).lines == []
    assert kvmq(*query, "--begin", "yesterday").code == 2


def test_offset_at_answers_for_one_queue_or_for_all(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("offset-at", folder, "orders", 0, "--json").json
    assert found == [{"queue": queue, "offset": 0} for queue in range(4)]
    stored = kvmq("get", folder, "orders", "--offset", 20, "--json").json["stored_at"]
    found = kvmq("offset-at", folder, "orders", stored, "--queue", 0, "--json").json
    assert found[0]["offset"] <= 20
    assert "offset" in kvmq("offset-at", folder, "orders", "2020-01-01T00:00").out
