"""Whatever strikes a schedule's step, or a call on a schedule: each message comes once.

At each step the folder is copied as a killed process would leave it, and then an exception strikes.
Both must go on: the store that was struck, and the copy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed, opened, settings
from tests.support.striking import cut_at_each_effect, strike_each_operation
from tests.support.throwing import Error, Thrower, some
from tests.support.waiting import PATIENCE, until

STEPS: Final = 40
EVERY: Final = 10_000


def _copying(store: list[Store], target: Path, error: Error) -> Error:
    """Makes the error when the process has been killed, as far as a copy of the folder knows."""

    def strike() -> BaseException:
        if store:
            killed(store[0], target)
        return error()

    return strike


def _times(store: Store, queue: int) -> list[int]:
    found = store.pull("t", queue, 0, limit=1000).messages
    return [int(m.properties["SCHEDULED_AT"]) for m in found]


def _assert_goes_on(store: Store, clock: VirtualClock, begin: int) -> None:
    """The times of both schedules came once each, and go on to do so."""
    for _ in range(3):
        clock.advance(10)
        inside.deliver_due(store)
    last = begin + (clock.now_ms() - begin) // EVERY * EVERY
    assert _times(store, 0) == list(range(begin + EVERY, last + 1, EVERY))
    newest = _times(store, 1)
    assert newest == sorted(set(newest))
    assert newest[-3:] == list(range(last - 2 * EVERY, last + 1, EVERY))
    waiting = [one.deliver_at for one in store.timers().messages]
    assert waiting == [last + EVERY, last + EVERY]
    assert not store.verify().problems


def _fire(folder: Path, thrower: Thrower, clock: VirtualClock, opening: list[Store]) -> None:
    """Schedules put their messages, while the thread that delivers them is struck."""
    config = settings(clock=clock)
    begin = clock.now_ms()
    with thrower.watching(), opened(folder, config) as store:
        opening.append(store)
        store.schedule("each", "t", b"", every=10, queue=0, missed="all")
        store.schedule("newest", "t", b"", every=10, queue=1, missed="once")
        for n in range(1, 4):
            clock.advance(10)
            until(lambda n=n: len(_times(store, 0)) == n or clock.advance(0.01))  # type: ignore[func-returns-value]
        _assert_goes_on(store, clock, begin)
        opening.clear()


def test_whatever_strikes_a_step_each_message_of_a_schedule_comes_once(tmp_path: Path) -> None:
    watched = Thrower("kvmq-delivery")
    _fire(tmp_path / "watched", watched, VirtualClock(), [])
    assert {step.called for step in watched.steps} >= {
        "settle", "fire", "write_times", "prepare", "append", "prepare_copies", "fired",
    }  # fmt: skip
    struck = copied = 0
    for number, (step, error) in enumerate(some(watched.steps, STEPS)):
        clock, store = VirtualClock(), list[Store]()
        begin, copy = clock.now_ms(), tmp_path / f"{number} killed"
        thrower = Thrower("kvmq-delivery", step, _copying(store, copy, error))
        _fire(tmp_path / str(number), thrower, clock, store)
        struck += thrower.has_thrown.is_set()
        if copy.exists():
            with kvstore.open(copy, settings(clock=clock)) as again:
                if len(again.schedules()) == 2:
                    copied += 1
                    _assert_goes_on(again, clock, begin)
    assert struck >= STEPS // 2
    assert copied >= STEPS // 4


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with both schedules, as a kill leaves it; the index has what waits."""
    path = tmp_path_factory.mktemp("before")
    with opened(path / "a", settings(clock=VirtualClock())) as store:
        store.schedule("each", "t", b"", every=10, queue=0, missed="all")
        store.schedule("newest", "t", b"", every=10, queue=1, missed="once")
        store.checkpoint()
        return killed(store, path / "b")


def _three_times(store: Store, clock: VirtualClock) -> None:
    for _ in range(3):
        clock.advance(10)
        inside.deliver_due(store)


def _still_goes_on(
    store: Store, clock: VirtualClock, *, was_done: bool | None, is_last: bool
) -> None:
    _assert_goes_on(store, clock, VirtualClock().now_ms())


@pytest.mark.parametrize(
    "strike",
    [strike_each_operation, cut_at_each_effect, partial(cut_at_each_effect, flush="async")],
)
def test_whatever_operation_fails_each_message_of_a_schedule_comes_once(
    tmp_path: Path, before: Path, strike: Callable[..., None]
) -> None:
    strike(before, tmp_path, _three_times, _still_goes_on)


CALLS: Final[dict[str, Callable[[Store], Any]]] = {
    "schedule": lambda store: store.schedule("s", "t", b"", every=10, queue=0),
    "pause_schedule": lambda store: store.pause_schedule("s"),
    "resume_schedule": lambda store: store.resume_schedule("s"),
    "delete_schedule": lambda store: store.delete_schedule("s"),
}


def _call(
    folder: Path, call: str, thrower: Thrower, clock: VirtualClock, opening: list[Store]
) -> None:
    """Makes a call, which is struck."""
    with opened(folder, settings(clock=clock)) as store:
        if call != "schedule":
            store.schedule("s", "t", b"", every=10, queue=0)
        if call == "resume_schedule":
            store.pause_schedule("s")
        opening.append(store)

        def caller() -> None:
            with contextlib.suppress(BaseException):
                CALLS[call](store)

        with thrower.watching():
            thread = threading.Thread(target=caller, name="caller")
            thread.start()
            thread.join(PATIENCE)
        opening.clear()
        _assert_whole(store, clock)


def _assert_whole(store: Store, clock: VirtualClock) -> None:
    """A message waits for the schedule if that is there and not paused, and comes; else none."""
    inside.deliver_due(store)
    is_active = any(not one.is_paused for one in store.schedules())
    assert store.timers().count == is_active
    clock.advance(10)
    inside.deliver_due(store)
    assert _times(store, 0) == ([clock.now_ms()] if is_active else [])
    assert store.timers().count == is_active
    for one in store.schedules():
        store.delete_schedule(one.name)
    assert store.timers().count == 0


@pytest.mark.parametrize("call", CALLS)
def test_whatever_strikes_a_call_its_schedule_is_whole(tmp_path: Path, call: str) -> None:
    watched = Thrower("caller")
    _call(tmp_path / "watched", call, watched, VirtualClock(), [])
    for number, (step, error) in enumerate(some(watched.steps, STEPS)):
        clock, store = VirtualClock(), list[Store]()
        copy = tmp_path / f"{number} killed"
        thrower = Thrower("caller", step, _copying(store, copy, error))
        _call(tmp_path / str(number), call, thrower, clock, store)
        if copy.exists():
            with kvstore.open(copy, settings(clock=VirtualClock())) as again:
                _assert_whole(again, again.config.clock)  # type: ignore[arg-type]
