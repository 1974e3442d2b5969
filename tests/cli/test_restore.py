"""`kvmq restore`: a store from archives alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from tests.cli.conftest import Kvmq
from tests.support.clock import VirtualClock
from tiering import Policy, Worker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of November 2023, of a store that is gone: two topics, 60 messages each."""
    tmp_path = tmp_path_factory.mktemp("place")
    clock = VirtualClock(1_700_000_000_000)
    with kvstore.open(tmp_path / "lost", StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        for number in range(120):
            name = ("orders", "visits")[number % 2]
            if number < 2:
                store.create_topic(name, queues=1)
            store.put_batch([Message(name, b"%d" % number + bytes(1000), keys=("all",))])
            clock.advance(1)
        store.seal()
        clock.advance(2 * 86_400)
        policy = Policy(hot_for=86_400, warm=str(tmp_path / "place"), clock_doubt=0.0)
        with Worker(store, policy) as worker:
            assert worker.run_once().failed == {}
    shutil.rmtree(tmp_path / "lost")
    return tmp_path / "place"


def test_a_store_comes_back_from_its_archives(kvmq: Kvmq, place: Path, tmp_path: Path) -> None:
    ran = kvmq("restore", place, tmp_path / "new", "--json")
    assert (ran.code, ran.json["topics"], ran.json["messages"]) == (0, ["orders", "visits"], 120)
    pulled = kvmq("pull", tmp_path / "new", "orders", "--queue", 0, "--all", "--json").lines
    assert [message["offset"] for message in pulled] == list(range(60))
    put = kvmq("put", tmp_path / "new", "orders", "--queue", 0, "--body", "more", "--json")
    assert put.json["offset"] == 60
    assert kvmq("verify", tmp_path / "new").code == 0
    assert kvmq("tier", "verify", tmp_path / "new").code == 0


def test_a_part_can_be_asked_for_by_topic_and_time(kvmq: Kvmq, place: Path, tmp_path: Path) -> None:
    words = ("--topic", "visits", "--until", 1_700_000_000_000 + 40_000, "--copy", "--json")
    ran = kvmq("restore", place, tmp_path / "new", *words)
    assert (ran.json["topics"], ran.json["messages"]) == (["visits"], 20)
    assert kvmq("topic", "show", tmp_path / "new", "orders", "--json").code == 1


def test_what_is_damaged_is_exit_code_1_and_the_rest_is_there(
    kvmq: Kvmq, place: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(place, tmp_path / "place"))
    damaged = sorted(place.rglob("*.kvarc"))[0]
    damaged.chmod(0o644)
    damaged.write_bytes(b"no archive" * 10)
    ran = kvmq("restore", place, tmp_path / "new")
    assert ran.code == 1
    assert damaged.name in ran.out
    assert len(kvmq("query", tmp_path / "new", "orders", "all", "--json").lines) > 0


def test_errors_are_one_readable_line(kvmq: Kvmq, place: Path, tmp_path: Path) -> None:
    def error(*words: object) -> str:
        ran = kvmq("restore", *words, "--json")
        assert ran.code == 1
        return str(ran.error["error"])

    assert error(place, place) == "TargetNotEmpty"
    assert error(tmp_path / "none", tmp_path / "new") == "PlaceUnavailable"
    assert error(place, tmp_path / "new", "--topic", "none") == "TopicNotFound"
    assert error(place, tmp_path / "new", "--store-id", "0" * 32) == "NothingToRestore"
    assert not (tmp_path / "new").exists()
    assert kvmq("restore", place, tmp_path / "new", "--until", "soon").code == 2


def test_archives_are_attached_to_a_store_that_goes_on(
    kvmq: Kvmq, place: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    kvmq("topic", "create", store, "mine", "--queues", 1)
    ran = kvmq("tier", "attach", store, place, "--topic", "orders", "--json")
    assert (ran.code, ran.json["made"], ran.json["messages"]) == (0, ["orders"], 60)
    pulled = kvmq("pull", store, "orders", "--queue", 0, "--all", "--json").lines
    assert [message["offset"] for message in pulled] == list(range(60))
    again = kvmq("tier", "attach", store, place, "--topic", "orders", "--json")
    assert again.code == 1
    assert again.error["error"] == "AttachConflict"
    assert "has offsets 0 to" in again.error["message"]
    assert "attached" not in kvmq("tier", "attach", store, place, "--topic", "visits").err
    assert kvmq("verify", store).code == 0
