"""`kvmq demo`: loads, reads back, pops, archives, kills, recovers; and says so when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.cli.trial import demo as module
from kvstore.cli.trial import killed_writer
from kvstore.cli.trial.demo_source import Source
from tests.cli.conftest import Kvmq
from tests.support.raising import raising
from tiering.catalog.tiers import Tiers

STEPS = ["put", "pull", "get, find, query", "pop", "archive", "read archives", "kill -9",
         "recover", "verify"]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that is killed ends as soon as it has written something; samples are smaller."""
    monkeypatch.setattr(killed_writer, "_LIFE_S", 0.0)
    monkeypatch.setattr(module, "_SAMPLE", 200)
    monkeypatch.setattr(module, "_ARCHIVED_SAMPLE", 40)


def test_the_standard_library_goes_in_and_comes_back(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = kvmq("demo", "--limit", 1_500, "--json")
    assert (ran.code, ran.err) == (0, "")
    report = ran.json
    assert (report["ok"], report["problems"]) == (True, [])
    steps = {step["name"]: step for step in report["steps"]}
    assert list(steps) == STEPS
    assert steps["put"]["count"] == steps["pull"]["count"] == 1_500
    assert steps["get, find, query"]["count"] == 200
    assert steps["pop"]["count"] > 500
    # The few messages are one segment, and that is the older half.
    assert steps["archive"]["count"] == 1_500
    assert steps["read archives"]["count"] == 40
    assert report["sizes"]["archives"] < report["sizes"]["log of these"] / 4
    assert steps["recover"]["count"] >= steps["kill -9"]["count"] > 0
    assert steps["verify"]["count"] >= steps["kill -9"]["count"]
    folder = Path(report["folder"])
    assert folder.parent == Path("kvmq-demo"), "named by the time if none is given"
    with kvstore.open(folder, read_only=True) as store:
        assert [tier.messages for tier in store.stats().tiers] == [1_500]


def test_files_and_standard_input_can_be_loaded_and_people_get_one_screen(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    path, folder = tmp_path / "events.log", tmp_path / "demo"
    path.write_text("plain text\n" * 100)
    stdin = "".join(f"line {number}\n" for number in range(101))
    ran = kvmq("demo", path, "-", "--dir", folder, "--no-keep", stdin=stdin)
    assert ran.code == 0, ran.out
    assert len(ran.out.splitlines()) < 30
    for text in (*STEPS, "queue index", "RocketMQ", "Every check passed", str(folder)):
        assert text in ran.out
    (put,) = [line for line in ran.out.splitlines() if line.startswith("put ")]
    assert " 201 " in put
    assert not folder.exists()
    assert {(m.topic, m.keys[0]) for m in Source([path], None).messages()} == {
        ("eventslog", "events.log")
    }


def test_a_folder_with_something_in_it_and_an_empty_input_are_refused(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    ran = kvmq("demo", "--dir", folder)
    assert ran.code == 2
    assert "not empty" in ran.err
    empty = kvmq("demo", "-", "--dir", tmp_path / "demo", stdin="")
    assert empty.code == 2
    assert "no line" in empty.err


def test_each_check_that_fails_says_what_was_wrong_and_the_rest_goes_on(
    kvmq: Kvmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong body, an error of the store, and another answer from archives than from the log."""
    genuine = kvstore.Store.get

    def wrong(self: Any, topic: str, *place: Any, **named: Any) -> Any:
        found = genuine(self, topic, *place, **named)
        if found.offset == 3:
            found.body = b"another"
        return found

    monkeypatch.setattr(kvstore.Store, "get", wrong)
    monkeypatch.setattr(module, "pop_topic", raising(kvstore.IndexDamaged("no such run")))
    monkeypatch.setattr(Tiers, "record", lambda *_: None)
    ran = kvmq("demo", "--dir", tmp_path / "demo", "--limit", 100)
    assert ran.code == 1
    assert "checks failed" in ran.out
    wrongs = {line.split(":")[0]: line for line in ran.out.splitlines() if ": " in line}
    assert "another" in wrongs["get, find, query"]
    assert wrongs["pop"] == "pop: IndexDamaged: no such run"
    assert "read archives" in wrongs
    assert [line for line in ran.out.splitlines() if line.startswith(("verify", "recover"))]
    assert (tmp_path / "demo").exists()


def test_the_library_is_read_the_same_twice_line_for_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package one"
    (package / "site-packages").mkdir(parents=True)
    (package / "site-packages" / "not.py").write_text("no")
    (package / "a file.py").write_bytes(b"x = 1\n\n  y\xff = 2")
    (tmp_path / "os.py").write_text("import x\n")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    source = Source([], None)
    found = list(source.messages())
    assert found == list(source.messages())
    assert [m.body for m in found] == [b"import x", b"x = 1", b"", b"  y\xff = 2"]
    assert [m.topic for m in found] == ["os"] + ["packageone"] * 3
    assert [m.tag for m in found] == ["import", "x", "other", "y"]
    assert [m.keys[0] for m in found] == ["os.py"] + ["package_one/a_file.py"] * 3
    assert len(list(Source([], 2).messages())) == 2
