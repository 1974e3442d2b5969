"""`kvmq tier plan`: what a policy would move and cost, on a store that is only read."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock

POLICY = """
hot_for = "1d"
warm_for = "7d"
cold_for = "90d"
warm = "archive"
cold = "s3://bucket/prefix"
hours = [0, 24]
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of November 2023: two topics, over three segments in ten days."""
    clock = VirtualClock(1_700_000_000_000)
    path = tmp_path / "old"
    with kvstore.open(path, StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        for name in ("orders", "%DLQ%billing"):
            store.create_topic(name, queues=2)
        for number in range(240):
            name = "orders" if number % 10 else "%DLQ%billing"
            store.put_batch([Message(name, bytes(1000), queue=0)])
            clock.advance(3600)
    return path


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.replace("hours = [0, 24]\n", ""))
    return path


def test_a_plan_is_a_table_for_people(kvmq: Kvmq, old: Path, policy: Path) -> None:
    ran = kvmq("tier", "plan", old, "--policy", policy)
    assert ran.code == 0, ran.err
    assert "due now" in ran.out
    for name in ("this policy", "all hot", "kept twice as long", "USD a month"):
        assert name in ran.out


def test_a_plan_is_json_for_machines(kvmq: Kvmq, old: Path, policy: Path) -> None:
    plan = kvmq("tier", "plan", old, "--policy", policy, "--ratio", 0.25, "--json").json
    # So old that every message would be over by now.
    assert {m["to"] for m in plan["moves"]} == {None}
    assert plan["ratio"] == 0.25
    assert plan["bytes_per_month"] > 0
    assert plan["alternatives"][0]["name"] == "this policy"
    assert plan["alternatives"][0]["months"][12]["bytes"]["hot"] > 0


def test_prices_are_the_command_lines_before_the_policys(
    kvmq: Kvmq, old: Path, policy: Path
) -> None:
    words = ("tier", "plan", old, "--policy", policy, "--json")
    prices = ("--price-hot", 0, "--price-warm", 0, "--price-cold", 0, "--price-requests", 0)
    free = kvmq(*words, *prices, "--currency", "EUR").json
    assert free["currency"] == "EUR"
    assert all(a["per_month"] == 0 for a in free["alternatives"])
    dear = kvmq(*words, "--price-transfer", 1e6).json
    assert dear["alternatives"][0]["per_month"] > 0


def test_a_plan_changes_nothing(kvmq: Kvmq, old: Path, policy: Path) -> None:
    before = sorted((p.name, p.stat().st_size) for p in (old / "commitlog").iterdir())
    kvmq("tier", "plan", old, "--policy", policy)
    assert sorted((p.name, p.stat().st_size) for p in (old / "commitlog").iterdir()) == before
    assert not (old / "archive").exists()


def test_a_store_of_a_moment_has_a_plan_without_a_forecast(
    kvmq: Kvmq, folder: Path, policy: Path
) -> None:
    ran = kvmq("tier", "plan", folder, "--policy", policy)
    assert "nothing is due" in ran.out
    assert "less than an hour" in ran.out


def test_a_policy_that_contradicts_itself_is_one_readable_line(
    kvmq: Kvmq, old: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.toml"
    for text, says in ((POLICY, "hours"), ('cold_for = "1d"', "neither"), ("\xff", "TOML")):
        bad.write_text(text, encoding="latin-1")
        ran = kvmq("tier", "plan", old, "--policy", bad, "--json")
        assert (ran.code, ran.error["error"]) == (1, "PolicyIllegal")
        assert says in ran.error["message"]


def test_a_store_that_deletes_what_the_policy_is_to_move_is_told(
    kvmq: Kvmq, old: Path, policy: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[retention]\nhot_for = 3600\n")
    words = ("tier", "plan", old, "--policy", policy, "--config", config, "--json")
    assert kvmq(*words).error["error"] == "PolicyIllegal"


def test_wrong_words_are_exit_code_2(kvmq: Kvmq, old: Path, policy: Path) -> None:
    assert kvmq("tier", "plan", old).code == 2
    assert kvmq("tier", "plan", old, "--policy", policy, "--price-hot", -1).code == 2
    assert kvmq("tier", "plan", old, "--policy", policy, "--ratio", 0).code == 2


def test_no_store_is_told(kvmq: Kvmq, tmp_path: Path, policy: Path) -> None:
    ran = kvmq("tier", "plan", tmp_path / "none", "--policy", policy, "--json")
    assert ran.error["error"] == "StoreNotFound"


def test_a_plan_is_drawn(kvmq: Kvmq, old: Path, policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "plan.svg"
    assert kvmq("tier", "plan", old, "--policy", policy, "--plot", target).code == 0
    assert b"<svg" in target.read_bytes()
