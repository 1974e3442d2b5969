"""`kvmq demo`: loads, reads back, kills, recovers, checks; and says so when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.cli.demo import checks, crash
from tests.cli.conftest import Kvmq
from tiering.tiers import Tiers

STEPS = ["put_batch(64)", "open", "pull", "query", "get", "read_at", "find", "offset_at",
         "tier", "across tiers", "kill -9", "reopen", "verify"]  # fmt: skip


@pytest.fixture(autouse=True)
def short_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that is killed lives shorter than in the real demo."""
    monkeypatch.setattr(crash, "_LIFE", 0.2)


def test_the_standard_library_goes_in_and_comes_back(kvmq: Kvmq, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    ran = kvmq("demo", "--dir", folder, "--limit", 5_000, "--json")
    assert (ran.code, ran.err) == (0, "")
    report = ran.json
    assert (report["ok"], report["problems"]) == (True, [])
    steps = {step["name"]: step for step in report["steps"]}
    assert list(steps) == STEPS
    assert steps["put_batch(64)"]["count"] == steps["pull"]["count"] == 5_000
    assert steps["get"]["count"] == steps["read_at"]["count"] == 5_000
    assert steps["query"]["count"] > 100
    assert steps["kill -9"]["count"] > 0
    # The few messages are one segment, and that is the cold half.
    assert steps["tier"]["count"] == 5_000
    assert steps["across tiers"]["count"] > 500
    assert report["tiers"]["warm"] < report["tiers"]["warm_records"] / 4
    assert steps["verify"]["count"] >= steps["kill -9"]["count"]
    assert report["space"]["queue_index"] > 0
    assert report["space"]["messages"] == 5_000
    with kvstore.open(folder, read_only=True) as store:
        assert "kvmq_demo_killed" in [topic.name for topic in store.topics()]
        assert [tier.messages for tier in store.stats().tiers] == [5_000]


def test_people_get_one_screen(kvmq: Kvmq, tmp_path: Path) -> None:
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 300)
    assert ran.code == 0
    assert len(ran.out.splitlines()) < 30
    for text in (*STEPS, "queue index", "RocketMQ", "Every check passed", str(tmp_path / "demo")):
        assert text in ran.out


def test_files_and_standard_input_can_be_loaded_instead(kvmq: Kvmq, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"topic": "a", "key": "k", "body": "x"}\n' * 50 + "plain\n" * 50)
    stdin = "".join(f"line {number}\n" for number in range(100))
    ran = kvmq("demo", path, "-", "--dir", tmp_path / "demo", "--json", stdin=stdin)
    assert ran.code == 0, ran.json["problems"]
    assert ran.json["steps"][0]["count"] == 200
    found = kvmq("query", tmp_path / "demo", "a", "k", "--json").lines
    assert len(found) == 50


def test_the_store_can_be_removed_afterwards(kvmq: Kvmq, tmp_path: Path) -> None:
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 100, "--no-keep")
    assert ran.code == 0
    assert not (tmp_path / "demo").exists()


def test_the_folder_is_named_by_the_time_if_none_is_given(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(kvmq("demo", "--limit", 100, "--json").json["folder"])
    assert folder.parent == Path("kvmq-demo")
    assert (tmp_path / folder / "commitlog").is_dir()


def test_a_folder_with_something_in_it_and_an_empty_input_are_refused(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    ran = kvmq("demo", "--dir", folder)
    assert ran.code == 2
    assert "not empty" in ran.err
    empty = kvmq("demo", "-", "--dir", tmp_path / "demo", "--json", stdin="")
    assert empty.code == 1
    assert empty.json["problems"] == ["put_batch(64): the source is empty"]


def test_a_check_that_fails_is_exit_code_1_and_says_what_was_wrong(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = kvstore.Store.get

    def wrong(self: Any, topic: str, **place: Any) -> Any:
        found = genuine(self, topic, **place)
        if found.offset == 3:
            found.body = b"another"
        return found

    monkeypatch.setattr(kvstore.Store, "get", wrong)
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 100)
    assert ran.code == 1
    assert "checks failed" in ran.out
    assert "another" in ran.out


def test_another_answer_across_tiers_is_a_fault(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Tiers.messages

    def short(self: Tiers, *args: Any) -> Any:
        return genuine(self, *args)[:1]

    monkeypatch.setattr(Tiers, "messages", short)
    monkeypatch.setattr(Tiers, "record", lambda *_: None)
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 100, "--json")
    assert ran.code == 1
    assert any("another answer" in problem for problem in ran.json["problems"])


def test_an_error_of_the_store_in_a_check_is_a_fault_and_the_rest_goes_on(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise kvstore.IndexDamaged("no such run")

    monkeypatch.setattr(checks, "get_sample", fail)
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 100, "--json")
    assert ran.code == 1
    assert ran.json["problems"] == ["get: IndexDamaged: no such run"]
    assert [step["name"] for step in ran.json["steps"]] == STEPS
