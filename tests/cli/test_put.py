"""`kvmq put`: from the command line, from lines, from JSON lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kvstore import ColumnBatch, ColumnsPut, Store
from tests.cli.conftest import Kvmq


def test_a_body_on_the_command_line_is_put_with_all_that_is_said_about_it(
    kvmq: Kvmq, folder: Path
) -> None:
    ran = kvmq(
        "put", folder, "orders", "--body", "hello", "--tag", "paid", "--key", "a", "--key", "b",
        "--property", "region=eu=1", "--queue", 3, "--json",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["topic"], ran.json["queue"], ran.json["offset"]) == ("orders", 3, 0)
    assert ran.json["status"] in ("written", "flushed")
    found = kvmq("get", folder, "--id", ran.json["message_id"], "--json").json
    assert found["body"] == "hello"
    assert (found["tag"], found["keys"]) == ("paid", ["a", "b"])
    assert found["properties"] == {"region": "eu=1"}


def test_json_lines_have_dedup_ids_and_the_answer_says_which_were_repeats(
    kvmq: Kvmq, folder: Path
) -> None:
    kvmq("topic", "create", folder, "once", "--dedup-window", 3600)
    lines = [{"body": "1", "dedup_id": "a"}, {"body": "2"}, {"body": "3", "dedup_id": "a"}]
    put = ("put", folder, "once", "--jsonl")
    text = "\n".join(map(json.dumps, lines))
    first = kvmq(*put, "--json", stdin=text)
    assert [line["duplicate"] for line in first.lines] == [False, False, True]
    assert first.lines[2]["message_id"] == first.lines[0]["message_id"]
    assert "3 messages (2 of them were there before)" in kvmq(*put, stdin=text).out
    for dedup_id, says in (("", "line 2: dedup_id is ''"), ("x" * 256, "the limit is 255")):
        wrong = "\n".join(map(json.dumps, [lines[1], {"body": "4", "dedup_id": dedup_id}]))
        ran = kvmq(*put, stdin=wrong)
        assert (ran.code, says in ran.err) == (1, True), ran.err
    ran = kvmq("put", folder, "once", "--dedup-id", "a", stdin="x\n")
    assert (ran.code, "or as dedup_id in a line" in ran.err) == (2, True)


def test_messages_are_put_with_a_time_to_live(kvmq: Kvmq, folder: Path) -> None:
    kvmq("topic", "create", folder, "timed", "--queues", 1)
    put = ("put", folder, "timed")
    assert kvmq(*put, "--body", "a", "--expires-at", "2001-09-10T00:00:00+00:00").code == 0
    assert kvmq(*put, "--ttl", 3600, stdin="b\n").code == 0
    lines = [{"body": "c"}, {"body": "d", "expires_at": 4_000_000_000_000}]
    text = "\n".join(map(json.dumps, lines))
    assert kvmq(*put, "--jsonl", "--expires-at", 3_000_000_000_000, stdin=text).code == 0
    found = kvmq("pull", folder, "timed", "--queue", 0, "--json").json["messages"]
    assert [m["body"] for m in found] == ["b", "c", "d"], "the first has expired"
    assert found[0]["stored_at"] < found[0]["expires_at"] <= found[0]["stored_at"] + 3_600_000
    assert [m["expires_at"] for m in found[1:]] == [3_000_000_000_000, 4_000_000_000_000]
    shown = kvmq("get", folder, "timed", "--queue", 0, "--offset", 0)
    assert "expires_at" in shown.out
    assert "2001-09-" in shown.out


def test_a_time_to_live_is_given_once_and_in_milliseconds(kvmq: Kvmq, folder: Path) -> None:
    put = ("put", folder, "orders", "--body", "a")
    both = kvmq(*put, "--ttl", 1, "--expires-at", 3_000_000_000_000)
    assert both.code == 2
    assert "either --expires-at or --ttl" in both.err
    in_seconds = kvmq(*put, "--expires-at", 1_700_000_000)
    assert in_seconds.code == 1
    assert "this looks like seconds" in in_seconds.err
    assert kvmq(*put, "--ttl", -1).code == 2
    line = json.dumps({"body": "a", "expires_at": 1_700_000_000})
    assert kvmq("put", folder, "orders", "--jsonl", stdin=line).code == 1


def test_a_body_with_a_dedup_id_is_put_once(kvmq: Kvmq, folder: Path) -> None:
    assert (
        kvmq("topic", "create", folder, "once", "--dedup-window", 3600, "--json").json[
            "dedup_window"
        ]
        == 3600
    )
    put = ("put", folder, "once", "--dedup-id", "req-81")
    ran = kvmq(*put, "--body", "a", "--json")
    assert len(ran.lines) == 1, "each message's place is one line, as with lines"
    first = ran.json
    again = kvmq(*put, "--body", "b", "--json").json
    assert (first.pop("duplicate"), again.pop("duplicate")) == (False, True)
    assert first == again
    assert "duplicate" in kvmq(*put, "--body", "c").out
    assert "dedup_id is ''" in kvmq("put", folder, "once", "--dedup-id", "", "--body", "d").err
    ran = kvmq(*put, stdin="a line")
    assert ran.code == 2
    assert "give it with --body" in ran.err
    altered = kvmq("topic", "alter", folder, "once", "--dedup-window", "none", "--json")
    assert altered.json["dedup_window"] is None
    assert "takes no dedup ids" in kvmq(*put, "--body", "e").err


def test_each_line_of_standard_input_is_a_message(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("put", folder, "orders", "--queue", 2, stdin="one\n\n three\r\nno newline")
    assert ran.code == 0
    assert ran.out.startswith("4 messages")
    found = kvmq("pull", folder, "orders", "--queue", 2, "--json").json["messages"]
    assert [m["body"] for m in found] == ["one", "", " three\r", "no newline"]


def test_lines_come_from_a_file_and_each_is_answered_as_a_json_line(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_bytes(b"x\n" * 700)
    ran = kvmq("put", folder, "orders", tmp_path / "in.txt", "--queue", 2, "--json")
    assert [line["offset"] for line in ran.lines] == list(range(700))


def test_json_lines_say_more_and_the_command_line_fills_in(kvmq: Kvmq, folder: Path) -> None:
    kvmq("topic", "create", folder, "other")
    encoded = base64.b64encode(b"\xff\xfe").decode()
    lines = [
        {"topic": "other", "queue": 1, "body": "a", "tag": "t", "keys": ["k", "l"]},
        {"body": {"deep": [1]}, "properties": {"p": "q"}, "keys": "one"},
        {"body_base64": encoded},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    ran = kvmq(
        "put", folder, "orders", "--jsonl", "--tag", "default", "--queue", 2, "--json", stdin=text
    )
    assert ran.code == 0, ran.err
    ids = [line["message_id"] for line in ran.lines]
    first, second, third = (kvmq("get", folder, "--id", i, "--json").json for i in ids)
    assert (first["topic"], first["queue"], first["tag"]) == ("other", 1, "t")
    assert first["keys"] == ["k", "l"]
    assert (second["topic"], second["queue"], second["tag"]) == ("orders", 2, "default")
    assert (second["body"], second["keys"]) == ('{"deep":[1]}', ["one"])
    assert second["properties"] == {"p": "q"}
    assert third["body_base64"] == encoded


def test_what_pull_prints_as_json_has_what_put_needs(kvmq: Kvmq, folder: Path) -> None:
    fields = ("topic", "queue", "body", "body_base64", "tag", "keys", "properties")
    before = kvmq("pull", folder, "orders", "--all", "--json").lines
    text = "\n".join(json.dumps({k: m[k] for k in fields if k in m}) for m in before)
    copy = folder.parent / "copy"
    assert kvmq("put", copy, "orders", "--create", "--jsonl", stdin=text).code == 0
    after = kvmq("pull", copy, "orders", "--all", "--json").lines
    assert [[m.get(k) for k in fields] for m in after] == [
        [m.get(k) for k in fields] for m in before
    ]


def test_a_line_at_fault_is_named_and_what_came_before_it_is_put(kvmq: Kvmq, folder: Path) -> None:
    text = '{"body": "a"}\n{"body": "b"}\n{"boddy": "c"}\n{"body": "d"}\n'
    ran = kvmq("put", folder, "orders", "--queue", 2, "--jsonl", "--json", stdin=text)
    assert ran.code == 1
    assert ran.error["error"] == "MessageIllegal"
    assert "line 3" in ran.error["message"]
    assert "boddy" in ran.error["message"]
    assert "2 messages were put before that" in ran.error["message"]
    assert len(ran.lines) == 2
    assert len(kvmq("pull", folder, "orders", "--queue", 2, "--json").json["messages"]) == 2


def test_json_lines_that_are_no_messages_are_refused(kvmq: Kvmq, folder: Path) -> None:
    for text in ("[1]", "{", "3", '{"tag": "no body"}', '{"body": "a", "body_base64": "YQ=="}',
                 '{"body_base64": "?"}', '{"body": "a", "keys": 3}', '{"body": "a", "topic": 3}',
                 '{"body": "a", "queue": "x"}', '{"body": "a", "queue": -1}',
                 '{"body": "a", "queue": 99999999999999999999}',
                 '{"body": "a", "properties": []}'):  # fmt: skip
        ran = kvmq("put", folder, "orders", "--jsonl", "--json", stdin=text)
        assert (ran.code, ran.error["error"]) == (1, "MessageIllegal"), text


def test_a_missing_topic_is_an_error_unless_it_is_to_be_created(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("put", folder, "new", "--body", "x", "--json")
    assert (ran.code, ran.error["error"]) == (1, "TopicNotFound")
    assert kvmq("put", folder, "new", "--body", "x", "--create").code == 0
    assert kvmq("put", folder, "new", "--body", "x", "--create").code == 0


def test_a_missing_store_is_an_error_unless_it_is_to_be_created(kvmq: Kvmq, tmp_path: Path) -> None:
    ran = kvmq("put", tmp_path / "no", "t", "--body", "x", "--json")
    assert (ran.code, ran.error["error"]) == (1, "StoreNotFound")
    assert not (tmp_path / "no").exists()
    assert kvmq("put", tmp_path / "no", "t", "--body", "x", "--create").code == 0


def test_wrong_usage_is_exit_code_2(kvmq: Kvmq, folder: Path) -> None:
    assert kvmq("put", folder).code == 2
    assert kvmq("put", folder, "orders", "--body", "x", "--jsonl").code == 2
    assert kvmq("put", folder, "orders", "--body", "x", "--property", "nonsense").code == 2
    assert kvmq("put", folder, "orders", folder / "no such file").code == 2
    assert kvmq("put", folder, "orders", "--queue", -1).code == 2


def test_a_queue_that_is_not_there_is_an_error(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("put", folder, "orders", "--body", "x", "--queue", 4, "--json")
    assert (ran.code, ran.error["error"]) == (1, "MessageIllegal")


def test_settings_come_from_a_file(kvmq: Kvmq, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("segment_size = 131072\nauto_create_topics = true\n")
    (tmp_path / "bad.toml").write_text("segment_sise = 131072\n")
    put = ("put", tmp_path / "store", "t", "--body", "x", "--create", "--config")
    assert kvmq(*put, tmp_path / "good.toml").code == 0
    assert (tmp_path / "store" / "commitlog" / ("0" * 20)).stat().st_size == 131072
    ran = kvmq(*put, tmp_path / "bad.toml", "--json")
    assert (ran.code, ran.error["error"]) == (1, "ConfigError")


@pytest.mark.parametrize("batch", [1, 2, 4, 256])
@pytest.mark.parametrize("bad", ['{"body": "x", "queue": 77}', '{"body": "x", "topic": "a b"}'])
def test_a_line_that_the_store_refuses_is_named_with_its_file_and_those_before_it_are_stored(
    kvmq: Kvmq, folder: Path, tmp_path: Path, batch: int, bad: str
) -> None:
    good = [f'{{"body": "b{n}"}}' for n in range(10)]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join([*good[:7], "", bad, *good[7:]]))
    before = len(kvmq("pull", folder, "orders", "--queue", 2, "--all", "--json").lines)
    ran = kvmq("put", folder, "orders", file, "--queue", 2, "--jsonl", "--batch", batch, "--json")
    assert ran.code == 1
    assert ran.error["message"].startswith(f"{file}, line 9: ")
    assert "message" not in ran.error["message"].split(";")[0].removeprefix(str(file))
    assert "7 messages were put before that" in ran.error["message"]
    after = kvmq("pull", folder, "orders", "--queue", 2, "--all", "--json").lines
    assert [m["body"] for m in after[before:]] == [f"b{n}" for n in range(7)]


def test_lines_of_several_topics_are_put_in_their_order(kvmq: Kvmq, folder: Path) -> None:
    kvmq("topic", "create", folder, "other")
    topics = ["orders", "orders", "other", "orders", "other", "other"]
    text = "\n".join(json.dumps({"topic": t, "body": f"{n}"}) for n, t in enumerate(topics))
    ran = kvmq("put", folder, "orders", "--jsonl", "--queue", 1, "--json", stdin=text)
    assert [line["topic"] for line in ran.lines] == topics
    positions = [line["position"] for line in ran.lines]
    assert positions == sorted(positions)
    assert all(line["size"] > 0 and line["status"] for line in ran.lines)


def test_of_two_lines_at_fault_the_first_is_named(kvmq: Kvmq, folder: Path) -> None:
    """A store sees the faults of a message by itself before those of its queue."""
    lines: list[dict[str, object]] = [
        {"body": "a"}, {"body": "b", "queue": 77}, {"body": "c", "tag": "\x01"}
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    ran = kvmq("put", folder, "orders", "--jsonl", "--json", stdin=text)
    assert ran.error["message"].startswith("standard input, line 2: ")
    assert "1 messages were put before that" in ran.error["message"]
    assert len(ran.lines) == 1


@pytest.mark.parametrize("mode", [(), ("--jsonl",)])
def test_lines_are_put_as_columns_and_no_message_is_made_of_one(
    kvmq: Kvmq, folder: Path, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    put = Store.put_columns

    def counted(store: Store, topic: str, columns: object) -> ColumnsPut:
        made.append(columns)
        return put(store, topic, columns)

    monkeypatch.setattr(Store, "put_columns", counted)
    monkeypatch.setattr(Store, "put_batch", None)
    monkeypatch.setattr("kvstore.cli.message.put_verb.Message", None)
    ran = kvmq("put", folder, "orders", *mode, "--batch", 100, stdin='{"body": "a"}\n' * 250)
    assert ran.out.startswith("250 messages")
    assert [len(columns) for columns in made if isinstance(columns, ColumnBatch)] == [100, 100, 50]


def test_what_is_no_text_on_the_command_line_is_refused(kvmq: Kvmq, folder: Path) -> None:
    for option in ("--tag", "--key", "--group"):
        ran = kvmq("put", folder, "orders", option, "a\udcff", "--json", stdin="x\n")
        assert (ran.code, ran.error["error"]) == (1, "MessageIllegal"), option
        assert "line 1: " in ran.error["message"]


def test_a_line_of_standard_input_is_named_as_such(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("put", folder, "orders", "--jsonl", "--json", stdin='{"body": "a"}\n{"queue": 1}')
    assert ran.error["message"].startswith("standard input, line 2: ")
