"""With `visibility="flushed"` the calls about messages that wait see what was put, though readers
of queues do not see it before the disk has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import DelayEnded, Message, MessageNotFound, Store, StoreConfig, TransactionEnded
from kvstore.timing.checks import Answer
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.served import serving
from tests.support.stores import killed, settings

CALLERS: Final = ("the store", "a namespace", "a client", "a client's namespace")


@pytest.fixture(params=["mapped", "staged"])
def config(clock: VirtualClock, request: pytest.FixtureRequest) -> StoreConfig:
    """The disk gets nothing by itself."""
    return settings(
        clock=clock,
        visibility="flushed",
        write_mode=request.param,
        flush_thorough_interval=1e6,
        stage_interval=1e6,
    )


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig) -> Iterator[Store]:
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        yield store


@pytest.fixture(params=CALLERS)
def calls(store: Store, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The store as a caller has it, with topic "t"."""
    with ExitStack() as ending:
        found: Any = store
        if "client" in request.param:
            server = ending.enter_context(serving(store))
            found = ending.enter_context(kvstore.connect(server.url))
        if "namespace" in request.param:
            found = found.namespace("one")
        found.create_topic("t", queues=1, dedup_window=60.0)
        yield found


def bodies(calls: Any, topic: str = "t") -> list[bytes]:
    return [m.body for m in calls.pull(topic, 0, 0, limit=1000).messages]


def assert_seen_when_flushed(store: Store, calls: Any, expected: list[bytes]) -> None:
    """Readers see none of the messages before the disk has them, and then all."""
    assert bodies(calls) == []
    store.flush()
    assert bodies(calls) == expected
    assert store.verify().problems == []


def test_a_delayed_message_is_looked_at_changed_and_cancelled_when_it_was_put(
    store: Store, calls: Any, clock: VirtualClock
) -> None:
    put = [calls.put("t", b"%d" % n, delay=60) for n in range(3)]
    first, second, third = (one.message_id for one in put)
    assert calls.timer(first).message.body == b"0"
    assert [one.message_id for one in calls.timers("t").messages] == [first, second, third]
    assert calls.change_delay(second, delay=5) == clock.now_ms() + 5000
    assert calls.timer(second).deliver_at == clock.now_ms() + 5000
    assert calls.cancel(first) is calls.cancel(first) is True
    with pytest.raises(DelayEnded) as e:
        calls.timer(first)
    assert e.value.is_cancelled
    assert calls.timers().count == 2
    clock.advance(6)
    inside.deliver_due(store)
    assert calls.cancel(second) is False
    with pytest.raises(DelayEnded):
        calls.change_delay(second, delay=5)
    assert_seen_when_flushed(store, calls, [b"1"])
    assert calls.cancel(third) is True


@pytest.mark.parametrize("by_id", [False, True])
def test_a_transaction_is_ended_when_it_was_prepared(store: Store, calls: Any, by_id: bool) -> None:
    put = [calls.prepare("t", b"%d" % n, group="pay") for n in range(2)]
    kept, dropped = (one.message_id if by_id else one for one in put)
    assert calls.prepared(put[0].message_id).message.body == b"0"
    assert len(calls.transactions("pay").messages) == 2
    results = [calls.commit(kept) for _ in range(2)]
    assert [one.offset for one in results] == [0, 0]
    calls.rollback(dropped)
    for call in (partial(calls.rollback, kept), partial(calls.commit, dropped)):
        with pytest.raises(TransactionEnded):
            call()
    assert calls.transactions().count == 0
    assert_seen_when_flushed(store, calls, [b"0"])


def test_a_batch_of_transactions_is_ended_when_it_was_prepared(store: Store, calls: Any) -> None:
    put = calls.prepare_batch([Message("t", b"%d" % n) for n in range(4)], group="pay")
    assert len(calls.commit_batch(put[:2])) == 2
    calls.rollback_batch([one.message_id for one in put[2:]])
    assert_seen_when_flushed(store, calls, [b"0", b"1"])


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_block_ends_at_its_end(store: Store, calls: Any, is_prepared: bool) -> None:
    with calls.transaction(group="pay") as t:
        t.put_batch([Message("t", b"%d" % n) for n in range(4)])
        if is_prepared:
            t.prepare()
    assert [one.offset for one in t.results] == [0, 1, 2, 3]

    def fail() -> None:
        with calls.transaction(group="pay") as t:
            t.put_batch([Message("t", b"x")] * 2)
            t.prepare()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert calls.transactions().count == 0
    assert_seen_when_flushed(store, calls, [b"0", b"1", b"2", b"3"])


@pytest.mark.parametrize("calls", CALLERS[:2], indirect=True)
def test_a_checker_is_asked_about_a_message_that_was_just_prepared(
    store: Store, calls: Any, clock: VirtualClock
) -> None:
    put = calls.prepare_batch([Message("t", b"%d" % n) for n in range(3)], group="pay")
    answers: dict[str, Answer] = {put[0].message_id: "commit", put[1].message_id: "rollback"}
    checker = calls.on_check("pay", lambda message: answers.get(message.message_id, "unknown"))
    clock.advance(7)
    inside.ask_about_transactions(store)
    checker.close()
    assert calls.transactions().count == 1
    assert calls.prepared(put[2].message_id).checks == 1
    assert_seen_when_flushed(store, calls, [b"0"])


def test_a_schedule_is_paused_and_deleted_with_the_message_that_it_has_just_put(
    store: Store, calls: Any, clock: VirtualClock
) -> None:
    """Each time comes once, and none while it is paused."""
    calls.schedule("x", "t", b"s", every=10)
    calls.pause_schedule("x")
    assert calls.timers().count == 0
    clock.advance(25)
    inside.deliver_due(store)
    assert calls.resume_schedule("x").next_at is not None
    calls.pause_schedule("x")
    calls.resume_schedule("x")
    (waiting,) = calls.timers().messages
    with pytest.raises(kvstore.CallerError, match="schedule"):
        calls.cancel(waiting.message_id)
    for _ in range(3):
        clock.advance(10)
        inside.deliver_due(store)
    calls.delete_schedule("x")
    assert calls.timers().count == 0
    clock.advance(25)
    inside.deliver_due(store)
    store.flush()
    times = [m.properties["SCHEDULED_AT"] for m in calls.pull("t", 0, 0).messages]
    assert len(times) == len(set(times)) == 3
    assert store.verify().problems == []


def test_a_repeat_is_told_when_the_first_was_put(store: Store, calls: Any) -> None:
    first = calls.put("t", b"x", dedup_id="a")
    again = calls.put("t", b"x", dedup_id="a")
    assert (again.duplicate, again.position) == (True, first.position)
    assert_seen_when_flushed(store, calls, [b"x"])


def test_a_deleted_topic_takes_along_what_was_just_put(store: Store, calls: Any) -> None:
    put = calls.put("t", b"d", delay=60)
    prepared = calls.prepare("t", b"p", group="pay")
    assert calls.delete_topic("t") == 2
    with pytest.raises(DelayEnded) as e:
        calls.timer(put.message_id)
    assert e.value.is_cancelled
    with pytest.raises((MessageNotFound, TransactionEnded)):
        calls.commit(prepared)


def test_the_ends_of_waits_that_the_disk_does_not_have_are_no_damage(store: Store) -> None:
    store.create_topic("t", queues=1)
    put = [store.put("t", b"d", delay=60) for _ in range(2)]
    prepared = store.prepare("t", b"p", group="pay")
    store.flush()
    store.checkpoint()
    store.cancel(put[0].message_id)
    store.commit(prepared)
    assert store.verify().problems == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_next_opening_has_what_was_put_and_ended(
    tmp_path: Path, store: Store, config: StoreConfig, is_killed: bool
) -> None:
    store.create_topic("t", queues=1)
    dropped, kept = (store.put("t", b"d", delay=60).message_id for _ in range(2))
    store.commit(store.prepare("t", b"p", group="pay"))
    store.cancel(dropped)
    path = store.path
    if is_killed:
        inside.log(store).drain()
        path = killed(store, tmp_path / "k")
    store.close()
    with kvstore.open(path, config) as again:
        assert again.cancel(dropped) is True
        assert again.timer(kept).message.body == b"d"
        assert (again.timers().count, bodies(again)) == (1, [b"p"])


def test_asyncio_sees_what_was_put(tmp_path: Path, config: StoreConfig) -> None:
    async def work() -> None:
        async with kvstore.aio.open(tmp_path / "a", config) as store:
            await store.create_topic("t", queues=1)
            put = await store.put("t", b"d", delay=60)
            assert await store.cancel(put.message_id) is True
            await store.commit(await store.prepare("t", b"p", group="pay"))
            t = store.transaction(group="pay")
            t.put_batch([Message("t", b"x")] * 2)
            await t.prepare()
            await t.rollback()
            assert (await store.transactions()).count == 0

    asyncio.run(work())


def test_the_exception_of_a_block_is_seen_when_its_transaction_can_not_be_rolled_back(
    store: Store,
) -> None:
    store.create_topic("t", queues=1)

    def fail() -> None:
        with store.transaction(group="pay") as t:
            t.put("t", b"x")
            t.prepare()
            store.close()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as e:
        fail()
    assert "could not be rolled back" in e.value.__notes__[0]
