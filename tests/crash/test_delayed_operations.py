"""Every file operation fails once while messages are delivered, cancelled and changed, and the
power is cut before each: each message comes once, or never if the call said that it was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from kvstore import Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.stores import killed, opened, settings
from tests.support.striking import cut_at_each_effect, strike_each_operation

COUNT: Final = 40
SIZE: Final = 5000
"""Bytes of a body: what is delivered needs two more segments."""
FAR: Final = 5000.0
LATER: Final = 10_000.0


def name_of(number: int) -> bytes:
    return (b"%d " % number).ljust(SIZE, b"x")


def deliver(store: Store, clock: VirtualClock) -> None:
    """The first half comes."""
    clock.advance(1000)
    inside.deliver_due(store)


def cancel(store: Store, clock: VirtualClock) -> None:
    """The last one is cancelled."""
    assert store.cancel(str(COUNT - 1))


def change(store: Store, clock: VirtualClock) -> None:
    """The last one waits for another time."""
    store.change_delay(str(COUNT - 1), delay=FAR + 500)


def checkpoint(store: Store, clock: VirtualClock) -> None:
    """Some come, one is cancelled, and the index has it all."""
    deliver(store, clock)
    cancel(store, clock)
    store.checkpoint()


PATHS: Final = {work.__name__: work for work in (deliver, cancel, change, checkpoint)}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it: some messages wait in rows, others only in the log."""
    path = tmp_path_factory.mktemp("before")
    with opened(path / "a", settings(clock=VirtualClock())) as store:
        for number in range(COUNT):
            delay = FAR if number >= COUNT // 2 else 100 + number
            store.put("t", name_of(number), queue=0, delay=delay, message_id=str(number))
            if number == COUNT // 4:
                store.checkpoint()
        return killed(store, path / "b")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("strike", [strike_each_operation, cut_at_each_effect])
def test_whatever_operation_fails_each_message_comes_once(
    tmp_path: Path, before: Path, name: str, strike: Callable[..., None]
) -> None:
    strike(before, tmp_path, PATHS[name], partial(check, name))


def check(
    name: str, store: Store, clock: VirtualClock, *, was_done: bool | None, is_last: bool
) -> None:
    """Later, all came once, in order, but for the cancelled one."""
    clock.advance(LATER)
    inside.deliver_due(store)
    found = [int(m.body.split(b" ")[0]) for m in assert_whole(store)[("t", 0)]]
    assert store.timers().count == 0
    is_cancelled = name in ("cancel", "checkpoint")
    if name == "checkpoint" or was_done is None:
        # The work may have been done, and then the call failed.
        is_cancelled &= bool(was_done) or found[-1] != COUNT - 1
    elif not was_done:
        is_cancelled = False
    assert found == list(range(COUNT - is_cancelled))
