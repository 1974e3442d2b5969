"""Every file operation of a hand-over and of a merge fails once: no message is lost by it."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import StoreError
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile, faults
from tests.support.files import copy_folder
from tests.tiering.worker.conftest import QUEUES, config, fill, held
from tests.tiering.worker.pools import Here
from tiering import Policy, Worker

DAY: Final = 86_400.0
WARM: Final = Policy(
    hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=0.0, clock_doubt=0.0, merge_bytes=1
)
WORK: Final[dict[str, Callable[[Worker], object]]] = {
    "hand-over": lambda worker: worker.run_once(),
    "merge": lambda worker: worker.merge(target_bytes=1 << 30),
}
ON_DISK: Final = frozenset({"make_dir", "write_new", "write", "write_whole", "rename", "remove"})
"""The kinds of operations that are tried; those that only read have tests of their own."""


@pytest.mark.parametrize("name", WORK)
def test_whatever_operation_fails_every_message_is_there_and_the_next_look_goes_on(
    tmp_path: Path, clock: VirtualClock, name: str
) -> None:
    work = WORK[name]
    begin = tmp_path / "begin"
    with kvstore.open(begin, config(clock)) as store:
        for topic, queues in QUEUES.items():
            store.create_topic(topic, queues=queues)
        fill(store, 60)
        clock.advance(2 * DAY)
        if name == "merge":
            with Worker(store, WARM, executor=Here()) as worker:
                assert worker.run_once().failed == {}
        before = held(store)
    files = EveryFile()
    path = copy_folder(begin, tmp_path / "counted")
    with kvstore.open(path, config(clock, files=files)) as store:
        with Worker(store, WARM, executor=Here()) as worker:
            seen = len(files.effects)
            work(worker)
            counts = Counter(e.kind for e in files.effects[seen:] if e.kind in ON_DISK)
        assert held(store) == before
    cases = list(faults(counts))
    hit = 0
    for fault in cases:
        path = copy_folder(begin, tmp_path / "a")
        files = EveryFile()
        try:
            with kvstore.open(path, config(clock, files=files)) as store:
                with Worker(store, WARM, executor=Here()) as worker:
                    files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
                    with contextlib.suppress(StoreError):
                        work(worker)
                    files.mend()
                    hit += files.failed
                assert held(store) == before
                left = copy_folder(path, tmp_path / "left")
            with kvstore.open(left, config(clock)) as store:
                assert held(store) == before
                with Worker(store, WARM, executor=Here()) as worker:
                    work(worker)
                assert held(store) == before
                assert store.verify().problems == []
        except BaseException as e:
            e.add_note(f"{name}: {fault}")
            raise
        shutil.rmtree(path)
        shutil.rmtree(left)
    assert hit > len(cases) // 2
