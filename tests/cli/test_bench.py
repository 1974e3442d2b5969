"""`kvmq bench` and `python -m bench`: they run, and what they print can be read by a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.figure import Figure, combine
from kvstore.cli.trial.measure import Load, messages, rocketmq_queue_files
from tests.cli.conftest import Kvmq

ROOT = Path(__file__).resolve().parents[2]


def bench(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *(str(word) for word in words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_queue_files_take_whole_pages_and_whole_files() -> None:
    assert rocketmq_queue_files([1, 204, 205]) == (4096 * 4, 3 * 6_000_000)
    assert rocketmq_queue_files([300_001]) == (1465 * 4096, 12_000_000)


def test_the_quick_benchmark_measures_and_cleans_up(kvmq: Kvmq, tmp_path: Path) -> None:
    ran = kvmq("bench", tmp_path, "--messages", 2_000, "--json")
    assert ran.code == 0, ran.err
    assert set(ran.json["per_second"]) == {
        "put_batch(32)", "pull(32)", "get, random offset", "query, random key",
    }  # fmt: skip
    assert ran.json["queue_index_bytes_per_message"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "put_batch(32)" in kvmq("bench", tmp_path, "--messages", 500).out


def test_a_load_is_the_same_every_time_and_spread_over_all_queues() -> None:
    load = Load(messages=1_000, body=10, topics=3, queues=2)
    first = list(messages(load))
    assert first == list(messages(load))
    assert len({(m.topic, m.queue) for m in first}) == 6
    assert {len(m.body) for m in first} == {10}


def test_figures_of_several_runs_become_medians_beside_their_targets() -> None:
    runs = [[Figure("f", value, "s", 3.0, "lower")] for value in (5.0, 1.0, 2.0)]
    (result,) = combine("scenario", runs)
    assert result.figure.value == 2.0
    assert result.reached is True
    assert result.runs == [5.0, 1.0, 2.0]
    assert Figure("f", 2.0, "s", 3.0).reached is False
    assert Figure("f", 2.0, "s").reached is None


def test_scenarios_are_listed_and_an_unknown_one_is_wrong_usage() -> None:
    listed = bench("--list")
    assert listed.returncode == 0, listed.stderr
    assert "index_many" in listed.stdout
    assert bench("nonsense").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("put_batch", "put_columns", "put_lines", "put", "pull", "get", "query"),
        ("put_sync", "sqlite"),
        ("index_many", "index_few", "--topics", 20),
        ("pop", "pop_one", "pop_threads", "pop_shared", "pop_curve"),
        ("topics", "offsets", "--topics", 20),
        ("archive_few", "archive_many", "archive_lz4", "tiering", "--topics", 20),
        ("tier_rate", "tier_rate_many", "--topics", 20, "--queues", 5),
        ("delay_put", "delay_memory", "delay_open", "delay_beside", "delay_burst", "delay_cancel"),
        ("transactions",),
        ("grpc_calls",),
        ("open_queues", "open_killed", "--topics", 20, "--queues", 5),
    ],
)
def test_every_scenario_runs_small(words: tuple[object, ...], tmp_path: Path) -> None:
    size = ("--messages", 3_200, "--runs", 1, "--json", "--out", tmp_path, "--dir", tmp_path)
    done = bench(*words, *size)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {r["scenario"] for r in report["results"]} >= {w for w in words if str(w).isalpha()}
    assert all(r["figure"]["value"] > 0 for r in report["results"])
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["results"] == report["results"]


def test_scale_runs_small_and_gives_every_operation_at_every_size(tmp_path: Path) -> None:
    size = ("--messages", 500, "--json", "--out", tmp_path, "--dir", tmp_path)
    done = bench("scale", *size)
    assert done.returncode == 0, done.stderr
    names = [r["figure"]["name"] for r in json.loads(done.stdout)["results"]]
    operations = {name.rpartition(", ")[0] for name in names}
    assert operations >= {"put(32)", "open", "get", "query", "query, nowhere", "pop(1) + ack"}
    assert len(names) == 3 * len(operations)


def test_fewer_messages_than_threads_are_no_error(tmp_path: Path) -> None:
    done = bench("put_sync", "--messages", 5, "--runs", 1, "--out", tmp_path, "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
