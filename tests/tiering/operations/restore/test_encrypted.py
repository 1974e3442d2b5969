"""Encrypted messages come back with their key; without it all others do."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import kvstore
import tiering
from kvstore import KeyDestroyed, KeyMissing, Store, StoredMessage
from tests.support.clock import VirtualClock
from tests.tiering.operations.restore.test_restore import POLICY, config, put

SECOND = 1_000


class Lost(NamedTuple):
    """Archives of a store that is gone, with one of its two topics encrypted; what it had."""

    place: Path
    keys: Path
    orders: list[StoredMessage]
    visits: list[StoredMessage]


@pytest.fixture
def lost(tmp_path: Path, clock: VirtualClock) -> Lost:
    keys = tiering.KeyFile(tmp_path / "keys.json")
    keys.make("orders")
    with kvstore.open(tmp_path / "lost", config(clock)) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("visits", queues=2)
        put(store, clock, 100)
        store.seal()
        clock.advance(120)
        orders, visits = every(store, "orders"), every(store, "visits")
        with tiering.Worker(store, POLICY, keys=keys) as worker:
            assert worker.run_once().failed == {}
    return Lost(tmp_path / "lost" / "archive", tmp_path / "keys.json", orders, visits)


def every(store: Store, topic: str) -> list[StoredMessage]:
    return sorted(store.query(topic, "all", limit=1000), key=lambda m: m.position)


def assert_locked(store: Store) -> None:
    with pytest.raises((KeyMissing, KeyDestroyed), match="orders"):
        store.pull("orders", 0, 0)


@pytest.mark.parametrize("copy", [False, True])
def test_with_the_keys_everything_reads_as_before(
    tmp_path: Path, lost: Lost, clock: VirtualClock, copy: bool
) -> None:
    keys = tiering.KeyFile(lost.keys)
    report = tiering.restore(lost.place, tmp_path / "new", keys=keys, copy=copy)
    assert (report.problems, report.unreadable) == ([], {})
    with kvstore.open(tmp_path / "new", config(clock, lost.keys)) as store:
        assert every(store, "orders") == lost.orders
        assert every(store, "visits") == lost.visits
        assert store.verify(archives=True).problems == []


def test_without_keys_it_is_said_which_topics_cannot_be_read_and_the_rest_reads(
    tmp_path: Path, lost: Lost, clock: VirtualClock
) -> None:
    report = tiering.restore(lost.place, tmp_path / "new")
    assert report.problems == []
    assert report.topics == ["orders", "visits"]
    assert list(report.unreadable) == ["orders"]
    assert "no keys were given" in report.unreadable["orders"]
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert every(store, "visits") == lost.visits
        assert_locked(store)
        end = store.bounds("orders", 1).next_offset
        assert store.put("orders", b"the next one", queue=1).offset == end
    with kvstore.open(tmp_path / "new", config(clock, lost.keys)) as store:
        assert every(store, "orders") == lost.orders


def test_a_part_is_encrypted_again_with_the_keys_and_left_out_without(
    tmp_path: Path, lost: Lost, clock: VirtualClock
) -> None:
    until = lost.orders[-1].stored_at - 10 * SECOND
    settings = config(clock, lost.keys)
    tiering.restore(lost.place, tmp_path / "with", until=until, config=settings)
    with kvstore.open(tmp_path / "with", settings) as store:
        assert every(store, "orders") == [m for m in lost.orders if m.stored_at <= until]
    made = list((tmp_path / "with").rglob("*encrypted*.kvarc"))
    assert made
    assert not any(b"KEYS" in path.read_bytes() for path in made)
    report = tiering.restore(lost.place, tmp_path / "without", until=until)
    assert list(report.unreadable) == ["orders"]
    assert report.problems
    assert {"orders" in problem.reason for problem in report.problems} == {True}
    assert list((tmp_path / "without").rglob("*encrypted*.kvarc")) == []
    with kvstore.open(tmp_path / "without", config(clock)) as store:
        assert every(store, "visits") == [m for m in lost.visits if m.stored_at <= until]


def test_of_a_topic_whose_key_was_destroyed_nothing_is_read_and_all_else_is(
    tmp_path: Path, lost: Lost, clock: VirtualClock
) -> None:
    keys = tiering.KeyFile(lost.keys)
    keys.destroy("orders")
    report = tiering.restore(lost.place, tmp_path / "new", keys=keys, take_over=True)
    assert "was destroyed" in report.unreadable["orders"]
    with kvstore.open(tmp_path / "new", config(clock, keys)) as store:
        assert every(store, "visits") == lost.visits
        assert_locked(store)
        with tiering.Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
            assert worker.merge().failed == {}
        assert every(store, "orders") == []
        assert every(store, "visits") == lost.visits


def test_a_merge_with_a_provider_that_does_not_know_a_key_leaves_its_messages_as_they_are(
    tmp_path: Path, lost: Lost, clock: VirtualClock
) -> None:
    tiering.KeyFile(tmp_path / "others").make("visits")
    path = lost.place.parent
    with (
        kvstore.open(path, config(clock)) as store,
        tiering.Worker(store, POLICY, keys=tiering.KeyFile(tmp_path / "others")) as worker,
    ):
        assert "the key provider knows nothing" in str(worker.merge().failed)
    with kvstore.open(path, config(clock, lost.keys)) as store:
        assert every(store, "orders") == lost.orders
