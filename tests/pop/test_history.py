"""The history of a group that pops: what it is done with, and when it became so."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Store, StoreConfig
from kvstore.index.keys import LOCKS, OFFSET_HISTORY
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import openings

START_MS = 1_700_000_000_000
Opens = Callable[..., Store]


@pytest.fixture
def opens(tmp_path: Path, clock: VirtualClock) -> Iterator[Opens]:
    def open_store(**settings: Any) -> Store:
        read_only = settings.pop("read_only", False)
        config = StoreConfig(segment_size=1 << 20, clock=clock, **settings)
        return kvstore.open(tmp_path / "store", config, read_only=read_only)

    with openings(open_store) as opening:
        yield opening


@pytest.fixture
def store(opens: Opens) -> Store:
    """Group "g", and topic "t" of two queues with 100 messages in each; nothing looks by itself."""
    made = opens()
    fill(made)
    return made


def fill(store: Store) -> None:
    inside.stop_housekeepers(store)
    store.create_topic("t", queues=2)
    store.create_group("g")
    store.put_batch([Message("t", b"%d" % n, queue=q) for q in (0, 1) for n in range(100)])


def history(store: Store, queue: int = 0) -> list[tuple[float, int]]:
    """Seconds since the start, and offsets."""
    found = store.offset_history("g", "t", queue)
    return [((one.committed_at - START_MS) / 1000, one.offset) for one in found]


def passing(store: Store, clock: VirtualClock, seconds: int) -> None:
    """Let seconds pass, as the housekeeper sees them."""
    for _ in range(seconds):
        clock.advance(1)
        if inside.progress(store).due():
            inside.progress(store).sample()


def rows(store: Store) -> int:
    return sum(1 for _ in inside.families(store).rows(OFFSET_HISTORY, b""))


def test_the_history_has_what_was_acked_and_when(store: Store, clock: VirtualClock) -> None:
    popped = store.pop("g", "t", limit=1, queue=0, invisible_for=600)
    popped += store.pop("g", "t", limit=99, queue=0, invisible_for=600)
    assert history(store) == [(0, 0)]
    passing(store, clock, 10)
    store.ack_batch([p.receipt for p in popped])
    passing(store, clock, 10)
    assert store.committed_offset("g", "t", 0) == 100
    assert history(store) == [(0, 0), (11, 100)]
    assert history(store, 1) == []


def test_what_nobody_asked_for_meanwhile_is_in_the_history_too(
    store: Store, clock: VirtualClock
) -> None:
    popped = store.pop("g", "t", limit=6, queue=0, invisible_for=600)
    for one in (0, 2, 1, 3, 5, 4):
        passing(store, clock, 10)
        store.ack(popped[one].receipt)
    passing(store, clock, 10)
    assert history(store) == [(1, 0), (11, 1), (31, 3), (41, 4), (61, 6)]


def test_of_an_interval_the_last_is_kept_and_acks_alone_write_nothing(
    store: Store, clock: VirtualClock
) -> None:
    popped = store.pop("g", "t", limit=50, queue=0, invisible_for=600)
    for one in popped:
        store.ack(one.receipt)
        clock.advance(0.01)
    assert rows(store) == 0
    assert history(store) == [(0.5, 50)]
    assert history(store) == [(0.5, 50)]
    assert rows(store) == 1


def test_the_housekeeper_samples_at_each_interval_until_all_is_done(
    store: Store, clock: VirtualClock
) -> None:
    progress = inside.progress(store)
    assert not progress.due()
    popped = store.pop("g", "t", limit=2, queue=0, invisible_for=600)
    progress.sample()
    assert rows(store) == 1
    assert not progress.due()
    passing(store, clock, 5)
    assert rows(store) == 1, "nothing moved"
    store.ack_batch([p.receipt for p in popped])
    passing(store, clock, 3)
    assert rows(store) == 2
    assert not progress.due(), "all is done"
    assert history(store) == [(0, 0), (6, 2)]


def test_an_ack_after_a_restart_is_in_the_history(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    popped = store.pop("g", "t", limit=2, queue=0, invisible_for=600)
    passing(store, clock, 5)
    store.close()
    again = opens()
    inside.stop_housekeepers(again)
    again.ack(popped[0].receipt)
    passing(again, clock, 5)
    assert again.offset_history("g", "t", 0)[-1].committed_at == START_MS + 6000
    assert history(again) == [(1, 0), (6, 1)]


def test_what_a_redrive_gives_back_is_not_done_any_more(store: Store, clock: VirtualClock) -> None:
    store.alter_group("g", max_attempts=1)
    store.pop("g", "t", queue=0, invisible_for=1)
    clock.advance(5)
    for one in store.pop("g", "t", limit=5, queue=0, invisible_for=600):
        store.ack(one.receipt)
    passing(store, clock, 2)
    done = store.committed_offset("g", "t", 0)
    assert history(store) == [(6, done)]
    assert inside.offsets(store).moved == {}
    assert store.redrive("g") == 1
    passing(store, clock, 2)
    assert history(store) == [(6, done), (8, 0)]


def test_a_deleted_group_is_sampled_no_more(store: Store, clock: VirtualClock) -> None:
    store.pop("g", "t", limit=2, queue=0, invisible_for=600)
    store.delete_group("g")
    passing(store, clock, 2)
    assert (rows(store), inside.offsets(store).moved) == (0, {})


def test_a_message_that_becomes_a_dead_letter_is_done(store: Store, clock: VirtualClock) -> None:
    store.alter_group("g", max_attempts=1)
    store.pop("g", "t", queue=0, invisible_for=1)
    clock.advance(5)
    store.alter_topic("t", queues=1)
    store.reset_offset("g", "t", to="end", queue=1)
    store.pop("g", "t", queue=1)
    inside.progress(store).sample()
    clock.advance(5)
    store.pop("g", "t", queue=0, limit=1, invisible_for=600)
    assert history(store)[-1] == (10, 1)


def test_the_history_survives_a_close_and_a_reader_sees_it(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    popped = store.pop("g", "t", limit=4, queue=0, invisible_for=600)
    passing(store, clock, 10)
    store.ack_batch([p.receipt for p in popped[:3]])
    clock.advance(10)
    store.close()
    for read_only in (True, False):
        with opens(read_only=read_only) as again:
            assert history(again) == [(1, 0), (20, 3)]


def test_what_a_crash_kept_from_being_sampled_is_in_the_history_when_it_is_asked_for(
    store: Store, opens: Opens, clock: VirtualClock, tmp_path: Path
) -> None:
    popped = store.pop("g", "t", limit=4, queue=0, invisible_for=600)
    passing(store, clock, 10)
    store.ack_batch([p.receipt for p in popped[:3]])
    store.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    clock.advance(10)
    (tmp_path / "crashed" / "lock").unlink()
    config = StoreConfig(segment_size=1 << 20, clock=clock)
    with kvstore.open(tmp_path / "crashed", config) as again:
        assert history(again) == [(1, 0), (20, 3)]
        clock.advance(10)
        assert history(again) == [(1, 0), (20, 3)]


def test_a_clock_that_was_ahead_makes_no_rows(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    store.commit_offset("g", "t", 0, 90)
    store.close()
    clock.step(-1000)
    again = opens()
    inside.stop_housekeepers(again)
    again.reset_offset("g", "t", to="begin")
    again.pop("g", "t", queue=0, invisible_for=600)
    for _ in range(5):
        clock.advance(5)
        inside.progress(again).sample()
    assert history(again) == [(-1000, 0), (0, 90)]


def test_a_commit_and_a_reset_among_pops_have_their_place(
    store: Store, clock: VirtualClock
) -> None:
    popped = store.pop("g", "t", limit=4, queue=0, invisible_for=600)
    store.ack_batch([p.receipt for p in popped])
    passing(store, clock, 10)
    store.commit_offset("g", "t", 0, 50)
    passing(store, clock, 10)
    store.pop("g", "t", limit=4, queue=0, invisible_for=600)
    passing(store, clock, 10)
    store.reset_offset("g", "t", offset=7, queue=0)
    passing(store, clock, 10)
    (one,) = store.pop("g", "t", queue=0, invisible_for=600)
    store.ack(one.receipt)
    passing(store, clock, 10)
    assert history(store) == [(1, 4), (10, 50), (30, 7), (41, 8)]


def test_no_lock_is_read_for_the_history_however_many_there_are(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    popped = [store.pop("g", "t", queue=0, invisible_for=600)[0] for _ in range(20)]
    families = inside.families(store)
    read = families.rows

    def but_no_locks(family: str, *keys: Any) -> Any:
        assert family != LOCKS
        return read(family, *keys)

    monkeypatch.setattr(families, "rows", but_no_locks)
    passing(store, clock, 5)
    store.ack(popped[0].receipt)
    passing(store, clock, 5)
    assert history(store) == [(1, 0), (6, 1)]


def test_a_reset_beside_a_sample_is_what_history_has(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pop("g", "t", limit=20, queue=0, invisible_for=600)
    clock.advance(10)
    write = inside.offsets(store).write_history
    resets = threading.Thread(
        target=lambda: store.reset_offset("g", "t", offset=70, queue=0), daemon=True
    )

    def while_another_resets(rows: Any) -> None:
        monkeypatch.setattr(inside.offsets(store), "write_history", write)
        resets.start()
        resets.join(0.2)
        write(rows)

    monkeypatch.setattr(inside.offsets(store), "write_history", while_another_resets)
    inside.progress(store).sample()
    resets.join(60)
    assert history(store)[-1] == (10, 70)


def test_without_history_nothing_is_sampled(opens: Opens, clock: VirtualClock) -> None:
    store = opens(offset_history_for=0)
    fill(store)
    for one in store.pop("g", "t", limit=20):
        store.ack(one.receipt)
    clock.advance(10)
    assert history(store) == []
    assert (rows(store), inside.offsets(store).moved) == (0, {})
