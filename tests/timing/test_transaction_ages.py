"""Prepared messages that nobody ends or asks about are given up at their time, and cost nothing
until then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, Retention, Store, StoredMessage
from kvstore.core.names import TRANSACTION_DISCARD_TOPIC
from kvstore.timing import checks
from kvstore.timing.checks import Answer
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.stores import SEGMENT, killed, opened, settings
from tests.support.waiting import until

AGE: Final = 3600.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with opened(tmp_path / "s", settings(clock=clock, transaction_age=AGE)) as store:
        inside.stop_housekeepers(store)
        yield store


def upkeep(store: Store, clock: VirtualClock, seconds: float) -> int:
    """Lets time pass, and does what is due then; how often anything was."""
    clock.step(seconds)
    job, runs = inside.engine(store).checks, 0
    while job.due():
        job.run()
        runs += 1
        assert runs < 100, "it is due again and again"
    return runs


def given_up(store: Store) -> list[bytes]:
    if TRANSACTION_DISCARD_TOPIC not in [topic.name for topic in store.topics()]:
        return []
    return [m.body for m in store.pull(TRANSACTION_DISCARD_TOPIC, 0, 0, limit=10_000).messages]


@pytest.mark.parametrize("immunity", [0.0, None, AGE, 30 * 86400.0])
@pytest.mark.parametrize("is_looked_at", [False, True])
def test_without_a_checker_a_message_is_given_up_when_it_is_too_old_and_not_later(
    store: Store, clock: VirtualClock, immunity: float | None, is_looked_at: bool
) -> None:
    prepared = store.prepare("t", b"x", group="pay", immunity=immunity)
    if is_looked_at:
        upkeep(store, clock, 60)
        clock.step(-60)
    upkeep(store, clock, AGE - 0.001)
    assert store.prepared(prepared.message_id).checks == 0
    upkeep(store, clock, 0.001)
    assert (given_up(store), store.transactions().count) == ([b"x"], 0)


def test_a_set_is_given_up_as_a_whole_at_its_time(store: Store, clock: VirtualClock) -> None:
    store.prepare_batch(
        [Message("t", b"a", message_id="set"), Message("t", b"b")], group="pay", set_id="set"
    )
    upkeep(store, clock, AGE / 2)
    upkeep(store, clock, AGE / 2)
    assert given_up(store) == [b"a", b"b"]


def test_a_message_behind_a_checker_that_hangs_is_given_up_at_its_time(
    store: Store, clock: VirtualClock
) -> None:
    hangs, has_begun = threading.Event(), threading.Event()

    def hang(message: StoredMessage) -> Answer:
        has_begun.set()
        hangs.wait(30)
        return "unknown"

    store.on_check("pay", hang)
    for body in (b"asked", b"in line"):
        store.prepare("t", body, group="pay", immunity=0)
    upkeep(store, clock, 1)
    until(has_begun.is_set)
    upkeep(store, clock, AGE)
    hangs.set()
    assert sorted(given_up(store)) == [b"asked", b"in line"]


def test_a_message_that_is_asked_about_shortly_before_is_given_up_at_its_time(
    store: Store, clock: VirtualClock
) -> None:
    """The next check would be thirty seconds later."""
    store.on_check("pay", lambda message: "unknown")
    prepared = store.prepare("t", b"x", group="pay", immunity=AGE - 10.0)
    upkeep(store, clock, AGE - 10.0)
    until(lambda: store.prepared(prepared.message_id).checks == 1)
    upkeep(store, clock, 9.999)
    assert given_up(store) == []
    upkeep(store, clock, 0.001)
    assert given_up(store) == [b"x"]


def test_a_checker_that_comes_later_is_asked_about_what_waits(
    store: Store, clock: VirtualClock
) -> None:
    for n in range(3):
        store.prepare("t", b"%d" % n, group="pay", queue=0, immunity=0)
    upkeep(store, clock, AGE / 2)
    store.on_check("pay", lambda message: "commit")
    inside.look_for_questions(store)
    until(lambda: store.transactions().count == 0)
    assert store.bounds("t", 0).next_offset == 3
    upkeep(store, clock, AGE)
    assert given_up(store) == []


@pytest.mark.parametrize("kept", [1, 4, 7])
def test_of_more_messages_than_are_kept_in_memory_each_is_given_up_at_its_time(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(checks, "AGE_ENDS_MAX", kept)
    ages = [5, 3, 9, 0, 7, 1, 8, 2, 6, 4, 10, 11]
    for age in ages:
        # The later one is asked about first: the order of questions is not that of the ages.
        store.prepare("t", b"%d" % age, group="pay", immunity=30.0 - age if age else 0)
        clock.step(1)
    upkeep(store, clock, 60)
    assert store.transactions().count == len(ages)
    clock.step(-60)
    upkeep(store, clock, AGE - len(ages))
    for n, age in enumerate(ages):
        assert given_up(store)[n:] == [b"%d" % age]
        upkeep(store, clock, 1)


def test_a_message_that_is_moved_grows_older(tmp_path: Path, clock: VirtualClock) -> None:
    kept = Retention(max_bytes=3 * SEGMENT)
    config = settings(clock=clock, retention=kept, delete_interval=0.0, transaction_age=AGE)
    with opened(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        prepared = store.prepare("t", b"x", group="pay")
        upkeep(store, clock, AGE / 2)
        for _ in range(8):
            store.put_batch([Message("t", bytes(2000))] * 25)
        store.apply_retention()
        assert store.prepared(prepared.message_id).message.position > prepared.position
        upkeep(store, clock, AGE / 2 - 0.001)
        waits = store.prepared(prepared.message_id)
        assert (waits.since, waits.checks) == (clock.now_ms() + 1 - int(AGE * 1000), 0)
        upkeep(store, clock, 0.001)
        assert given_up(store) == [b"x"]


@pytest.mark.parametrize("is_rebuilt", [False, True])
@pytest.mark.parametrize("page", [2048, 3])
def test_a_shorter_age_ends_at_its_time_for_messages_that_were_there_before(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool,
    page: int,
) -> None:  # fmt: skip
    """The next check of some is days later, whether or not anybody answers it."""
    monkeypatch.setattr("kvstore.timing.transactions.AT_ONCE", page)
    long = settings(clock=clock, transaction_age=10 * AGE)
    with opened(tmp_path / "s", long) as store:
        inside.stop_housekeepers(store)
        for n in range(10):
            store.prepare("t", b"%d" % n, group="pay", immunity=9 * AGE - n if n % 5 else 5.0)
            clock.step(1)
            if n == 4:
                store.checkpoint()
        messages = [Message("t", b"set", message_id="set"), Message("t", b"of it")]
        store.prepare_batch(messages, group="pay", set_id="set", immunity=8 * AGE)
        path = killed(store, tmp_path / "k")
    short = settings(clock=clock, transaction_age=AGE)
    if is_rebuilt:
        kvstore.rebuild(path, config=short)
    with kvstore.open(path, short) as store:
        inside.stop_housekeepers(store)
        upkeep(store, clock, AGE - 10)
        for n in range(10):
            assert given_up(store) == [b"%d" % n for n in range(n + 1)]
            upkeep(store, clock, 0.999)
            assert given_up(store)[n + 1 :] == []
            upkeep(store, clock, 0.001)
        assert given_up(store)[10:] == [b"set", b"of it"]
        assert store.transactions().count == 0


def test_a_longer_age_is_that_of_messages_that_were_there_before(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with opened(tmp_path / "s", settings(clock=clock, transaction_age=AGE)) as store:
        store.prepare("t", b"x", group="pay")
    with kvstore.open(tmp_path / "s", settings(clock=clock, transaction_age=2 * AGE)) as store:
        inside.stop_housekeepers(store)
        upkeep(store, clock, 2 * AGE - 0.001)
        assert (given_up(store), store.transactions().count) == ([], 1)
        upkeep(store, clock, 0.001)
        assert given_up(store) == [b"x"]


def test_a_message_with_a_shorter_age_that_is_moved_is_given_up_at_its_time(
    tmp_path: Path, clock: VirtualClock
) -> None:
    kvstore.open(tmp_path / "s", settings(clock=clock, transaction_age=AGE)).close()
    with opened(tmp_path / "s", settings(clock=clock, transaction_age=9 * AGE)) as store:
        prepared = store.prepare("t", b"x", group="pay", immunity=9 * AGE)
    kept = Retention(max_bytes=3 * SEGMENT)
    config = settings(clock=clock, retention=kept, delete_interval=0.0, transaction_age=AGE)
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        upkeep(store, clock, AGE / 2)
        for _ in range(8):
            store.put_batch([Message("t", bytes(2000))] * 25)
        store.apply_retention()
        assert store.prepared(prepared.message_id).message.position > prepared.position
        upkeep(store, clock, AGE / 2 - 0.001)
        assert (given_up(store), store.transactions().count) == ([], 1)
        upkeep(store, clock, 0.001)
        assert given_up(store) == [b"x"]


def test_a_message_whose_question_nobody_takes_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its time no operation is done for it, and there are as many beside 1, 10 and 100."""
    costs, counts = Costs(monkeypatch), list[int]()
    for waiting in (1, 10, 100):
        clock = VirtualClock()
        config = settings(
            clock=clock, checkpoint_interval=1e9, retention_interval=1e9, transaction_age=AGE
        )
        with opened(tmp_path / str(waiting), config) as store:
            inside.stop_housekeepers(store)
            store.prepare_batch([Message("t", b"x")] * waiting, group="pay")
            store.checkpoint()
            upkeep(store, clock, 60)
            with costs.counting() as found:
                assert [upkeep(store, clock, 60) for _ in range(58)] == [0] * 58
            counts.append(found.total())
            assert upkeep(store, clock, 60) == 1
            assert len(given_up(store)) == waiting
    # Each of the 58 turns asks for the first due time behind those that were looked at.
    assert counts == [counts[0]] * 3
    assert counts[0] <= 58 * 4
