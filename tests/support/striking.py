"""Some work on a store, struck at each of its file operations, or with the power cut before each.

The idea: a test gives a folder as a kill leaves it, the work, and what must hold behind it. The
work is done once to count its operations; then again for the first, the middle and the last use of
each kind, which fails with EIO, with ENOSPC, or after half of a write. Or it is done once, and
before each effect the folder is copied as a disk may hold it after a power cut: with all pages,
with those alone that were synced, or with some of the others; and with the index as it is or
without its last writes.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import kvstore
from kvstore import FlushFailed, Store, StoreConfig, StoreError
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile, faults
from tests.support.files import Effect, Page, WatchedFiles, copy_folder, every, none
from tests.support.stores import opened, settings

Work = Callable[[Store, VirtualClock], object]


class Check(Protocol):
    """Whether a store is as it must be behind some work."""

    def __call__(
        self, store: Store, clock: VirtualClock, *, was_done: bool | None, is_last: bool
    ) -> None:
        """`was_done` None: that is not known. `is_last`: the store is asked no more."""
        ...


def _first_half(pages: list[Page]) -> list[Page]:
    """The dirty pages that stand first reached the disk."""
    return pages[: len(pages) // 2]


def quiet(
    files: WatchedFiles, clock: VirtualClock, flush: Literal["sync", "async"] = "sync"
) -> StoreConfig:
    """Settings with which nothing happens by itself, and each put waits for the disk."""
    return settings(
        files=files, clock=clock, flush=flush, flush_interval=1e9, checkpoint_interval=1e9
    )


def strike_each_operation(before: Path, folder: Path, work: Work, check: Check) -> None:
    """Every file operation of the work fails once, see the module. The store that was struck is
    checked as soon as the disk is well again, and so is the next opening.
    """
    files, clock = EveryFile(), VirtualClock()
    path = shutil.copytree(before, folder / "counted")
    with kvstore.open(path, quiet(files, clock)) as store:
        begin = len(files.effects)
        work(store, clock)
        counts = Counter(e.kind for e in files.effects[begin:])
    hit, cases = 0, list(faults(counts))
    for number, fault in enumerate(cases):
        path = shutil.copytree(before, folder / str(number))
        files, clock = EveryFile(), VirtualClock()
        store = kvstore.open(path, quiet(files, clock))
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        try:
            was_done = _done(store, clock, work)
            files.mend()
            if inside.log(store).failure is None:
                # It goes on as soon as the disk does.
                check(store, clock, was_done=was_done, is_last=False)
            with contextlib.suppress(FlushFailed):
                store.close()
            clock = VirtualClock(clock.now_ms())
            with opened(path, settings(clock=clock)) as store:
                check(store, clock, was_done=was_done, is_last=True)
        except BaseException as e:
            e.add_note(str(fault))
            raise
        hit += files.failed
        shutil.rmtree(path)
    # A thread may do, at another time, what the work did when it was counted.
    assert hit > len(cases) // 2


def _done(store: Store, clock: VirtualClock, work: Work) -> bool | None:
    """Whether the work was done; None if that is not known, since a flush failed."""
    try:
        work(store, clock)
    except FlushFailed:
        return None
    except StoreError:
        return None if inside.log(store).failure else False
    return True


def cut_at_each_effect(
    before: Path,
    folder: Path,
    work: Work,
    check: Check,
    *,
    flush: Literal["sync", "async"] = "sync",
) -> None:
    """The power is cut before each effect of the work, and behind it, see the module. With `flush`
    "async" nothing that is put is promised.
    """
    files, clock = WatchedFiles(), VirtualClock()
    path = shutil.copytree(before, folder / "store")
    cuts: list[tuple[Path, Effect | None]] = []
    one_at_a_time = threading.Lock()
    with kvstore.open(path, quiet(files, clock, flush)) as store:
        older = copy_folder(path / "index", folder / "older index")

        def cut(effect: Effect | None) -> None:
            if effect is not None and effect.kind == "map":
                return  # it changes nothing
            with one_at_a_time:
                for keep in (none, every, _first_half):
                    for index in (None, older):
                        target = folder / f"cut {len(cuts)}"
                        cuts.append((files.power_cut(path, target, keep, index=index), effect))

        files.before = cut
        work(store, clock)
        files.before = lambda _: None
        cut(None)
    assert len(cuts) > 4, "the work has no effect"
    for left, effect in cuts:
        now = VirtualClock(clock.now_ms())
        try:
            with opened(left, settings(clock=now)) as store:
                is_promised = effect is None and flush == "sync"
                check(store, now, was_done=is_promised or None, is_last=True)
        except BaseException as e:
            e.add_note(f"{left.name}: before {effect}")
            raise
