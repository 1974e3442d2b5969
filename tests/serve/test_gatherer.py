"""The gatherer: calls of many are made together, and each caller gets the answer to its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kvstore import (
    CallerError,
    Message,
    MessageIllegal,
    PutResult,
    ReceiptIllegal,
    Store,
    StoreClosed,
)
from kvstore.serve import lanes
from kvstore.serve.gatherer import QUEUED_MAX, Gatherer
from tests.support import inside
from tests.support.popping import bodies
from tests.support.raising import raising

pytestmark = pytest.mark.group()
Served = Callable[[Callable[[Gatherer], Awaitable[Any]]], Any]


@pytest.fixture
def served(store: Store) -> Served:
    """Runs a coroutine function with a gatherer of the store, and closes that."""

    def run(test: Callable[[Gatherer], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            gatherer = Gatherer(store)
            try:
                return await test(gatherer)
            finally:
                await gatherer.close()

        return asyncio.run(asyncio.wait_for(main(), 60))

    return run


@pytest.fixture
def batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the store was given."""
    sizes: list[int] = []
    put = store.put_batch

    def noted(messages: Sequence[Message]) -> list[PutResult]:
        sizes.append(len(messages))
        return put(messages)

    monkeypatch.setattr(store, "put_batch", noted)
    return sizes


def message(body: str, **fields: Any) -> Message:
    return Message("t", body.encode(), queue=0, **fields)


def test_the_puts_of_one_turn_of_the_loop_are_one_batch_in_order(
    served: Served, store: Store, batches: list[int]
) -> None:
    async def test(gatherer: Gatherer) -> list[list[PutResult]]:
        puts = [gatherer.put([message(str(i))] * (i % 3 + 1), 10) for i in range(50)]
        return await asyncio.gather(*puts)

    found = served(test)
    assert batches == [sum(i % 3 + 1 for i in range(50))]
    assert [len(results) for results in found] == [i % 3 + 1 for i in range(50)]
    offsets = [result.offset for results in found for result in results]
    assert offsets == list(range(len(offsets)))


def test_an_illegal_message_fails_its_own_put_alone(served: Served, store: Store) -> None:
    async def test(gatherer: Gatherer) -> list[Any]:
        puts = [gatherer.put([message(str(i), flags=-(i in (3, 7)))], 10) for i in range(10)]
        return await asyncio.gather(*puts, return_exceptions=True)

    found = served(test)
    assert [i for i, one in enumerate(found) if isinstance(one, MessageIllegal)] == [3, 7]
    held = store.pull("t", 0, 0).messages
    assert [m.body for m in held] == [b"0", b"1", b"2", b"4", b"5", b"6", b"8", b"9"]


def test_acks_of_many_callers_go_together_and_each_learns_of_its_own(
    served: Served, store: Store
) -> None:
    store.put_batch([message(str(i)) for i in range(4)])

    async def test(gatherer: Gatherer) -> Any:
        popped = await gatherer.pop("g", "t", 4)
        receipts = [p.receipt for p in popped]
        return await asyncio.gather(
            gatherer.ack(receipts[:2]), gatherer.ack(["none"]), gatherer.ack(receipts[2:])
        )

    first, wrong, last = served(test)
    assert (first, last) == ([True, True], [True, True])
    assert isinstance(wrong[0], ReceiptIllegal)
    assert store.group_stats("g", "t")[0].in_flight == 0


def test_changes_to_the_same_time_are_one_call_and_each_caller_gets_its_own_answer(
    served: Served, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_batch([message(str(i)) for i in range(8)])
    sizes: list[int] = []
    change = store.change_invisible_batch

    def noted(receipts: Sequence[str], *given: Any, **named: Any) -> Any:
        sizes.append(len(receipts))
        return change(receipts, *given, **named)

    monkeypatch.setattr(store, "change_invisible_batch", noted)

    async def test(gatherer: Gatherer) -> list[Any]:
        receipts = [p.receipt for p in await gatherer.pop("g", "t", 8)]
        asked: list[tuple[Any, Any, Any]] = [
            *[(receipt, 60.0, False) for receipt in receipts[:4]],
            ("none", 60.0, False),
            (receipts[4], 1, True),
            (receipts[5], 1, 1),
            (receipts[6], 50.0, False),
            (5, 50.0, False),
            (receipts[7], 50.0, False),
        ]
        changes = [
            gatherer.change_invisible(receipt, seconds, gives_back=gives_back)
            for receipt, seconds, gives_back in asked
        ]
        return await asyncio.gather(*changes, return_exceptions=True)

    found = served(test)
    assert sizes[:3] == [5, 1, 1]
    assert [type(one) for one in found] == [
        *[str] * 4, ReceiptIllegal, str, CallerError, str, ReceiptIllegal, str,
    ]  # fmt: skip
    assert store.group_stats("g", "t")[0].in_flight == 8


def test_a_pop_of_several_topics_is_woken_by_a_put_to_any(served: Served, store: Store) -> None:
    store.create_topic("other", queues=1)

    async def test(gatherer: Gatherer) -> list[bytes]:
        waiting = gatherer.pop("g", ["t", "o*"], wait=50)
        while not inside.waiting_polls(gatherer):
            await asyncio.sleep(0.01)
        await gatherer.put([Message("other", b"x", queue=0)], 10)
        return bodies(await waiting)

    assert served(test) == [b"x"]


def test_waiting_pops_hold_no_thread_and_are_woken_by_puts(served: Served, store: Store) -> None:
    async def test(gatherer: Gatherer) -> list[bytes]:
        before = threading.active_count()
        polls = [gatherer.pop("g", "t", wait=50) for _ in range(200)]
        while len(inside.waiting_polls(gatherer)) < 200:
            await asyncio.sleep(0.01)
        assert threading.active_count() - before < 30
        for i in range(200):
            await gatherer.put([message(str(i))], 10)
        return [body for poll in polls for body in bodies(await poll)]

    assert sorted(served(test)) == sorted(str(i).encode() for i in range(200))


def test_a_cancelled_pop_gives_back_what_it_would_have_taken(served: Served, store: Store) -> None:
    async def test(gatherer: Gatherer) -> list[int]:
        waiting = gatherer.pop("g", "t", wait=50)
        while not inside.waiting_polls(gatherer):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await gatherer.put([message("x")], 10)
        early = gatherer.pop("g", "t")
        await asyncio.sleep(0)
        early.cancel()
        return [p.attempt for p in await gatherer.pop("g", "t", wait=5)]

    assert served(test) == [1]


def test_a_pop_that_is_cancelled_as_it_begins_to_wait_leaves_no_waiter(
    served: Served, store: Store
) -> None:
    async def test(gatherer: Gatherer) -> None:
        waiting = gatherer.pop("g", "t", wait=50)
        while not inside.polls(gatherer):
            await asyncio.sleep(0)
        waiting.cancel()

    served(test)
    assert inside.waiting(store).topics == {}


def test_pops_that_wait_are_answered_when_the_server_ends_and_later_ones_refused(
    served: Served,
) -> None:
    async def test(gatherer: Gatherer) -> None:
        waiting = gatherer.pop("g", "t", wait=50)
        while not inside.waiting_polls(gatherer):
            await asyncio.sleep(0.01)
        gatherer.end_polls()
        assert await waiting == []
        with pytest.raises(StoreClosed):
            await gatherer.pop("g", "t")

    served(test)


def test_a_door_is_told_to_wait_while_too_many_bytes_wait_to_be_put(
    served: Served, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    put = store.put_batch

    def slowly(messages: Sequence[Message]) -> list[PutResult]:
        held.wait(10)
        return put(messages)

    monkeypatch.setattr(store, "put_batch", slowly)

    async def test(gatherer: Gatherer) -> None:
        assert gatherer.room() is None
        first = gatherer.put([message("x")], QUEUED_MAX)
        room = gatherer.room()
        assert room is not None
        held.set()
        await room
        await first
        assert gatherer.room() is None

    served(test)


def hang_next_pop(store: Store, held: threading.Event) -> list[bool]:
    """Lets the next pop wait for the event; the list is empty once it does."""
    begin, to_hang = inside.begin_pop(store), [True]

    def slowly(*given: Any) -> Any:
        if to_hang.pop() if to_hang else False:
            held.wait(10)
        return begin(*given)

    inside.set_begin_pop(store, slowly)
    return to_hang


def test_a_call_that_hangs_holds_up_none_that_came_with_it(served: Served, store: Store) -> None:
    held = threading.Event()
    hang_next_pop(store, held)

    async def test(gatherer: Gatherer) -> None:
        pops = [gatherer.pop("g", "t") for _ in range(20)]
        while sum(pop.done() for pop in pops) < 12:
            await asyncio.sleep(0.005)
        assert not pops[0].done()
        held.set()
        assert await asyncio.gather(*pops) == [[]] * 20

    served(test)


def test_a_call_that_hangs_holds_up_no_other(served: Served, store: Store) -> None:
    store.put("t", b"x")
    held = threading.Event()
    to_hang = hang_next_pop(store, held)

    async def test(gatherer: Gatherer) -> None:
        stuck = gatherer.pop("g", "t")
        while to_hang:
            await asyncio.sleep(0.005)
        assert len(await gatherer.pop("g", "t")) == 1
        assert not stuck.done()
        held.set()
        assert await stuck == []

    served(test)


@pytest.fixture
def no_threads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's calls that may wait fail; the topic and the group were used before."""
    store.put("t", b"first", queue=0)
    (popped,) = store.pop("g", "t")
    store.ack(popped.receipt)
    for call in ("put_batch", "ack_batch", "_begin_pop"):
        monkeypatch.setattr(store, call, raising(AssertionError("a thread makes this call")))


@pytest.mark.usefixtures("no_threads")
def test_calls_that_have_nothing_to_wait_for_take_no_thread(served: Served) -> None:
    async def test(gatherer: Gatherer) -> list[bytes]:
        await asyncio.gather(*[gatherer.put([message(str(i))], 10) for i in range(100)])
        found = await gatherer.pop("g", "t", 100, queue=0)
        assert await gatherer.ack([one.receipt for one in found]) == [True] * 100
        return bodies(found)

    assert served(test) == [b"%d" % i for i in range(100)]


@pytest.mark.parametrize("call", ["put", "pop", "ack"])
def test_the_loop_goes_on_while_a_call_waits_for_another_thread(
    served: Served, store: Store, call: str
) -> None:
    store.put_batch([message(str(i)) for i in range(3)])
    (popped,) = store.pop("g", "t")
    taken, let_go = threading.Event(), threading.Event()

    def take() -> None:
        with inside.log_taken(store), inside.table_taken(store, "g", "t"):
            taken.set()
            let_go.wait(20)

    calls: dict[str, Callable[[Gatherer], Awaitable[Any]]] = {
        "put": lambda gatherer: gatherer.put([message("x")], 10),
        "pop": lambda gatherer: gatherer.pop("g", "t"),
        "ack": lambda gatherer: gatherer.ack([popped.receipt]),
    }

    async def test(gatherer: Gatherer) -> int:
        asked = asyncio.ensure_future(calls[call](gatherer))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        let_go.set()
        return len(await asked)

    other = threading.Thread(target=take)
    other.start()
    try:
        taken.wait(20)
        assert served(test) == 1
    finally:
        let_go.set()
        other.join()


def test_other_kinds_of_puts_have_their_turn_among_those_of_messages(
    served: Served, store: Store
) -> None:
    store.put("t", b"first", queue=0)
    made: list[str] = []

    def other() -> str:
        made.append("other")
        store.put("t", b"other", queue=0)
        return "done"

    async def test(gatherer: Gatherer) -> list[Any]:
        puts = gatherer.put([message("x")], 10), gatherer.put_in_turn(other, 10)
        return list(await asyncio.gather(*puts, gatherer.put([message("y")], 10)))

    first, told, last = served(test)
    assert (first[0].offset, told, last[0].offset) == (1, "done", 3)
    assert made == ["other"]


def test_large_puts_are_made_by_a_thread(served: Served, store: Store, batches: list[int]) -> None:
    store.put("t", b"first", queue=0)

    async def test(gatherer: Gatherer) -> None:
        await asyncio.gather(
            gatherer.put([message("x")], 10), gatherer.put([message("y")], 1 << 20)
        )

    served(test)
    assert batches == [1]


def test_where_calls_in_the_loop_are_slow_threads_make_the_next_ones(
    served: Served, store: Store, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("t", b"first", queue=0)
    batches.clear()

    async def test(gatherer: Gatherer) -> None:
        await gatherer.put([message("x")], 10)
        assert batches == []
        monkeypatch.setattr(lanes, "_SLOW", 0.0)
        await gatherer.put([message("x")], 10)
        assert batches == []
        await gatherer.put([message("x"), message("x")], 10)
        assert batches == [2]

    served(test)


@pytest.mark.parametrize("given", [{"topic": "new"}, {"dedup_id": "d"}, {"flags": -1}])
def test_messages_at_which_the_store_looks_longer_are_put_or_refused_alone(
    served: Served, store: Store, given: dict[str, Any]
) -> None:
    store.alter_topic("t", dedup_window=60.0)
    store.put("t", b"first", queue=0)
    special = Message(**{"topic": "t", "body": b"x"} | given)

    async def test(gatherer: Gatherer) -> Any:
        puts = [gatherer.put([message("1")], 10), gatherer.put([special], 10)]
        return await asyncio.gather(*puts, return_exceptions=True)

    plain, found = served(test)
    assert len(plain) == 1
    assert len(found) == 1 if "dedup_id" in given else isinstance(found, CallerError)
