"""Each step of a worker leaves places tidy, and a step that fails costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec
import pytest

from kvstore import Message, Retention, Store
from kvstore.errors import ArchiveDamaged, StoreError
from kvstore.files import LocalFiles
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.raising import raising
from tests.tiering.places.lying import Lie, LyingFiles
from tests.tiering.stores import fill, filled, held
from tiering import Policy, TieringBusy, TieringStopped, Worker
from tiering.catalog.catalog import decode_rows
from tiering.catalog.key_filters import KeyFilters
from tiering.catalog.tiers import Tiers
from tiering.executor.pool import Inline
from tiering.executor.segment_encoder import segment_task
from tiering.merge.merge import merge_task
from tiering.merge.partition import plan_merge
from tiering.places.place import Place, open_place
from tiering.places.publish import CopyJob, Intent, Intents, ObjectCopy, Pacing
from tiering.places.work_folder import FILE, WORK, Waits, read_waits
from tiering.worker.context import WorkContext
from tiering.worker.store_protocols import attaching

DAY = 86_400.0
WARM = Policy(
    hot_for=DAY, warm_for=50 * DAY, cold_for=50 * DAY, warm="archive", cold="cold", grace=60.0,
    clock_doubt=0.0, merge_bytes=None,
)  # fmt: skip


pytestmark = pytest.mark.filled(count=240)


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    with Worker(store, WARM, executor=Inline()) as found:
        yield found


def objects(store: Store) -> set[str]:
    """All that lies in the places, unfinished puts too."""
    return {
        f"{folder}/{path.relative_to(store.path / folder)}"
        for folder in ("archive", "cold")
        for path in (store.path / folder).rglob("*")
        if path.is_file()
    }


def named(store: Store) -> set[str]:
    """All objects that the catalog names, retired ones too."""
    return {f"{row.place}/{row.key}" for row in decode_rows(store.handover.rows())}


def left(store: Store) -> list[str]:
    """The files in a worker's folder while it is at work."""
    work = store.path / WORK
    return [
        str(path)
        for folder in ("intents", "made", "shifting", "attach")
        for path in (work / folder).rglob("*")
        if path.is_file()
    ]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def path_of(store: Store, worker: Worker, number: int) -> Path:
    return store.path / "archive" / worker.archives()[number].key


class Step(NamedTuple):
    """A step, so many days after the segments became archives."""

    do: Callable[[Worker], object]
    days: float = 0


STEPS: Final = {
    "move": Step(lambda worker: worker.run_once()),
    "merge": Step(lambda worker: worker.merge()),
    "erase": Step(lambda worker: worker.erase(key="k3")),
    "cold": Step(lambda worker: worker.run_once(), 51),
    "expiry": Step(lambda worker: worker.run_once(), 101),
}


@pytest.mark.parametrize("name", STEPS)
def test_after_each_step_the_places_have_what_the_catalog_names_and_nothing_is_announced(
    store: Store, worker: Worker, clock: VirtualClock, name: str
) -> None:
    assert worker.run_once().failed == {}
    assert left(store) == []
    clock.advance(STEPS[name].days * DAY)
    STEPS[name].do(worker)
    assert objects(store) == named(store)
    assert left(store) == []
    clock.advance(61)
    worker.run_once()
    assert objects(store) == named(store) == {f"{a.place}/{a.key}" for a in worker.archives()}


def test_what_was_replaced_is_there_until_the_grace_time_is_over(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    worker.run_once()
    for step in (lambda: worker.merge(), lambda: clock.advance(51 * DAY), lambda: None):
        before = objects(store)
        step()
        worker.run_once()
        assert before <= objects(store)
        clock.advance(59)
        worker.run_once()
        assert before <= objects(store)
        clock.advance(2)
        worker.run_once()
        assert objects(store) == named(store)
    assert {done.what for done in worker.history.last(100)} >= {"archived", "merged", "cold"}


def test_a_segment_goes_to_the_tier_of_its_age_at_once(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    clock.advance(60 * DAY)
    report = worker.run_once()
    assert (report.failed, report.relocated) == ({}, [])
    assert {archive.tier for archive in worker.archives()} == {"cold"}


def test_what_is_over_already_leaves_with_its_segment(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    store.alter_topic("events", retention=Retention(warm_for=DAY / 2, cold_for=DAY / 2))
    clock.advance(5 * DAY)
    before = held(store)
    assert worker.run_once().failed == {}
    assert store.segments() == []
    found = held(store)
    assert {q: m for q, m in found.items() if m} == {
        q: m for q, m in before.items() if q[0] == "orders"
    }


def test_a_queue_that_the_index_tells_in_several_slices_is_compared_whole(
    store: Store, worker: Worker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.index.checkpoint._BATCH_ENTRIES", 1)
    for number in range(40):
        store.put("orders", b"%d" % number, queue=0)
        if number % 10 == 9:
            store.checkpoint()
    store.seal()
    clock.advance(2 * DAY)
    store.checkpoint()
    last = store.segments()[-1].number
    slices = [set(part.queues.tolist()) for part in store.handover.entries(last)]
    assert [queues for queues in slices if 0 in queues] != [{0}]
    before = held(store)
    assert worker.run_once().failed == {}
    assert held(store) == before


def test_a_put_that_was_cut_off_leaves_nothing_behind(store: Store, worker: Worker) -> None:
    worker.run_once()
    place = store.path / "archive"
    key = f"{store.handover.store_id.hex()}/00000000000000000000-00000900-warm.kvarc"
    Intents(store.path / WORK / "intents", store.config.files).note(
        Intent(900, "archive", key, 5, 1)
    )
    part = (place / key).with_name(f".{Path(key).name}.0123456789abcdef.part")
    part.write_bytes(b"half")
    worker.run_once()
    assert not part.exists()
    assert left(store) == []


class Far:
    """A folder that is far away: its objects have to be fetched."""

    name = "far://away"

    def __init__(self, honest: Place) -> None:
        self._honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)


def test_of_a_place_that_is_far_a_copy_is_there_as_long_as_it_is_wanted(tmp_path: Path) -> None:
    honest = open_place(tmp_path / "place")
    honest.check(create=True)
    honest.put("a/b.kvarc", b"an archive")
    far: Any = Far(honest)
    copy = tmp_path / "work" / "copy"

    def copied(source: Any, crc: int) -> ObjectCopy:
        intent = Intent(1, "cold", "a/c.kvarc", 10, crc)
        job = CopyJob(source="", key="a/b.kvarc", target="", intent=intent)
        return ObjectCopy(source, honest, job, copy, LocalFiles(), Pacing())

    crc = google_crc32c.value(b"an archive")
    with copied(far, crc).local_file() as path:
        assert path.read_bytes() == b"an archive"
    assert not copy.exists()
    for place in (far, honest):
        with (
            pytest.raises(ArchiveDamaged, match="not what was put"),
            copied(place, crc ^ 1).local_file(),
        ):
            pass
        assert not copy.exists()


def test_an_archive_whose_bytes_changed_stays_where_it_is_and_the_others_go_cold(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    worker.run_once()
    count = len(worker.archives())
    path = path_of(store, worker, 0)
    whole, key = path.read_bytes(), worker.archives()[0].key
    damage(path)
    clock.advance(51 * DAY)
    report = worker.run_and_merge()
    assert (list(report.failed), len(report.relocated)) == ([key], count - 1)
    assert [done.source for done in worker.history.last(100) if done.what == "failed"] == [key]
    (wait,) = read_waits(store.path / WORK / FILE, store.config.files)
    assert (wait.what, wait.tiers) == (key, ["cold"])
    clock.advance(30)
    worker.run_and_merge()
    assert len([d for d in worker.history.last(100) if d.what == "failed"]) == 1, "it waits"
    path.write_bytes(whole)
    clock.advance(60)
    assert worker.run_and_merge().relocated == [key]


def test_while_a_place_is_away_its_objects_are_not_asked_to_go_at_every_look(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    root = tmp_path / "nas"
    policy = Policy(hot_for=DAY, warm=str(root), grace=0.0, clock_doubt=0.0, merge_bytes=None)
    with Worker(store, policy, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        count = len(worker.merge().merged)
        assert count > 1
        root.rename(tmp_path / "elsewhere")
        clock.advance(1)
        for looks in range(10):
            failed = worker.run_and_merge().failed
            assert len(failed) == (looks == 0)
            clock.advance(5)
        assert [w.what for w in read_waits(store.path / WORK / FILE, store.config.files)] == [
            str(root)
        ]
        (tmp_path / "elsewhere").rename(root)
        clock.advance(60)
        assert len(worker.run_and_merge().removed) == count


class Struck(Inline):
    """Work on one segment ends with what nobody expects, while `error` is set."""

    def __init__(self) -> None:
        self.error: Exception | None = RuntimeError("struck")
        self.tried = 0

    def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
        if work is segment_task and args[0].number == 0:
            self.tried += 1
            if self.error is not None:
                raise self.error
        return super().run(check, work, *args)


@pytest.mark.parametrize("error", [RuntimeError("struck"), MemoryError(), KeyError("struck")])
def test_what_nobody_expected_of_one_segment_costs_that_segment_and_is_waited_for(
    store: Store, clock: VirtualClock, error: Exception
) -> None:
    struck, before = Struck(), held(store)
    struck.error = error
    with Worker(store, WARM, executor=struck) as worker:
        for _ in range(15):
            worker.run_and_merge()
            clock.advance(60)
        assert [segment.number for segment in store.segments()] == [0]
        assert struck.tried == 4, "after 0, 1, 3 and 7 minutes"
        (wait,) = read_waits(store.path / WORK / FILE, store.config.files)
        assert wait.why.startswith(type(error).__name__)
        assert worker.run_once().failed == {"segment 0": f"{type(error).__name__}: {error}"}
        struck.error = None
        assert worker.run_once().failed == {}
    assert held(store) == before


def test_a_merge_that_fails_in_a_way_nobody_expected_costs_its_group_alone(store: Store) -> None:
    class Failing(Inline):
        def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
            if work is merge_task:
                raise RuntimeError("struck")
            return super().run(check, work, *args)

    with Worker(store, WARM, executor=Failing()) as worker:
        worker.run_once()
        before = worker.archives()
        assert list(worker.merge().failed.values()) == ["RuntimeError: struck"]
        assert worker.archives() == before
        assert left(store) == []


def test_segments_and_archives_that_are_gone_are_not_waited_for(
    tmp_path: Path, clock: VirtualClock
) -> None:
    waits = Waits(tmp_path / FILE, LocalFiles(), clock)
    for what in ("segment 5", "segment 6", "a/5.kvarc", "a/6.kvarc", "/a/place"):
        waits.failed(what, ["warm"], StoreError("away"))
    waits.keep({"segment 6", "a/6.kvarc"})
    stay = ["/a/place", "a/6.kvarc", "segment 6"]
    assert not waits.is_on("segment 5")
    assert not waits.is_on("a/5.kvarc")
    assert all(map(waits.is_on, stay))
    waits.note()
    assert [wait.what for wait in read_waits(tmp_path / FILE, LocalFiles())] == stay


# --- merging ---


def test_what_is_due_to_go_cold_is_not_merged_before(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    worker.run_once()
    clock.advance(51 * DAY)
    assert worker.merge().merged == []
    assert len(worker.run_once().relocated) == len(worker.archives())
    assert worker.merge().merged


def test_what_could_not_be_merged_is_merged_when_somebody_asks_for_it_again(
    store: Store, worker: Worker
) -> None:
    worker.run_once()
    count = len(worker.archives())
    path = path_of(store, worker, 0)
    whole = path.read_bytes()
    damage(path)
    assert worker.merge().failed
    path.write_bytes(whole)
    assert worker.merge().failed == {}
    assert len(worker.archives()) < count


def test_a_merge_whose_counts_do_not_agree_changes_nothing(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run_once()
    plan, before = plan_merge, worker.archives()

    def planned(*args: Any) -> Any:
        found = plan(*args)
        return msgspec.structs.replace(found, messages=found.messages + 1)

    monkeypatch.setattr("tiering.merge.merge.plan_merge", planned)
    (why,) = worker.merge().failed.values()
    assert "nothing was changed" in why
    assert worker.archives() == before
    assert objects(store) == named(store)


class Two(Inline):
    """Two that work, so that files are written by the worker itself."""

    width = 2


@pytest.mark.parametrize("lie", ["other", "less"])
def test_what_a_disk_does_not_give_back_is_merged_into_nothing(
    tmp_path: Path, clock: VirtualClock, lie: Lie
) -> None:
    files = LyingFiles(".merged")
    with (
        filled(tmp_path / "lied", clock, 240, days=2, files=files) as store,
        Worker(store, WARM, executor=Two()) as worker,
    ):
        assert worker.run_once().failed == {}
        before = worker.archives()
        files.lie = lie
        (why,) = worker.merge().failed.values()
        assert "not what was put there" in why
        assert (worker.archives(), left(store)) == (before, [])
        files.lie = None
        assert worker.merge().failed == {}


def test_parts_of_an_archive_that_lack_messages_take_its_place_nowhere(store: Store) -> None:
    class Losing(Inline):
        def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
            found = super().run(check, work, *args)
            if work is not merge_task or not args[0].path.endswith(".1"):
                return found
            fewer = msgspec.structs.replace(
                found.made.manifest, messages=found.made.manifest.messages - 1
            )
            made = msgspec.structs.replace(found.made, manifest=fewer)
            return msgspec.structs.replace(found, made=made)

    with Worker(store, WARM, executor=Losing()) as worker:
        worker.run_once()
        before = worker.archives()
        store.alter_topic("events", retention=Retention(warm_for=5 * DAY))
        failed = worker.part("events").failed
        assert all("nothing was changed" in why for why in failed.values())
        assert len(failed) == len(before)
        assert worker.archives() == before
        assert objects(store) == named(store)


# --- erasing ---


def test_what_an_erasure_has_replaced_goes_with_the_next_run_if_it_could_not_go_at_once(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = msgspec.structs.replace(WARM, grace=1e6)
    with Worker(store, policy, executor=Inline()) as worker:
        worker.run_once()
        count = len(worker.archives())
        with monkeypatch.context() as patch:
            patch.setattr(WorkContext, "overwrite", raising(StoreError("not now")))
            report = worker.erase(key="k3")
        assert not report.is_proven
        assert len(report.failed) == count
        assert len(worker.run_once().removed) == count
        assert objects(store) == named(store)


def test_while_something_is_attached_an_erasure_leaves_what_may_belong_to_it(
    store: Store, worker: Worker
) -> None:
    worker.run_once()
    archive = path_of(store, worker, 0)
    part = archive.with_name(f".{archive.name}.0123456789abcdef.part")
    part.write_bytes(b"half")
    half = store.path / WORK / "attach" / "made" / "1.kvarc"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    with attaching(store.handover):
        report = worker.erase(key="k3")
        assert not report.is_proven
        assert len(report.failed) == 2
        assert part.exists()
        assert half.exists()
    assert worker.erase(key="k3").is_proven
    assert not part.exists()
    assert not half.exists()


def test_messages_are_searched_in_an_archive_of_which_a_part_is_older(
    store: Store, worker: Worker, clock: VirtualClock
) -> None:
    fill(store, 30, first=500)
    time = clock.now_ms() + 1
    clock.advance(1)
    fill(store, 30, first=600)
    clock.advance(2 * DAY)
    worker.run_once()
    worker.merge()
    newer = {q: [m for m in some if m.stored_at >= time] for q, some in held(store).items()}
    assert any(a.first_stored_at < time <= a.last_stored_at for a in worker.archives())
    report = worker.erase(before=time)
    assert report.is_proven, report.failed
    assert held(store) == newer


def test_what_is_put_while_an_erasure_is_under_way_is_not_meant(
    store: Store, clock: VirtualClock
) -> None:
    def put(what: str, *_: int) -> None:
        if what.startswith("erasing") and not store.query("orders", "new"):
            store.put_batch([Message("orders", b"later", queue=0, keys=("k3", "new"))])
            store.seal()
            store.checkpoint()

    with Worker(store, WARM, executor=Inline(), progress=put) as worker:
        worker.run_once()
        report = worker.erase(key="k3")
        assert report.is_proven, report.failed
    assert [m.body for m in store.query("orders", "k3")] == [b"later"]


def test_an_erasure_that_is_stopped_says_so(store: Store) -> None:
    workers: list[Worker] = []

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("erasing") and done == total - 1:  # nothing is asked behind it
            inside.tell_to_stop(workers[0])

    with Worker(store, WARM, executor=Inline(), progress=stop) as worker:
        workers.append(worker)
        worker.run_once()
        with pytest.raises(TieringStopped):
            worker.erase(key="k3")
        assert left(store) == []


def test_a_file_that_has_another_name_keeps_its_bytes_there(
    store: Store, worker: Worker, tmp_path: Path
) -> None:
    worker.run_once()
    path = path_of(store, worker, 0)
    backup = tmp_path / "backup"
    backup.hardlink_to(path)
    whole = backup.read_bytes()
    assert worker.erase(key="k3").is_proven
    assert not path.exists()
    assert backup.read_bytes() == whole


# --- one at a time ---


def test_a_run_does_not_begin_in_another_and_a_stopped_thread_is_the_stores_no_more(
    store: Store,
) -> None:
    refused: list[str] = []
    workers: list[Worker] = []

    def again(*_: object) -> None:
        for call in ("run_once", "merge", "verify"):
            try:
                getattr(workers[0], call)()
            except TieringBusy:
                refused.append(call)

    with Worker(store, WARM, executor=Inline(), progress=again) as worker:
        workers.append(worker)
        worker.run_once()
        assert set(refused) == {"run_once", "merge", "verify"}
        threads = [thread.name for thread in store.stats().threads]
        worker.start(1e6)
        assert [t.name for t in store.stats().threads] == [*threads, "kvmq-tiering"]
    assert [thread.name for thread in store.stats().threads] == threads


def test_an_archive_that_readers_could_not_be_told_of_is_in_no_figure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted until the next opening: it was in memory, and in no row."""
    forget, struck = KeyFilters.forget, [OSError(5, "struck")]

    def forgets_once(filters: KeyFilters, number: int) -> None:
        if struck:
            raise struck.pop()
        forget(filters, number)

    monkeypatch.setattr(KeyFilters, "forget", forgets_once)
    with Worker(store, WARM, executor=Inline()) as worker:
        assert worker.run_once().failed
        assert sum(tier.archives for tier in store.stats().tiers) == len(worker.archives()) > 0
    assert not struck


def test_a_worker_that_could_not_be_made_leaves_its_turn_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as struck:
        struck.setattr(Tiers, "use", raising(OSError(5, "struck")))
        with pytest.raises(OSError, match="struck"):
            Worker(store, WARM, executor=Inline())
    with Worker(store, WARM, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
