"""A disk that refuses to take data: nobody is told that it did, and nothing is written any more."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import DiskFull, FlushFailed, PutStatus, Store, StoreError
from kvstore.clock import SystemClock
from kvstore.log import segments as log_segments
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, bodies
from tests.support.files import Effect, WatchedFiles, none
from tests.support.raising import raising
from tests.support.stores import SEGMENT, body, message, opened, put, segment, settings

WAIT = 20.0


def at_once(work: Callable[[], object], count: int) -> list[object]:
    """Do something in several threads; what each returned or raised. Fails if one hangs."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as e:
            results.append(e)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(WAIT)
    assert not any(t.is_alive() for t in threads), "somebody waits for ever"
    return results


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_after_a_failed_sync_nothing_is_acknowledged_or_taken_and_reads_go_on(
    tmp_path: Path, mode: str
) -> None:
    files = WatchedFiles()
    config = settings(files=files, flush="sync", write_mode=mode, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 10)
        files.fail("sync")
        with pytest.raises(FlushFailed, match="Input/output error"):
            put(store, 10, 1)
        for refused in (
            lambda: put(store, 11, 1),
            store.flush,
            store.checkpoint,
            store.seal,
        ):
            with pytest.raises(FlushFailed):
                refused()
        assert bodies(store)[("t", 0)][:10] == [body(n) for n in range(10)]
        assert store.get("t", 0, 3).body == body(3)
        assert store.query("t", "k-4")[0].body == body(4)
        cut = files.power_cut(store.path, tmp_path / "b", none)
    for path in (cut, tmp_path / "a"):
        with opened(path) as store:
            found = assert_whole(store)[("t", 0)]
            assert [m.body for m in found] == [body(n) for n in range(len(found))]
            assert len(found) in (10, 11)
            put(store, len(found), 1)


def test_every_waiter_of_a_sync_that_fails_is_told(tmp_path: Path) -> None:
    files = WatchedFiles()
    reached, go = threading.Event(), threading.Event()

    def hold(effect: Effect) -> None:
        if effect.kind == "sync":
            reached.set()
            assert go.wait(WAIT)

    config = settings(files=files, flush="sync", busy_timeout=WAIT, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        files.before = hold
        files.fail("sync", times=1)
        releaser = threading.Timer(0.3, go.set)
        releaser.start()
        results = at_once(lambda: put(store, 0, 1), 6)
        releaser.join()
        assert reached.is_set()
        assert [type(r) for r in results] == [FlushFailed] * 6


@pytest.mark.parametrize("nth", range(1, 13))
def test_whichever_sync_fails_what_was_acknowledged_is_there(tmp_path: Path, nth: int) -> None:
    files = WatchedFiles()
    config = settings(files=files, flush="sync", checkpoint_bytes=30_000, clock=VirtualClock())
    told = 0
    with opened(tmp_path / "a", config) as store:
        files.fail("sync", nth=nth, times=1 << 30)
        with contextlib.suppress(FlushFailed):
            for n in range(0, 1000, 40):
                results = store.put_batch([message(i) for i in range(n, n + 40)])
                assert {r.status for r in results} == {PutStatus.FLUSHED}
                told = n + 40
        assert told < 1000
        cut = files.power_cut(store.path, tmp_path / "b", none)
    with opened(cut) as store:
        found = bodies(store).get(("t", 0), [])
        assert len(found) >= told
        assert found == [body(n) for n in range(len(found))]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("create", "mapped"), ("create", "staged"), ("write", "staged"), ("map", "mapped")],
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_any_other_refusal_of_the_disk_is_a_typed_error_and_loses_nothing(
    tmp_path: Path, kind: str, mode: str, error: int
) -> None:
    files = WatchedFiles()
    config = settings(files=files, write_mode=mode, flush="sync", clock=VirtualClock())
    told = 0
    with opened(tmp_path / "a", config) as store:
        files.fail(kind, error=error, times=1 << 30)
        results = at_once(lambda: put(store, 0, 400), 1)
        if kind != "map":
            assert isinstance(results[0], StoreError), results
        told = store.stats().durable_position
        files.mend()
    with opened(tmp_path / "a") as store:
        found = [m.body for m in assert_whole(store).get(("t", 0), [])]
        assert found == [body(n) for n in range(len(found))]
        assert store.stats().end_position >= told


def test_a_segment_that_could_not_be_made_is_made_once_the_disk_lets_us(tmp_path: Path) -> None:
    files = WatchedFiles()
    config = settings(files=files, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        files.fail("create", error=errno.ENOSPC, times=1 << 30)
        done = 0
        with contextlib.suppress(DiskFull):
            while done < 1000:
                put(store, done, 1)
                done += 1
        assert done < 1000
        assert bodies(store)[("t", 0)] == [body(n) for n in range(done)]
        files.mend()
        put(store, done, 100)
        assert len(assert_whole(store)[("t", 0)]) == done + 100


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_opening_that_the_disk_refuses_is_a_typed_error_and_can_be_tried_again(
    tmp_path: Path, nth: int
) -> None:
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 300)
        store.flush()
        cut = files.power_cut(store.path, tmp_path / "b", none)
    refusing = WatchedFiles()
    refusing.fail("sync", nth=nth)
    config = settings(files=refusing, checkpoint_bytes=30_000, clock=VirtualClock())
    with pytest.raises(StoreError):
        kvstore.open(cut, config=config).close()
    assert sum(refusing.open_maps.values()) == 0
    with opened(cut) as store:
        assert len(assert_whole(store)[("t", 0)]) == 300


def test_a_close_that_the_disk_refuses_says_so_and_lets_go_of_the_folder(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = kvstore.open(tmp_path / "a", config=settings(files=files, clock=VirtualClock()))
    store.create_topic("t")
    put(store, 0, 5)
    files.fail("sync")
    with pytest.raises(FlushFailed):
        store.close()
    store.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("kvmq")]
    with opened(tmp_path / "a") as store:
        assert len(bodies(store)[("t", 0)]) == 5


class HeldClock(VirtualClock):
    """Lets the flusher wake up only when the test says so, as a busy machine may."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.held = threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        found = super().wait(event, seconds)
        if threading.current_thread().name == "kvmq-flusher" and not self.go.is_set():
            self.held.set()
            assert self.go.wait(WAIT)
        return found


def test_a_put_that_waits_for_the_disk_is_served_by_a_checkpoint_as_well(tmp_path: Path) -> None:
    clock = HeldClock()
    with opened(tmp_path / "a", settings(flush="sync", clock=clock)) as store:
        clock.go.clear()
        putting = threading.Thread(target=put, args=(store, 0, 1), daemon=True)
        putting.start()
        assert clock.held.wait(WAIT)
        store.checkpoint()
        clock.go.set()
        putting.join(WAIT / 4)
        hangs = putting.is_alive()
        if hangs:  # let it go, for the tests behind this one
            at_once(lambda: put(store, 1, 1), 1)
        assert not hangs


def test_the_active_segment_stays_open_however_many_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map that is let go while the flusher syncs it would be a failed sync."""
    monkeypatch.setattr(log_segments, "MAPS_MAX", 4)
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        placed = put(store, 0, 1420)  # the last one is behind the middle of its segment
        active = placed[-1].position // SEGMENT
        for _ in range(1000):
            if segment(store.path, active + 1).exists():
                break
            SystemClock().sleep(0.01)
        assert segment(store.path, active + 1).exists()
        for r in placed[::20]:
            store.read_at(r.position)
            assert files.open_maps[segment(store.path, active)] == 1


def test_maps_of_segments_that_were_filled_since_the_opening_are_let_go_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a descriptor, of which a process has 1,024: a store that fills more must go on."""
    monkeypatch.setattr(log_segments, "MAPS_MAX", 4)
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        for n in range(0, 3000, 100):
            put(store, n, 100)
            store.flush()
        assert store.stats().segments > 12
        assert sum(files.open_maps.values()) <= 8


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_a_put_is_never_refused_after_it_was_written(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that can't be written to makes puts fail, but not ones whose messages are there."""
    from kvstore import IndexDamaged
    from kvstore.index.families import Families

    config = settings(checkpoint_bytes=20_000, write_mode=mode, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        with monkeypatch.context() as broken:
            broken.setattr(
                Families,
                "write",
                raising(IndexDamaged("RocksDB refused a write: No space left on device")),
            )
            refused: list[int] = []
            for n in range(300):
                try:
                    put(store, n, 1)
                except StoreError:
                    refused.append(n)
        held = {m.body for m in _all(store)}
        assert refused, "the tail would grow for ever"
        assert not held & {body(n) for n in refused}
        put(store, 1000, 1)


def _all(store: Store) -> list[kvstore.StoredMessage]:
    from tests.support.contents import read_queue

    return read_queue(store, "t", 0)
