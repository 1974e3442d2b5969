"""Single puts and acks of asyncio's tasks: few requests, and each caller has its own result.

Limits named here: _COUNT_MAX, _BYTES_MAX.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import kvstore.aio
from kvstore import Message, MessageIllegal, PutResult, ReceiptIllegal, Store, StoreClosed
from kvstore.client import loop_batches
from kvstore.client.loop_batches import LoopBatches
from tests.support.popping import bodies
from tests.support.served import ServerThread

pytestmark = pytest.mark.group()
Client = kvstore.aio.ServedStore


def run(server: ServerThread, test: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with kvstore.aio.connect(server.url) as client:
            return await test(client)

    return asyncio.run(asyncio.wait_for(main(), 60))


class Made:
    """Stands for a connection: notes the calls, and answers each element by itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    async def make(self, method: str, asked: list[Any]) -> Sequence[Any]:
        self.calls.append((method, asked))
        await asyncio.sleep(0)
        if "bad" in asked:
            raise MessageIllegal("one is bad")
        if "closed" in asked:
            raise StoreClosed("it was closed")
        return [f"{method} {one}" for one in asked]


def test_calls_of_one_turn_are_one_call_for_each_method_and_in_order() -> None:
    made = Made()

    async def main() -> list[str]:
        batches = LoopBatches(made.make)
        first = [batches.call("put", i) for i in range(5)] + [batches.call("ack", 9)]
        found = await asyncio.gather(*first)
        return [*found, await batches.call("put", 5)]

    found = asyncio.run(main())
    assert found == [*(f"put {i}" for i in range(5)), "ack 9", "put 5"]
    assert made.calls == [("put", [0, 1, 2, 3, 4]), ("ack", [9]), ("put", [5])]


def test_a_refused_batch_is_made_again_one_by_one_and_other_errors_are_for_all() -> None:
    made = Made()

    async def main(*asked: Any) -> list[Any]:
        batches = LoopBatches(made.make)
        calls = [batches.call("put", one) for one in asked]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, bad, last = asyncio.run(main("a", "bad", "c"))
    assert (first, last) == ("put a", "put c")
    assert isinstance(bad, MessageIllegal)
    assert [asked for _, asked in made.calls] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    one, other = asyncio.run(main("closed", "a"))
    assert isinstance(one, StoreClosed)
    assert isinstance(other, StoreClosed)
    assert one is not other


def test_a_call_that_was_cancelled_before_it_was_sent_is_not_made() -> None:
    made = Made()

    async def main() -> str:
        batches = LoopBatches(made.make)
        first, second = (asyncio.ensure_future(batches.call("put", i)) for i in range(2))
        asyncio.get_running_loop().call_soon(first.cancel)
        found: str = await second
        assert first.cancelled()
        return found

    assert asyncio.run(main()) == "put 1"
    assert made.calls == [("put", [1])]


@pytest.mark.parametrize(
    ("limit", "value", "sizes"), [("_COUNT_MAX", 3, [3, 3, 1]), ("_BYTES_MAX", 25, [2, 2, 2, 1])]
)
def test_a_batch_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(loop_batches, limit, value)
    made = Made()

    async def main() -> list[Any]:
        batches = LoopBatches(made.make)
        return list(await asyncio.gather(*(batches.call("put", i, 10) for i in range(7))))

    assert asyncio.run(main()) == [f"put {i}" for i in range(7)]
    assert [len(asked) for _, asked in made.calls] == sizes


def test_tasks_of_a_served_store_have_the_results_of_their_own_puts_and_acks(
    server: ServerThread, store: Store
) -> None:
    text: Any = "text"

    async def test(client: Client) -> tuple[list[Any], list[Any]]:
        puts = [client.put("t", b"%d" % i, queue=0, flags=-(i == 4)) for i in range(9)]
        found = await asyncio.gather(*puts, client.put("t", text), return_exceptions=True)
        popped = await client.pop("g", "t", 32)
        assert bodies(popped) == [b"%d" % i for i in range(9) if i != 4]
        acks = [client.ack(one.receipt) for one in popped]
        return found, await asyncio.gather(*acks, client.ack("none"), return_exceptions=True)

    found, acked = run(server, test)
    assert isinstance(found[4], MessageIllegal)
    assert str(found[4]).startswith("flags is -1")
    assert isinstance(found.pop(), MessageIllegal)
    put = [one for one in found if isinstance(one, PutResult)]
    assert [store.get("t", 0, one.offset).message_id for one in put] == [
        one.message_id for one in put
    ]
    assert acked[:-1] == [None] * 8
    assert isinstance(acked[-1], ReceiptIllegal)
    assert store.group_stats("g", "t")[0].in_flight == 0


def test_what_tasks_put_at_a_time_comes_to_the_store_together(
    server: ServerThread, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    put = store.put_batch

    def noted(messages: Sequence[Message]) -> list[PutResult]:
        sizes.append(len(messages))
        return put(messages)

    monkeypatch.setattr(store, "put_batch", noted)  # the first put of a store is a thread's

    async def test(client: Client) -> None:
        await asyncio.gather(*(client.put("t", b"%d" % i) for i in range(50)))

    run(server, test)
    assert sizes == [50]
