"""A worker loses nothing by full disks, other workers, clocks that leap, or archives that differ
from the catalog.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore import Message, Store, StoreLocked
from tests.support import inside
from tests.support.children import Child, Teller
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.tiering.archive.test_damage import with_trailer
from tests.tiering.stores import QUEUES, config, fill, filled, held
from tiering import Policy, PolicyIllegal, RunReport, TieringBusy, Worker
from tiering.archive.layout import FORMAT_VERSION

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", grace=0.0, clock_doubt=0.0)
BOTH = Policy(
    hot_for=DAY, warm_for=10 * DAY, cold_for=30 * DAY, warm="archive", cold="cold", grace=0.0,
    clock_doubt=0.0,
)  # fmt: skip


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


def nothing_left(store: Store, worker: Worker) -> None:
    """The next run has what it needs, and nothing else is there."""
    worker.run_once()
    report = worker.verify()
    assert (report.problems, report.orphans, report.retired) == ([], [], 0)
    assert not list((store.path / "tiering").rglob("*.intent"))
    assert not list((store.path / "tiering" / "made").rglob("*.*"))


# --- a full disk ---


@pytest.mark.parametrize("kind", ["write_new", "write_whole"])
def test_a_full_disk_leaves_archives_that_were_to_merge_as_they_are(
    store: Store, files: WatchedFiles, kind: str
) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        worker.run_once()
        archives = worker.archives()
        # The first thing that is written whole is what is known of the clock, the third an intent.
        files.fail(kind, nth=1 if kind == "write_new" else 3, error=errno.ENOSPC, times=1000)
        with suppress(OSError):
            assert worker.merge().failed
        assert worker.archives() == archives
        assert held(store) == before
        files.mend()
        assert worker.merge().failed == {}
        nothing_left(store, worker)
    assert held(store) == before


def test_a_full_disk_leaves_what_was_to_be_erased_and_says_that_nothing_is_proven(
    store: Store, files: WatchedFiles
) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        fill(store, 40, first=500)
        before = held(store)
        files.fail("write_new", error=errno.ENOSPC, times=1000)
        report = worker.erase(key="k3")
        assert not report.is_proven
        assert all("room" in why or "full" in why for why in report.failed.values())
        assert held(store) == before
        files.mend()
        assert worker.erase(key="k3").is_proven
        nothing_left(store, worker)
    kept = {queue: [m for m in some if "k3" not in m.keys] for queue, some in before.items()}
    assert held(store) == kept


@pytest.mark.parametrize("nth", [1, 2])
def test_a_full_disk_leaves_archives_that_were_to_go_cold_warm(
    store: Store, clock: VirtualClock, files: WatchedFiles, nth: int
) -> None:
    before = held(store)
    with Worker(store, BOTH) as worker:
        worker.run_once()
        count = len(worker.archives())
        clock.advance(10 * DAY)
        # Each is put from where it is: there is no copy between.
        files.fail("write_new", nth=nth, error=errno.ENOSPC, times=1000)
        report = worker.run_once()
        assert len(report.failed) == count - (nth - 1)
        tiers = [a.tier for a in worker.archives()]
        assert tiers == ["cold"] * (nth - 1) + ["warm"] * (count - (nth - 1))
        assert held(store) == before
        files.mend()
        assert len(worker.run_once().relocated) == count - (nth - 1)
        nothing_left(store, worker)
    assert held(store) == before


def fill_the_disk_of_the_other_process(worker: Worker) -> None:
    """Have it find no room for more than a few bytes; the next one has it again."""
    pid = inside.work_context(worker).executor.run(lambda: None, os.getpid)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, 100))


def test_a_disk_that_is_full_where_archives_are_made_leaves_all_as_it_is(store: Store) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        fill_the_disk_of_the_other_process(worker)
        report = worker.run_once()
        assert len(report.failed) == len(store.segments()) >= 2
        assert all("no room" in why for why in report.failed.values())
        assert worker.run_once().failed == {}
        archives = worker.archives()
        fill_the_disk_of_the_other_process(worker)
        assert "no room" in str(worker.merge().failed)
        fill_the_disk_of_the_other_process(worker)
        assert not worker.erase(key="k3").is_proven
        assert worker.archives() == archives
        assert held(store) == before
        assert worker.merge().failed == {}
        assert worker.erase(key="k3").is_proven
        nothing_left(store, worker)


# --- other workers ---


def work_for(tell: Teller, path: Path) -> None:
    with kvstore.open(path) as store, Worker(store, WARM):
        tell("at work")


def test_a_worker_of_another_process_is_refused_as_long_as_the_store_is_open(
    store: Store,
) -> None:
    with Worker(store, WARM) as worker:
        with (
            Child(work_for, store.path) as child,
            pytest.raises(AssertionError, match=StoreLocked.__name__),
        ):
            child.join()
        assert worker.run_once().failed == {}


def test_two_threads_that_use_one_worker_do_one_thing_at_a_time(store: Store) -> None:
    before = held(store)
    refused: list[str] = []

    def tell(what: str, done: int, total: int) -> None:
        for call in (worker.run_once, worker.merge, worker.verify, worker.run_and_merge):
            with pytest.raises(TieringBusy):
                call()
            refused.append(what)

    with Worker(store, WARM, progress=tell) as worker:
        assert worker.run_once().failed == {}
    assert refused
    assert held(store) == before


# --- clocks ---


def test_a_clock_that_leaps_a_year_ahead_moves_and_deletes_nothing_until_it_has_lasted(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    policy = msgspec.structs.replace(BOTH, clock_doubt=DAY)
    with Worker(store, policy) as worker:
        worker.run_once()
        archives = worker.archives()
        clock.step(365 * DAY)
        assert worker.run_once() == RunReport()
        assert worker.plan().moves == []
        assert worker.archives() == archives
        clock.step(-365 * DAY)
        clock.advance(3600)
        assert worker.run_once() == RunReport()
        assert held(store) == before
        clock.step(365 * DAY)
        worker.run_once()
        clock.advance(DAY + 60)
        assert len(worker.run_once().expired) == len(archives)


def test_a_leap_between_two_processes_is_not_believed_either(
    store: Store, clock: VirtualClock
) -> None:
    policy = msgspec.structs.replace(BOTH, clock_doubt=DAY)
    with Worker(store, policy) as worker:
        worker.run_once()
        archives = worker.archives()
    clock.step(365 * DAY)
    with Worker(store, policy) as worker:
        assert worker.run_once().expired == []
        assert worker.archives() == archives


def test_a_clock_that_goes_back_deletes_nothing_and_work_goes_on_when_it_is_right_again(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        clock.step(-365 * DAY)
        assert worker.run_once().segments == []
        store.put_batch([Message("orders", b"meanwhile", queue=0)])
        clock.step(365 * DAY)
        assert worker.run_once().failed == {}
        assert worker.archives()
    assert {queue: some[: len(before[queue])] for queue, some in held(store).items()} == before


# --- archives that are not what the catalog says ---


@pytest.mark.parametrize("harm", ["foreign", "newer", "cut", "empty"])
def test_what_is_no_archive_of_this_store_is_left_alone_by_every_verb(
    tmp_path: Path, store: Store, clock: VirtualClock, harm: str
) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        bad = worker.archives()[0]
        path = store.path / "archive" / bad.key
        data = path.read_bytes()
        if harm == "foreign":
            data = foreign_archive(tmp_path / "other", clock)
        elif harm == "newer":
            data = with_trailer(data, version=FORMAT_VERSION + 1)
        path.chmod(0o644)
        path.write_bytes({"cut": data[:-100], "empty": b""}.get(harm, data))
        spoilt = path.read_bytes()
        assert set(worker.merge().failed) == {bad.key}
        report = worker.erase(key="k3")
        assert not report.is_proven
        assert [Path(name).name for name in report.failed] == [path.name]
        assert not worker.verify(remove_orphans=True).ok
        assert path.read_bytes() == spoilt
        assert bad.key in {archive.key for archive in worker.archives()}


def foreign_archive(path: Path, clock: VirtualClock) -> bytes:
    """One of another store's."""
    with filled(path, clock, 30, days=2) as other, Worker(other, WARM) as worker:
        return (path / "archive" / worker.run_once().archives[0]).read_bytes()


def test_a_leap_that_is_not_believed_does_not_end_the_time_of_grace(
    tmp_path: Path, clock: VirtualClock
) -> None:
    policy = msgspec.structs.replace(WARM, clock_doubt=DAY, grace=3600.0, hot_for=0.1)
    with kvstore.open(tmp_path / "graced", config(clock)) as store:
        for topic, queues in QUEUES.items():
            store.create_topic(topic, queues=queues)
        with Worker(store, policy) as worker:
            worker.run_once()
            fill(store)
            clock.advance(10.0)
            assert worker.run_once().failed == {}
            merged = worker.merge().merged
            assert merged
            clock.step(4_000_000)
            assert worker.run_once().removed == []
            clock.advance(3700.0)
            assert sorted(name.split("/", 1)[1] for name in worker.run_once().removed) == merged


# --- places that are not what they should be ---


@pytest.mark.parametrize("where", ["commitlog", "index/x", "tiering/made", ".", "a/../tiering"])
def test_a_place_among_the_stores_own_files_is_refused(store: Store, where: str) -> None:
    for given in (where, str(store.path / where), f"file://{store.path / where}"):
        with pytest.raises(PolicyIllegal, match="its own files"):
            Worker(store, msgspec.structs.replace(WARM, warm=given))


def test_two_names_of_one_folder_are_refused_as_two_tiers(store: Store) -> None:
    (store.path / "there").mkdir()
    (store.path / "link").symlink_to(store.path / "there")
    for cold in ("./there", "x/../there", "link", f"file://{store.path / 'link'}"):
        with pytest.raises(PolicyIllegal, match="two places"):
            Worker(store, msgspec.structs.replace(BOTH, warm="there", cold=cold))


def test_a_place_that_is_full_still_lets_go_of_what_is_over(
    store: Store, files: WatchedFiles, clock: VirtualClock
) -> None:
    with Worker(store, WARM) as worker:
        assert worker.run_once().failed == {}
        count = len(worker.archives())
    clock.advance(20 * DAY)
    fill(store, 10)
    files.fail("write_new", path="/archive/", error=errno.ENOSPC, times=1000)
    with Worker(store, WARM) as worker:
        report = worker.run_once()
        assert len(report.expired) == count
        assert "room" in str(report.failed) or "full" in str(report.failed)
    assert not list((store.path / "archive").rglob("*.kvarc"))


def test_what_can_not_be_noted_for_want_of_room_is_done_all_the_same(
    store: Store, files: WatchedFiles
) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        files.fail("write_whole", path="history.jsonl", error=errno.ENOSPC, times=99)
        files.fail("write_whole", path="clock.json", error=errno.ENOSPC, times=99)
        assert worker.run_once().failed == {}
        assert worker.archives()
    assert held(store) == before
