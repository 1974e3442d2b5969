"""Every file operation fails once while messages are delivered, cancelled and changed.

As in `test_every_operation`: a path is done once to count its operations; then again for the first,
the middle and the last use of each kind, which fails with EIO, with ENOSPC, or after half of a
write. Whatever fails, each message comes once, or never if the call said that it was cancelled.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import FlushFailed, Store, StoreConfig, StoreError
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.everyfile import EveryFile, faults
from tests.support.stores import killed, opened, settings

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


def config(files: EveryFile, clock: VirtualClock) -> StoreConfig:
    return settings(files=files, clock=clock, flush="sync", checkpoint_interval=1e9)


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
def test_whatever_operation_fails_each_message_comes_once(
    tmp_path: Path, before: Path, name: str
) -> None:
    files, clock = EveryFile(), VirtualClock()
    path = shutil.copytree(before, tmp_path / "counted")
    with kvstore.open(path, config(files, clock)) as store:
        begin = len(files.effects)
        PATHS[name](store, clock)
        counts = Counter(e.kind for e in files.effects[begin:])
    hit, cases = 0, list(faults(counts))
    for number, fault in enumerate(cases):
        path = shutil.copytree(before, tmp_path / str(number))
        files, clock = EveryFile(), VirtualClock()
        store = kvstore.open(path, config(files, clock))
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        try:
            was_done = done(store, clock, PATHS[name])
            files.mend()
            if inside.log(store).failure is None:
                # It goes on as soon as the disk does.
                check(store, clock, name, was_done=was_done)
            with contextlib.suppress(FlushFailed):
                store.close()
            clock = VirtualClock()
            with opened(path, settings(clock=clock)) as store:
                check(store, clock, name, was_done=was_done)
        except BaseException as e:
            e.add_note(f"{name}: {fault}")
            raise
        hit += files.failed
        shutil.rmtree(path)
    assert hit > len(cases) // 2


def done(
    store: Store, clock: VirtualClock, work: Callable[[Store, VirtualClock], object]
) -> bool | None:
    """Whether the work was done; None if that is not known, since a flush failed."""
    try:
        work(store, clock)
    except FlushFailed:
        return None
    except StoreError:
        return None if inside.log(store).failure else False
    return True


def check(store: Store, clock: VirtualClock, name: str, *, was_done: bool | None) -> None:
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
