"""Work that fails is not done anew at every look, and is reported as left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore import Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.stores import fill, held
from tiering import PlaceUnavailable, Policy, Worker
from tiering.executor.pool import Inline
from tiering.executor.segment_encoder import segment_task
from tiering.places.publish import Intent, Intents
from tiering.places.work_folder import FILE, WORK, read_waits

DAY = 86_400.0


pytestmark = pytest.mark.filled(count=220)


class Counting(Inline):
    """Counts how often a segment is read and encoded."""

    def __init__(self) -> None:
        self.encoded = 0

    def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
        self.encoded += work is segment_task
        return super().run(check, work, *args)


def looks(worker: Worker, clock: VirtualClock, count: int) -> None:
    """A worker that looks each minute."""
    for _ in range(count):
        worker.run_and_merge()
        clock.advance(60)


def damage(store: Store) -> tuple[Path, bytes]:
    path = min((store.path / "commitlog").iterdir())
    whole = path.read_bytes()
    data = bytearray(whole)
    data[data.index(b"message 0") + 8] ^= 1
    path.write_bytes(data)
    return path, whole


def test_a_damaged_segment_is_tried_ever_more_seldom_and_the_others_move(
    store: Store, clock: VirtualClock
) -> None:
    count = len(store.segments())
    path, whole = damage(store)
    counting = Counting()
    policy = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0)
    with Worker(store, policy, executor=counting) as worker:
        looks(worker, clock, 60)
        # The others once; this one after 0, 1, 3, 7, 15 and 31 minutes.
        assert counting.encoded == count - 1 + 6
        (wait,) = read_waits(store.path / WORK / FILE, store.config.files)
        assert (wait.what, wait.tries, wait.tiers) == ("segment 0", 6, ["warm"])
        (warm,) = store.stats().tiers
        assert [text.partition(":")[0] for text in warm.waiting] == ["segment 0"]
        assert list(worker.run_once().failed) == ["segment 0"], "who calls is not made to wait"
        assert counting.encoded == count - 1 + 7
        path.write_bytes(whole)
        looks(worker, clock, 3)
        assert store.segments() == []
        assert read_waits(store.path / WORK / FILE, store.config.files) == []
        assert store.stats().tiers[0].waiting == []


def test_no_wait_is_longer_than_an_hour(store: Store, clock: VirtualClock) -> None:
    damage(store)
    counting = Counting()
    policy = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, merge_bytes=None)
    with Worker(store, policy, executor=counting) as worker:
        for _ in range(40):
            worker.run_and_merge()
            clock.advance(3600)
    assert counting.encoded == 1 + 40, "the other segment once"


def test_while_a_place_is_away_nothing_is_made_for_it_and_all_else_goes_on(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    nas = tmp_path / "nas"
    nas.mkdir()
    policy = Policy(
        hot_for=DAY, warm_for=10 * DAY, warm="archive", cold=f"file://{nas}", clock_doubt=0.0,
        merge_bytes=None,
    )  # fmt: skip
    before = held(store)
    count = len(store.segments())
    counting = Counting()
    nas.rmdir()
    nas.write_bytes(b"no folder")
    with Worker(store, policy, executor=counting) as worker:
        with pytest.raises(PlaceUnavailable, match="nas"):
            worker.run_once()
        looks(worker, clock, 2)
        assert counting.encoded == count, "warm is there"
        assert store.segments() == []
        clock.advance(20 * DAY)
        fill(store, 60, first=500)
        clock.advance(20 * DAY)
        before = held(store)
        encoded = counting.encoded
        looks(worker, clock, 40)
        assert counting.encoded == encoded
        waits = read_waits(store.path / WORK / FILE, store.config.files)
        told = {wait.what: wait.tiers for wait in waits}
        assert told == {str(nas): ["cold"]}
        assert [t.tier for t in store.stats().tiers if t.waiting] == ["cold"]
        nas.unlink()
        nas.mkdir()
        clock.advance(3600)
        looks(worker, clock, 1)
        assert {archive.tier for archive in worker.archives()} == {"cold"}
        assert store.segments() == []
    assert held(store) == before


@pytest.mark.parametrize("tier", ["warm", "cold"])
def test_a_place_that_is_there_again_is_not_waited_for_any_more(
    store: Store, clock: VirtualClock, tmp_path: Path, tier: str
) -> None:
    nas = tmp_path / "nas"
    nas.write_bytes(b"no folder")
    policy = (
        Policy(hot_for=DAY, warm=str(nas), clock_doubt=0.0)
        if tier == "warm"
        else Policy(hot_for=DAY, warm_for=DAY, warm="archive", cold=str(nas), clock_doubt=0.0)
    )
    with Worker(store, policy, executor=Inline()) as worker:
        inside.tried_places(worker).add(str(nas))
        looks(worker, clock, 2)
        clock.advance(2 * DAY)
        looks(worker, clock, 2)
        assert [wait.what for wait in read_waits(store.path / WORK / FILE, store.config.files)]
        assert [told.tier for told in store.stats().tiers if told.waiting] == [tier]
        nas.unlink()
        nas.mkdir()
        clock.advance(3600)
        looks(worker, clock, 2)
        assert read_waits(store.path / WORK / FILE, store.config.files) == []
        assert not any(told.waiting for told in store.stats().tiers)
        assert store.segments() == []


def test_a_place_that_goes_away_in_a_run_costs_the_segment_under_way(
    store: Store, tmp_path: Path, clock: VirtualClock
) -> None:
    fill(store, 300, first=500)
    clock.advance(2 * DAY)
    counting, count = Counting(), len(store.segments())
    assert count > 4
    root = tmp_path / "nas"
    policy = Policy(hot_for=DAY, warm=str(root), clock_doubt=0.0)
    with Worker(store, policy, executor=counting) as worker:
        inside.tried_places(worker).add(str(root))
        failed = worker.run_once().failed
        assert counting.encoded <= 2, "the next was begun while this one was put"
        assert list(failed) == [f"segment {number}" for number in range(count)]
        assert len(store.segments()) == count
        assert list((store.path / WORK / "made").rglob("*.kvarc*")) == []
        root.mkdir()
        assert worker.run_once().failed == {}
        assert store.segments() == []


def test_what_a_killed_worker_left_is_tidied_in_every_place_that_is_there(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("away", "here")}
    places["here"].mkdir()
    intents = Intents(store.path / WORK / "intents", store.config.files)
    for number, (name, path) in enumerate(places.items()):
        for more in (0, 10):
            key = f"a/{name}{more}.kvarc"
            intents.note(Intent(900 + number + more, str(path), key, 5, 0x9A71BB4C))
            if path.is_dir():
                (path / "a").mkdir(exist_ok=True)
                (path / key).write_bytes(b"hello")
    policy = Policy(
        hot_for=DAY, warm_for=DAY, warm=str(places["here"]), cold=str(places["away"]),
        clock_doubt=0.0,
    )  # fmt: skip
    with Worker(store, policy, executor=Inline()) as worker:
        inside.tried_places(worker).update(map(str, places.values()))
        done = worker.run_once()
        assert next(iter(done.failed)) == f"tidying {places['away']}"
        assert not list(places["here"].rglob("here*"))
        assert len(list(intents.unfinished(()))) == 2
        places["away"].mkdir()
        assert worker.run_once().failed == {}
        assert list(intents.unfinished(())) == []
