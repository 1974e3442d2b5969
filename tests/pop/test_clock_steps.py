"""A wall clock that is set forward lets locks run out, and wakes waiting pops."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Final

import pytest

import kvstore
import kvstore.aio
from kvstore import Message, Popped, Store, StoreConfig
from kvstore.clock import SystemClock

LONG: Final = 20.0
SOON: Final = 5.0
HOUR: Final = 3_600_000


class SteppedClock(SystemClock):
    """The system's, whose wall clock a test steps; counts the waits."""

    def __init__(self) -> None:
        self.ahead = 0
        self.waits = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits += 1
        return super().wait(event, seconds)


def make(path: Path, clock: SteppedClock) -> Store:
    store = kvstore.open(path, StoreConfig(segment_size=1 << 20, clock=clock))
    store.create_topic("t", queues=1)
    store.create_group("g")
    store.put_batch([Message("t", b"%d" % n) for n in range(2)])
    assert len(store.pop("g", "t", 2, 3600.0)) == 2
    return store


def test_a_step_of_the_clock_wakes_who_waits(tmp_path: Path) -> None:
    clock = SteppedClock()
    with make(tmp_path / "s", clock) as store:
        found: list[Popped] = []
        waiters = [
            threading.Thread(target=lambda: found.extend(store.pop("g", "t", wait=LONG)))
            for _ in range(2)
        ]
        for waiter in waiters:
            waiter.start()
        time.sleep(0.15)
        begun = time.monotonic()
        clock.ahead += HOUR + 1000
        for waiter in waiters:
            waiter.join(LONG)
        assert time.monotonic() - begun < SOON
        assert sorted(p.message.body for p in found) == [b"0", b"1"]


def test_who_looked_while_the_clock_was_set_back_is_woken_when_it_is_right_again(
    tmp_path: Path,
) -> None:
    clock = SteppedClock()
    with make(tmp_path / "s", clock) as store:
        store.create_topic("other", queues=1)
        store.put("t", b"2")
        assert len(store.pop("g", "t", 1, 3.0)) == 1
        watching = threading.Thread(target=lambda: store.pop("g", "other", wait=LONG))
        watching.start()

        def glanced() -> None:
            before = clock.waits
            while clock.waits < before + 3:
                time.sleep(0.01)

        glanced()
        clock.ahead -= HOUR
        glanced()
        found: list[Popped] = []
        late = threading.Thread(target=lambda: found.extend(store.pop("g", "t", wait=LONG)))
        late.start()
        glanced()
        clock.ahead += HOUR
        late.join(LONG / 2)
        assert [p.message.body for p in found] == [b"2"]
        store.put("other", b"")
        watching.join()
        late.join()


def test_another_keeps_watch_when_who_did_ends_to_wait(tmp_path: Path) -> None:
    clock = SteppedClock()
    with make(tmp_path / "s", clock) as store:
        first = threading.Thread(target=lambda: store.pop("g", "t", wait=0.3))
        first.start()
        time.sleep(0.05)
        found: list[Popped] = []
        other = threading.Thread(target=lambda: found.extend(store.pop("g", "t", wait=LONG)))
        other.start()
        first.join()
        clock.ahead += HOUR + 1000
        begun = time.monotonic()
        other.join(LONG)
        assert time.monotonic() - begun < SOON
        assert len(found) == 1


def test_of_many_who_wait_one_looks_at_the_clock(tmp_path: Path) -> None:
    clock = SteppedClock()
    with make(tmp_path / "s", clock) as store:
        waiters = [
            threading.Thread(target=lambda: store.pop("g", "t", wait=1.0)) for _ in range(30)
        ]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()
        # Each sleeps once or a few times (they wake each other when they leave).
        assert clock.waits < 30 * 4 + 40


@pytest.mark.parametrize("waiters", [1, 20])
def test_a_step_of_the_clock_wakes_coroutines(tmp_path: Path, waiters: int) -> None:
    clock = SteppedClock()
    make(tmp_path / "s", clock).close()

    async def wait() -> list[Popped]:
        config = StoreConfig(segment_size=1 << 20, clock=clock)
        async with kvstore.aio.open(tmp_path / "s", config) as store:
            pops = [asyncio.create_task(store.pop("g", "t", wait=LONG)) for _ in range(waiters)]
            await asyncio.sleep(0.15)
            clock.ahead += HOUR + 1000
            done, late = await asyncio.wait(pops, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
            for pop in late:
                pop.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            return [p for pop in done for p in pop.result()]

    assert asyncio.run(wait())
