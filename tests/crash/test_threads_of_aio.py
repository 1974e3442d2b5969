"""Whatever strikes a thread of `kvstore.aio`, at whichever of its own steps: the call that waits
for it raises or ends, nobody hangs, nothing is lost, and the store can be used and closed.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

import kvstore
import kvstore.aio
from tests.support import inside
from tests.support.stores import SMALL
from tests.support.throwing import Thrower

_PATIENCE: Final = 20
"""Seconds after which somebody hangs."""
FILES: Final = ("kvstore/aio.py", "kvstore/api/loop_pops.py")
"""The modules that work for a loop in threads."""
R = TypeVar("R")


async def _tried(call: Awaitable[R]) -> R | BaseException:
    """The result of a call, or the error that struck it."""
    try:
        return await call
    except (MemoryError, SystemExit) as e:
        return e


async def _cancelled_pop(store: kvstore.aio.Store) -> None:
    """Cancels a pop whose thread has just taken a message."""
    hold, taken = threading.Event(), threading.Event()
    begin = inside.begin_pop(inside.behind(store))

    def slowly(*args: Any) -> Any:
        taken.set()
        hold.wait(_PATIENCE)
        return begin(*args)

    inside.set_begin_pop(inside.behind(store), slowly)
    task = asyncio.create_task(_tried(store.pop("g", "t", invisible_for=0.1, wait=0.2)))
    while not taken.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    inside.set_begin_pop(inside.behind(store), None)
    hold.set()


async def _used(folder: Path, thrower: Thrower) -> None:
    """Every way in which a thread works for the loop, while one is struck."""
    store = await _tried(_opened(folder))
    if isinstance(store, BaseException):
        assert thrower.has_thrown.is_set()
        store = await _opened(folder)
    pops = [asyncio.create_task(_tried(store.pop("g", "t", invisible_for=0.1, wait=0.3)))
            for _ in range(2)]  # fmt: skip
    due = set()
    for body in (b"0", b"1"):
        if not isinstance(await _tried(store.put("t", body)), BaseException):
            due.add(body)
    for popped in await asyncio.gather(*pops):
        assert isinstance(popped, BaseException) or len(popped) <= 1
    await _cancelled_pop(store)
    if not isinstance(await _tried(store.put("t", b"2")), BaseException):
        due.add(b"2")
    while due:
        popped = await _tried(store.pop("g", "t", limit=9, invisible_for=5, wait=0.2))
        for one in () if isinstance(popped, BaseException) else popped:
            await _tried(store.ack(one.receipt))
            due.discard(one.message.body)
    assert isinstance(await _tried(store.bounds("t", 0)), tuple | BaseException)
    assert inside.waiting(inside.behind(store)).topics == {}, "a pop that ended still waits"
    if await _tried(store.close()) is not None:
        await store.close()


async def _opened(folder: Path) -> kvstore.aio.Store:
    store = await kvstore.aio.open(folder, SMALL, threads=1)
    if not await store.topics():
        await store.create_topic("t", queues=1)
        await store.create_group("g")
    return store


def _struck(folder: Path, thrower: Thrower) -> None:
    with thrower.watching():
        asyncio.run(asyncio.wait_for(_used(folder, thrower), _PATIENCE))
    with kvstore.open(folder) as store:
        assert store.verify().problems == []
        assert store.put("t", b"x").offset in (2, 3)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("kvmq-aio", {"look", "call_soon_threadsafe", "result", "end"}),
        ("asyncio", {"shutdown", "close"}),
    ],
    ids=["a call", "closing"],
)
def test_whatever_strikes_a_thread_for_the_loop_nobody_hangs_and_nothing_is_lost(
    tmp_path: Path, name: str, called: set[str]
) -> None:
    watched = Thrower(name)
    _struck(tmp_path / "watched", watched)
    steps = [step for step in watched.steps if step.file in FILES]
    assert {step.called for step in steps} >= called
    cases = itertools.product(steps, (MemoryError, SystemExit))
    for number, (step, error) in enumerate(cases):
        thrower = Thrower(name, step, error)
        try:
            _struck(tmp_path / str(number), thrower)
        except BaseException as e:
            e.add_note(f"{step}: {error}")
            raise
        assert thrower.has_thrown.is_set()
