"""`kvmq tier run`, `list`, `history`, `verify`, `erase`: archives made, shown, checked, erased."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import StoreConfig
from tests.cli.conftest import Kvmq
from tests.tiering.catalog.moving import merge
from tiering.catalog.catalog import decode_rows
from tiering.operations import inspection

POLICY = 'hot_for = "1d"\nwarm = "old/archive"\n'


@pytest.fixture
def tiered(kvmq: Kvmq, old: Path, policy: Path) -> Path:
    ran = kvmq("tier", "run", old, "--policy", policy, "--json")
    assert ran.code == 0, ran.err
    assert len(ran.json["segments"]) == 3
    return old


def archives(folder: Path) -> list[Path]:
    return sorted((folder / "archive").rglob("*.kvarc"))


def orphan(folder: Path) -> Path:
    """A copy of an archive under a number that the catalog does not have."""
    first = archives(folder)[0]
    copy = first.with_name(first.name.replace("-0000000", "-0000900"))
    copy.write_bytes(first.read_bytes())
    return copy


def test_what_is_due_is_moved_and_reads_the_same(kvmq: Kvmq, tiered: Path) -> None:
    assert len(archives(tiered)) == 3
    assert len(kvmq("pull", tiered, "orders", "--queue", 1, "--all", "--json").lines) == 100
    assert kvmq("query", tiered, "orders", "o-3", "--json").lines[0]["offset"] == 1
    tiers = kvmq("stats", tiered, "--json").json["tiers"]
    assert [(t["tier"], t["archives"]) for t in tiers] == [("warm", 3)]
    assert "warm" in kvmq("stats", tiered).out


def test_a_verify_beside_a_writer_looks_at_the_present_catalog(
    kvmq: Kvmq, tiered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(tiered, StoreConfig(segment_size=64 << 10)) as store:
        real = inspection.places_of

        def merged(*asked: Any) -> Any:
            merge(store, [row.number for row in decode_rows(store.catalog().rows)[:2]])
            return real(*asked)

        monkeypatch.setattr(inspection, "places_of", merged)
        ran = kvmq("tier", "verify", tiered, "--json")
    assert ran.code == 0, ran.out
    assert (ran.json["archives"], ran.json["problems"]) == (2, [])


def test_a_second_run_has_nothing_to_do(kvmq: Kvmq, tiered: Path, policy: Path) -> None:
    ran = kvmq("tier", "run", tiered, "--policy", policy)
    assert ran.code == 0
    assert "segments moved" in ran.out


def test_a_plan_knows_of_the_archives_there_are(kvmq: Kvmq, tiered: Path, policy: Path) -> None:
    plan = kvmq("tier", "plan", tiered, "--policy", policy, "--json").json
    assert plan["moves"] == []
    assert plan["before"]["warm"] == sum(path.stat().st_size for path in archives(tiered))


def test_archives_and_history_are_listed(kvmq: Kvmq, tiered: Path) -> None:
    listed = kvmq("tier", "list", tiered, "--json").json
    assert [(a["tier"], a["retention_class"]) for a in listed] == [("warm", "warmever")] * 3
    assert (
        sum(a["messages"] for a in listed)
        == kvmq("stats", tiered, "--json").json["tiers"][0]["messages"]
    )
    done = kvmq("tier", "history", tiered, "--json").json
    assert [one["what"] for one in done] == ["archived"] * 3
    assert len(kvmq("tier", "history", tiered, "--limit", 1, "--json").json) == 1
    assert "warmever" in kvmq("tier", "list", tiered).out
    assert "segment 0" in kvmq("tier", "history", tiered).out


def test_whole_archives_have_no_problem(kvmq: Kvmq, tiered: Path) -> None:
    ran = kvmq("tier", "verify", tiered)
    assert ran.code == 0, ran.out
    assert "no problem found" in ran.out
    report = kvmq("tier", "verify", tiered, "--json").json
    assert (report["archives"], report["problems"], report["orphans"]) == (3, [], [])


def test_a_damaged_archive_is_a_problem_and_costs_the_exit_code(kvmq: Kvmq, tiered: Path) -> None:
    path = archives(tiered)[1]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    ran = kvmq("tier", "verify", tiered, "--json")
    assert ran.code == 1
    assert {path.name in problem["archive"] for problem in ran.json["problems"]} == {True}
    assert 0 in {problem["block"] for problem in ran.json["problems"]}
    assert "problem" in kvmq("tier", "verify", tiered).out


def test_an_orphan_is_listed_and_removed_when_that_is_asked_and_it_is_old(
    kvmq: Kvmq, tiered: Path
) -> None:
    copy = orphan(tiered)
    before = archives(tiered)
    ran = kvmq("tier", "verify", tiered, "--json")
    assert (ran.code, [o["young"] for o in ran.json["orphans"]]) == (0, [True])
    young = kvmq("tier", "verify", tiered, "--remove-orphans", "--json")
    assert [o["removed"] for o in young.json["orphans"]] == [False]
    assert archives(tiered) == before
    removed = kvmq("tier", "verify", tiered, "--remove-orphans", "--grace", 0)
    assert removed.code == 0
    assert copy.name in removed.out
    assert archives(tiered) == [path for path in before if path != copy]
    assert kvmq("tier", "verify", tiered, "--json").json["problems"] == []


def test_archives_merge_and_read_the_same(kvmq: Kvmq, tiered: Path, policy: Path) -> None:
    ran = kvmq("tier", "merge", tiered, "--policy", policy, "--json")
    assert (ran.code, ran.json["failed"]) == (0, {})
    assert len(ran.json["archives"]) == 1
    listed = kvmq("tier", "list", tiered, "--json").json
    assert sorted(a["state"] for a in listed) == ["live", "retired", "retired", "retired"]
    assert len(kvmq("pull", tiered, "orders", "--queue", 1, "--all", "--json").lines) == 100
    assert kvmq("tier", "verify", tiered).code == 0
    assert "archives made" in kvmq("tier", "merge", tiered, "--policy", policy).out


def test_a_key_a_time_and_a_topic_are_erased_and_shown_to_be(
    kvmq: Kvmq, tiered: Path, policy: Path
) -> None:
    gone = kvmq("erase", "key", tiered, "o-3", "--policy", policy, "--json")
    assert (gone.code, gone.json["messages"], gone.json["found"]) == (0, 1, 0)
    assert kvmq("query", tiered, "orders", "o-3", "--json").lines == []
    early = kvmq("erase", "before", tiered, 1_600_000_000_000, "--policy", policy, "--json")
    assert early.json["messages"] == 0
    ran = kvmq("erase", "topic", tiered, "orders", "--policy", policy)
    assert ran.code == 0
    assert "and nothing is left" in ran.out
    assert kvmq("pull", tiered, "orders", "--queue", 1, "--all", "--json").lines == []
    assert kvmq("erase", "before", tiered, "soon", "--policy", policy).code == 2


def test_what_could_not_be_done_is_exit_code_1_and_said(
    kvmq: Kvmq, old: Path, policy: Path
) -> None:
    segment = sorted((old / "commitlog").iterdir())[0]
    with segment.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 100)
    ran = kvmq("tier", "run", old, "--policy", policy, "--json")
    assert ran.code == 1
    assert list(ran.json["failed"]) == ["segment 0"]
    assert len(ran.json["segments"]) == 2


def test_a_place_that_is_not_there_is_one_readable_line(
    kvmq: Kvmq, old: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('hot_for = "1d"\ncold = "s3://nowhere/x"\n')
    ran = kvmq(
        "tier", "run", old, "--policy", bad, "--json",
        "--place-option", "endpoint=http://127.0.0.1:9", "--place-option", "retry_for=0",
        "--place-option", "region=eu-central-1", "--place-option", "access_key_id=a",
        "--place-option", "secret_access_key=b",
    )  # fmt: skip
    assert (ran.code, ran.error["error"]) == (1, "PlaceUnavailable")
    assert kvmq("tier", "run", old, "--policy", bad, "--place-option", "x").code == 2


def test_watching_goes_on_until_a_signal_ends_it(
    process: Any, old: Path, policy: Path, kvmq: Kvmq
) -> None:
    child = process("tier", "run", old, "--policy", policy, "--watch", "--interval", 0.1, "--json")
    assert child.stdout is not None
    line = child.stdout.readline()
    assert b'"segments":[0,1,2]' in line
    assert line.count(b".kvarc") == 7, "three archives, which are merged, and what they became"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
    listed = kvmq("tier", "list", old, "--json").json
    assert sorted(archive["generation"] for archive in listed) == [0, 0, 0, 1]


def test_what_an_erasure_would_do_is_told_and_nothing_is_done(
    kvmq: Kvmq, tiered: Path, policy: Path
) -> None:
    words = ("erase", "topic", tiered, "orders", "--policy", policy)
    told = kvmq(*words, "--dry-run", "--json").json
    listed = kvmq("tier", "list", tiered, "--json").json
    assert (told["messages"], len(told["archives"])) == (200, len(listed))
    assert "archive_bytes" in kvmq(*words, "--dry-run").out
    assert kvmq("tier", "list", tiered, "--json").json == listed
    assert kvmq("erase", "key", tiered, "o-3", "--policy", policy, "--dry-run").code == 0
    assert kvmq(*words, "--everywhere", "--yes", "--json").json["messages"] == 200
    by_key = ("erase", "topic", tiered, "orders", "--by-key", "--keys", policy)
    assert kvmq(*by_key, "--dry-run").code == kvmq(*by_key, "--everywhere").code == 2


def test_on_a_terminal_an_erasure_tells_and_asks_first(
    kvmq: Kvmq, tiered: Path, policy: Path
) -> None:
    words = [sys.executable, "-m", "kvstore", "erase", "key", str(tiered), "o-3"]
    terminal, end = pty.openpty()
    os.write(terminal, b"no\n")
    asked = subprocess.run(
        [*words, "--policy", str(policy)], stdin=end, capture_output=True, text=True, check=False
    )
    os.close(end)
    os.close(terminal)
    assert asked.returncode == 130
    assert "for good?" in asked.stderr
    assert "archive_bytes" in asked.stdout
    assert len(kvmq("query", tiered, "orders", "o-3", "--json").lines) == 1


def test_what_could_not_be_moved_is_listed_with_the_reason(
    kvmq: Kvmq, old: Path, policy: Path
) -> None:
    assert "left alone" not in kvmq("tier", "list", old).out
    segment = min((old / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    assert kvmq("tier", "run", old, "--policy", policy).code == 1
    told = kvmq("tier", "list", old).out
    assert "left alone" in told
    assert "segment 0" in told
    (tier,) = kvmq("stats", old, "--json").json["tiers"]
    assert [text.partition(":")[0] for text in tier["waiting"]] == ["segment 0"]
