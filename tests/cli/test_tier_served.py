"""`kvmq tier`, `erase` and `restore` of a folder that is served: the server does the work."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import kvstore
import tiering
from kvstore import Message, StoreConfig
from kvstore.cli.tier.server_worker import ServerWorker
from tests.cli.conftest import Kvmq
from tests.support.waiting import until
from tiering.places.work_folder import WORK

POLICY = 'hot_for = "1d"\nwarm = "old/archive"\ngrace = 0\n'
Serves = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def serves(old: Path) -> Serves:
    """Serves the store for a block, with the given options."""

    @contextlib.contextmanager
    def serving(*options: object) -> Iterator[None]:
        words = [sys.executable, "-m", "kvstore", "serve", str(old), "--json", *map(str, options)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            process.stdout.close()

    return serving


def archives_of_another_store(tmp_path: Path, count: int) -> Path:
    """The place of archives with topic "more", of so many messages in one queue."""
    place = tmp_path / "place"
    with kvstore.open(tmp_path / "from", StoreConfig(segment_size=64 << 10)) as store:
        store.create_topic("more", queues=1)
        store.put_batch([Message("more", bytes(1000)) for _ in range(count)])
        store.seal()
        with tiering.Worker(store, tiering.Policy(hot_for=0, warm=str(place))) as worker:
            worker.run_once()
    return place


def test_the_verbs_of_tiering_are_done_by_the_server_of_the_folder(
    kvmq: Kvmq, old: Path, policy: Path, serves: Serves, tmp_path: Path
) -> None:
    with serves():
        plan = kvmq("tier", "plan", old, "--policy", policy, "--json").json
        assert len(plan["moves"]) == 3
        ran = kvmq("tier", "run", old, "--policy", policy, "--json")
        assert (ran.code, ran.json["segments"], ran.json["failed"]) == (0, [0, 1, 2], {})
        assert "segments moved" in kvmq("tier", "run", old, "--policy", policy).out
        assert len(kvmq("tier", "merge", old, "--policy", policy, "--json").json["archives"]) == 1
        assert kvmq("tier", "compact", old, "--policy", policy).code == 0
        erased = kvmq("erase", "key", old, "o-3", "--policy", policy, "--json")
        assert (erased.code, erased.json["messages"]) == (0, 1)
        listed = kvmq("tier", "list", old, "--json").json
        assert [one["state"] for one in listed] == ["live"]
        assert [one["what"] for one in kvmq("tier", "history", old, "--json").json][:3] == (
            ["archived"] * 3
        )
        assert kvmq("tier", "verify", old, "--json").json["problems"] == []
        removed = kvmq("tier", "verify", old, "--remove-orphans", "--json")
        assert (removed.code, removed.json["archives"]) == (0, 1)
        restored = kvmq("restore", old / "archive", tmp_path / "again", "--json")
        assert restored.code == 0, restored.err
        assert restored.json["messages"] == listed[0]["messages"]
        assert len(kvmq("pull", old, "orders", "--queue", 0, "--all", "--json").lines) == 100
    with kvstore.open(old) as store:
        assert store.verify().problems == []


def test_archives_are_attached_by_the_server_of_the_folder(
    kvmq: Kvmq, old: Path, policy: Path, serves: Serves, tmp_path: Path
) -> None:
    place = archives_of_another_store(tmp_path, 50)
    with serves():
        ran = kvmq("tier", "attach", old, place, "--topic", "more", "--json")
        assert ran.code == 0, ran.err
        assert len(kvmq("pull", old, "more", "--queue", 0, "--all", "--json").lines) == 50


def test_a_server_with_a_policy_does_no_work_by_another(
    kvmq: Kvmq, old: Path, policy: Path, serves: Serves, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text('hot_for = "2d"\nwarm = "old/elsewhere"\n')
    with serves("--policy", policy):
        ran = kvmq("tier", "run", old, "--policy", other, "--json")
        assert (ran.code, ran.error["error"]) == (1, "TieringBusy")
        assert "--policy" in ran.error["message"]
        with kvstore.connect(old) as store:
            worker = tiering.ServedWorker(store)
            assert {one.tier for one in worker.archives()} <= {"warm"}
            assert worker.plan().currency == "USD"
            for wrong in ("nothing", 5, "stop"):
                with pytest.raises(kvstore.CallerError):
                    store.tier(wrong, None, {})  # type: ignore[arg-type]  # what is tested
            with pytest.raises(TypeError):
                store.tier("run_once", None, {"colour": 1})
            with pytest.raises(tiering.PolicyIllegal):
                store.tier("run_once", {"hot_for": "red"}, {})


def test_messages_that_wait_in_a_served_store_are_erased(
    kvmq: Kvmq, old: Path, policy: Path, serves: Serves
) -> None:
    with serves(), kvstore.connect(old) as store:
        store.create_topic("late", queues=1)
        delayed = store.put("late", b"a secret", delay=3600.0)
        prepared = store.prepare("late", b"a secret", group="g")
        store.schedule("nightly", "late", b"of the schedule", every=3600)
        erased = kvmq("erase", "topic", old, "late", "--policy", policy, "--json")
        assert erased.code == 0, erased.err
        assert (erased.json["ended"], erased.json["schedules"]) == (2, ["nightly"])
        assert (store.timers("late").count, store.transactions().count) == (1, 0)
        with pytest.raises(kvstore.DelayEnded, match="it was erased"):
            store.timer(delayed.message_id)
        with pytest.raises(kvstore.TransactionEnded):
            store.commit(prepared)
        told = kvmq("erase", "topic", old, "late", "--policy", policy)
        assert "nightly" in told.out


def test_watching_a_served_store_goes_on_until_a_signal_ends_it(
    process: Any, old: Path, policy: Path, serves: Serves
) -> None:
    with serves():
        child = process(
            "tier", "run", old, "--policy", policy, "--watch", "--interval", 0.1, "--json"
        )
        assert b'"segments":[0,1,2]' in child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_a_verb_that_is_interrupted_stops_its_job_in_the_server(
    process: Any, kvmq: Kvmq, old: Path, policy: Path, serves: Serves
) -> None:
    slow = policy.with_name("slow.toml")
    slow.write_text(POLICY + "read_rate = 1000\n")
    with serves():
        child = process("tier", "run", old, "--policy", slow)
        until(lambda: list((old / WORK / "made").glob("*/*")))
        child.send_signal(signal.SIGINT)
        assert child.wait(30) != 0
        ran = kvmq("tier", "run", old, "--policy", policy, "--json")
        assert (ran.code, ran.json["segments"]) == (0, [0, 1, 2]), ran.err


def test_a_worker_of_this_process_says_that_the_server_has_one(old: Path, serves: Serves) -> None:
    with (
        serves(),
        kvstore.connect(old) as store,
        pytest.raises(kvstore.CallerError, match="ServedWorker"),
    ):
        tiering.Worker(store, tiering.Policy())  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    "step", ["opening archives", "looking at archives", "attaching archives", "putting"]
)
def test_an_attach_is_stopped_when_the_server_ends_and_can_be_made_again(
    old: Path, tmp_path: Path, step: str
) -> None:
    place = archives_of_another_store(tmp_path, 150)
    with kvstore.open(old) as store, ServerWorker(store, None) as server:
        told: list[str] = []

        def tell(what: str, done: int, total: int) -> None:
            told.append(what)
            if what.startswith(step):
                server.stop()

        job = server.job("attach", None, {"source": str(place)}, tell)
        with pytest.raises(tiering.TieringStopped):
            job.run()
        assert told[-1].startswith(step)
        assert [info.name for info in store.topics()] == ["orders"]
        tiering.attach(store, place)
        assert len(store.pull("more", 0, 0, 200).messages) == 150
        assert store.verify().problems == []


def test_work_of_tiering_does_not_hold_up_the_end_of_its_server(
    process: Any, old: Path, policy: Path, serves: Serves
) -> None:
    slow = policy.with_name("slow.toml")
    slow.write_text(POLICY + "read_rate = 1000\n")
    with serves():
        child = process("tier", "run", old, "--policy", slow)
        until(lambda: list((old / WORK / "made").glob("*/*")))
    assert child.wait(30) != 0
