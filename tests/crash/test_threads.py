"""Whatever strikes a thread of the store, at whichever step: nobody hangs, nothing is lost, and
the store says so."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import (
    FlushFailed,
    Message,
    Retention,
    SegmentDamaged,
    Store,
    StoreConfig,
    StoreError,
)
from kvstore.clock import SystemClock
from kvstore.engine.upkeep import Housekeeper, UpkeepJob
from kvstore.process.background import Background, ThreadStats
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, bodies
from tests.support.files import WatchedFiles
from tests.support.stores import SEGMENT, killed, opened, settings
from tests.support.throwing import Thrower, some
from tests.support.waiting import PATIENCE, until

STEPS: Final = 10


def _threads(store: Store) -> dict[str, ThreadStats]:
    return {thread.name: thread for thread in store.stats().threads}


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    """Have threads do some work; none of them hangs."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not [t for t in threads if t.is_alive()], "somebody waits for ever"


def _put_synced(folder: Path, config: StoreConfig, thrower: Thrower) -> None:
    """Some threads put and wait for the disk, while the flusher is struck."""
    acked: set[bytes] = set()
    with contextlib.suppress(StoreError), thrower.watching(), opened(folder, config) as store:

        def work(number: int) -> None:
            for n in range(3):
                body = b"%d of %d" % (n, number)
                try:
                    store.put("t", body, queue=0)
                except StoreError:
                    return
                acked.add(body)

        _in_threads(3, work)
        found = _threads(store)["kvmq-flusher"]
        assert found.alive
        if thrower.has_thrown.is_set() and store.stats().refuses_puts is not None:
            assert found.failure is not None
            with pytest.raises(FlushFailed):
                store.put("t", b"refused")
            with pytest.raises(FlushFailed):
                store.flush()
        elif thrower.has_thrown.is_set():
            assert len(acked) == 9
    with kvstore.open(folder, config) as again:
        assert acked <= set(bodies(again).get(("t", 0), ()))
        assert not again.verify().problems


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_whatever_strikes_the_flusher_all_who_wait_for_the_disk_are_answered(
    tmp_path: Path, mode: str
) -> None:
    config = settings(flush="sync", flush_interval=0.01, stage_interval=0.01, write_mode=mode)
    watched = Thrower("kvmq-flusher")
    _put_synced(tmp_path / "watched", config, watched)
    assert {step.called for step in watched.steps} >= {"wait", "sync_to_end", "fdatasync"}
    thrown = 0
    for number, (step, error) in enumerate(some(watched.steps, STEPS)):
        thrower = Thrower("kvmq-flusher", step, error)
        _put_synced(tmp_path / str(number), config, thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS // 2


def _keep_house(folder: Path, thrower: Thrower) -> None:
    """Checkpoints, sealing and retention happen by themselves, while the housekeeper is struck."""
    config = settings(
        checkpoint_interval=0.01, retention_interval=0.01, delete_interval=0.0,
        offset_sync_interval=0.01, retention=Retention(max_bytes=4 * SEGMENT),
    )  # fmt: skip
    acked, committed = 0, 0
    with thrower.watching(), opened(folder, config) as store:
        try:
            for _ in range(8):
                store.put_batch([Message("t", bytes(2000), queue=0, keys=("k",))] * 25)
                acked += 25
                store.commit_offset("g", "t", 0, acked)
                committed = acked
            until(lambda: store.stats().refuses_puts or _has_kept_house(store))
            store.put("t", b"the last", queue=0)
            acked += 1
            until(lambda: store.stats().refuses_puts or _has_written_all(store))
        except FlushFailed:
            pass
        until(lambda: _threads(store)[thrower.thread].failures >= thrower.has_thrown.is_set())
        assert all(thread.alive for thread in _threads(store).values())
        if store.stats().refuses_puts is not None:
            # A sync that the disk refused ends all writing, and is not tried again.
            failure = inside.log(store).failure
            assert failure is not None
            assert isinstance(failure.__cause__, OSError | SegmentDamaged)
        else:
            # It is done again, and well; unless there is nothing left to be done, as when the
            # segments whose keys were to be merged have gone.
            for keeper in inside.housekeepers(store):
                until(lambda k=keeper: not any(j.failure and j.due() for j in k.jobs))
            assert_whole(store)
    with kvstore.open(folder, config) as again:
        assert not again.verify().problems
        assert again.bounds("t", 0).next_offset == acked
        assert again.committed_offset("g", "t", 0) == committed
        found = again.query("t", "k", limit=1000)
        assert len({m.offset for m in found}) == len(found)


def _has_kept_house(store: Store) -> bool:
    return store.stats().segments <= 5 and not inside.index(store).seal_due()


def _has_written_all(store: Store) -> bool:
    return store.stats().tail_entries == 0 and inside.offsets(store).is_synced


KEEPERS: Final = {
    "kvmq-housekeeper": {"prepare_next", "write_checkpoint", "seal_next", "drop_next"},
    "kvmq-offsets": {"sync_due", "sync"},
}
"""The threads that keep house, and calls that each is to make."""


@pytest.mark.parametrize("name", KEEPERS)
def test_whatever_strikes_a_housekeeper_all_its_work_is_done_in_the_end(
    tmp_path: Path, name: str
) -> None:
    watched = Thrower(name)
    _keep_house(tmp_path / "watched", watched)
    assert {step.called for step in watched.steps} >= KEEPERS[name]
    thrown = 0
    for number, (step, error) in enumerate(some(watched.steps, STEPS)):
        thrower = Thrower(name, step, error)
        _keep_house(tmp_path / str(number), thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS // 2


def test_a_housekeeper_whose_sync_the_disk_refuses_ends_all_writing(tmp_path: Path) -> None:
    name = "kvmq-housekeeper"
    watched = Thrower(name)
    _keep_house(tmp_path / "watched", watched)
    syncs = [s for s in watched.steps if s.called in ("sync_to_end", "sync", "fdatasync")]
    assert {step.called for step in syncs} == {"sync_to_end", "sync", "fdatasync"}
    for number, step in enumerate(syncs):
        thrower = Thrower(name, step, partial(OSError, errno.EIO, "struck"))
        _keep_house(tmp_path / str(number), thrower)


def _deliver(folder: Path, thrower: Thrower) -> None:
    """Delayed messages come by themselves, some from a row and some from the tail, while the thread
    that delivers them is struck.
    """
    with thrower.watching(), opened(folder, settings()) as store:
        store.put_batch([Message("t", b"%d" % n, queue=0, delay=0.05) for n in range(40)])
        store.checkpoint()
        store.put_batch([Message("t", b"%d" % n, queue=0, delay=0.06) for n in range(40, 80)])
        store.delete_topic(store.create_topic("gone").name)
        until(lambda: store.timers().count == 0)
        until(lambda: _threads(store)[thrower.thread].failures >= thrower.has_thrown.is_set())
        assert _threads(store)[thrower.thread].alive
        _assert_delivered(store, 80)
        store.put("t", b"80", queue=0, delay=0.001)
        until(lambda: store.timers().count == 0)
        copied = killed(store, folder.parent / f"{folder.name} killed")
    for path in (folder, copied):
        with kvstore.open(path, settings()) as again:
            _assert_delivered(again, 81)
            assert again.timers().count == 0
            assert not again.verify().problems


def _assert_delivered(store: Store, count: int) -> None:
    found = store.pull("t", 0, 0, limit=1000).messages
    assert [m.body for m in found] == [b"%d" % n for n in range(count)]


def test_whatever_strikes_the_delivery_each_message_comes_once(tmp_path: Path) -> None:
    watched = Thrower("kvmq-delivery")
    _deliver(tmp_path / "watched", watched)
    assert {step.called for step in watched.steps} >= {
        "take_due",
        "prepare_copies",
        "add",
        "append",
    }
    thrown = 0
    for number, (step, error) in enumerate(some(watched.steps, 3 * STEPS)):
        thrower = Thrower("kvmq-delivery", step, error)
        _deliver(tmp_path / str(number), thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS


def _ask(folder: Path, thrower: Thrower) -> None:
    """Checkers end transactions by themselves, while the thread of one of them is struck."""
    config = settings(transaction_check_interval=0.2)
    with thrower.watching(), opened(folder, config) as store:
        store.on_check("pay", lambda message: "commit" if int(message.body) % 2 else "rollback")
        store.prepare_batch(
            [Message("t", b"%d" % n, queue=0) for n in range(8)], group="pay", immunity=0
        )
        with_others = [Message("t", b"1", queue=1, message_id="set"), Message("t", b"1", queue=1)]
        store.prepare_batch(with_others, group="pay", immunity=0, set_id="set")
        until(lambda: store.transactions().count == 0)
        assert sorted(m.body for m in store.pull("t", 0, 0).messages) == [b"1", b"3", b"5", b"7"]
        assert store.bounds("t", 1).next_offset == 2
        assert all(t.alive for t in _threads(store).values())
    with kvstore.open(folder, config) as again:
        assert again.transactions().count == 0
        assert not again.verify().problems


def test_whatever_strikes_a_checker_each_transaction_ends_once(tmp_path: Path) -> None:
    watched = Thrower("kvmq-checker")
    _ask(tmp_path / "watched", watched)
    assert {step.called for step in watched.steps} >= {"answered", "prepare_copies", "append"}
    thrown = 0
    for number, (step, error) in enumerate(some(watched.steps, 2 * STEPS)):
        thrower = Thrower("kvmq-checker", step, error)
        _ask(tmp_path / str(number), thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS


def test_whatever_strikes_the_housekeeper_at_its_checks_each_transaction_ends_once(
    tmp_path: Path,
) -> None:
    name = "kvmq-housekeeper"
    watched = Thrower(name)
    _ask(tmp_path / "watched", watched)
    steps = {step: None for step in watched.steps if step.file.startswith("kvstore/timing/")}
    assert {step.called for step in steps} >= {"due", "settled", "_line_up", "at"}
    thrown = 0
    for number, (step, error) in enumerate(some(steps, 2 * STEPS)):
        thrower = Thrower(name, step, error)
        _ask(tmp_path / str(number), thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS


def test_every_thread_of_a_store_is_struck_by_a_test(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings(write_mode="staged", flush="sync")) as store:
        assert _threads(store).keys() == {"kvmq-flusher", "kvmq-delivery", *KEEPERS}


@pytest.mark.parametrize("called", ["write_checkpoint", "sync_to_end", "write"])
def test_a_checkpoint_that_was_struck_is_written_though_nothing_is_put_behind_it(
    tmp_path: Path, called: str
) -> None:
    config = settings(checkpoint_interval=0.01)

    def put_one(folder: Path, thrower: Thrower) -> None:
        with thrower.watching(), opened(folder, config) as store:
            store.put("t", b"x", queue=0)
            until(lambda: store.stats().tail_entries == 0)

    watched = Thrower("kvmq-housekeeper")
    put_one(tmp_path / "watched", watched)
    step = next(step for step in watched.steps if step.called == called)
    thrower = Thrower("kvmq-housekeeper", step)
    put_one(tmp_path / "struck", thrower)
    assert thrower.has_thrown.is_set()


def test_a_job_that_fails_is_shown_until_it_is_done_and_the_others_go_on(tmp_path: Path) -> None:
    clock = VirtualClock()
    config = settings(clock=clock, checkpoint_interval=10.0)
    with opened(tmp_path / "s", config) as store:
        jobs = {job.name: job for job in inside.housekeeper(store).jobs}
        job, run = jobs["a checkpoint"], jobs["a checkpoint"].run

        def fail() -> None:
            raise MemoryError("no room")

        job.run = fail
        store.put("t", b"x", queue=0)
        store.commit_offset("g", "t", 0, 1)
        until(lambda: clock.advance(1.0) or job.failure is not None)  # type: ignore[func-returns-value]
        assert _threads(store)["kvmq-housekeeper"].failure == "a checkpoint: MemoryError: no room"
        until(lambda: clock.advance(1.0) or inside.offsets(store).is_synced)  # type: ignore[func-returns-value]
        assert store.stats().tail_entries == 1
        job.run = run
        until(lambda: clock.advance(1.0) or store.stats().tail_entries == 0)  # type: ignore[func-returns-value]
        found = _threads(store)["kvmq-housekeeper"]
        assert (found.alive, found.failure, found.failures) == (True, None, 1)


def test_a_job_that_failed_is_shown_while_it_waits_to_be_tried_again() -> None:
    turns: list[int] = []

    def due() -> bool:
        turns.append(1)
        return len(turns) in {1, 4}

    def run() -> None:
        if len(turns) == 1:
            raise OSError("the disk is away")

    keeper = Housekeeper(
        "kvmq-test", SystemClock(), threading.Event(), [UpkeepJob("a job", due, run)], 60.0
    )
    shown = []
    for count in range(1, 5):
        keeper.thread.wake.set()
        until(lambda n=count: len(turns) == n and not keeper.thread.wake.is_set())
        until(lambda n=count: (keeper.thread.stats().failure is None) == (n == 4))
        shown.append(keeper.thread.stats().failure)
    keeper.stop()
    assert shown == ["a job: OSError: the disk is away"] * 3 + [None]


def test_nobody_waits_for_a_flusher_that_is_not_there(tmp_path: Path) -> None:
    """However a thread may end, who waits for the disk looks whether it is there."""
    with opened(tmp_path / "s", settings(flush="sync", flush_interval=60.0)) as store:
        flusher = inside.flusher(store)
        flusher.thread.stop()
        _in_threads(2, lambda n: _refused(store))


def _refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.put("t", b"x")


def test_a_turn_that_fails_again_and_again_is_not_taken_without_pause() -> None:
    turns = []

    def turn() -> None:
        turns.append(1)
        raise ValueError(len(turns))

    thread = Background("kvmq-test", turn, SystemClock(), 0.0)
    thread.start()
    until(lambda: len(turns) >= 3)
    SystemClock().sleep(0.3)
    assert thread.stats().failures >= 3
    thread.stop()
    assert not thread.is_alive
    assert len(turns) < 20  # the pauses of so many are 20 seconds


def _background(turn: Callable[[], object], interval: float, **more: Any) -> Background:
    def one() -> None:
        turn()

    thread = Background("kvmq-test", one, SystemClock(), interval, **more)
    thread.start()
    return thread


def test_a_thread_that_was_woken_once_waits_again() -> None:
    turns: list[int] = []
    thread = _background(lambda: turns.append(1), 60.0)
    for count in (1, 2):
        thread.wake.set()
        until(lambda n=count: len(turns) == n)
        SystemClock().sleep(0.05)
        assert len(turns) == count
    thread.stop()


def test_a_turn_that_was_wanted_sooner_is_sooner_once() -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 1:
            thread.start_next_in(0.001)

    thread = _background(turn, 60.0)
    thread.wake.set()
    until(lambda: len(turns) == 2)
    SystemClock().sleep(0.05)
    assert len(turns) == 2
    thread.stop()


def test_a_thread_that_is_told_to_stop_takes_no_turn_more_and_is_waited_for() -> None:
    turns: list[str] = []
    idle = _background(lambda: turns.append("a turn"), 60.0)
    idle.stop()
    assert (turns, idle.is_alive) == ([], False)
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(PATIENCE)
        turns.append("done")

    busy = _background(slow, 60.0, at_once=True)
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, go.set).start()
    busy.stop()
    assert (turns, busy.is_alive) == (["done"], False)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_whatever_dealing_with_a_failed_turn_raises_the_thread_goes_on_and_its_owner_is_told(
    error: type[BaseException],
) -> None:
    told: list[BaseException] = []

    def turn() -> None:
        raise error("no turn")

    def failed(why: BaseException) -> None:
        told.append(why)
        raise error("nor this")

    thread = _background(turn, 0.0, failed=failed)
    until(lambda: len(told) >= 2)
    assert thread.is_alive
    assert {type(why) for why in told} == {error}
    thread.stop()


def test_a_failure_that_is_over_is_not_shown_any_more() -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise ValueError("not yet")

    thread = _background(turn, 0.0)
    until(lambda: len(turns) >= 4)
    found = thread.stats()
    thread.stop()
    assert (found.failures, found.failure) == (2, None)


def test_the_housekeeper_that_is_stopped_in_a_job_begins_no_other() -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        keeper.thread.end()

    jobs = [
        UpkeepJob("the first", lambda: True, first),
        UpkeepJob("the second", lambda: True, lambda: done.append("second")),
    ]
    keeper = Housekeeper("kvmq-test", SystemClock(), threading.Event(), jobs, 60.0)
    keeper.thread.wake.set()
    until(lambda: not keeper.thread.is_alive)
    assert done == ["first"]


def test_a_job_that_fails_keeps_none_behind_it_from_being_done() -> None:
    done: list[str] = []

    def fail() -> None:
        raise SystemExit("no")

    jobs = [
        UpkeepJob("the first", lambda: True, fail),
        UpkeepJob("the second", lambda: True, lambda: done.append("second")),
    ]
    keeper = Housekeeper("kvmq-test", SystemClock(), threading.Event(), jobs, 60.0)
    keeper.thread.wake.set()
    until(lambda: len(done) == 1 and keeper.thread.stats().failure is not None)
    assert keeper.thread.stats().failure == "the first: SystemExit: no"
    keeper.stop()


@pytest.mark.parametrize(("name", "interval"), [("kvmq-housekeeper", 60.0), ("kvmq-flusher", 0.01)])
def test_commits_are_on_the_disk_in_time_however_long_other_work_takes(
    tmp_path: Path, name: str, interval: float
) -> None:
    begun, end = threading.Event(), threading.Event()

    def last(*_: object) -> None:
        if threading.current_thread().name == name:
            begun.set()
            end.wait(PATIENCE)

    files = WatchedFiles()
    files.before = last
    config = settings(
        files=files, offset_sync_interval=0.01, flush_interval=interval, flush_dirty_bytes=1,
        checkpoint_interval=0.01,
    )  # fmt: skip
    with opened(tmp_path / "s", config) as store:
        store.put("t", b"x", queue=0)
        assert begun.wait(PATIENCE)
        store.commit_offset("g", "t", 0, 1)
        until(lambda: inside.offsets(store).is_synced)
        end.set()


def test_a_put_that_makes_a_checkpoint_due_wakes_the_housekeeper(tmp_path: Path) -> None:
    """No time passes for it: it would look by itself never."""
    config = settings(clock=VirtualClock(), checkpoint_bytes=20_000, checkpoint_interval=1e9)
    with opened(tmp_path / "s", config) as store:
        for _ in range(30):
            store.put("t", bytes(1000), queue=0)
        until(lambda: store.stats().tail_entries < 30)
        store.put_batch([Message("t", bytes(1000), queue=0)] * 30)
        until(lambda: store.stats().tail_entries < 30)
