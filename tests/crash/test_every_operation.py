"""Every file operation, on each path, fails once: what was acknowledged is there, and nothing else.

A path is something that a store does. It is done once to count its operations by kind; then again
for the first, the middle and the last use of each kind, which fails with EIO, with ENOSPC, or after
half of a write. The store may raise errors of its own only; it holds what it acknowledged, leaves a
folder that holds the same after a power cut, and takes puts again as soon as the disk does.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

import kvstore
from kvstore import FlushFailed, Retention, Store, StoreConfig, StoreError
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, read_all
from tests.support.everyfile import EveryFile, Fault, faults
from tests.support.files import every, none
from tests.support.stores import SEGMENT, body, killed, message, opened, put, settings

SIZE: Final = 700
HELD: Final = 130
"""Messages in the store before the path begins: a segment and a half."""


class Done(NamedTuple):
    """The path's work: `put` is how many messages more there are then."""

    work: Callable[[Store], object]
    put: int = 0
    first: int = 0
    """How many messages are put before that, and not flushed."""
    drops: bool = False
    """Whether the first messages go."""
    changed: Mapping[str, Any] = MappingProxyType({})
    """Settings."""


def batch(count: int) -> Done:
    return Done(
        lambda store: store.put_batch([message(n, SIZE) for n in range(HELD, HELD + count)]), count
    )


PATHS: Final = {
    "put": Done(lambda store: put(store, HELD, 1, SIZE), 1),
    "a batch": batch(30),
    "a batch over a border": batch(100),
    "a staged batch over a border": batch(100)._replace(changed={"write_mode": "staged"}),
    "flush": Done(lambda store: store.flush(), first=3),
    "checkpoint": Done(lambda store: store.checkpoint(), first=3),
    "seal": Done(lambda store: store.seal(), first=3),
    "retention": Done(
        lambda store: store.apply_retention(),
        drops=True,
        changed={"retention": Retention(max_bytes=SEGMENT)},
    ),
    "erasing retention": Done(
        lambda store: store.apply_retention(),
        drops=True,
        changed={"retention": Retention(max_bytes=SEGMENT), "secure_erase": True},
    ),
    "close": Done(lambda store: store.close(), first=3),
}


def config(files: EveryFile, done: Done) -> StoreConfig:
    return settings(
        files=files,
        clock=VirtualClock(),
        flush="async" if done.first else "sync",
        checkpoint_interval=1e9,
        retention_interval=1e9,
        **done.changed,
    )


def assert_holds(store: Store, held: int, maybe: int, done: Done) -> None:
    """The first `held` messages are there, but for the first ones where the path drops some; and
    up to `maybe` behind them, whose put was refused by a failed sync.
    """
    found = (read_all if inside.log(store).failure else assert_whole)(store).get(("t", 0), [])
    first, behind = store.bounds("t", 0)
    assert len(found) == behind - first
    assert done.drops or first == 0
    assert held <= behind <= held + maybe
    assert [m.body for m in found] == [body(m.offset, SIZE) for m in found]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it: the log goes on behind the checkpoint."""
    path = tmp_path_factory.mktemp("before")
    with opened(path / "a") as store:
        put(store, 0, 20, SIZE)
        store.checkpoint()
        put(store, 20, HELD - 20, SIZE)
        return killed(store, path / "b")


@pytest.mark.parametrize("name", PATHS)
def test_whatever_operation_fails_what_was_acknowledged_is_there_and_nothing_else(
    tmp_path: Path, before: Path, name: str
) -> None:
    done = PATHS[name]
    counts = Counter(counted(shutil.copytree(before, tmp_path / "counted"), done))
    hit = 0
    cases = list(faults(counts))
    for number, fault in enumerate(cases):
        path = shutil.copytree(before, tmp_path / str(number))
        try:
            hit += check(path, done, fault, tmp_path / f"{number}-left", number)
        except BaseException as e:
            e.add_note(f"{name}: {fault}")
            raise
        shutil.rmtree(path)
    # The housekeeper may do, at another time, what the path did when it was counted.
    assert hit > len(cases) // 2


def make_next_segment(store: Store) -> None:
    """Else the housekeeper makes it at a time of its own, now and then amid the path."""
    log = inside.log(store)
    if log.needs_next():
        log.prepare_next()


def counted(path: Path, done: Done) -> list[str]:
    files = EveryFile()
    with kvstore.open(path, config(files, done)) as store:
        put(store, HELD, done.first, SIZE)
        make_next_segment(store)
        begin = len(files.effects)
        done.work(store)
        return [e.kind for e in files.effects[begin:]]


def check(path: Path, done: Done, fault: Fault, left: Path, number: int) -> int:
    """Returns how often the fault happened."""
    files = EveryFile()
    store = kvstore.open(path, config(files, done))
    held, maybe = HELD + done.first, 0
    put(store, HELD, done.first, SIZE)
    make_next_segment(store)
    files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
    try:
        done.work(store)
        held += done.put
    except StoreError as e:
        maybe = done.put * isinstance(e, FlushFailed)
    files.mend()
    if not inside.engine(store).is_closed:
        assert_holds(store, held, maybe, done)
        files.power_cut(path, left, every if done.first or number % 2 else none)
        with opened(left) as found:
            assert_holds(found, held, maybe, done)
        shutil.rmtree(left)
        with contextlib.suppress(FlushFailed):
            assert put(store, held, 1, SIZE)[0].offset == held
            held += 1
        with contextlib.suppress(FlushFailed):
            store.close()
    with opened(path) as found:
        assert_holds(found, held, maybe, done)
    return files.failed


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_whatever_operation_of_an_opening_fails_the_next_one_finds_all(
    tmp_path: Path, before: Path, mode: str
) -> None:
    opening = Done(lambda store: None, changed={"write_mode": mode})
    files = EveryFile()
    path = shutil.copytree(before, tmp_path / "counted")
    kvstore.open(path, config(files, opening)).close()
    for fault in faults(Counter(files.kinds())):
        path = shutil.copytree(before, tmp_path / "a")
        files = EveryFile()
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        try:
            with contextlib.suppress(StoreError):
                kvstore.open(path, config(files, opening)).close()
            assert sum(files.open_maps.values()) == 0
            with opened(path) as found:
                assert_holds(found, HELD, 0, opening)
        except BaseException as e:
            e.add_note(str(fault))
            raise
        shutil.rmtree(path)
