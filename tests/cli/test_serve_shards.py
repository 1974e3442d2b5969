"""`kvmq serve --shards`: several stores below a folder, each served by a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import kvstore
import tiering
from kvstore.serve.access.credentials import sha256_of
from kvstore.wire.cluster_file import read_cluster
from tests.cli.conftest import Kvmq
from tests.support.certificates import make_certificate
from tests.support.free_ports import free_ports
from tests.support.waiting import until


class Shards:
    """The supervisor of a folder, and what it said."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "kvstore", "serve", str(folder), "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def doors(self, count: int) -> list[dict[str, Any]]:
        """So many lines about doors."""
        assert self.process.stdout is not None
        return [json.loads(self.process.stdout.readline()) for _ in range(count)]

    def end(self, number: signal.Signals) -> str:
        """Ends the supervisor by a signal; its log, and those of its shards."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=30)
        return log.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The shards end with their supervisor."""
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    """Two shards."""
    port = free_ports(2)
    options = ("--shards", "2", "--create", "--grpc", f"127.0.0.1:{port}")
    with Shards(tmp_path / "s", *options) as found:
        yield found


def test_each_shard_has_a_process_that_is_started_again_and_all_end_together(
    shards: Shards, kvmq: Kvmq
) -> None:
    doors = shards.doors(4)
    pids = {door["shard"]: door["pid"] for door in doors}
    assert len({*pids.values(), shards.process.pid}) == 3
    listed = read_cluster(shards.folder / "cluster.toml").shards
    assert {(shard.name, place) for shard in listed for place in (shard.url, shard.grpc)} == {
        (door["shard"], door["url"]) for door in doors
    }

    ran = kvmq("serve", str(shards.folder), "--shards", "2", "--json")
    assert (ran.code, ran.error["error"]) == (1, "StoreServed")
    assert str(shards.process.pid) in ran.error["message"]

    os.kill(pids["shard-1"], signal.SIGKILL)
    again = shards.doors(2)
    assert {door["shard"] for door in again} == {"shard-1"}
    assert again[0]["pid"] != pids["shard-1"]
    with kvstore.connect(shards.folder / "shard-1") as store:
        assert store.path == shards.folder / "shard-1"

    log = shards.end(signal.SIGTERM)
    assert shards.process.returncode == 0
    assert f"the shard shard-1 died (process {pids['shard-1']}, signal 9)" in log
    assert log.count("SIGTERM: draining") == log.count("kvmq.serve: closed") == 2
    with kvstore.open(shards.folder / "shard-1") as store:
        assert store.recovery.clean


def test_verbs_reach_all_shards_of_a_folder(shards: Shards, kvmq: Kvmq) -> None:
    shards.doors(4)
    for words in (
        ("topic", "create", "DIR", "t", "--queues", "4"),
        ("group", "create", "DIR", "g"),
        ("put", "DIR", "t", "--body", "hello", "--queue", "3"),
        ("topic", "list", "DIR"),
        ("pull", "DIR", "t", "--queue", "3"),
        ("group", "list", "DIR"),
        ("stats", "DIR"),
        ("top", "DIR", "--once", "--interval", "0.1"),
        ("work", "DIR", "g", "t", "--until-empty", "--", "true"),
    ):
        ran = kvmq(*(str(shards.folder) if word == "DIR" else word for word in words))
        assert ran.code == 0, (words, ran.err)
    with kvstore.connect(shards.folder / "shard-1") as store:
        assert store.topic("t").read_queues == 2
        assert [lag.lag for lag in store.lag("g", "t")] == [0, 0]
        assert store.get("t", 1, 0).body == b"hello"
    ran = kvmq("verify", str(shards.folder), "--json")
    assert (ran.code, ran.error["error"]) == (1, "AcrossShards")
    assert ran.error["message"].endswith("of shard-0, shard-1: name that shard's folder")
    ran = kvmq("tier", "list", str(shards.folder), "--json")
    assert (ran.code, ran.error["error"]) == (1, "StoreNotFound")
    assert "name the folder of one, or use" in ran.error["message"]


def test_shards_end_when_their_supervisor_is_killed(shards: Shards) -> None:
    shards.doors(4)
    shards.end(signal.SIGKILL)
    for name in ("shard-0", "shard-1"):
        until(lambda name=name: not (shards.folder / name / "kvmq.sock").exists())


def test_a_new_shard_has_the_topics_and_groups_of_the_others(tmp_path: Path, kvmq: Kvmq) -> None:
    folder = tmp_path / "s"
    with kvstore.open(folder / "shard-0") as first:
        first.create_topic("t", queues=3, key_index="off", attributes={"team": "a"})
        first.create_group("g", max_attempts=1, ordered=True)
        first.put("t", b"old")
        (popped,) = first.pop("g", "t")
        first.give_up(popped.receipt)  # makes a topic of dead letters
        dead = {info.name for info in first.topics()} - {"t"}
    assert kvmq("serve", str(folder), "--shards", "2").code == 1
    with Shards(folder, "--shards", "2", "--create") as started:
        started.doors(2)
        with kvstore.connect(folder) as store:
            assert store.topic("t").write_queues == 6
            assert sum(store.bounds("t", queue).next_offset for queue in range(6)) == 1
            assert {store.put("t", b"new").queue % 2 for _ in range(2)} == {0, 1}
        started.end(signal.SIGTERM)
    with kvstore.open(folder / "shard-1") as second:
        info, group = second.topic("t"), second.group("g")
        assert (info.key_index, info.read_queues, info.attributes) == ("off", 3, {"team": "a"})
        assert (group.max_attempts, group.ordered) == (1, True)
        assert dead & {info.name for info in second.topics()} == set()


def test_folders_that_have_no_place_for_so_many_shards_are_refused(
    tmp_path: Path, kvmq: Kvmq
) -> None:
    folder, store = tmp_path / "s", tmp_path / "store"
    for n in range(3):
        kvstore.open(folder / f"shard-{n}").close()
    kvstore.open(store).close()
    for words, error, text in (
        (("--shards", "2"), "CallerError", "leave some out"),
        (("--shards", "4"), "StoreNotFound", "3 of 4"),
        (("--shards", "3", "--grpc", "127.0.0.1:0"), "CallerError", "next"),
        (("--shards", "3", "--listen", "kvmq://127.0.0.1:0"), "CallerError", "next"),
        (("--shards", "3", "--listen", "kvmq+unix:///s"), "CallerError", "a socket of its own"),
        (("--shards", "3", "--listen", "kvmq://0.0.0.0:1"), "ExposureRefused", "kvmq://0.0.0.0:1"),
        (("--shards", "3", "--cluster", "c.toml", "--shard", "a"), "CallerError", "--cluster"),
    ):
        ran = kvmq("serve", str(folder), *words, "--json")
        assert (ran.code, ran.error["error"]) == (1, error)
        assert text in ran.error["message"]
    ran = kvmq("serve", str(store), "--shards", "3", "--json")
    assert (ran.code, ran.error["error"]) == (1, "CallerError")


def test_a_shard_that_can_not_be_served_ends_the_others_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with (
        kvstore.open(folder / "shard-1"),
        Shards(folder, "--shards", "2", "--create") as started,
    ):
        _, log = started.process.communicate(timeout=30)
    assert started.process.returncode == 1
    assert b"the shard shard-1 can't be served" in log
    assert b"StoreLocked" in log
    kvstore.open(folder / "shard-0").close()


def test_a_folder_with_shards_is_opened_as_no_store(tmp_path: Path, kvmq: Kvmq) -> None:
    (tmp_path / "cluster.toml").write_text('[[shards]]\nname = "a"\n')
    with pytest.raises(kvstore.StoreNotFound, match=r"cluster\.toml"):
        kvstore.open(tmp_path)
    assert not (tmp_path / "commitlog").exists()
    ran = kvmq("topic", "create", str(tmp_path), "t", "--json")
    assert (ran.code, ran.error["error"]) == (1, "StoreNotFound")
    ran = kvmq("stats", str(tmp_path), "--json")
    assert "cluster.toml" in ran.error["message"]


def _private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_shards_are_reached_by_tls_with_credentials_and_each_archives_by_the_policy(
    tmp_path: Path, kvmq: Kvmq
) -> None:
    chain, key = make_certificate(tmp_path)
    token = "a token that only the owner has"
    clients = _private(
        tmp_path / "clients.toml",
        f'[[clients]]\nname = "o"\ntoken_sha256 = "{sha256_of(token)}"\nadmin = ["*"]\n',
    )
    policy = tmp_path / "policy.toml"
    policy.write_text('hot_for = 0\nwarm = "archive"\ngrace = 0\n')
    port = free_ports(4)
    with Shards(
        tmp_path / "s", "--shards", "2", "--create", "--listen", f"kvmq+tls://127.0.0.1:{port}",
        "--grpc", f"127.0.0.1:{port + 2}", "--credentials", str(clients),
        "--tls-certificate", chain, "--tls-key", key, "--policy", str(policy),
    ) as started:  # fmt: skip
        urls = {door["url"] for door in started.doors(6)}
        by_tls = [f"kvmq+tls://127.0.0.1:{port + n}" for n in range(2)]
        assert set(by_tls) < urls
        with pytest.raises(kvstore.NotAuthenticated):
            kvstore.connect(by_tls, tls=chain)
        with kvstore.connect(by_tls, credentials=token, tls=chain) as store:
            store.create_topic("t", queues=2)
            for queue in range(2):
                store.put("t", b"%d" % queue, queue=queue)
            assert [store.get("t", queue, 0).body for queue in range(2)] == [b"0", b"1"]
        for n in range(2):
            folder = tmp_path / "s" / f"shard-{n}"
            with kvstore.connect(folder) as own:
                own.seal()
                worker = tiering.ServedWorker(own)
                until(lambda worker=worker: worker.run_once().segments or worker.archives())
                (archive,) = worker.archives()
                assert archive.messages == 1
                assert own.get("t", 0, 0).body == b"%d" % n
        assert len(list((tmp_path / "archive").iterdir())) == 2
        log = started.end(signal.SIGTERM)
    assert token not in log
    assert started.process.returncode == 0
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('hot_for = "red"\n')
    ran = kvmq("serve", tmp_path / "s", "--shards", "2", "--policy", wrong, "--json")
    assert (ran.code, ran.error["error"]) == (1, "PolicyIllegal")
