"""Tasks of asyncio that are cancelled amid a put or a prepare: it is made whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import Message
from tests.support.served import serving

TURNS = 12
TIMES = 5
Client = kvstore.aio.Store | kvstore.aio.ServedStore


@asynccontextmanager
async def opened(path: Path, *, is_served: bool) -> AsyncIterator[Client]:
    """A store with a topic of a dedup window, and its calls."""
    with kvstore.open(path) as store:
        store.create_topic("t", queues=1, dedup_window=600)
    if not is_served:
        async with kvstore.aio.open(path) as own:
            yield own
        return
    with kvstore.open(path) as store, serving(store) as server:
        async with kvstore.aio.connect(server.url) as client:
            yield client


async def cancelled(call: Coroutine[Any, Any, Any], turns: int) -> None:
    """Cancels a call so many turns of the loop after its beginning."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_the_repeat_of_a_cancelled_put_returns_the_first_result(
    tmp_path: Path, *, is_served: bool, is_batch: bool
) -> None:
    async def put(client: Client, dedup_id: str) -> kvstore.PutResult:
        if is_batch:
            return (await client.put_batch([Message("t", b"x", dedup_id=dedup_id)]))[0]
        return await client.put("t", b"x", dedup_id=dedup_id)

    async def main() -> None:
        async with opened(tmp_path / "s", is_served=is_served) as client:
            for n in range(TURNS * TIMES):
                await cancelled(put(client, f"id-{n}"), n // TIMES)
                repeats = [await put(client, f"id-{n}") for _ in range(2)]
                assert [one.offset for one in repeats] == [n, n]
                assert repeats[0].message_id == repeats[1].message_id
                assert repeats[1].duplicate
            found = await client.pull("t", 0, 0, 10 * TURNS * TIMES)
            assert len(found.messages) == TURNS * TIMES
            assert len({one.message_id for one in found.messages}) == TURNS * TIMES

    asyncio.run(main())


@pytest.mark.parametrize("is_served", [False, True])
def test_a_cancelled_prepare_is_listed_or_was_not_made(tmp_path: Path, *, is_served: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path / "s", is_served=is_served) as client:
            for n in range(TURNS * TIMES):
                messages = [Message("t", b"%d" % n), Message("t", b"%d" % n)]
                await cancelled(client.prepare_batch(messages, group=f"g-{n}"), n // TIMES)

    asyncio.run(main())
    with kvstore.open(tmp_path / "s") as store:
        for n in range(TURNS * TIMES):
            waiting = store.transactions(f"g-{n}").messages
            assert len(waiting) in (0, 2)
        assert store.bounds("t", 0).next_offset == 0
