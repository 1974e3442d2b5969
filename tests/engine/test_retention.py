"""Which segments go, when, and what is left of their queues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import (
    DiskFull,
    Message,
    OffsetNotFound,
    Retention,
    Store,
    StoreConfig,
    TopicConfig,
)
from kvstore.clock import SystemClock
from kvstore.engine.retention import Aged, Why, drop_expired, next_to_go
from kvstore.index.keys import META
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, bodies
from tests.support.files import Effect, WatchedFiles, every
from tests.support.stores import SEGMENT, SMALL, killed, opened, put, segment, settings


def bent(clock: VirtualClock, files: WatchedFiles | None = None, **changed: Any) -> StoreConfig:
    """Settings with a virtual clock, of which the housekeeper makes no use by itself, and with a
    retention that allows a full disk to have segments deleted, unless another is given.
    """
    changed.setdefault("retention", Retention(max_bytes=1 << 40))
    changed.setdefault("retention_interval", 1e9)
    changed.setdefault("checkpoint_interval", 1e9)
    return settings(clock=clock, files=files or WatchedFiles(), **changed)


def numbers(store: Store) -> list[int]:
    """The segments there are."""
    return numbers_of(store.path)


def numbers_of(path: Path) -> list[int]:
    """The numbers of the segments in a folder."""
    names = sorted(p.name for p in (path / "commitlog").iterdir())
    return [int(name) // SEGMENT for name in names if name.isdigit()]  # one may be in the making


def test_an_expired_segment_goes_and_the_minimum_offset_with_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "a", bent(clock, retention=Retention(hot_for=100))) as store:
        first = put(store, 0, 300)
        clock.advance(60)
        put(store, 300, 100)
        store.checkpoint()
        assert store.apply_retention() == 0
        clock.advance(41)
        assert store.apply_retention() == 1
        low, high = store.bounds("t", 0)
        assert low == next(r.offset for r in first if r.position >= SEGMENT)
        assert high == 400
        with pytest.raises(OffsetNotFound) as raised:
            store.get("t", 0, low - 1)
        assert (raised.value.min_offset, raised.value.max_offset) == (low, high)
        assert store.pull("t", 0, 0).next_offset == low
        assert store.pull("t", 0, low).messages[0].offset == low
        assert store.query("t", "k-0") == []
        assert min(numbers(store)) == 1
        assert_whole(store)
    with opened(tmp_path / "a", bent(clock)) as store:
        assert store.bounds("t", 0) == (low, high)
        assert_whole(store)


def test_a_segment_is_as_old_as_its_last_message_also_when_none_came_since(tmp_path: Path) -> None:
    """Sealed by hand: there is no first message behind it to take the age from."""
    clock = VirtualClock()
    with opened(tmp_path / "a", bent(clock, retention=Retention(hot_for=100))) as store:
        put(store, 0, 1)
        clock.advance(90)
        put(store, 1, 1)
        store.seal()
        clock.advance(20)
        assert store.apply_retention() == 0, "its last message is 20 s old, 100 s are promised"
        clock.advance(81)
        assert store.apply_retention() == 1
        assert store.bounds("t", 0) == (2, 2)


def test_segments_above_the_total_size_go_oldest_first(tmp_path: Path) -> None:
    clock = VirtualClock()
    config = bent(clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.25)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 1000)
        store.checkpoint()
        inside.log(store).prepare_next()  # now, and not while they are counted
        had = numbers(store)
        gone = store.apply_retention()
        assert gone == len(had) - 3
        assert numbers(store) == had[gone:]
        assert clock.slept == [0.25] * (gone - 1)
        assert_whole(store)


def test_expired_segments_go_at_the_set_hour_only(tmp_path: Path) -> None:
    clock = VirtualClock()
    clock.set_hour(12)
    config = bent(clock, retention=Retention(hot_for=3600), delete_when=4)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 300)
        clock.advance(7200)
        put(store, 300, 1)
        store.checkpoint()
        assert store.apply_retention() == 0
        clock.set_hour(4)
        assert store.apply_retention() == 1


def test_deletions_keep_their_interval_even_if_retention_looks_more_often(tmp_path: Path) -> None:
    config = bent(
        VirtualClock(), retention=Retention(max_bytes=2 * SEGMENT),
        retention_interval=0.2, delete_interval=0.7,
    )  # fmt: skip
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 1500)
        assert store.stats().segments > 4
        again = inside.upkeep(store).drop_next()
        assert again is not None
        assert again.seconds == 0.7


@pytest.mark.parametrize(
    ("used", "expired", "goes"),
    [
        (0.70, True, 0),
        (0.76, True, 1),
        (0.76, False, 0),
        (0.84, False, 0),
        (0.86, False, 1),
        (0.95, False, 1),
    ],
)
def test_a_full_disk_overrides_the_hour_and_then_the_age(
    tmp_path: Path, used: float, expired: bool, goes: int
) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    clock.set_hour(12)
    config = bent(clock, files, retention=Retention(hot_for=3600), delete_when=4)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 300)
        clock.advance(7200 if expired else 10)
        put(store, 300, 1)
        store.checkpoint()
        files.used = used

        def relieved(effect: Effect) -> None:
            if effect.kind == "remove":
                files.used = 0.5

        files.before = relieved
        assert store.apply_retention() == goes


@pytest.mark.parametrize("tiered", [False, True], ids=["no retention", "archives"])
def test_a_full_disk_deletes_nothing_that_no_retention_allows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tiered: bool
) -> None:
    """Others fill the disk: puts stop, that is told once and shown, and all messages stay."""
    clock, files = VirtualClock(), WatchedFiles()
    retention = Retention(hot_for=1, warm_for=1) if tiered else Retention()
    config = bent(clock, files, retention=retention, retention_interval=5.0)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 500)
        clock.advance(3600)
        for used in (0.86, 0.95, 1.0):
            files.used = used
            for _ in range(3):
                clock.advance(6)  # also for the housekeeper
                assert store.apply_retention() == 0
        for _ in range(3):
            clock.advance(2)
            with pytest.raises(DiskFull):
                put(store, 500, 1)
        assert "puts stop at 90%" in str(store.stats().refuses_puts)
        assert len(bodies(store)[("t", 0)]) == 500
        told = [r.getMessage() for r in caplog.records if r.name == "kvmq"]
        assert [("no retention" in text, "puts stop" in text) for text in told] == [
            (True, True),  # by the housekeeper or the call, at the second watermark
            (True, True),  # by the first put that was refused
        ]
        files.used = 0.5
        clock.advance(2)
        put(store, 500, 1)
        found = store.stats()
        assert (found.refuses_puts, found.deleted_unread) == (None, 0)
        assert len(assert_whole(store)[("t", 0)]) == 501


def test_what_goes_unread_is_told_with_its_count_and_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "a", bent(clock, retention=Retention(hot_for=60))) as store:
        store.create_topic("u", queues=1)
        store.create_topic("read", queues=1)
        store.create_topic("deleted", queues=1)
        for group in ("g", "ahead"):
            store.create_group(group)
        put(store, 0, 40)
        put(store, 0, 7, topic="u")
        put(store, 0, 5, topic="read")
        put(store, 0, 5, topic="deleted")
        store.seal()
        put(store, 40, 1)
        clock.advance(100)
        store.commit_offset("g", "t", 0, 3)
        assert len(store.pop("ahead", "t", limit=10, queue=0)) == 10
        store.commit_offset("g", "read", 0, 5)
        store.delete_topic("deleted")
        store.checkpoint()
        assert store.apply_retention() == 1
        assert store.stats().deleted_unread == 37
        (told,) = [r.getMessage() for r in caplog.records if r.name == "kvmq"]
        assert told.endswith("37 of its messages no group had read: t (30), u (7)")
        assert "older than 60 s" in told


def test_nothing_is_told_when_all_that_goes_was_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "a", bent(clock, retention=Retention(hot_for=60))) as store:
        store.create_group("g")
        put(store, 0, 40)
        store.seal()
        clock.advance(100)
        store.commit_offset("g", "t", 0, 40)
        assert store.apply_retention() == 1
        assert store.stats().deleted_unread == 0
        assert not [r for r in caplog.records if r.name == "kvmq"]


def test_other_work_is_done_in_the_pauses_between_deletions(tmp_path: Path) -> None:
    """Offsets are wanted on the disk every second, and ten segments go in ten minutes."""
    clock = VirtualClock()
    config = bent(
        clock, retention=Retention(max_bytes=SEGMENT), retention_interval=60.0,
        delete_interval=60.0, offset_sync_interval=1.0,
    )  # fmt: skip
    with opened(tmp_path / "a", config) as store:
        store.create_group("g")
        put(store, 0, 1000)
        store.checkpoint()
        had = len(numbers(store))
        for round in range(1, 4):
            _let_pass(clock, until=lambda n=round: len(numbers(store)) <= had - n)  # type: ignore[misc]
            store.commit_offset("g", "t", 0, round)
            before = clock.monotonic()
            _let_pass(clock, until=lambda: inside.offsets(store).is_synced)
            assert clock.monotonic() - before < 60.0, "it was done behind the pause"
        assert not clock.slept, "the thread slept, and all its other work with it"


def test_segments_go_one_after_the_other_as_fast_as_the_pauses_allow(tmp_path: Path) -> None:
    """Once it is time for a look no more time has to pass."""
    clock = VirtualClock()
    config = bent(
        clock, retention=Retention(max_bytes=2 * SEGMENT), retention_interval=60.0,
        delete_interval=0.0,
    )  # fmt: skip
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 1000)
        store.checkpoint()
        assert len(numbers(store)) > 4
        clock.advance(61)
        for _ in range(2000):
            if len(numbers(store)) <= 2:
                break
            SystemClock().sleep(0.01)
        assert len(numbers(store)) <= 2


def _let_pass(clock: VirtualClock, until: Callable[[], bool]) -> None:
    """Let time pass until another thread has done something; ten minutes at most."""
    for _ in range(6000):
        if until():
            return
        clock.advance(0.5)
        SystemClock().sleep(0.005)
    raise AssertionError("it was never done")


def test_puts_are_refused_above_the_last_watermark_and_taken_below_it(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files)) as store:
        put(store, 0, 10)
        files.used = 0.89
        clock.advance(2)
        put(store, 10, 1)
        files.used = 0.90
        clock.advance(2)
        for _ in range(2):
            with pytest.raises(DiskFull, match="90"):
                put(store, 11, 1)
        assert len(bodies(store)[("t", 0)]) == 11
        files.used = 0.5
        put(store, 11, 1)
        assert len(assert_whole(store)[("t", 0)]) == 12


def test_a_disk_that_fills_up_within_a_second_refuses_puts_at_its_watermark(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    config = StoreConfig(files=files, clock=clock, segment_size=4 << 20)
    with kvstore.open(tmp_path / "a", config) as store:
        store.create_topic("t")
        store.put("t", bytes(1000))
        files.used = 0.95

        def fill() -> None:
            for _ in range(200):
                store.put("t", bytes(10_000))

        with pytest.raises(DiskFull, match="95"):
            fill()
        assert store.stats().end_position < 2 << 20


def test_the_active_segment_stays_and_what_goes_is_checkpointed_first(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files, checkpoint_bytes=1 << 30)) as store:
        put(store, 0, 500)
        files.used = 0.86
        assert store.stats().checkpointed_position == 0
        gone = store.apply_retention()
        assert store.stats().checkpointed_position == store.stats().end_position
        assert gone == store.stats().end_position // SEGMENT
        assert store.bounds("t", 0).next_offset == 500
        assert_whole(store)


def test_a_queue_without_messages_goes_on_at_its_next_offset(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files)) as store:
        put(store, 0, 7, queue=1)
        put(store, 0, 500)
        store.checkpoint()
        files.used = 0.86
        assert store.apply_retention() >= 1
        files.used = 0.1
        assert store.bounds("t", 1) == (7, 7)
        assert store.pull("t", 1, 0).next_offset == 7
    with opened(tmp_path / "a", bent(clock)) as store:
        assert store.bounds("t", 1) == (7, 7)
        assert put(store, 7, 3, queue=1)[0].offset == 7
        assert store.bounds("t", 1) == (7, 10)
        store.checkpoint()
        assert store.bounds("t", 1) == (7, 10)
    with opened(tmp_path / "a", bent(clock)) as store:
        assert store.bounds("t", 1) == (7, 10)
        assert [m.offset for m in assert_whole(store)[("t", 1)]] == [7, 8, 9]


def test_messages_put_while_their_queue_is_emptied_follow_on(tmp_path: Path) -> None:
    """The queue has newer messages in the tail when its only checkpointed ones go."""
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files)) as store:
        put(store, 0, 7, queue=1)
        put(store, 0, 500)
        store.checkpoint()
        put(store, 7, 2, queue=1)
        files.used = 0.86
        assert store.apply_retention() >= 1
        assert store.bounds("t", 1) == (7, 9)
        store.checkpoint()
        assert store.bounds("t", 1) == (7, 9)
        cut = files.power_cut(store.path, tmp_path / "b", every)
    with opened(cut) as store:
        assert store.bounds("t", 1) == (7, 9)
        assert_whole(store)


def test_a_crash_between_index_and_file_leaves_an_orphan_that_the_next_opening_removes(
    tmp_path: Path,
) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    cuts: list[Path] = []
    with opened(tmp_path / "a", bent(clock, files)) as store:
        put(store, 0, 500)
        store.checkpoint()
        files.used = 0.86

        def cut(effect: Effect) -> None:
            if effect.kind == "remove":
                cuts.append(files.power_cut(store.path, tmp_path / f"cut{len(cuts)}"))

        files.before = cut
        store.apply_retention()
        files.before = lambda _: None
    assert cuts
    for n, path in enumerate(cuts):
        assert segment(path, n).exists()
        with opened(path) as store:
            assert not segment(path, n).exists()
            assert store.bounds("t", 0).min_offset > 0
            assert store.bounds("t", 0).next_offset == 500
            assert_whole(store)


def test_a_folder_in_the_place_of_a_segment_stops_neither_retention_nor_the_next_opening(
    tmp_path: Path,
) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files)) as store:
        put(store, 0, 500)
    segment(tmp_path / "a", 0).unlink()
    segment(tmp_path / "a", 0).mkdir()
    with opened(tmp_path / "a", bent(clock, files)) as store:
        files.used = 0.86
        assert store.apply_retention() >= 2
        files.used = 0.1
        assert store.bounds("t", 0).min_offset > 0
    with opened(tmp_path / "a") as store:
        assert store.bounds("t", 0).next_offset == 500
        put(store, 500, 1)


def test_secure_erase_overwrites_a_segment_before_it_goes(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files, secure_erase=True)) as store:
        put(store, 0, 500)
        store.checkpoint()
        files.used = 0.86
        seen: dict[str, bytes] = {}

        def look(effect: Effect) -> None:
            if effect.kind == "remove":
                seen[effect.path.name] = effect.path.read_bytes()

        files.before = look
        assert store.apply_retention() == len(seen) >= 2
        assert all(data == bytes(SEGMENT) for data in seen.values())


def test_secure_erase_leaves_bytes_that_another_folder_shares(tmp_path: Path) -> None:
    clock, files = VirtualClock(), WatchedFiles()
    with opened(tmp_path / "a", bent(clock, files, secure_erase=True)) as store:
        put(store, 0, 500)
        store.checkpoint()
        os.link(segment(store.path, 0), tmp_path / "theirs")
        had = (tmp_path / "theirs").read_bytes()
        files.used = 0.86
        assert store.apply_retention() >= 2
        assert not segment(store.path, 0).exists()
        assert (tmp_path / "theirs").read_bytes() == had
        assert segment(store.path, 1) not in [e.path for e in files.effects if e.kind == "map"][-1:]


def test_retention_happens_by_itself(tmp_path: Path) -> None:
    clock = VirtualClock()
    config = bent(clock, retention=Retention(max_bytes=2 * SEGMENT), retention_interval=5.0)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 700)
        store.checkpoint()
        for _ in range(500):
            if len(numbers(store)) == 2:
                break
            clock.advance(1.0)
            SystemClock().sleep(0.01)
        assert len(numbers(store)) == 2
        assert_whole(store)


def test_what_is_over_the_size_goes_though_no_checkpoint_was_due(tmp_path: Path) -> None:
    config = StoreConfig(
        segment_size=1 << 16, retention=Retention(max_bytes=1 << 18), delete_interval=0.0
    )
    with kvstore.open(tmp_path / "a", config) as store:
        store.create_topic("t")
        for _ in range(60):
            store.put_batch([Message("t", bytes(300)) for _ in range(50)])
        assert store.apply_retention() > 10
        assert store.stats().log_bytes <= 1 << 18


def test_a_topic_made_anew_from_the_log_takes_messages_in_all_its_queues(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "a", SMALL) as store:
        store.create_topic("t", queues=3)
        for queue in (0, 2, 1):
            store.put("t", b"x", queue=queue)
    shutil.rmtree(tmp_path / "a" / "index")
    kvstore.rebuild(tmp_path / "a", SMALL)
    with kvstore.open(tmp_path / "a", SMALL) as store:
        assert store.put("t", b"y", queue=2).offset == 1


def test_the_end_of_a_deleted_topic_is_forgotten_when_the_log_begins_behind_it(
    tmp_path: Path,
) -> None:
    """Until then a rebuild needs it, to leave the topic's records out."""
    clock = VirtualClock()

    def ends(store: Store) -> list[bytes]:
        return [key for key, _ in inside.families(store).rows(META, b"dropped/", b"dropped0")]

    with opened(tmp_path / "a", bent(clock, retention=Retention(hot_for=60))) as store:
        store.create_topics([TopicConfig(name=f"early{n}") for n in range(3)])
        store.put("early0", b"x")
        store.delete_topics([f"early{n}" for n in range(3)])
        store.seal()
        put(store, 0, 10)
        store.create_topic("late")
        store.put("late", b"x")
        store.delete_topic("late")
        clock.advance(30)
        put(store, 10, 10)
        store.seal()
        _let_pass(
            clock, until=lambda: not inside.topics(store).has_dropped(inside.log(store).first)
        )
        assert len(ends(store)) == 4
        clock.advance(40)
        put(store, 20, 1)
        store.checkpoint()
        assert store.apply_retention() == 1
        _let_pass(clock, until=lambda: ends(store) == [b"dropped/late"])
    kvstore.rebuild(tmp_path / "a", bent(clock))
    with opened(tmp_path / "a", bent(clock)) as store:
        assert [t.name for t in store.topics()] == ["t"]
        assert ends(store) == [b"dropped/late"]


def _next(**changed: Any) -> str | None:
    """The reason why segment 4 of two may go; by default at 10 s, in a log of 1,000 bytes."""
    facts: dict[str, Any] = {
        "now_ms": 10_000, "hour": 3, "disk_used": 0.1, "total_bytes": 1000
    }  # fmt: skip
    facts |= {name: changed.pop(name) for name in list(changed) if name in facts}
    found = next_to_go([Aged(4, 0), Aged(5, 5000)], settings(**changed), **facts)
    assert found is None or found.number == 4
    return None if found is None else found.reason


def test_a_segment_goes_when_a_limit_is_passed_and_not_when_it_is_reached() -> None:
    by_size, by_age = Retention(max_bytes=1000), Retention(hot_for=10)
    assert _next(retention=by_size) is None
    assert "limit is 1000" in str(_next(retention=by_size, total_bytes=1001))
    assert _next(retention=by_age) is None
    assert "older than 10 s" in str(_next(retention=by_age, now_ms=10_001))
    hour = {"retention": by_age, "now_ms": 10_001, "delete_when": 3}
    assert _next(**hour, hour=4) is None
    assert _next(**hour, hour=3) is not None
    assert "it is expired" in str(_next(**hour, hour=4, disk_used=0.75))
    assert _next(retention=by_age, disk_used=0.84) is None
    assert "85%" in str(_next(retention=by_age, disk_used=0.85))
    assert _next(disk_used=1.0, now_ms=1 << 50, total_bytes=1 << 50) is None


def test_between_two_that_go_there_is_a_pause_in_which_a_close_is_heard() -> None:
    left = [Why(n, "") for n in range(5)]
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    def look() -> Why | None:
        return left[0] if left else None

    def drop(why: Why) -> None:
        assert left.pop(0) == why

    assert drop_expired(look, drop, pause, 7.0) == 3
    assert pauses == [7.0] * 3
    assert drop_expired(look, drop, pause, 7.0) == 2
    assert pauses == [7.0] * 4


def test_what_was_left_of_an_erasing_retention_is_overwritten_by_the_next_opening(
    tmp_path: Path,
) -> None:
    files = WatchedFiles()
    clock = VirtualClock()
    with opened(tmp_path / "a", bent(clock, files, retention=Retention(hot_for=60))) as store:
        put(store, 0, 400)
        store.seal()
        clock.advance(100)
        left = killed(store, tmp_path / "b")
        assert store.apply_retention() > 1
        shutil.rmtree(left / "index")
        shutil.copytree(store.path / "index", left / "index")
    again = WatchedFiles()
    kvstore.open(left, bent(clock, again, secure_erase=True)).close()
    assert again.kinds().count("erase") > 1
    assert numbers_of(left) == numbers_of(tmp_path / "a")


def test_store_times_do_not_fall_though_all_that_was_stored_before_is_gone(tmp_path: Path) -> None:
    clock = VirtualClock()
    config = bent(clock, retention=Retention(hot_for=60))
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 300)
        store.seal()
        last = store.get("t", 0, 299).stored_at
        clock.advance(100)
        assert store.apply_retention() > 0
        assert store.bounds("t", 0) == (300, 300)
    clock.step(-7200)
    with opened(tmp_path / "a", config) as store:
        killed(store, tmp_path / "b")
    for path in (tmp_path / "a", tmp_path / "b"):
        with opened(path, config) as store:
            assert put(store, 300, 1)[0].offset == 300
            assert store.get("t", 0, 300).stored_at >= last
