"""`kvstore.aio`: the same calls, and pops that wait without a thread."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    CallerError,
    FilterIllegal,
    GroupNotFound,
    Message,
    Namespace,
    Popped,
    Store,
    StoreClosed,
    StoreConfig,
    StoreLocked,
    StoreReadOnly,
    TopicNotFound,
)
from tests.support import inside, inside_pops
from tests.support.popping import bodies

SMALL = StoreConfig(segment_size=64 << 10)
SOON = 5.0
"""Seconds: what nothing here should take."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs a coroutine function with a store: topic "t" of two queues, group "g"."""

    def run(test: Callable[[kvstore.aio.Store], Awaitable[Any]], **settings: Any) -> Any:
        async def main() -> Any:
            async with kvstore.aio.open(tmp_path / "s", SMALL, **settings) as store:
                await store.create_topic("t", queues=2)
                await store.create_group("g")
                return await test(store)

        return asyncio.run(asyncio.wait_for(main(), 60))

    return run


async def waiting(store: kvstore.aio.Store, count: int) -> None:
    """Return when so many pops wait."""
    while len(inside.bells(store)) != count:
        await asyncio.sleep(0.001)


def waiters(store: kvstore.aio.Store) -> int:
    return sum(len(table.waiters) for table in tables(store))


def tables(store: kvstore.aio.Store) -> list[Any]:
    return list(inside_pops.kept_tables(inside.tables(inside.behind(store))).values())


def test_every_call_of_a_store_is_there_with_its_signature() -> None:
    for mine, theirs in ((kvstore.aio.Store, Store), (kvstore.aio.Namespace, Namespace)):
        for name, _ in inspect.getmembers(theirs, inspect.isfunction):
            if name.startswith("_") or name in ("namespace", "transaction", "consume"):
                continue
            found = getattr(mine, name, None)
            assert found is not None, f"kvstore/aio.py needs {name} = _awaited(SyncStore.{name})"
            assert inspect.iscoroutinefunction(inspect.unwrap(found, stop=lambda f: True))
            assert found.__doc__
    assert inspect.signature(kvstore.aio.Store.pop) == inspect.signature(Store.pop)
    assert inspect.signature(kvstore.aio.Store.put) == inspect.signature(Store.put)
    consume = (inspect.signature(each.consume).parameters for each in (kvstore.aio.Store, Store))
    first, second = ({p.name: p.default for p in given.values()} for given in consume)
    assert first == second


def test_a_message_goes_through(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        put = await store.put("t", b"x", queue=1, tag="a")
        assert (await store.get("t", queue=1, offset=put.offset)).body == b"x"
        (popped,) = await store.pop("g", "t", limit=10)
        receipt = await store.change_invisible(popped.receipt, 60)
        await store.ack(receipt)
        assert await store.pop("g", "t") == []
        assert (await store.stats()).topics == 1
        assert store.path.name == "s"
        assert store.config.segment_size == SMALL.segment_size
        assert store.recovery.records == 0

    run(test)


def test_errors_are_those_of_the_store(run: Callable[..., Any], tmp_path: Path) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        for wait in (0.0, 1.0):
            with pytest.raises(TopicNotFound):
                await store.pop("g", "nowhere", wait=wait)
            with pytest.raises(GroupNotFound):
                await store.pop("nobody", "t", wait=wait)
            with pytest.raises(FilterIllegal):
                await store.pop("g", "t", filter="amount > 5", wait=wait)
            with pytest.raises(CallerError):
                await store.pop("g", "t", limit=0, wait=wait)
        for wrong in (-1, "1", True, float("nan")):
            with pytest.raises(CallerError, match="wait"):
                await store.pop("g", "t", wait=wrong)  # type: ignore[arg-type]  # the point
        with pytest.raises(StoreLocked):
            await kvstore.aio.open(tmp_path / "s")
        async with kvstore.aio.open(tmp_path / "s", read_only=True) as reader:
            with pytest.raises(StoreReadOnly):
                await reader.pop("g", "t", wait=1)
        assert waiters(store) == 0

    run(test)
    for threads in (0, -1, 1.5, 10_000):
        with pytest.raises(CallerError, match="threads"):
            kvstore.aio.open(tmp_path / "s", threads=threads)  # type: ignore[arg-type]  # as above


def test_a_put_wakes_a_pop(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        task = asyncio.create_task(store.pop("g", "t", wait=60))
        await waiting(store, 1)
        begin = time.monotonic()
        await store.put("t", b"x")
        assert bodies(await task) == [b"x"]
        assert time.monotonic() - begin < SOON
        assert (waiters(store), inside.bells(store), inside.alarms(store)) == (0, set(), {})

    run(test)


def test_a_lock_that_runs_out_wakes_a_pop(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.put_batch([Message("t", b"x") for _ in range(10)])
        taken = await store.pop("g", "t", limit=10, invisible_for=0.3)
        tasks = [asyncio.create_task(store.pop("g", "t", wait=60)) for _ in range(10)]
        await waiting(store, 10)
        assert len(inside.alarms(store)) == 1
        for task in tasks:
            (popped,) = await task
            assert popped.attempt == 2
        late = time.time() * 1000 - taken[0].due_at
        assert 0 <= late < SOON * 1000
        assert (waiters(store), inside.alarms(store)) == (0, {})

    run(test)


def test_a_lock_that_ends_sooner_than_the_first_one_seen(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.put("t", b"a")
        (first,) = await store.pop("g", "t", invisible_for=600)
        tasks = [asyncio.create_task(store.pop("g", "t", wait=60)) for _ in range(3)]
        await waiting(store, 3)
        await store.change_invisible(first.receipt, 0.2)
        done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies(task.result()) for task in done] == [[b"a"]]
        for task in late:
            task.cancel()

    run(test)


def test_a_match_behind_many_that_are_none_is_found(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        many = [Message("t", b"no", queue=0, tag="no") for _ in range(3000)]
        await store.put_batch([*many, Message("t", b"yes", queue=0, tag="yes")])
        begin = time.monotonic()
        assert bodies(await store.pop("g", "t", filter="yes", wait=60)) == [b"yes"]
        await store.create_group("h")
        found = await asyncio.to_thread(inside.behind(store).pop, "h", "t", filter="yes", wait=60)
        assert bodies(found) == [b"yes"]
        assert time.monotonic() - begin < SOON

    run(test)


def test_what_is_due_in_another_queue_keeps_nobody_busy(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.put("t", b"x", queue=0)
        (popped,) = await store.pop("g", "t")
        await store.change_invisible(popped.receipt, 0)
        begin = time.process_time()
        waits = asyncio.to_thread(inside.behind(store).pop, "g", "t", queue=1, wait=1)
        found = list(await asyncio.gather(waits, store.pop("g", "t", queue=1, wait=1)))
        assert found == [[], []]
        assert time.process_time() - begin < 0.5
        # Nor does it keep anybody from what comes to his own.
        task = asyncio.create_task(store.pop("g", "t", queue=1, wait=60))
        await waiting(store, 1)
        await store.put("t", b"y", queue=1)
        assert bodies(await task) == [b"y"]

    run(test)


def test_a_pop_ends_with_its_time(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        begin = time.monotonic()
        assert await store.pop("g", "t", wait=0.2) == []
        assert 0.2 <= time.monotonic() - begin < SOON
        assert waiters(store) == 0

    run(test)


def test_thousands_of_pops_wait_without_threads(run: Callable[..., Any]) -> None:
    count = 2_000

    async def test(store: kvstore.aio.Store) -> None:
        before = threading.active_count()
        tasks = [asyncio.create_task(store.pop("g", "t", wait=600)) for _ in range(count)]
        await waiting(store, count)
        assert threading.active_count() - before <= 4
        for begin in range(0, count, 1000):
            await store.put_batch([Message("t", str(begin + i).encode()) for i in range(1000)])
        found = await asyncio.gather(*tasks)
        assert {body for popped in found for body in bodies(popped)} == {
            str(i).encode() for i in range(count)
        }
        assert waiters(store) == 0

    run(test, threads=4)


def test_a_cancelled_pop_that_waits_leaves_no_waiter(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.pop("g", "t", wait=60), 0.05)
        assert (waiters(store), inside.bells(store)) == (0, set())
        await store.put("t", b"x")
        (popped,) = await store.pop("g", "t")
        assert popped.attempt == 1

    run(test)


def test_what_a_cancelled_pop_took_is_given_back_uncounted(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.alter_group("g", max_attempts=1)  # a second attempt would be a dead letter
        await store.put_batch([Message("t", b"x", queue=0), Message("t", b"y", queue=0)])
        hold, taken = threading.Event(), threading.Event()
        begin = inside.begin_pop(inside.behind(store))

        def slowly(*args: Any) -> Any:
            found = begin(*args)
            taken.set()
            hold.wait(SOON)
            return found

        inside.set_begin_pop(inside.behind(store), slowly)
        task = asyncio.create_task(store.pop("g", "t", limit=2, invisible_for=600, wait=60))
        await asyncio.to_thread(taken.wait, SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        inside.set_begin_pop(inside.behind(store), None)
        hold.set()
        found: list[Popped] = []
        while len(found) < 2:
            found += await store.pop("g", "t", limit=2, wait=SOON)
        assert sorted(bodies(found)) == [b"x", b"y"]
        assert [p.attempt for p in found] == [1, 1]
        assert waiters(store) == 0

    run(test)


def test_a_pop_with_an_attempt_id_keeps_what_it_took(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.put("t", b"x")
        done = threading.Event()
        begin = inside.begin_pop(inside.behind(store))

        def noted(*args: Any) -> Any:
            found = begin(*args)
            done.set()
            return found

        inside.set_begin_pop(inside.behind(store), noted)
        task = asyncio.create_task(store.pop("g", "t", attempt_id="1"))
        while not done.is_set():
            await asyncio.sleep(0)
        cancelled = task.cancel()
        first = await asyncio.gather(task, return_exceptions=True)
        assert cancelled == isinstance(first[0], asyncio.CancelledError)
        assert await store.pop("g", "t") == []
        assert bodies(await store.pop("g", "t", attempt_id="1")) == [b"x"]

    run(test)


def test_no_message_is_lost_or_doubled_by_cancelling(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        count, done = 400, set[bytes]()
        await store.put_batch([Message("t", str(i).encode()) for i in range(count)])

        async def worker(number: int) -> None:
            turn = 0
            while len(done) < count:
                turn += 1
                # Mostly too short: the pop is cancelled anywhere between its beginning and its end.
                limit = 0.0002 * (turn % 8 + number)
                try:
                    pop = store.pop("g", "t", limit=4, invisible_for=60, wait=1.0)
                    found = await asyncio.wait_for(pop, limit)
                except TimeoutError:
                    continue
                for popped in found:
                    assert popped.message.body not in done
                    done.add(popped.message.body)
                    await store.ack(popped.receipt)

        await asyncio.gather(*(worker(number) for number in range(1, 9)))
        assert waiters(store) == 0

    run(test)


def test_closing_wakes_everybody(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        await store.put("t", b"x")
        await store.pop("g", "t", invisible_for=60)  # so that there is an alarm, too
        tasks = [asyncio.create_task(store.pop("g", "t", wait=60)) for _ in range(100)]
        await waiting(store, 100)
        late = asyncio.create_task(store.pop("g", "t", wait=60))
        await asyncio.sleep(0)
        begin = time.monotonic()
        await store.close()
        found = await asyncio.gather(*tasks, late, return_exceptions=True)
        assert {type(error) for error in found} == {StoreClosed}
        assert time.monotonic() - begin < SOON
        for call in (store.put("t", b"y"), store.pop("g", "t"), store.topics()):
            with pytest.raises(StoreClosed):
                await call
        await store.close()

    run(test)


def test_closing_the_store_beneath_wakes_everybody(tmp_path: Path) -> None:
    """Threads that wait learn it just so."""
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("t")
        store.create_group("g")
        errors: list[BaseException] = []

        def pop() -> None:
            try:
                store.pop("g", "t", wait=60)
            except StoreClosed as e:
                errors.append(e)

        threads = [threading.Thread(target=pop) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not inside.waiting(store).topics:
            time.sleep(0.001)
        store.close()
        for thread in threads:
            thread.join(SOON)
        assert len(errors) == 3


def test_an_opening_may_be_awaited_and_fails_as_the_store_does(tmp_path: Path) -> None:
    async def main() -> None:
        store = await kvstore.aio.open(tmp_path / "s", SMALL)
        async with store:
            assert "kvstore.aio.Store" in repr(store)
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(kvstore.StoreNotFound):
            await kvstore.aio.open(tmp_path / "file")
        # One that is cancelled lets go of the folder.
        opening = asyncio.ensure_future(kvstore.aio.open(tmp_path / "s", SMALL))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        for _ in range(500):
            try:
                async with kvstore.aio.open(tmp_path / "s", SMALL):
                    return
            except StoreLocked:
                await asyncio.sleep(0.01)
        pytest.fail("the folder stays locked")

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before


def test_a_namespace_has_the_same_calls(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        view = store.namespace("ns")
        await view.create_topic("t", queues=1)
        await view.create_group("g")
        assert [t.name for t in await view.topics()] == ["t"]
        task = asyncio.create_task(view.pop("g", "t", wait=60))
        await waiting(store, 1)
        await view.put("t", b"x")
        (popped,) = await task
        assert (popped.message.body, popped.message.topic) == (b"x", "t")
        await view.ack(popped.receipt)
        assert await store.pop("g", "t") == []
        assert await view.redrive("g") == 0
        assert "ns" in repr(view)

    run(test)


def test_puts_share_a_sync(run: Callable[..., Any]) -> None:
    async def test(store: kvstore.aio.Store) -> None:
        results = await asyncio.gather(*(store.put("t", b"x") for _ in range(50)))
        assert len({(r.queue, r.offset) for r in results}) == 50

    run(test)


def test_asyncio_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, kvstore; assert 'asyncio' not in sys.modules; kvstore.aio.open"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
