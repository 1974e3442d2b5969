"""A worker for whom several work: the next things are made while one is handed over, in order."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from kvstore import Store
from kvstore.errors import ArchiveDamaged, StoreError
from kvstore.files import LocalFiles
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.tiering.stores import filled, held, tiers
from tests.tiering.worker.pools import Pools
from tiering import ObjectExists, Policy, TieringStopped, Worker
from tiering.catalog.catalog import decode_rows
from tiering.catalog.pipeline import pipelined
from tiering.places.place import open_place
from tiering.places.publish import CopyJob, Intent, copy_remotely

DAY = 86_400.0
BOTH = Policy(
    hot_for=DAY, warm_for=10 * DAY, warm="archive", cold="cold", clock_doubt=0.0, watermarks=None
)


pytestmark = pytest.mark.filled(days=0)


@pytest.fixture
def pools() -> Iterator[Pools]:
    made = Pools()
    yield made
    made.close()


def never() -> None:
    """The check that runs meanwhile; it stops nothing."""


def squared(number: int, check: Callable[[], None]) -> int:
    if number == 3:
        raise StoreError("not 3")
    return number * number


@pytest.mark.parametrize("width", [1, 2, 5])
def test_things_are_taken_in_order_and_each_error_where_its_thing_is(width: int) -> None:
    found: list[object] = []
    with closing(pipelined(width, never, range(6), squared)) as coming:
        for number, taken in coming:
            try:
                found.append((number, taken()))
            except StoreError as e:
                found.append((number, str(e)))
    assert found == [(0, 0), (1, 1), (2, 4), (3, "not 3"), (4, 16), (5, 25)]


def test_one_who_works_alone_begins_one_ahead_and_two_begin_two() -> None:
    for width, most in ((1, 1), (2, 2)):
        begun: list[int] = []

        def numbers(begun: list[int] = begun) -> Iterator[int]:
            for number in range(6):
                begun.append(number)
                yield number

        with closing(pipelined(width, never, numbers(), lambda n, _: n)) as coming:
            for number, taken in coming:
                assert taken() == number
                assert len(begun) - number - 1 <= most
                if number == 0:
                    assert len(begun) == 1 + most


def test_one_who_works_alone_makes_the_next_while_the_last_is_handed_over() -> None:
    made = [threading.Event() for _ in range(3)]
    with closing(pipelined(1, never, made, lambda one, _: one.set())) as coming:
        for number, (_, taken) in enumerate(coming):
            taken()
            # This is the hand-over, which would wait here for ever.
            assert made[min(number + 1, 2)].wait(60)


def test_what_was_begun_is_over_when_the_caller_gives_up() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(number: int, check: Callable[[], None]) -> None:
        if number == 0:
            return
        begun.set()
        try:
            while True:
                check()
        except TieringStopped:
            ended.set()
            raise

    with closing(pipelined(2, never, range(9), work)) as coming:
        next(coming)[1]()
        begun.wait()
    assert ended.is_set()


def test_segments_move_and_go_cold_and_read_the_same(
    store: Store, clock: VirtualClock, pools: Pools
) -> None:
    before, segments = held(store), tiers(store)[0]
    clock.advance(2 * DAY)
    with Worker(store, BOTH, executor=pools) as worker:
        moved = worker.run_once()
        assert (len(moved.segments), moved.failed) == (segments, {})
        assert moved.segments == sorted(moved.segments)
        assert pools.most == 2
        clock.advance(10 * DAY)
        cold = worker.run_once()
        assert (len(cold.relocated), cold.failed) == (segments, {})
        assert {a.tier for a in worker.archives()} == {"cold"}
        assert worker.verify().ok
    assert held(store) == before
    assert not list((store.path / "tiering" / "made").rglob("*"))
    assert not list((store.path / "tiering" / "intents").iterdir())


def test_a_copy_that_was_damaged_on_the_way_is_no_copy(
    store: Store, clock: VirtualClock, pools: Pools
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, BOTH, executor=pools) as worker:
        worker.run_once()
        first, *others = decode_rows(store.catalog().rows)
        path = store.path / first.name
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        clock.advance(10 * DAY)
        cold = worker.run_once()
    assert list(cold.failed) == [first.key]
    assert "is not what was put there" in cold.failed[first.key]
    assert sorted(cold.relocated) == sorted(row.key for row in others)
    assert path.exists()
    assert len(list((store.path / "cold").rglob("*.kvarc"))) == len(others)
    assert not list((store.path / "tiering" / "intents").iterdir())


class Killed(BaseException):
    """The process ends here."""


class KilledBehindACopy(Pools):
    """Copies as ever; the worker's process is gone before it learns so."""

    def run(self, check: Callable[[], None], work: Any, *args: Any) -> Any:
        done = super().run(check, work, *args)
        if work is copy_remotely:
            raise Killed
        return done


def test_a_copy_of_which_nobody_learned_goes_with_the_next_run(
    store: Store, clock: VirtualClock
) -> None:
    """It was announced before the task began: else the object would stay for ever."""
    clock.advance(2 * DAY)
    pools = KilledBehindACopy()
    try:
        with Worker(store, BOTH, executor=pools) as worker:
            worker.run_once()
            clock.advance(10 * DAY)
            with pytest.raises(Killed):
                worker.run_once()
    finally:
        pools.close()
    left = {path.name for path in (store.path / "cold").rglob("*.kvarc")}
    assert left
    assert all(row.tier == "warm" for row in decode_rows(store.catalog().rows))
    with Worker(store, BOTH) as worker:
        worker.run_once()
        named = {row.key.rpartition("/")[2] for row in decode_rows(store.catalog().rows)}
        assert worker.verify().ok
    there = {path.name for path in (store.path / "cold").rglob("*.kvarc")}
    assert there <= named
    assert not there & left


def test_a_step_that_fails_for_one_leaves_it_and_the_others_go(
    tmp_path: Path, clock: VirtualClock, pools: Pools
) -> None:
    files = WatchedFiles()
    with filled(tmp_path / "s", clock, files=files) as store:
        before, segments = held(store), tiers(store)[0]
        clock.advance(2 * DAY)
        with Worker(store, BOTH, executor=pools) as worker:
            files.fail("write_new", error=errno.EIO)
            report = worker.run_once()
            assert len(report.failed) <= 1
            assert worker.run_once().failed == {}
        assert tiers(store)[0] == 0
        assert segments >= 3
        assert held(store) == before


def test_a_stop_leaves_nothing_by_half(store: Store, clock: VirtualClock, pools: Pools) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    worker = Worker(store, BOTH, executor=pools, progress=lambda *_: inside.tell_to_stop(worker))
    with pytest.raises(TieringStopped):
        worker.run_once()
    worker.stop()
    assert tiers(store)[1] == 0
    assert held(store) == before
    assert not list((store.path / "tiering" / "made").rglob("*"))


@pytest.fixture
def job(tmp_path: Path) -> CopyJob:
    """An object of some bytes, to be copied to another place."""
    source, data = open_place(tmp_path / "a"), b"an archive" * 100
    source.check(create=True)
    open_place(tmp_path / "b").check(create=True)
    (tmp_path / "data").write_bytes(data)
    source.put("x/one.kvarc", tmp_path / "data")
    intent = Intent(7, "b", "x/two.kvarc", len(data), google_crc32c.value(data))
    return CopyJob(
        source=str(tmp_path / "a"), key="x/one.kvarc",
        target=str(tmp_path / "b"), intent=intent,
    )  # fmt: skip


def test_a_copy_that_is_made_twice_is_made_once(tmp_path: Path, job: CopyJob) -> None:
    for _ in range(2):
        copy_remotely(job)
    copied = tmp_path / "b" / job.intent.key
    assert copied.read_bytes() == (tmp_path / "a" / job.key).read_bytes()
    assert LocalFiles().list_dir(copied.parent) == ["two.kvarc"]


def test_a_name_that_somebody_else_has_taken_stays_his(tmp_path: Path, job: CopyJob) -> None:
    (tmp_path / "b" / "x").mkdir()
    (tmp_path / "b" / job.intent.key).write_bytes(b"another's")
    with pytest.raises(ObjectExists):
        copy_remotely(job)
    assert (tmp_path / "b" / job.intent.key).read_bytes() == b"another's"
    (tmp_path / "a" / job.key).chmod(0o644)
    (tmp_path / "a" / job.key).write_bytes(b"damaged" * 200)
    with pytest.raises(ArchiveDamaged, match=r"one\.kvarc is not what was put there"):
        copy_remotely(job)
