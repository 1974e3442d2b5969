"""A power cut leaves the messages acknowledged as synced, and a leading part of the rest."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore import PutStatus, Store, StoreError
from kvstore.index.index import Index
from tests.support.clock import VirtualClock
from tests.support.contents import assert_found_by_key, assert_whole, bodies
from tests.support.files import Choose, Effect, Page, WatchedFiles, every, none
from tests.support.stores import SEGMENT, SMALL, body, killed, message, opened, put, settings


def half(seed: int) -> Choose:
    """A random half of the dirty pages reached the disk."""

    def choose(pages: list[Page]) -> list[Page]:
        random = Random(seed)
        return [p for p in pages if random.random() < 0.5]

    return choose


KEEPS = [("none", none), ("all", every), ("half", half(1)), ("other half", half(2))]
CHOICES = pytest.mark.parametrize("keep", [k for _, k in KEEPS], ids=[name for name, _ in KEEPS])


def leading(found: list[bytes], size: int = 200) -> int:
    """How many messages there are, which must be the first ones."""
    assert found == [body(n, size) for n in range(len(found))]
    return len(found)


@CHOICES
@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_what_was_flushed_survives_and_the_rest_is_a_leading_part(
    tmp_path: Path, keep: Choose, mode: str
) -> None:
    files = WatchedFiles()
    config = settings(files=files, write_mode=mode, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 300)
        store.flush()
        put(store, 300, 500)
        cut = files.power_cut(store.path, tmp_path / "b", keep)
    with opened(cut) as store:
        found = assert_whole(store)[("t", 0)]
        assert leading([m.body for m in found]) >= 300
        assert_found_by_key(store, found[-5:])
        put(store, len(found), 50)
    with opened(cut) as store:
        assert leading(bodies(store)[("t", 0)]) == len(found) + 50
        assert assert_whole(store)


@CHOICES
@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_at_whatever_effect_the_power_is_cut_acknowledged_syncs_are_there(
    tmp_path: Path, keep: Choose, mode: str
) -> None:
    """Segments fill, are made and synced, checkpoints are written; it is cut before each effect."""
    files = WatchedFiles()
    acknowledged = [0]
    cuts: list[tuple[Path, int, Effect]] = []
    one_at_a_time = threading.Lock()

    def cut(effect: Effect) -> None:
        if effect.kind == "map" or len(cuts) >= 40:
            return
        with one_at_a_time:
            told = acknowledged[0]
            target = tmp_path / f"cut{len(cuts)}"
            cuts.append((files.power_cut(store.path, target, keep), told, effect))

    config = settings(
        files=files, write_mode=mode, flush="sync", checkpoint_bytes=40_000, clock=VirtualClock()
    )
    with opened(tmp_path / "a", config) as store:
        files.before = cut
        for n in range(0, 640, 32):
            results = store.put_batch([message(i) for i in range(n, n + 32)])
            assert all(r.status is PutStatus.FLUSHED for r in results)
            acknowledged[0] = n + 32
        files.before = lambda _: None
    assert len(cuts) >= 20
    for path, told, effect in cuts:
        with opened(path) as store:
            found = leading(bodies(store).get(("t", 0), []))
            assert found >= told, effect
            assert store.verify().problems == [], effect


@CHOICES
def test_bytes_behind_the_end_of_a_cleanly_closed_store_never_come_back(
    tmp_path: Path, keep: Choose
) -> None:
    """Put after a clean close, cut the power, put less, crash: only what was put since is there."""
    with opened(tmp_path / "a") as store:
        put(store, 0, 3)
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 3, 100)

        def without_first(pages: list[Page]) -> list[Page]:
            return list(keep(pages[1:]))

        cut = files.power_cut(store.path, tmp_path / "b", without_first)
    files = WatchedFiles()
    config = settings(files=files, clock=VirtualClock())
    with opened(cut, config) as store:
        held = leading(bodies(store)[("t", 0)])
        assert (store.recovery.torn is not None) == (store.recovery.cut_bytes > 0), "silent"
        put(store, held, 10)
        again = files.power_cut(store.path, tmp_path / "c", every)
    with opened(again) as store:
        assert leading(bodies(store)[("t", 0)]) == held + 10


def test_messages_of_a_topic_made_beyond_the_cut_are_found_after_the_next_crash(
    tmp_path: Path,
) -> None:
    """The topic's row is on the disk, the log it was made behind is not: `since` is ahead."""
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 100)
        store.create_topic("late", queues=1)
        put(store, 100, 10, topic="late")
        cut = files.power_cut(store.path, tmp_path / "b", none)
    files = WatchedFiles()
    with opened(cut, settings(files=files, clock=VirtualClock())) as store:
        assert store.bounds("late", 0) == (0, 0)
        placed = put(store, 0, 5, topic="late")
        assert store.find(placed[0].message_id).body == body(0)
        assert [m.body for m in store.query("late", "k-3")] == [body(3)]
        store.flush()
        again = files.power_cut(store.path, tmp_path / "c", none)
    with opened(again) as store:
        assert bodies(store)[("late", 0)] == [body(n) for n in range(5)]
        assert put(store, 5, 1, topic="late")[0].offset == 5
        assert store.verify().problems == []


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """A store that lost 40 messages of queue 0 by a power cut, but not the offset behind them."""
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 10)
        store.flush()
        put(store, 10, 40)
        store.commit_offset("g", "t", 0, 50)
        return files.power_cut(store.path, tmp_path / "b", none)


def test_an_offset_committed_ahead_of_the_log_is_clamped_when_its_queue_is_used(
    ahead: Path,
) -> None:
    with opened(ahead) as store:
        held = store.bounds("t", 0).next_offset
        assert 10 <= held < 50
        assert store.committed_offset("g", "t", 0) == held
        put(store, held, 5)
        assert store.committed_offset("g", "t", 0) == held
    with opened(ahead) as store:
        assert store.committed_offset("g", "t", 0) == held


def test_an_offset_committed_ahead_of_the_log_is_clamped_also_for_a_reader(ahead: Path) -> None:
    with kvstore.open(ahead, config=SMALL, read_only=True) as store:
        assert store.committed_offset("g", "t", 0) == store.bounds("t", 0).next_offset


def test_an_offset_ahead_of_the_log_stays_clamped_once_the_log_has_grown_past_it(
    ahead: Path,
) -> None:
    """The offset is first asked for when new messages have taken the places of the lost ones."""
    with opened(ahead) as store:
        held = store.bounds("t", 0).next_offset
        put(store, held, 100)
        found = store.committed_offset("g", "t", 0)
        assert found is not None
        assert found <= held, "messages nobody has seen would be passed over"


@pytest.mark.parametrize("older", [0, 1, 2, 3])
def test_an_index_that_lost_its_last_writes_is_brought_up_to_the_log(
    tmp_path: Path, older: int
) -> None:
    """The log has up to four checkpoints more than a copy of the index."""
    from tests.support.files import copy_folder

    copies = []
    with opened(tmp_path / "a", settings(flush="sync")) as store:
        for n in range(4):
            copies.append(copy_folder(store.path / "index", tmp_path / f"index{n}"))
            put(store, 200 * n, 200)
            put(store, 1000 * n, 20, topic="t", queue=1)
            store.checkpoint()
        store.create_group("g")
    with opened(tmp_path / "a") as store:
        wanted = bodies(store)
    from shutil import copytree, rmtree

    rmtree(tmp_path / "a" / "index")
    copytree(copies[older], tmp_path / "a" / "index")
    with opened(tmp_path / "a") as store:
        assert store.recovery.records == 220 * (4 - older)
        assert bodies(store) == wanted
        found = assert_whole(store)
        assert_found_by_key(store, found[("t", 0)][::50])
        assert put(store, 800, 1)[0].offset == 800


def test_a_power_cut_in_the_middle_of_recovery_changes_nothing(tmp_path: Path) -> None:
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 700)
        cut = files.power_cut(store.path, tmp_path / "b", half(3))
    with opened(_copy(cut, tmp_path / "whole")) as store:
        wanted = bodies(store)
    files = WatchedFiles()
    cuts: list[Path] = []

    def again(_: Effect) -> None:
        cuts.append(files.power_cut(cut, tmp_path / f"again{len(cuts)}", half(len(cuts))))

    files.before = again
    with opened(cut, settings(files=files, checkpoint_bytes=20_000, clock=VirtualClock())):
        files.before = lambda _: None
    assert len(cuts) > 3
    for path in cuts:
        with opened(path) as store:
            assert bodies(store) == wanted
            assert store.verify().problems == []


def test_a_long_recovery_that_is_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with opened(tmp_path / "a") as store:
        put(store, 0, 700)
        killed(store, path)
    left: list[Path] = []

    def told(what: str, done: int, total: int) -> None:
        left.append(_copy(path, tmp_path / f"left{len(left)}"))

    config = settings(checkpoint_bytes=20_000)
    kvstore.open(path, config, progress=told).close()
    starts = []
    for folder in left:
        with opened(folder) as store:
            starts.append(store.recovery.start)
            assert len(assert_whole(store)[("t", 0)]) == 700
    assert starts == sorted(starts)
    assert starts[-1] > starts[0] > 0, "it is begun anew"


def _copy(source: Path, target: Path) -> Path:
    from tests.support.files import copy_folder

    return copy_folder(source, target)


def test_a_store_whose_making_was_cut_short_can_be_opened(tmp_path: Path) -> None:
    """The power goes before each effect of the first opening, from the empty folder on."""
    files = WatchedFiles()
    path = tmp_path / "a"
    cuts: list[Path] = []

    def cut(_: Effect) -> None:
        cuts.append(_copy(path, tmp_path / f"cut{len(cuts)}") if path.exists() else path)

    files.before = cut
    with kvstore.open(path, config=settings(files=files, clock=VirtualClock())):
        files.before = lambda _: None
    for left in cuts:
        with opened(left) as store:
            put(store, 0, 3)
            assert leading(bodies(store)[("t", 0)]) == 3


def test_a_store_whose_index_got_files_and_no_row_yet_is_made(tmp_path: Path) -> None:
    (tmp_path / "a" / "commitlog").mkdir(parents=True)
    Index(tmp_path / "a" / "index", SEGMENT, read_only=False, create=True).close()
    with opened(tmp_path / "a") as store:
        put(store, 0, 3)
        assert leading(bodies(store)[("t", 0)]) == 3


def test_the_disk_is_asked_for_no_more_than_one_segment_ahead(tmp_path: Path) -> None:
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 700)
        store.flush()
        ends = store.stats().end_position
    made = [int(e.path.name) for e in files.effects if e.kind == "create"]
    assert made == sorted(set(made))
    assert made[-1] <= ends + SEGMENT


def test_an_unopened_store_is_not_changed_by_an_opening_that_fails(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        put(store, 0, 10)
    files = WatchedFiles()
    files.fail("sync")
    with pytest.raises(StoreError):
        opened_once(tmp_path / "a", files)
    with opened(tmp_path / "a") as store:
        assert leading(bodies(store)[("t", 0)]) == 10


def opened_once(path: Path, files: WatchedFiles) -> Store:
    store = kvstore.open(path, config=settings(files=files, clock=VirtualClock()))
    store.close()
    return store


def test_a_store_that_ends_without_a_close_was_not_closed_in_order(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        put(store, 0, 5)
    with opened(tmp_path / "a") as store:
        assert store.recovery.clean
        killed(store, tmp_path / "b")
    with opened(tmp_path / "b") as store:
        assert not store.recovery.clean
    with opened(tmp_path / "b") as store:
        assert store.recovery.clean
