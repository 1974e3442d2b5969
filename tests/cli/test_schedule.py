"""`kvmq schedule`: messages at set times."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.cli.conftest import Kvmq


def test_a_schedule_is_created_listed_paused_resumed_and_deleted(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"\0\1")
    made = kvmq(
        "schedule", "create", folder, "nightly", "orders", "--cron", "0 4 * * *",
        "--zone", "Europe/Berlin", "--missed", "all", "--body-file", tmp_path / "body",
        "--tag", "a", "--key", "k", "--property", "p=q", "--queue", 1, "--expires-after", 90,
        "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    found = made.json
    assert (found["name"], found["topic"], found["cron"], found["zone"], found["missed"]) == (
        "nightly", "orders", "0 4 * * *", "Europe/Berlin", "all",
    )  # fmt: skip
    assert base64.b64decode(found["body"]) == b"\0\1"
    assert (found["tag"], found["keys"], found["properties"], found["queue"]) == (
        "a", ["k"], {"p": "q"}, 1,
    )  # fmt: skip
    assert found["expires_after"] == 90
    times = kvmq("schedule", "next", folder, "nightly", "--count", 2, "--json").json
    assert times[0] == found["next_at"] < times[1]
    assert str(times[1]) in kvmq("schedule", "next", folder, "nightly").out
    beat = kvmq("schedule", "create", folder, "beat", "orders", "--every", 30, "--body", "x")
    assert "every 30 s" in beat.out
    assert "active" in beat.out
    listed = kvmq("schedule", "list", folder, "orders", "--json").json
    assert [one["name"] for one in listed] == ["beat", "nightly"]
    assert kvmq("schedule", "pause", folder, "nightly", "--json").json["is_paused"]
    assert "paused" in kvmq("schedule", "list", folder).out
    assert not kvmq("schedule", "resume", folder, "nightly", "--json").json["is_paused"]
    assert kvmq("schedule", "delete", folder, "nightly", "--json").json == {"deleted": "nightly"}
    assert [one["name"] for one in kvmq("schedule", "list", folder, "--json").json] == ["beat"]


def test_a_schedule_in_a_namespace_is_seen_there(kvmq: Kvmq, folder: Path) -> None:
    kvmq("topic", "create", folder, "t", "--namespace", "n")
    made = kvmq(
        "schedule", "create", folder, "s", "t", "--every", 60, "--namespace", "n", "--json"
    ).json
    assert (made["name"], made["topic"]) == ("s", "t")
    assert [one["name"] for one in kvmq("schedule", "list", folder, "--json").json] == ["n%s"]
    assert kvmq("schedule", "next", folder, "s", "--namespace", "n").code == 0


def test_mistakes_about_schedules_are_typed_errors(kvmq: Kvmq, folder: Path) -> None:
    made = "schedule", "create", folder, "s", "orders"
    wrong = kvmq(*made, "--cron", "0 25 * * *", "--json")
    assert (wrong.code, wrong.error["error"]) == (1, "ScheduleIllegal")
    assert "at character 2" in wrong.error["message"]
    assert kvmq(*made, "--every", "soon").code == 2
    assert kvmq(*made, "--every", 5, "--body", "x", "--body-file", __file__).code == 2
    assert kvmq(*made, "--every", 60).code == 0
    twice = kvmq(*made, "--every", 60, "--json")
    assert (twice.code, twice.error["error"]) == (1, "ScheduleExists")
    assert "--exist-ok" in twice.error["message"]
    assert kvmq(*made, "--every", 60, "--exist-ok").code == 0
    for verb in ("pause", "resume", "delete", "next"):
        ran = kvmq("schedule", verb, folder, "none", "--json")
        assert (ran.code, ran.error["error"]) == (1, "ScheduleNotFound"), verb
        assert "`kvmq schedule list`" in ran.error["message"]
