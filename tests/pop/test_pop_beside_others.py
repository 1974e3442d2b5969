"""Pops beside what else changes offsets, groups and topics; and what a cap on messages counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import (
    CallerError,
    InFlight,
    Message,
    ReceiptExpired,
    Store,
    StoreConfig,
    TopicNotFound,
)
from tests.support.clock import VirtualClock

pytestmark = pytest.mark.group


@pytest.fixture
def config() -> StoreConfig:
    return StoreConfig(segment_size=1 << 20)


def together(*calls: Callable[[], object]) -> list[object]:
    """The results or errors of calls that begin at the same time."""
    barrier = threading.Barrier(len(calls))
    found: list[object] = [None] * len(calls)

    def run(i: int) -> None:
        barrier.wait()
        try:
            found[i] = calls[i]()
        except kvstore.StoreError as e:
            found[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_commit_beside_a_groups_first_pop_comes_before_it_or_is_refused(store: Store) -> None:
    store.put_batch([Message("t", b"")] * 40)
    for n in range(200):
        group = f"g{n}"
        store.create_group(group)

        def commit(group: str = group) -> None:
            store.commit_offset(group, "t", 0, 10)

        def pop(group: str = group) -> list[kvstore.Popped]:
            return store.pop(group, "t", limit=32, invisible_for=3000.0)

        committed, popped = together(commit, pop)
        assert isinstance(popped, list)
        first = popped[0].message.offset
        assert isinstance(committed, InFlight) == (first == 0), (committed, first)
        assert store.committed_offset(group, "t", 0) == first


def test_a_topic_deleted_beside_pops_leaves_no_lock_behind(store: Store) -> None:
    store.create_group("capped", max_in_flight=1)
    store.create_topic("other", queues=1)
    store.put("other", b"still to be had")
    for _ in range(60):
        store.create_topic("gone", queues=1)
        store.put_batch([Message("gone", b"")] * 4)

        def pop() -> list[kvstore.Popped]:
            return store.pop("capped", "gone", invisible_for=3000.0)

        _, *popped = together(lambda: store.delete_topic("gone"), pop, pop)
        for found in popped:
            assert isinstance(found, list | TopicNotFound)
            for p in found if isinstance(found, list) else ():
                with pytest.raises(ReceiptExpired):
                    store.change_invisible(p.receipt, 5.0)
    path = store.path
    store.close()
    with kvstore.open(path) as again:
        assert [p.message.body for p in again.pop("capped", "other")] == [b"still to be had"]


def test_a_cap_counts_the_locks_that_live(tmp_path: Path) -> None:
    """A lock that ran out, in a topic that nobody pops, holds up no other topic."""
    clock = VirtualClock(1_700_000_000_000)
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=1 << 20, clock=clock)) as store:
        store.create_group("g", max_in_flight=1)
        for topic in ("a", "b"):
            store.create_topic(topic, queues=1)
            store.put(topic, topic.encode())
        assert len(store.pop("g", "a", invisible_for=5.0)) == 1
        assert store.pop("g", "b") == []
        clock.advance(6.0)
        assert [p.message.body for p in store.pop("g", "b", invisible_for=5.0)] == [b"b"]


@pytest.mark.parametrize("what", ["reset", "alter", "delete", "run out"])
def test_room_under_a_cap_wakes_who_waits_in_another_topic(tmp_path: Path, what: str) -> None:
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=1 << 20)) as store:
        store.create_group("g", max_in_flight=1)
        for topic in ("a", "b"):
            store.create_topic(topic, queues=1)
            store.put(topic, topic.encode())
        store.pop("g", "a", invisible_for=1.0 if what == "run out" else 3000.0)
        found: list[kvstore.Popped] = []
        waiter = threading.Thread(target=lambda: found.extend(store.pop("g", "b", wait=60.0)))
        waiter.start()
        waiter.join(0.2)
        assert not found
        if what == "reset":
            store.reset_offset("g", "a", to="end")
        elif what == "alter":
            store.alter_group("g", max_in_flight=5)
        elif what == "delete":
            store.delete_topic("a")
        waiter.join(20.0)
        assert [p.message.body for p in found] == [b"b"]


def test_a_full_disk_holds_up_only_what_is_to_be_a_dead_letter(tmp_path: Path) -> None:
    clock = VirtualClock(1_700_000_000_000)
    config = StoreConfig(segment_size=1 << 20, clock=clock)
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", max_attempts=1)
        store.put_batch([Message("t", b"%d" % n) for n in range(3)])
        store.pop("g", "t", invisible_for=1.0)
        clock.advance(2.0)
    tight = StoreConfig(segment_size=1 << 20, clock=clock, watermarks=(1e-9, 1e-9, 1e-9))
    with kvstore.open(tmp_path / "s", tight) as store:
        assert [p.message.body for p in store.pop("g", "t", limit=5)] == [b"1", b"2"]
    with kvstore.open(tmp_path / "s", config) as store:
        assert store.pop("g", "t") == []
        assert store.get("%DLQ%g", 0, 0).body == b"0"


def test_an_export_for_rocketmq_counts_only_what_is_done(store: Store, tmp_path: Path) -> None:
    store.put_batch([Message("t", b"")] * 10)
    popped = store.pop("g", "t", limit=5)
    store.ack(popped[0].receipt)
    store.export_rocketmq(tmp_path / "out")
    (written,) = (tmp_path / "out").rglob("consumerOffset.json")
    assert '"t@g":{0:1}' in written.read_text()


def test_what_was_given_back_is_not_had_early_by_its_attempt_id(tmp_path: Path) -> None:
    clock = VirtualClock(1_700_000_000_000)
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=1 << 20, clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", backoff=[60])
        store.put("t", b"")
        (popped,) = store.pop("g", "t", attempt_id="x")
        store.change_invisible(popped.receipt)
        assert store.pop("g", "t", attempt_id="x") == []
        clock.advance(61.0)
        assert [p.attempt for p in store.pop("g", "t", attempt_id="x")] == [2]


@pytest.mark.parametrize("given", [None, 5, "text", [5], [("g", "t")]])
def test_what_is_no_list_of_commits_or_settings_is_refused(store: Store, given: object) -> None:
    calls: tuple[Callable[..., object], ...] = (
        store.commit_offsets,
        store.create_topics,
        store.create_groups,
    )
    for call in calls:
        with pytest.raises(CallerError):
            call(given)


@pytest.mark.parametrize("receipts", [None, 5, "text", b"bytes"])
def test_what_is_no_list_of_receipts_is_refused(store: Store, receipts: object) -> None:
    with pytest.raises(CallerError):
        store.ack_batch(receipts)  # type: ignore[arg-type]  # that is the point
