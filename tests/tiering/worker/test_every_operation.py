"""Every file operation of a worker's steps, of a restore and of an attach fails once: no message is
lost by it, none that is to go comes back, and the next run does what is left.

All kinds of operations that happen are struck, at their first, middle and last use.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kvstore
import tiering
from kvstore import Retention, Store, StoreError
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile, Fault, spread_faults
from tests.support.files import copy_folder
from tests.tiering.stores import config, fill, filled
from tiering import AttachConflict, Policy, Worker
from tiering.executor.pool import Inline

DAY: Final = 86_400.0
WARM: Final = Policy(
    hot_for=DAY, warm_for=50 * DAY, cold_for=50 * DAY, warm="archive", cold="cold", grace=0.0,
    clock_doubt=0.0, merge_bytes=1,
)  # fmt: skip
SHORT: Final = Retention(warm_for=5 * DAY)
CHANGING: Final = ("expiry", "erasure of archives", "erasure of segments", "attach")
Found = dict[tuple[str, int, int], bytes]
"""Bodies by topic, queue and offset."""


class Work(NamedTuple):
    """A step of a worker, or beside it: `days` after the messages were put. `goes` says which of
    them are to be gone afterwards.
    """

    do: Callable[[Store, Worker, Path], object]
    days: float = 2
    is_archived: bool = True
    goes: Callable[[bytes], bool] = lambda _: False
    change: Callable[[Store], object] = lambda _: None
    """The change to the store before the step, once its messages are archived or sealed."""


def part(store: Store, worker: Worker, _: Path) -> object:
    return worker.part("events")


def attach(store: Store, _: Worker, source: Path) -> object:
    with contextlib.suppress(AttachConflict):  # it is all there already
        tiering.attach(store, source / "archive")
    return None


def put_behind(store: Store) -> None:
    fill(store, 20, first=60, is_sealed=False)


WORK: Final = {
    "hand-over": Work(lambda _, worker, __: worker.run_once(), is_archived=False),
    "cold": Work(lambda _, worker, __: worker.run_once(), days=60),
    "expiry": Work(lambda _, worker, __: worker.run_once(), days=110, goes=lambda _: True),
    "merge": Work(lambda _, worker, __: worker.merge(target_bytes=1 << 30)),
    "parting": Work(part, change=lambda store: store.alter_topic("events", retention=SHORT)),
    "erasure of archives": Work(
        lambda _, worker, __: worker.erase(key="k3"), goes=lambda body: number(body) % 7 == 3
    ),
    "erasure of segments": Work(
        lambda _, worker, __: worker.erase(key="k3"), is_archived=False,
        goes=lambda body: number(body) % 7 == 3, change=put_behind,
    ),
    "attach": Work(attach, change=put_behind),
}  # fmt: skip


def number(body: bytes) -> int:
    """Which message it is, as `fill` writes it."""
    return int(body.split()[1])


def archives_in(store: Store) -> Found:
    found = {}
    for topic in store.topics():
        for queue in range(topic.read_queues):
            at, high = store.bounds(topic.name, queue)
            while at < high:
                page = store.pull(topic.name, queue, at, limit=50)
                found.update({(m.topic, m.queue, m.offset): m.body for m in page.messages})
                at = page.next_offset
    return found


@pytest.fixture
def source(tmp_path: Path, clock: VirtualClock) -> Path:
    """A store of which all is in archives."""
    path = tmp_path / "source"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("attached", queues=2)
        for n in range(80):
            store.put("attached", b"attached %d" % n * 40, queue=n % 2)
        store.seal()
        clock.advance(2 * DAY)
        with Worker(store, WARM, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
        assert store.segments() == []
    return path


def tried(counts: Counter[str], check: Callable[[Fault], int]) -> None:
    """Check faults of each kind of operation; `check` says whether its operation was reached."""
    cases = list(dict.fromkeys(spread_faults(counts)))
    hit = 0
    for fault in cases:
        try:
            hit += check(fault)
        except BaseException as e:
            e.add_note(str(fault))
            raise
    assert hit > len(cases) // 2


@pytest.mark.parametrize("name", WORK)
def test_whatever_operation_fails_every_message_is_there_and_the_next_run_goes_on(
    tmp_path: Path, clock: VirtualClock, source: Path, name: str
) -> None:
    work = WORK[name]
    begin = tmp_path / "begin"
    with filled(begin, clock, 60, days=2) as store:
        if work.is_archived:
            with Worker(store, WARM, executor=Inline()) as worker:
                assert worker.run_once().failed == {}
        work.change(store)
        before = archives_in(store)
    clock.advance((work.days - 2) * DAY)

    def again(path: Path, found: Found) -> Found:
        """The archives once the step was done, in a store that has the archives `found` before."""
        with kvstore.open(path, config(clock)) as store:
            assert archives_in(store) == found
            with Worker(store, WARM, executor=Inline()) as worker:
                work.do(store, worker, source)
            assert store.verify().problems == []
            return archives_in(store)

    def struck(path: Path, files: EveryFile, fail: Callable[[], None]) -> Found:
        """The archives after an operation failed; a crash then leaves `left`."""
        with kvstore.open(path, config(clock, files=files)) as store:
            with Worker(store, WARM, executor=Inline()) as worker:
                fail()
                with contextlib.suppress(StoreError):
                    work.do(store, worker, source)
                files.mend()
            copy_folder(path, left)
            return archives_in(store)

    left = tmp_path / "left"
    due = again(copy_folder(begin, tmp_path / "whole"), before)
    stays = {at: body for at, body in before.items() if not work.goes(body)}
    assert {at: body for at, body in due.items() if at in before} == stays
    assert (due != before) == (name in CHANGING)
    files = EveryFile()
    seen: list[int] = []
    path = copy_folder(begin, tmp_path / "a")
    struck(path, files, lambda: seen.append(len(files.effects)))
    counts = Counter(e.kind for e in files.effects[seen[0] :])

    def check(fault: Fault) -> int:
        for folder in (path, left):
            shutil.rmtree(folder)
        copy_folder(begin, path)
        files = EveryFile()

        def fail() -> None:
            files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)

        found = struck(path, files, fail)
        assert stays.items() <= found.items() <= (before | due).items()
        assert again(left, found) == due
        return files.failed

    tried(counts, check)


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"topics": ["events"]}], ids=str)
def test_a_restore_in_which_an_operation_fails_leaves_nothing_or_tells(
    tmp_path: Path, clock: VirtualClock, options: dict[str, Any]
) -> None:
    with filled(tmp_path / "source", clock, 60, days=2) as store:
        with Worker(store, WARM, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
        due = {
            at: b for at, b in archives_in(store).items() if at[0] in options.get("topics", at[0])
        }
    place, target = tmp_path / "source" / "archive", tmp_path / "target"
    files = EveryFile()

    def restored(files: EveryFile) -> tuple[Found, bool]:
        report = tiering.restore(place, target, config=config(clock, files=files), **options)
        with kvstore.open(target, config(clock)) as store:
            assert store.verify(archives=True).problems == []
            found = archives_in(store)
        shutil.rmtree(target)
        return found, not report.problems

    assert restored(files) == (due, True)
    counts = Counter(files.kinds())

    def check(fault: Fault) -> int:
        files = EveryFile()
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        try:
            found, is_whole = restored(files)
        except StoreError:
            assert not target.exists()
        else:
            assert found == due if is_whole else found.items() <= due.items()
        assert restored(EveryFile()) == (due, True)
        return files.failed

    tried(counts, check)
